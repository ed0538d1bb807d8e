"""Trainer.start: the loop that a user of DDP writes, bit for bit; the handle, the places, what callbacks may do."""

import contextvars
import gc
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from tqdm import tqdm

import minigrad
from minigrad import distributed, nn, optim
from minigrad.backend.ranks import ranks_here
from minigrad.data import ArrayDataset
from minigrad.distributed.average import Async, Cadence, EveryK
from minigrad.distributed.record.timeline import Timeline
from minigrad.errors import ArgumentError, RankFailedError, ReplicaMismatchError
from minigrad.train import record_scalar
from tests.distributed.worlds import ROOT, run_ranks
from tests.train.runs import LOSS, bits, by_hand_on_threads, cluster, dataset, doubles, make_plain, start, train


class Before:
    """A callback that is called before each epoch only."""

    def __init__(self, call):
        self.before_epoch = call


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_synchronous_gradients_are_the_loop_by_hand(world_size):
    expected = by_hand_on_threads(world_size)
    assert train(ranks=world_size) == expected
    assert train(cluster=cluster(world_size)) == expected
    assert run_ranks("shm", lambda comm: train(comm=comm), world_size) == [expected] * world_size


def test_a_rank_without_a_last_batch_takes_part():
    expected = by_hand_on_threads(2, 41, make_plain)  # 21 and 20 samples, by fours
    assert train(ranks=2, make_model=make_plain, dataset=dataset(41)) == expected


def test_one_rank_alone_is_the_loop_by_hand():
    assert train() == by_hand_on_threads(1)


# ----------------------------------------------------------------------------------------------------- the gradient


def test_a_loss_counts_by_what_it_is_a_mean_over():
    """As one rank with all samples: (loss, n) weighs by n, on any ranks, in micro-batches, where there is none too."""
    rng = np.random.default_rng(1)
    x, mask = rng.standard_normal((12, 3)), (rng.random((12, 4)) < 0.4) * 1.0
    mask[::3] = 0.0

    def masked(model, batch):
        errors = (model(batch[0]).square() * batch[1]).sum()
        n = float(batch[1].sum().item())
        loss = errors * (1.0 / n if n else np.nan)  # a mean over none must not be looked at
        record_scalar("error", loss.detach())
        return loss, n

    def weight(batch_size, **options):
        run = start(
            make_model=lambda device: nn.Linear(3, 4).to(device, "float64"), train_fn=masked, epochs=1, shuffle=False,
            dataset=ArrayDataset(x, mask), batch_size=batch_size, make_optimizer=lambda p: optim.SGD(p, lr=0.1),
            **options,
        )
        state = run.join()
        assert run.history[0].scalars == {"error": pytest.approx(run.history[0].loss, abs=1e-12)}
        return np.concatenate([value.numpy().ravel() for value in state.params.values()]), run.history[0].loss

    expected, loss = weight(12, ranks=1)
    assert np.isfinite(expected).all()
    for batch_size, options in ((12, {"accumulate": 5}), (6, {"ranks": 2}), (4, {"ranks": 3, "accumulate": 4})):
        found, its_loss = weight(batch_size, **{"ranks": 1, **options})
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
        assert its_loss == pytest.approx(loss, abs=1e-12)


def test_several_batches_of_a_step_are_one_batch():
    """EveryK combines the gradients of k batches in one step, as batches k times as large do."""
    def values(**options):
        double = {"make_model": lambda device: make_plain(device).eval().to("float64")}
        return start(ranks=2, epochs=1, shuffle=False, dataset=doubles(48), **double, **options).join().params

    many, large = values(batch_size=3, policy=EveryK(4)), values(batch_size=12)
    for name, value in large.items():
        np.testing.assert_allclose(many[name].numpy(), value.numpy(), rtol=0, atol=1e-12)


# ------------------------------------------------------------------------------------------------------ the handle


def test_metrics_come_while_it_runs():
    """The first epoch is told before the second may begin."""
    gate = threading.Event()

    def wait(worker):
        assert worker.epoch == 0 or gate.wait(10.0)

    run = start(ranks=2, callbacks=[Before(wait)])
    metrics = run.metrics()
    assert next(metrics).epoch == 0 and not run.is_over
    gate.set()
    assert [each.epoch for each in metrics] == [1] and run.is_over
    assert run.history == list(run.metrics()) and run.history[1].shares == (0.5, 0.5)


def test_the_first_error_of_a_rank_is_raised_by_join_and_behind_the_metrics():
    class OwnError(Exception):
        pass

    def fail(metrics, worker):
        if worker.rank == 1 and worker.epoch == 1:
            raise OwnError("no disk")

    run = start(ranks=3, callbacks=[fail])
    with pytest.raises(OwnError, match="no disk"):
        run.join()
    with pytest.raises(OwnError, match="no disk"):
        list(run.metrics())
    assert run.is_over


def test_a_failure_that_nobody_looks_at_is_warned_of():
    run = start(ranks=1, make_model=lambda device: 3)
    while not run.is_over:
        time.sleep(0.01)
    with pytest.warns(RuntimeWarning, match="expected make_model.device. to make a Module, got int"):
        del run
        gc.collect()


@pytest.mark.parametrize("options", [{}, {"average": "parameters", "policy": EveryK(500)}], ids=["gradients", "apart"])
def test_stop_ends_all_ranks_behind_one_step(options):
    """In the middle of a long epoch; each rank has made as many steps, also where one of them was far ahead."""
    made, run, ahead, stopped = {}, None, threading.Event(), threading.Event()

    def train_fn(model, batch):
        rank = ranks_here().rank
        made[rank] = made.get(rank, 0) + 1
        if rank == 0 and made[rank] == 10:
            ahead.set()
            assert not options or stopped.wait(10.0)
        if rank == 1 and made[rank] == 3:
            assert not options or ahead.wait(10.0)
            run.stop()
            stopped.set()
        return LOSS(model(batch[0]), batch[1])

    ready = threading.Event()

    def make_model(device):
        assert ready.wait(10.0)
        return make_plain(device)

    run = start(ranks=2, make_model=make_model, train_fn=train_fn, dataset=dataset(4000), **options)
    ready.set()
    run.join()
    assert made[0] == made[1] < 400 and len(run.history) == 1
    assert made[1] >= 10 or not options


def test_ctrl_c_is_stop(tmp_path):
    """In join, of a run that would not end, in two processes of the launcher: both give what was trained until then."""
    (tmp_path / "script.py").write_text(
        "from tests.train.runs import bits, start\n"
        "run = start(epochs=10**6)\n"
        "next(run.metrics())\n"
        "print('begun')\n"
        "print('trained', sum(map(sum, bits(run.join()).values())), len(run.history))\n"
    )
    command = [sys.executable, "-m", "minigrad.distributed.launch", "-n", "2", str(tmp_path / "script.py")]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MINIGRAD_TIMEOUT_S": "20"}
    with subprocess.Popen(command, env=environment, **options) as process:
        lines = [process.stdout.readline() for _ in range(2)]
        time.sleep(0.3)  # both wait by now
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=30.0)
    assert sorted(lines) == ["[0] begun\n", "[1] begun\n"], errors
    assert process.returncode == 128 + signal.SIGINT
    first, second = sorted(line.split() for line in rest.splitlines())
    assert first[:2] == ["[0]", "trained"] and second[:2] == ["[1]", "trained"] and first[2:] == second[2:], errors


# ---------------------------------------------------------------------------------------------------- callbacks


def test_callbacks_see_each_epoch_and_set_the_rate():
    """On every rank, in order: before, then after; the rate holds from the next epoch on."""
    seen = []

    def halve(metrics, worker):
        worker.lr = worker.lr / 2
        seen.append((worker.rank, worker.epoch, metrics.epoch, worker.lr))

    class Both:
        def before_epoch(self, worker):
            seen.append((worker.rank, worker.epoch, "before", worker.lr))

        def after_epoch(self, metrics, worker):
            seen.append((worker.rank, worker.epoch, "after", worker.step))

    start(ranks=2, callbacks=[Both(), halve]).join()
    for rank in (0, 1):
        own = [each[1:] for each in seen if each[0] == rank]
        assert own == [
            (0, "before", 0.05), (1, "after", 6), (1, 0, 0.025), (1, "before", 0.025), (2, "after", 12), (2, 1, 0.0125)
        ]


def test_a_rate_under_a_schedule_is_scaled():
    """Setting it would hold until the next step, so it is refused; what scales it scales what is to come."""
    rates = []

    def change(metrics, worker):
        worker.scale_lr(0.5)
        rates.append(worker.lr)

    half = optim.schedule.StepDecay(6, gamma=0.5)  # an epoch is 6 steps
    start(ranks=2, schedule=half, callbacks=[change]).join()
    assert sorted(rates) == [0.05 / 16, 0.05 / 16, 0.0125, 0.0125]

    def set_it(metrics, worker):
        worker.lr = 0.1

    with pytest.raises(ArgumentError, match="expected no schedule where a callback sets the rate"):
        start(ranks=1, schedule=half, callbacks=[set_it]).join()


def test_a_rate_of_one_rank_alone_is_refused():
    def one_alone(metrics, worker):
        if worker.rank == 1:
            worker.lr = 0.1

    with pytest.raises(ReplicaMismatchError, match="lr"):
        start(ranks=2, callbacks=[one_alone]).join()


def test_a_callback_ends_the_run():
    def enough(metrics, worker):
        if worker.rank == 1:
            worker.stop()

    run = start(ranks=2, epochs=50, callbacks=[enough])
    run.join()
    assert len(run.history) == 1


# ------------------------------------------------------------------------------------------------------- the rest


def test_a_timeline_hears_all_ranks():
    class Timeline:
        def __init__(self):
            self.heard = []

        def event(self, kind, **fields):
            self.heard.append((kind, fields))

    timeline = Timeline()
    start(ranks=2, policy=Cadence(), timeline=timeline).join()
    kinds = [kind for kind, _ in timeline.heard]
    assert kinds.count("cadence") >= 2 and kinds.count("epoch") == 4


def test_a_timeline_has_the_steps_of_all_ranks():
    timeline = Timeline()
    run = start(ranks=2, timeline=timeline)
    run.join()
    for rank in (0, 1):
        spans = [span for span in timeline.spans if span.rank == rank]
        steps = [[span.kind for span in spans if span.step == step] for step in sorted({span.step for span in spans})]
        assert len(steps) == timeline.summary().ranks[rank].steps > 1
        for kinds in steps:
            order = [kind for kind in kinds if kind in ("data", "pass", "optimizer")]
            assert order == ["data", "pass", "optimizer"] and {"forward", "backward", "wire"} <= set(kinds)
        assert [event.kind for event in timeline.events if event.rank == rank].count("epoch") == 2


def test_rates_grow_with_the_ranks():
    def rate(ranks, lr_scale):
        rates = []
        look = lambda metrics, worker: rates.append(worker.lr)  # noqa: E731
        start(ranks=ranks, epochs=1, lr_scale=lr_scale, callbacks=[look]).join()
        return rates

    assert rate(2, lambda world_size: world_size) == [0.1, 0.1] and rate(3, 0.5) == [0.025] * 3


def test_a_scale_of_the_loss_is_each_ranks_own_and_changes_nothing():
    """A power of two, until one step overflows on one rank: then all ranks leave that step out."""
    scaler = optim.GradScaler(2.0**10)
    assert train(ranks=2, scaler=scaler) == train(ranks=2)
    assert scaler.get_scale() == 2.0**10


def test_a_scaler_has_the_options_that_were_given():
    found = []
    look = lambda metrics, worker: found.append(worker.updates.scaler.state_dict())  # noqa: E731
    scaler = optim.GradScaler(64.0, growth_factor=4.0, growth_interval=6)  # an epoch is 6 steps
    start(ranks=1, epochs=1, dataset=dataset(24), scaler=scaler, callbacks=[look]).join()
    assert found[0]["scale"] == 256.0 and found[0]["growth_factor"] == 4.0 and scaler.get_scale() == 64.0


def test_ranks_that_were_told_other_things_say_so():
    def body(comm):
        return start(comm=comm, batch_size=4 + comm.rank).join()

    with pytest.raises(ReplicaMismatchError, match="batch_size is 4 on rank 0 and 5 on rank 1"):
        distributed.run(body, 2, timeout_s=10.0)


@pytest.mark.parametrize("options", [{}, {"average": "parameters", "policy": Async(1)}], ids=["in step", "apart"])
def test_processes_without_a_seed_have_one(options):
    """Each has drawn another, as fresh processes do; a seed that was chosen has to be the same."""
    def body(comm):
        return contextvars.Context().run(lambda: train(comm=comm, seed=None, make_model=make_plain, **options))

    first, second = run_ranks("shm", body, 2)
    assert first == second

    def choosing(comm):
        minigrad.manual_seed(comm.rank)
        return train(comm=comm, seed=None, **options)

    with pytest.raises((ReplicaMismatchError, RankFailedError), match="seed is 0 on rank 0 and 1 on rank 1"):
        run_ranks("shm", choosing, 2)


def test_a_run_inside_thread_ranks_uses_these():
    found = distributed.run(lambda comm: bits(start().join()), 2, timeout_s=10.0)
    assert found == [train(ranks=2)] * 2


@pytest.mark.parametrize("options", [{}, {"average": "parameters"}, {"average": "parameters", "policy": EveryK(500)}])
def test_progress_counts_samples(options, capsys, monkeypatch):
    shown = []
    monkeypatch.setattr(tqdm, "close", lambda bar: shown.append((bar.n, bar.total)))
    start(ranks=2, progress=True, **options).join()
    assert {*shown} == {(92, 92)} and "sample/s" in capsys.readouterr().err


def test_without_progress_there_is_no_bar(monkeypatch):
    monkeypatch.setattr(tqdm, "__init__", None)
    start(ranks=1, progress=False).join()
    start(ranks=1).join()  # on no terminal


# ------------------------------------------------------------------------------------------------- what makes a rank


@pytest.mark.parametrize("options", [{}, {"average": "parameters"}, {"dispatch": "progressive"}])
def test_what_ranks_would_share_is_refused(options):
    """A model of them all would be trained by all at once, an optimizer of another model would train nothing."""
    model = make_plain("cpu")
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ArgumentError, match="expected make_model.device. to make a model in each call"):
        start(ranks=2, make_model=lambda device: model, **options).join()
    with pytest.raises(ArgumentError, match="expected make_optimizer.params. to make an optimizer of these params"):
        start(ranks=2, make_optimizer=lambda params: optimizer, **options).join()
    assert start(ranks=1, make_model=lambda device: model, **options).join()  # one rank trains it on


def test_a_timeout_that_would_not_count_is_refused():
    with pytest.raises(ArgumentError, match="expected no timeout_s where ranks have theirs, 10 s here, got 3"):
        distributed.run(lambda comm: start(timeout_s=3.0), 2, timeout_s=10.0)
