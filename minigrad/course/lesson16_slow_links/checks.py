"""What is asked of local steps: the outer step, the training, and how many steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from minigrad import nn, optim
from minigrad.arguments import is_integer
from minigrad.backend.random import manual_seed
from minigrad.course.lesson import Student, expect
from minigrad.distributed import Communicator, Recording, run
from minigrad.nn import functional
from minigrad.recording import no_grad
from minigrad.tensor import Tensor

Array = np.ndarray[Any, Any]

_TOLERANCE = 1e-12


# ----------------------------------------------------------------------------------------------------- the outer step


def check_outer_step(student: Student) -> str:
    """Plain averaging is a case of it, and several steps of it are those of SGD with Nesterov's momentum."""
    step, drawn = student.outer_step, np.random.default_rng(16)
    start, average = drawn.standard_normal((2, 5))
    _check_untouched(step, start, average)
    values, _ = step(start, average, np.zeros(5), 1.0, 0.0)
    expect(
        _off(values, average) < _TOLERANCE,
        f"outer_step(start, average, zeros, lr=1, momentum=0): expected the average, {average.round(3)}, got "
        f"{np.round(values, 3)}, where start was {start.round(3)}: change is start - average, and one goes against it",
    )
    rounds = 0
    for momentum in (0.9, 0.5, 0.0):
        values, velocity = start.copy(), np.zeros(5)
        theirs = nn.Parameter(Tensor(start.copy()))
        optimizer = optim.SGD([theirs], lr=1.0, momentum=momentum, nesterov=momentum > 0.0)
        for number, lr in enumerate((0.7, 0.5, 1.0, 0.3), start=1):
            average, before = drawn.standard_normal(5), (values, velocity)
            values, velocity = step(values, average, velocity, lr, momentum)
            optimizer.param_groups[0]["lr"] = lr
            theirs.grad = Tensor(theirs.detach().numpy() - average)
            optimizer.step()
            rounds += 1
            wanted = theirs.detach().numpy()
            expect(
                _off(values, wanted) < 1e-10,
                f"outer_step, momentum {momentum}, lr {lr} in round {number}: expected {wanted.round(4)}, which SGD "
                f"with nesterov={momentum > 0.0} makes of start - average as the gradient, got {np.round(values, 4)}"
                f"{_reason(values, average, *before, lr, momentum)}",
            )
    return f"{rounds} rounds are those of SGD with Nesterov's momentum; lr 1 without momentum is plain averaging"


def _check_untouched(step: Any, start: Array, average: Array) -> None:
    given = [start.copy(), average.copy(), np.full(5, 0.5)]
    step(*given, 0.7, 0.9)
    for name, array, was in zip(("start", "average", "velocity"), given, (start, average, np.full(5, 0.5))):
        expect(
            np.array_equal(array, was),
            f"outer_step: expected {name} as it was, got it changed from {was.round(3)} to {array.round(3)}: `-=` and "
            "`+=` write into the caller's array",
        )
    values, velocity = step(start.astype(np.float32), average.astype(np.float32), np.zeros(5, np.float32), 0.7, 0.9)
    kinds = [np.asarray(array).dtype.name for array in (values, velocity)]
    expect(kinds == ["float32"] * 2, f"outer_step of float32 arrays: expected float32 ones, got {kinds}")


def _reason(values: Array, average: Array, start: Array, velocity: Array, lr: float, momentum: float) -> str:
    """Which mistake gives these values, where it is a known one."""
    change = start - average
    after = momentum * velocity + change
    known = {
        "that is without the look-ahead: the last line has change + momentum · the new velocity": start - lr * after,
        "the last line has the new velocity": start - lr * (change + momentum * velocity),
        "the change is missing in the last line": start - lr * momentum * after,
        "the rate is no part of the velocity": start - lr * change - momentum * (momentum * velocity + lr * change),
    }
    found = [words for words, made in known.items() if momentum and _off(values, made) < 1e-10]
    return f": {found[0]}" if found else ""


def _off(one: Any, other: Any) -> float:
    return float(np.max(np.abs(np.asarray(one) - np.asarray(other))))


# ------------------------------------------------------------------------------------------------------- the training


class _Setting(NamedTuple):
    """Ranks, and how they train."""

    name: str
    sizes: tuple[int, ...]  # of a batch of each rank; twice that in each third step, on all ranks but the first
    steps: int
    every: int
    lr: float
    momentum: float
    inner: Any  # makes the inner optimizer
    advice: str


def _sgd(params: Any) -> Any:
    return optim.SGD(params, lr=0.1)


def _sgd_with_momentum(params: Any) -> Any:
    return optim.SGD(params, lr=0.1, momentum=0.9)


_DATA_PARALLEL = _Setting(
    "three ranks of 12, 3 and 1 samples in most steps, every 1",
    (12, 3, 1),
    4,
    1,
    1.0,
    0.0,
    _sgd,
    "one step of plain SGD between two meetings is data-parallel training, where a rank counts by its samples",
)
_SETTINGS = [
    _Setting(
        "two ranks of 4 samples in most steps, every 3 of 7 steps",
        (4, 4),
        7,
        3,
        1.0,
        0.0,
        _sgd,
        "ranks meet after steps 3 and 6, and once more at the end for the step that is left, and a rank counts by its "
        "samples since they met last",
    ),
    _Setting(
        "a rank alone, every 3",
        (4,),
        7,
        3,
        1.0,
        0.0,
        _sgd_with_momentum,
        "the mean over one rank changes nothing, and the inner optimizer keeps its momentum",
    ),
    _DATA_PARALLEL,
    _Setting(
        "three ranks of 12, 3 and 1 samples in most steps, every 2, lr 0.7, momentum 0.9",
        (12, 3, 1),
        6,
        2,
        0.7,
        0.9,
        _sgd_with_momentum,
        "start and velocity are those after the last meeting, and no meeting is made where no step is left",
    ),
]


def check_train_locally(student: Student) -> str:
    """Compared with ranks that are trained one after the other; by its calls and bytes; and with one device."""
    found = 0
    for setting in _SETTINGS:
        made = run(_on_rank, len(setting.sizes), student, setting, timeout_s=5.0)
        wanted = _one_after_the_other(setting)
        values = [each for each, _ in made]
        where = f"train_locally, {setting.name}"
        expect(
            all(np.array_equal(each, values[0]) for each in values),
            f"{where}: expected equal parameters on all ranks, got some that differ by "
            f"{max(_off(each, values[0]) for each in values):.2g}: {setting.advice}",
        )
        off = _off(values[0], wanted)
        advice = setting.advice if off > 1e-6 else "that little is rounding: are all arrays of the parameters' dtype?"
        expect(
            off < 1e-11,
            f"{where}: expected the parameters of ranks that are trained one after the other and averaged by hand, got "
            f"some that differ by {off:.2g}: {advice}",
        )
        meetings = math.ceil(setting.steps / setting.every)
        calls = made[0][1]
        elements, kinds = sum(count for _, count in calls), ", ".join(sorted({kind for kind, _ in calls}))
        expect(
            calls == [("all_reduce", len(wanted) + 1)] * meetings,
            f"{where}: expected {meetings} all_reduce of {len(wanted) + 1} elements, the parameters and the samples, "
            f"got {len(calls)} calls ({kinds or 'none'}) of {elements} elements in all: what goes over a slow link is "
            "what this is about",
        )
        found += 1
    off = _from_one_device(student)
    expect(
        off < 1e-11,
        f"train_locally, every 1 with plain SGD: expected the parameters of one device on the joined batches, got some "
        f"that differ by {off:.2g}",
    )
    return f"{found} trainings are those by hand, to 1e-11; so is every=1 that of one device, and all ranks are alike"


def _model() -> nn.Module:
    manual_seed(16)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to("float64")


def _batches(setting: _Setting, rank: int) -> list[tuple[Tensor, Tensor]]:
    drawn = np.random.default_rng([16, rank])
    sizes = [setting.sizes[rank] * (2 if rank and step % 3 == 1 else 1) for step in range(setting.steps)]
    return [(Tensor(drawn.standard_normal((size, 3))), Tensor(drawn.standard_normal((size, 2)))) for size in sizes]


def _values(module: nn.Module) -> Array:
    return np.concatenate([param.detach().numpy().ravel() for param in module.parameters()])


def _on_rank(comm: Communicator, student: Student, setting: _Setting) -> tuple[Array, list[tuple[str, int]]]:
    """The parameters at the end, and the kind and the elements of each call."""
    recording, module = Recording(comm), _model()
    optimizer = setting.inner(module.parameters())
    batches = _batches(setting, comm.rank)
    student.train_locally(
        recording, module, optimizer, batches, functional.mse_loss, setting.every, setting.lr, setting.momentum
    )
    return _values(module), [(call.kind, call.count) for call in recording.calls]


def _one_after_the_other(setting: _Setting) -> Array:
    """The same without a communicator: the outer step is that of an SGD on one vector."""
    replicas = [_model() for _ in setting.sizes]
    optimizers = [setting.inner(replica.parameters()) for replica in replicas]
    batches = [_batches(setting, rank) for rank in range(len(replicas))]
    shared = nn.Parameter(Tensor(_values(replicas[0])))
    outer = optim.SGD([shared], lr=setting.lr, momentum=setting.momentum, nesterov=setting.momentum > 0.0)
    for begin in range(0, setting.steps, setting.every):
        for replica, optimizer, own in zip(replicas, optimizers, batches):
            for x, y in own[begin : begin + setting.every]:
                optimizer.zero_grad()
                functional.mse_loss(replica(x), y).backward()
                optimizer.step()
        samples = [sum(len(x) for x, _ in own[begin : begin + setting.every]) for own in batches]
        mean = sum(n * _values(replica) for n, replica in zip(samples, replicas)) / sum(samples)
        shared.grad = Tensor(shared.detach().numpy() - mean)
        outer.step()
        for replica in replicas:
            _load(replica, shared.detach().numpy())
    return _values(replicas[0])


def _load(module: nn.Module, values: Array) -> None:
    begin = 0
    with no_grad():
        for param in module.parameters():
            param.copy_(Tensor(values[begin : begin + param.numel()].reshape(param.shape)))
            begin += param.numel()


def _from_one_device(student: Student) -> float:
    """By how much training with every=1 differs from that of one device on the batches of all ranks."""
    setting = _DATA_PARALLEL
    (ours, _), *_ = run(_on_rank, len(setting.sizes), student, setting, timeout_s=5.0)
    module, batches = _model(), [_batches(setting, rank) for rank in range(len(setting.sizes))]
    optimizer = setting.inner(module.parameters())
    for parts in zip(*batches):
        x, y = (Tensor(np.concatenate([part[i].numpy() for part in parts])) for i in range(2))
        optimizer.zero_grad()
        functional.mse_loss(module(x), y).backward()
        optimizer.step()
    return _off(ours, _values(module))


# ---------------------------------------------------------------------------------------------- how many local steps

RANKS, BATCH, RATE = 4, 8, 0.05
KINDS, FEATURES = 10, 16
CHOICES = (1, 2, 4, 8, 16, 32, 64, 128)
MOST_OVER_BEST = 1.05
TIME_STEPS = 256  # for so many there is time, if ranks never meet
_LINKS = [(8e-3, 0.02), (0.5, 0.25), (8e-3, 4.0), (0.02, 16.0)]  # seconds of a step; a meeting takes so many steps


def check_local_steps(student: Student) -> str:
    """Four ranks learn to tell points in a given time, with what is chosen and with all of a set."""
    asked, pairs = [], []
    for step_s, meeting_steps in _LINKS:
        reduce_s, most = meeting_steps * step_s, CHOICES[-1]
        chosen = student.local_steps(step_s, reduce_s, most)
        where = f"local_steps({step_s:g}, {reduce_s:g}, {most})"
        expect(
            is_integer(chosen) and 1 <= chosen <= most,
            f"{where}: expected an int from 1 to {most}, got {chosen!r}",
        )
        asked.append((where, int(chosen), meeting_steps))
        pairs += [(every, steps_in_time(every, meeting_steps)) for every in (*CHOICES, int(chosen))]
    found, worst = iter(Problem().losses_after(pairs)), 0.0
    for where, chosen, meeting_steps in asked:
        losses = {every: next(found) for every in CHOICES}
        best, own = min(losses, key=losses.__getitem__), next(found)
        expect(
            own <= MOST_OVER_BEST * losses[best],
            f"{where}: expected a number with which the loss, when the time is over, is at most {MOST_OVER_BEST} times "
            f"that with {best}, which is {losses[best]:.3f}, got {chosen} with {own:.3f}: "
            f"{_what_it_costs(chosen, best, meeting_steps)}",
        )
        worst = max(worst, own / losses[best])
    said = ", ".join(f"{chosen} where a meeting takes {meeting:g} steps" for _, chosen, meeting in asked)
    return f"{said}: at most {worst:.3f} times the best loss of {len(CHOICES)} choices"


def _what_it_costs(chosen: int, best: int, meeting_steps: float) -> str:
    if chosen < best:
        here, there = (steps_in_time(every, meeting_steps) for every in (chosen, best))
        return f"only {here} steps were made, with {best} it is {there}; the rest of the time went into meetings"
    return f"between two meetings ranks drift apart for {chosen} steps, and there was time to meet more often"


def steps_in_time(every: int, meeting_steps: float) -> int:
    """The steps that each rank makes in the time of 256, if a meeting takes so many; the last one ends with one."""
    made = range(1, TIME_STEPS + 1)
    return max((n for n in made if n + math.ceil(n / every) * meeting_steps <= TIME_STEPS + 1e-9), default=0)


class Problem:
    """Points of ten kinds for four ranks: three tenths of what each has are of all kinds, the others of a few.

    Attributes:
        points: (rows, 17), the last column ones; `kinds`: (rows,).
        rows: (steps, ranks, samples), those of each batch.
    """

    def __init__(self) -> None:
        drawn = np.random.default_rng(16)
        centres, self.kinds = drawn.standard_normal((KINDS, FEATURES)), np.arange(2000) % KINDS
        points = centres[self.kinds] + drawn.standard_normal((len(self.kinds), FEATURES))
        self.points = np.concatenate([points, np.ones((len(points), 1))], axis=1)
        order = np.argsort(self.kinds, kind="stable")
        anywhere = np.flatnonzero(drawn.random(len(order)) < 0.3)
        order[anywhere] = order[drawn.permutation(anywhere)]
        own = order.reshape(RANKS, -1)
        picked = drawn.integers(0, own.shape[1], (TIME_STEPS, RANKS, BATCH))
        self.rows = np.take_along_axis(own[None], picked, axis=2)

    def losses_after(self, pairs: Sequence[tuple[int, int]]) -> list[float]:
        """Of the mean of the ranks' parameters after `steps` steps with a meeting after each `every`, for each pair."""
        params = np.zeros((len(pairs), RANKS, self.points.shape[1], 10))
        ends = np.zeros((len(pairs), self.points.shape[1], 10))
        for step, rows in enumerate(self.rows[: max(steps for _, steps in pairs)], start=1):
            x, gradient = self.points[rows], _softmax(self.points[rows] @ params)
            gradient[:, np.arange(RANKS)[:, None], np.arange(BATCH), self.kinds[rows]] -= 1.0
            params -= RATE / BATCH * np.swapaxes(x, 1, 2) @ gradient
            for at, (every, steps) in enumerate(pairs):
                if step % every == 0:
                    params[at] = params[at].mean(axis=0)
                if step == steps:
                    ends[at] = params[at].mean(axis=0)
        return [self.loss(each) for each in ends]

    def loss(self, params: Array) -> float:
        """Cross-entropy over all points."""
        chances = _softmax(self.points @ params)
        return float(-np.log(chances[np.arange(len(chances)), self.kinds]).mean())


def _softmax(scores: Array) -> Array:
    raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))
