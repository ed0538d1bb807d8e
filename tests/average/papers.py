"""The algorithms of the papers, line by line: loops over ranks on NumPy arrays, and a problem for them to solve.

The ranks have other data each, 3 samples on the first for each one on the second, and weigh what they combine by them.
"""

import numpy as np

STEPS, RATE = 5, 0.05  # inner steps of a round, and the learning rate of these


class Problem:
    """Least squares: rank r has rows of its own, and a loss that is the mean over them."""

    def __init__(self, samples=(6, 2), width=4, seed=3):
        rng = np.random.default_rng(seed)
        self.samples = np.array(samples, np.float64)
        self.rows = [rng.standard_normal((n, width)) for n in samples]
        self.targets = [rng.standard_normal(n) + 5 * r for r, n in enumerate(samples)]
        self.start = rng.standard_normal(width)
        self.ranks = range(len(samples))

    def gradient(self, r, x):
        return 2 * self.rows[r].T @ (self.rows[r] @ x - self.targets[r]) / len(self.targets[r])

    def mean(self, values):
        return sum(n * x for n, x in zip(self.samples, values)) / self.samples.sum()

    def inner_loop(self, r, x, steps=STEPS):
        for _ in range(steps):
            x = x - RATE * self.gradient(r, x)
        return x


def diloco(problem, rounds, lr, momentum, nesterov=True):
    """Algorithm 1; OuterOpt is PyTorch's SGD. Gives the ranks' values after each round, as do all here."""
    theta, buffer = problem.start, None
    for _ in range(rounds):
        workers = [problem.inner_loop(r, theta) for r in problem.ranks]
        delta = problem.mean([theta - worker for worker in workers])  # the outer gradient
        buffer = delta if buffer is None else momentum * buffer + delta
        theta = theta - lr * (delta + momentum * buffer if nesterov else buffer)
        yield [theta for _ in problem.ranks]


def slow_momentum(problem, rounds, alpha, beta):
    """SlowMo's algorithm 1, with SGD as the base optimizer and a learning rate that stays."""
    x, u = problem.start, np.zeros_like(problem.start)
    for _ in range(rounds):
        average = problem.mean([problem.inner_loop(r, x) for r in problem.ranks])
        u = beta * u + (x - average) / RATE
        x = x - alpha * RATE * u
        yield [x for _ in problem.ranks]


def elastic(problem, rounds, alpha, beta):
    """EASGD, equations 5 and 6, for each round of inner steps."""
    xs, center = [problem.start for _ in problem.ranks], problem.start
    for _ in range(rounds):
        xs = [problem.inner_loop(r, x) for r, x in zip(problem.ranks, xs)]
        xs, center = (
            [x - alpha * (x - center) for x in xs],
            (1 - beta) * center + beta * problem.mean(xs),
        )
        yield xs


def post_local(problem, steps, switch, every):
    """Post-local SGD: one step between two averages up to the switch, then `every`. Values after each step."""
    xs, since = [problem.start for _ in problem.ranks], 0
    for t in range(steps):
        xs = [problem.inner_loop(r, x, steps=1) for r, x in zip(problem.ranks, xs)]
        since += 1
        if since == (1 if t < switch else every):
            xs, since = [problem.mean(xs) for _ in problem.ranks], 0
        yield xs


def streaming(problem, rounds, lr, momentum, fragments, delay, alpha):
    """Streaming DiLoCo's algorithm 2 for equal fragments of x. Values after each round of STEPS · fragments steps.

    Fragment p is sent `delay` steps before it arrives, at step STEPS·(p + 1) of each period.
    """
    xs, shared, period = [problem.start.copy() for _ in problem.ranks], problem.start.copy(), STEPS * fragments
    cuts = np.array_split(np.arange(len(shared)), fragments)
    buffer, deltas = np.zeros_like(shared), {}
    for t in range(1, rounds * period + 1):
        xs = [problem.inner_loop(r, x, steps=1) for r, x in zip(problem.ranks, xs)]
        for p, cut in enumerate(cuts):
            if (t + delay - STEPS * (p + 1)) % period == 0:
                deltas[p] = problem.mean([shared[cut] - x[cut] for x in xs])
            if (t - STEPS * (p + 1)) % period == 0:
                buffer[cut] = momentum * buffer[cut] + deltas[p]
                shared[cut] -= lr * (deltas[p] + momentum * buffer[cut])
                for x in xs:
                    x[cut] = alpha * x[cut] + (1 - alpha) * shared[cut]
        if t % period == 0:
            yield [x.copy() for x in xs]
