"""Outer optimizers by ParameterAverager on ranks: what the papers say, what others have recorded, and what goes along.

Rank 0 has three samples for each one of rank 1, and data of its own.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minigrad
from minigrad import nn, optim
from minigrad.distributed import DDP, ParameterAverager, SoloCommunicator, average_parameters, run
from minigrad.distributed.average import EASGD, DiLoCo, EveryK, Mean, PostLocalSGD, SlowMo, StreamingDiLoCo, Sync
from minigrad.distributed.average.fragments import due_at
from minigrad.errors import ArgumentError, ReplicaMismatchError
from tests.average import papers
from tests.average.test_outer import RECORDED
from tests.distributed.worlds import run_ranks

ROUNDS = 20


def trained(comm, policy, outer, steps, problem, options=()):
    """The values after each combination, and after each step; the model is the problem's, as a linear layer."""
    layer = nn.Linear(4, 1, bias=False, dtype="float64")
    layer.weight.data[...] = problem.start
    averager = ParameterAverager(layer, comm, policy, outer, **dict(options))
    optimizer = optim.SGD(layer.parameters(), lr=papers.RATE)
    x, y = (minigrad.Tensor(part[comm.rank]) for part in (problem.rows, problem.targets))
    combined, stepped = [], []
    for _ in range(steps):
        optimizer.zero_grad()
        (layer(x)[:, 0] - y).square().mean().backward()
        optimizer.step()
        report = averager.step(len(x))
        stepped.append(layer.weight.data[0].copy())
        if report is not None:
            combined.append(stepped[-1])
    return combined, stepped


@pytest.mark.parametrize(
    "outer, paper",
    [
        (DiLoCo(lr=0.7, momentum=0.9), lambda problem: papers.diloco(problem, ROUNDS, 0.7, 0.9)),
        (SlowMo(lr=0.8, momentum=0.6), lambda problem: papers.slow_momentum(problem, ROUNDS, 0.8, 0.6)),
        (EASGD(alpha=0.3, beta=0.6), lambda problem: papers.elastic(problem, ROUNDS, 0.3, 0.6)),
        (StreamingDiLoCo(0.7, 0.9, fragments=1), lambda problem: papers.diloco(problem, ROUNDS, 0.7, 0.9)),
        (DiLoCo(lr=1.0, momentum=0.0), None),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("kind", ["threads", "nccl"])
def test_is_what_the_paper_says(kind, outer, paper):
    problem, policy, steps = papers.Problem(), EveryK(papers.STEPS), papers.STEPS * ROUNDS

    def body(comm):
        mean = trained(comm, policy, Mean(), steps, problem)[0] if paper is None else None
        return trained(comm, policy, outer, steps, problem)[0], mean

    results = run_ranks(kind, body, 2)
    theirs = np.array(list(paper(problem))) if paper else np.stack([mean for _, mean in results], axis=1)
    assert theirs.shape == (ROUNDS, 2, 4)
    for rank, (ours, _) in enumerate(results):
        np.testing.assert_allclose(ours, theirs[:, rank], rtol=0, atol=1e-12)
    assert outer.makes_alike == np.array_equal(results[0][0], results[1][0])


@pytest.mark.parametrize("delay, alpha", [(0, 0.0), (2, 0.0), (0, 0.25), (3, 0.5)])
def test_streaming_is_what_the_paper_says(delay, alpha):
    """With momentum, and ranks that differ: what was recorded has neither."""
    problem, fragments = papers.Problem(), 2
    outer, steps = StreamingDiLoCo(0.7, 0.9, fragments, delay, alpha), papers.STEPS * fragments
    results = run(lambda comm: trained(comm, EveryK(steps), outer, steps * ROUNDS, problem)[1][steps - 1 :: steps], 2)
    theirs = np.array(list(papers.streaming(problem, ROUNDS, 0.7, 0.9, fragments, delay, alpha)))
    assert theirs.shape == (ROUNDS, 2, 4) and np.abs(theirs[-1] - problem.start).max() > 0.05
    for rank, ours in enumerate(results):
        np.testing.assert_allclose(ours, theirs[:, rank], rtol=0, atol=1e-12)


def test_post_local_is_what_the_paper_says():
    problem, steps = papers.Problem(), 7 + 4 * (ROUNDS - 7)
    results = run(lambda comm: trained(comm, PostLocalSGD(7, 4), Mean(), steps, problem)[1], 2)
    theirs = np.array(list(papers.post_local(problem, steps, 7, 4)))
    for rank, ours in enumerate(results):
        np.testing.assert_allclose(ours, theirs[:, rank], rtol=0, atol=1e-12)


class Two(nn.Module):
    """The recorded model: two weights of one element, and a loss whose gradient is 2 in each."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(1, 1, bias=False, dtype="float64") for _ in range(2)])
        for layer in self.layers:
            layer.weight.data[...] = 1.0

    def forward(self, x):
        return sum(layer(x) for layer in self.layers)


@pytest.mark.parametrize("named", [True, False], ids=["by name", "equal cuts"])
@pytest.mark.parametrize("case", RECORDED["cases"], ids=lambda case: f"delay {case['delay']}, alpha {case['alpha']}")
def test_streaming_goes_as_was_recorded(case, named):
    """Equal cuts of the flat layout are the other way round, for it has the last layer first."""

    def body(comm):
        model = Two()
        fragments = (("layers.0",), ("layers.1",)) if named else 2
        outer = StreamingDiLoCo(2.0, 0.0, fragments, case["delay"], case["alpha"])
        averager = ParameterAverager(model, comm, EveryK(RECORDED["setup"]["sync_every"]), outer)
        optimizer = optim.SGD(model.parameters(), lr=1.0)
        history = []
        for _ in range(case["steps"]):
            history.append([layer.weight.item() for layer in model.layers])
            optimizer.zero_grad()
            model(minigrad.full((3, 1), 2.0, dtype="float64")).mean().backward()
            optimizer.step()
            averager.step(3)
        return history

    wanted = [case["layers.0.weight"], case["layers.1.weight"]][:: 1 if named else -1]
    assert run(body, 2) == [[list(pair) for pair in zip(*wanted)]] * 2


def by_fragments(outer, every, start, moves, samples):
    """The values of all ranks after each step of their own: a loop that keeps all that was, for any fragments."""
    count, sent_at = outer.fragments, [0] * outer.fragments
    cuts = [slice(i * len(start) // count, (i + 1) * len(start) // count) for i in range(count)]
    states, now, before = [outer.start(start[cut]) for cut in cuts], np.stack([start] * len(moves)), []
    for step in range(1, moves.shape[1] + 1):
        now = now + moves[:, step - 1]
        before.append(now)
        due = due_at(step, every, count)
        if due is not None:
            sent, cut = step - outer.delay, cuts[due]
            weights = samples[:, sent_at[due] : sent].sum(axis=1)
            sent_at[due] = sent
            if weights.any():
                average = weights @ before[sent - 1][:, cut] / weights.sum()
                now, combined = now.copy(), [outer.combine(states[due], x[cut], average) for x in now]
                states[due], now[:, cut] = combined[0][0], [values for _, values in combined]
        yield now


@given(
    world_size=st.integers(1, 3),
    fragments=st.integers(1, 3),
    each=st.integers(1, 3),
    delay=st.integers(0, 2),
    alpha=st.sampled_from([0.0, 0.25, 1.0]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=40)
def test_any_fragments_delays_and_weights(world_size, fragments, each, delay, alpha, seed):
    rng = np.random.default_rng(seed)
    width, steps, every = fragments + 2, 13, fragments * each
    outer = StreamingDiLoCo(0.7, 0.9, fragments, min(delay, each - 1), alpha)
    moves, samples = rng.standard_normal((world_size, steps, width)), rng.integers(0, 3, (world_size, steps))

    def body(comm):
        layer = nn.Linear(width, 1, bias=False, dtype="float64")
        layer.weight.data[...] = 1.0
        averager, seen = ParameterAverager(layer, comm, EveryK(every), outer), []
        for move, n in zip(moves[comm.rank], samples[comm.rank]):
            layer.weight.data[...] += move
            averager.step(int(n))
            seen.append(layer.weight.data[0].copy())
        return seen

    start = np.ones(width)
    theirs = np.stack(list(by_fragments(outer, every, start, moves, samples)), axis=1)
    np.testing.assert_allclose(run(body, world_size), theirs, rtol=0, atol=1e-11)


def test_an_outer_optimizer_of_ones_own():
    """Signs of the way that was gone: no rank moves by more than 0.25 in a round."""

    @dataclass(frozen=True)
    class Signs:
        fragments: int = 1
        delay: int = 0
        makes_alike: bool = True

        def start(self, values):
            return {"global": values.copy()}

        def combine(self, state, local, average):
            values = state["global"] + 0.25 * np.sign(average - state["global"])
            return {"global": values}, values

    def body(comm):
        layer = nn.Linear(2, 1, bias=False)
        layer.weight.data[...] = 0.0
        averager = ParameterAverager(layer, comm, outer=Signs())
        layer.weight.data[...] = ((3.0, -1.0), (-1.0, -1.0))[comm.rank]
        averager.step(1)
        return layer.weight.tolist()

    assert run(body, 2) == [[[0.25, -0.25]]] * 2


def regression(comm, step, width=3):
    """A batch: of 6 and 2 samples, and in each fourth step of rank 1 of none."""
    n = (6, 0 if step % 4 == 3 else 2)[comm.rank]
    x = np.random.default_rng([comm.rank, step]).standard_normal((n, width))
    return minigrad.Tensor(x), minigrad.Tensor(x.sum(axis=1, keepdims=True) ** 2)


def loop(comm, model, make, steps, train=None, **options):
    """A training of some steps, averaged or with a DDP; gives all values of parameters and optimizer."""
    optimizer = make(model.parameters())
    averager = ParameterAverager(model, comm, optimizer=optimizer, **options) if train is None else None
    for step in range(steps):
        x, y = regression(comm, step)
        optimizer.zero_grad()
        out = (train or model)(x)
        (((out - y) ** 2).mean() if len(x) else out.sum() * 0).backward()
        optimizer.step()
        if averager:
            averager.step(len(x))
    state = [t.numpy().copy() for entry in optimizer.state.values() for t in entry.values() if hasattr(t, "numpy")]
    return [p.data.copy() for p in model.parameters()], state


def linear():
    minigrad.manual_seed(1)
    return nn.Linear(3, 1, dtype="float64")


def momentum(params):
    return optim.SGD(params, lr=0.01, momentum=0.9)


def test_sgd_with_averaged_momentum_after_each_step_is_a_ddp():
    """Whatever the weights of a step are; where momentum is kept, ranks of uneven weights part from it."""

    def body(comm):
        model = linear()
        ddp, _ = loop(comm, model, momentum, 8, DDP(model, comm))
        averaged, state = loop(comm, linear(), momentum, 8, policy=Sync(), optimizer_state="average")
        kept, own = loop(comm, linear(), momentum, 8, policy=Sync(), optimizer_state="keep")
        return ddp, averaged, kept, state, own

    first, second = run(body, 2)
    for ddp, averaged, kept in zip(*first[:3]):
        np.testing.assert_allclose(averaged, ddp, rtol=0, atol=1e-12)
        assert np.abs(kept - ddp).max() > 1e-3
    assert all(np.array_equal(a, b) for a, b in zip(first[3], second[3]))
    assert not all(np.array_equal(a, b) for a, b in zip(first[4], second[4]))


def test_a_reset_round_begins_as_the_first_did():
    """Adam moves by its rate in the first step after each combination, whatever the gradients were."""

    def body(comm):
        model = linear()
        optimizer = optim.Adam(model.parameters(), lr=0.01, eps=1e-12)
        averager = ParameterAverager(model, comm, EveryK(3), optimizer=optimizer, optimizer_state="reset")
        moved = []
        for step in range(9):
            before = model.weight.data.copy()
            optimizer.zero_grad()
            (model(minigrad.ones(2, 3, dtype="float64")) * (1.0 + 10.0 * step)).sum().backward()
            optimizer.step()
            moved.append(float(np.abs(model.weight.data - before).max()))
            averager.step(2)
        return moved

    for moved in run(body, 2):
        np.testing.assert_allclose(moved[::3], 0.01, rtol=1e-6)
        assert moved[1] < 0.0099


def test_averaged_moments_need_equally_many_steps():
    def body(comm):
        model = linear()
        optimizer = optim.Adam(model.parameters())
        averager = ParameterAverager(model, comm, EveryK(2), optimizer=optimizer, optimizer_state="average")
        for _ in range(2):
            optimizer.zero_grad()
            model(minigrad.ones(2, 3, dtype="float64")).sum().backward()
            if comm.rank == 0:
                optimizer.step()
            averager.step(2)

    with pytest.raises(ReplicaMismatchError, match="ParameterAverager: .* the steps of bias is 2 on rank 0 and 0 on"):
        run(body, 2)


@pytest.mark.parametrize("kind", ["threads", "shm"])
def test_batch_norm_is_merged_with_the_parameters(kind):
    """By both calls: means of 0 and 10 and variances of 1 are 5 and 26 with equal samples, 2.5 and 19.75 with 3:1."""
    assert run_ranks(kind, _merged, 2) == [[(5.0, 26.0, 4), (2.5, 19.75, 4)]] * 2


def _merged(comm):
    told = []
    for n in (8, (3, 1)[comm.rank]):
        norm = nn.BatchNorm1d(1)
        averager = ParameterAverager(norm, comm)
        norm.running_mean.fill_(10.0 * comm.rank)
        norm.num_batches_tracked.fill_(4 * comm.rank)
        if n == 8:
            averager.step(n)
        else:
            average_parameters(norm, comm, n)
        told.append((norm.running_mean.item(), norm.running_var.item(), int(norm.num_batches_tracked)))
    return told


def test_fragments_take_moments_and_buffers_along_once_a_period():
    def body(comm):
        model = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2))
        optimizer = optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
        outer = StreamingDiLoCo(1.0, 0.0, fragments=2)
        averager = ParameterAverager(model, comm, EveryK(4), outer, optimizer=optimizer, optimizer_state="average")
        model[1].running_mean.fill_(10.0 * comm.rank)
        seen = []
        for _ in range(4):
            averager.step(1)
            seen.append(model[1].running_mean.tolist())
        return seen

    first, second = run(body, 2)
    assert first == [[0.0, 0.0]] * 3 + [[5.0, 5.0]] and second == [[10.0, 10.0]] * 3 + [[5.0, 5.0]]


@pytest.mark.parametrize(
    "outer",
    [SlowMo(), DiLoCo(), EASGD(0.25), StreamingDiLoCo(0.7, 0.9, 2, delay=1, alpha=0.5), DiLoCo(fragments=2, delay=2)],
    ids=lambda outer: f"{type(outer).__name__}, delay {outer.delay}",
)
def test_a_run_goes_on_bit_for_bit(outer, tmp_path):
    """Saved by each rank to a file after any step, also while a fragment is on its way, in other objects."""

    def objects(comm):
        minigrad.manual_seed(2)
        model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 1)).double()
        optimizer = optim.Adam(model.parameters(), lr=0.05)
        policy = EveryK(6 if outer.delay else 3)
        averager = ParameterAverager(model, comm, policy, outer, optimizer=optimizer, optimizer_state="average")
        return {"model": model, "optimizer": optimizer, "averager": averager}

    def steps(comm, model, optimizer, averager, first, last):
        for step in range(first, last):
            x = np.random.default_rng([comm.rank, step]).standard_normal((5 + comm.rank, 3))
            optimizer.zero_grad()
            model(minigrad.Tensor(x)).square().mean().backward()
            optimizer.step()
            averager.step(len(x))

    def body(comm):
        whole, told = objects(comm), []
        steps(comm, **whole, first=0, last=13)
        for cut in (4, 5, 6, 8):
            before, after = objects(comm), objects(comm)
            steps(comm, **before, first=0, last=cut)
            file = tmp_path / f"{comm.rank}.safetensors"
            minigrad.save({name: each.state_dict() for name, each in before.items()}, file)
            saved = minigrad.load(file)
            for name, each in after.items():
                each.load_state_dict(saved[name])
            steps(comm, **after, first=cut, last=13)
            pairs = zip(whole["model"].state_dict().items(), after["model"].state_dict().values())
            told += [name for (name, x), y in pairs if not np.array_equal(x.numpy(), y.numpy())]
        return told

    assert run(body, 2) == [[], []]


def test_what_ranks_share_takes_the_place_of_their_own_values():
    """The center of EASGD, to the bit as in the paper's loop; each rank's own values are there again afterwards."""
    problem = papers.Problem()
    centers = [x[0] for x in papers.elastic(problem, 4, 1.0, 0.6)]  # with alpha 1 a rank is at the center before

    def body(comm):
        layer = nn.Linear(4, 1, bias=False, dtype="float64")
        layer.weight.data[...] = problem.start
        averager = ParameterAverager(layer, comm, EveryK(papers.STEPS), EASGD(1.0, 0.6))
        optimizer = optim.SGD(layer.parameters(), lr=papers.RATE)
        x, y = (minigrad.Tensor(part[comm.rank]) for part in (problem.rows, problem.targets))
        for _ in range(3 * papers.STEPS):
            optimizer.zero_grad()
            (layer(x)[:, 0] - y).square().mean().backward()
            optimizer.step()
            averager.step(len(x))
        own = layer.weight.tolist()
        with averager.shared():
            shared = layer.weight.data[0].copy()
        assert layer.weight.tolist() == own
        with pytest.raises(ArgumentError, match="shared: expected parameters that stay .* a change of weight"):
            with averager.shared():
                optimizer.step()
        with pytest.raises(ZeroDivisionError), averager.shared():
            raise ZeroDivisionError
        assert layer.weight.tolist() == own
        return shared

    for shared in run(body, 2):
        np.testing.assert_allclose(shared, centers[3], rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"average": "gradients"}])
def test_where_ranks_keep_nothing_that_they_share(options):
    averager = ParameterAverager(nn.Linear(2, 1), SoloCommunicator(), **options)
    with pytest.raises(ArgumentError, match="shared: expected an outer optimizer that keeps .*, got Mean"):
        with averager.shared():
            pass
