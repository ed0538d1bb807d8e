"""Runs of `Trainer.start` whose ranks are not in step."""

import threading
from dataclasses import dataclass

import numpy as np
import pytest

from minigrad import nn, optim
from minigrad.data import ArrayDataset
from minigrad.distributed import run
from minigrad.distributed.average import Async, Cadence, EveryK, Policy, PostLocalSGD
from minigrad.distributed.comm.nccl import communicator
from minigrad.distributed.simulate import Cluster, Link
from minigrad.errors import ArgumentError, RankFailedError
from minigrad.optim import schedule
from minigrad.train import Trainer
from tests.distributed.fake_nccl import FakeNccl
from tests.strict_cupy.device import current_id

pytestmark = pytest.mark.filterwarnings("ignore:.*is left behind:RuntimeWarning")

RNG = np.random.default_rng(5)
X = RNG.normal(size=(50, 3)).astype(np.float32)
Y = (X @ np.array([1.0, -2.0, 0.5], np.float32)).astype(np.float32)


class FailedError(Exception):
    """What a rank fails of."""


@dataclass(frozen=True)
class Never(Policy):
    """Ranks train on their own."""

    def decide(self, state, made):
        return state, False, ""


def start(fails=None, **options):
    """A run on a small data set; fails[rank] is the number of its batch in which a rank raises."""

    def make_model(device):
        return nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.1), nn.Linear(4, 1)).to(device)

    counts = {}

    def train_fn(model, batch):
        x, y = batch
        rank = int(threading.current_thread().name.split("-")[1]) if fails else 0
        counts[rank] = counts.get(rank, 0) + 1
        if fails and fails.get(rank) == counts[rank]:
            raise FailedError(f"rank {rank} in batch {counts[rank]}")
        return (model(x).reshape(-1) - y).square().mean()

    given = {"batch_size": 4, "epochs": 2, "seed": 3, "timeout_s": 10.0, **options}
    makers = {"make_model": make_model, "train_fn": train_fn, "dataset": ArrayDataset(X, Y)}
    return Trainer.start(
        **{**makers, "make_optimizer": lambda params: optim.SGD(params, lr=0.05, momentum=0.9), **given}
    )


def bits(state):
    return {name: param.numpy().tobytes() for name, param in state.params.items()}


def place(name):
    clusters = {"cluster": Cluster.of_speeds([3.0, 2.0, 1.0], link=Link(latency_s=1e-4))}
    return {"ranks": 3} if name == "ranks" else clusters


@pytest.mark.parametrize("where", ["ranks", "cluster"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shares": (0.5, 0.25, 0.25)},
        {"policy": EveryK(2), "max_grad_norm": 0.5, "schedule": schedule.StepDecay(3)},
        {"policy": EveryK(2), "average": "parameters"},
        {"policy": PostLocalSGD(2, 3), "accumulate": 2},
    ],
)
def test_where_nobody_fails_a_run_is_that_in_step(options, where):
    in_step, apart = start(**options, **place(where)), start(**options, **place(where), on_failure="shrink")
    one, other = in_step.join(), apart.join()
    assert bits(one) == bits(other)
    assert [(m.epoch, m.loss, m.shares) for m in in_step.metrics()] == [
        (m.epoch, m.loss, m.shares) for m in apart.metrics()
    ]


@pytest.mark.parametrize("where", ["ranks", "cluster"])
@pytest.mark.parametrize("options", [{"policy": Async(2)}, {"policy": Cadence()}, {"dispatch": "progressive"}])
def test_kinds(options, where):
    average = {"average": "parameters"} if "policy" in options else {}
    run = start(**options, **average, **place(where), on_failure="stop" if "dispatch" in options else "shrink")
    state = run.join()
    assert [metrics.epoch for metrics in run.metrics()] == [0, 1]
    assert run.history[1].loss < run.history[0].loss and np.isfinite(state.params["0.weight"].numpy()).all()


@pytest.mark.parametrize("where", ["ranks", "cluster"])
@pytest.mark.parametrize("options", [{}, {"policy": EveryK(3), "average": "parameters"}])
def test_shrink(options, where):
    """One raises: the others train its samples too, and what it had given stays."""
    workers = {}
    callbacks = [lambda metrics, worker: workers.update({worker.rank: worker})]
    with pytest.warns(RuntimeWarning, match="rank 1 is left behind: .*rank 1 in batch 6"):
        run = start({1: 6}, **options, **place(where), on_failure="shrink", callbacks=callbacks)
        state = run.join()
    assert sorted(workers) == [0, 2] or sorted(workers) == [0, 1, 2]
    assert [metrics.epoch for metrics in run.metrics()] == [0, 1]
    assert all(sum(each.samples for each in metrics.per_rank) == len(X) for metrics in run.history)
    for rank in (0, 2):
        assert all(workers[rank].ledger.audit(epoch).is_exact for epoch in (0, 1))
        assert all((state.params[name].numpy() == param.numpy()).all() for name, param in params_of(workers[rank]))


def params_of(worker):
    return [(name, param.detach()) for name, param in worker.model.named_parameters()]


@pytest.mark.parametrize("where", ["ranks", "cluster"])
def test_stop(where):
    """Without shrink the error of the rank that failed is the run's."""
    run = start({1: 6}, **place(where), dispatch="progressive")
    with pytest.raises(FailedError, match="rank 1 in batch 6"):
        run.join()
    with pytest.raises(FailedError):
        list(run.metrics())


@pytest.mark.parametrize("where", ["ranks", "cluster"])
def test_nobody_is_left(where):
    run = start({0: 2, 1: 3, 2: 4}, **place(where), on_failure="shrink")
    with pytest.raises(FailedError, match="in batch"):
        run.join()


def test_ends_early():
    """By max_steps, by a callback, by the caller: all have the same values, and the figures so far."""
    run = start(**place("ranks"), on_failure="shrink", max_steps=3)
    assert bits(run.join()) == bits(start(**place("ranks"), max_steps=3).join())
    assert [sum(each.samples for each in metrics.per_rank) for metrics in run.history] == [36]

    asked = start(**place("ranks"), on_failure="shrink", callbacks=[lambda metrics, worker: worker.stop()], epochs=50)
    asked.join()
    assert len(asked.history) < 10

    stopped = start(**place("ranks"), dispatch="progressive", epochs=10_000)
    next(iter(stopped.metrics()))
    stopped.stop()
    stopped.join()
    assert 1 <= len(stopped.history) < 10_000


def test_one_rank_alone():
    assert start(dispatch="progressive").join().params


@pytest.mark.parametrize("options", [{"dispatch": "progressive"}, {"policy": Async(2), "average": "parameters"}])
@pytest.mark.parametrize("fails", [None, {1: 3}])
def test_devices(fails, options, cuda, monkeypatch):
    """On the stand-ins for two GPUs: NCCL begins anew without the one that fails."""
    fake = FakeNccl(current_device=current_id, timeout_s=10.0)
    monkeypatch.setattr(communicator, "load_nccl", lambda: fake)
    run = start(fails, **options, devices=["cuda:1", "cuda:0"], on_failure="shrink")
    state = run.join()
    fake.check_all_given_back()
    assert [metrics.epoch for metrics in run.metrics()] == [0, 1]
    assert np.isfinite(state.params["0.weight"].numpy()).all()
    assert sum(each.samples for each in run.history[1].per_rank) == len(X)


@pytest.mark.parametrize("options", [{"dispatch": "progressive"}, {"policy": Async(2), "average": "parameters"}])
def test_own_communicator(options):
    """Letters go by messages; where one raises, all end."""

    def body(comm, fails=None):
        return bits(start(fails, **options, comm=comm, timeout_s=None).join())

    first, second = run(body, 2, timeout_s=10.0)
    assert first == second

    def failing(comm):
        def broken(model, batch):
            if comm.rank == 1:
                raise FailedError("of its own")
            return (model(batch[0]).reshape(-1) - batch[1]).square().mean()

        with pytest.raises(FailedError if comm.rank else RankFailedError, match="of its own"):
            start(**options, comm=comm, timeout_s=None, train_fn=broken).join()

    run(failing, 2, timeout_s=10.0)


@pytest.mark.parametrize("average", ["gradients", "parameters"])
def test_a_rate_that_a_callback_sets_stays_where_ranks_go_back(average):
    rates = {}

    def lower(metrics, worker):
        rates.setdefault(metrics.epoch, set()).add(worker.lr)
        worker.lr = 0.05 / (metrics.epoch + 2)

    start({1: 6}, ranks=3, average=average, on_failure="shrink", callbacks=[lower]).join()
    assert rates == {0: {0.05}, 1: {0.025}}


@pytest.mark.parametrize("where", ["ranks", "cluster"])
def test_a_policy_that_never_combines(where):
    """The coordinator says so, and no rank is left."""
    before = threading.active_count()
    run = start(policy=Never(), average="parameters", **place(where), on_failure="shrink")
    with pytest.raises(ArgumentError, match="expected Never to combine"):
        run.join()
    for thread in [each for each in threading.enumerate() if each.name.startswith("rank-")]:
        thread.join(10.0)
    assert threading.active_count() <= before
