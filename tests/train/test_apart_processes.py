"""Ranks that a coordinator directs, as processes that are killed: also the one that it is on."""

import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

import minigrad
from minigrad.distributed import launch
from minigrad.distributed.average import Async, EveryK, Sync
from minigrad.distributed.comm.threads import ThreadWorld
from minigrad.distributed.living.lifeline import Letter
from minigrad.errors import ArgumentError
from minigrad.train import coordinator as c
from minigrad.train.run.processes import ProcessLetters, run_directed
from tests.distributed.processes import all_gone
from tests.distributed.test_living_processes import KilledAt, run_forked
from tests.train.directing import bits, config_of, rank_of
from tests.train.runs import digest, train
from tests.train.test_apart import start

POLICIES = [(Sync(), "gradients"), (EveryK(2), "parameters"), (Async(2), "parameters"), (EveryK(2), "gradients")]
RANKS = 3


def body_of(config, average, kills):
    """What a rank does: train, and tell what it has come to; kills[rank] is the call in which it ends."""

    def body(lifeline):
        def train(rank, letters):
            made = rank_of(rank, letters, config, average=average)
            made.run()
            return made

        if lifeline.rank in kills:
            killer = KilledAt(kills[lifeline.rank])
            threading.setprofile(killer)
            sys.setprofile(killer)
        try:
            made = run_directed(lifeline, config, train)
        finally:
            sys.setprofile(None)
        exact = [made.ledger.audit(epoch).is_exact for epoch in range(config.dispatch.epochs)]
        return {"bits": [each.hex() for each in bits(made)], "exact": exact, "rounds": made.committed}

    return body


@pytest.mark.parametrize("policy, average", POLICIES)
def test_nobody_dies(policy, average):
    results, _ = run_forked(body_of(config_of(policy, RANKS), average, {}), RANKS)
    assert results[0]["exact"] == [True, True] and results[0] == results[1] == results[2]


def test_ranks_that_were_given_other_options_all_end_with_what_differs():
    config = config_of(Sync(), 2, samples=32, on_failure="shrink", timeout_s=10)

    def body(lifeline):
        def train(rank, letters):
            made = rank_of(rank, letters, config, options={"seed": 5 + rank})
            made.run()

        run_directed(lifeline, config, train)

    results, _ = run_forked(body, 2)
    for result in results:
        assert "expected equal options and models on all ranks, got seed is 5 on rank 0 and 6 on rank 1" in result


def test_shrink_whoever_is_killed():
    drawn = random.Random(16)
    for number in range(20):
        policy, average = POLICIES[number % 4]
        config = config_of(policy, RANKS, samples=32, on_failure="shrink", timeout_s=10)
        kills = {rank: drawn.randint(1, 30_000) for rank in drawn.sample(range(RANKS), drawn.choice([1, 1, 2]))}
        if number % 2:
            kills.setdefault(0, drawn.randint(1, 30_000))
        kills = dict(list(kills.items())[: RANKS - 1])
        results, _ = run_forked(body_of(config, average, kills), RANKS)
        living = [result for result in results if result is not None]
        assert all(result is not None for rank, result in enumerate(results) if rank not in kills), (number, kills)
        assert all(each == living[0] and each["exact"] == [True, True] for each in living), (number, kills, results)


def test_stop_whoever_is_killed():
    """The others end with its death as their error, and have the same values, those of the last commit."""
    drawn = random.Random(17)
    for number in range(20):
        policy, average = POLICIES[number % 4]
        config = config_of(policy, RANKS, samples=32, on_failure="stop", timeout_s=10)
        kills = {number % 3: drawn.randint(1, 20_000)}
        results, _ = run_forked(body_of(config, average, kills), RANKS)
        told = [result for rank, result in enumerate(results) if rank not in kills]
        if all(isinstance(result, str) for result in told):
            assert all("RankFailedError" in result and "SIGKILL" in result for result in told), (number, kills, told)
        else:  # it was killed when all had been told to end, or never
            assert told[0] == told[1] and told[0]["exact"] == [True, True], (number, kills, results)


class StoppedAt(KilledAt):
    """A profile function that stops the process, which is alive then and silent, at a call."""

    def __call__(self, frame, event, argument):
        self.left -= event == "call"
        if not self.left:
            os.kill(os.getpid(), signal.SIGSTOP)


def test_a_coordinator_that_is_silent_is_dropped(monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "KilledAt", StoppedAt)
    config = config_of(Sync(), RANKS, samples=16, on_failure="shrink", timeout_s=2.5)
    results, _ = run_forked(body_of(config, "gradients", {0: 10_000}), RANKS)
    assert results[0] is None and results[1] == results[2] and results[1]["exact"] == [True, True], results


def test_commands_of_a_coordinator_before_the_last_count_for_nothing():
    letters = ProcessLetters(SimpleNamespace(rank=2), config_of(Sync(), RANKS))
    orders = [c.Finish(term, "", 2, 0) for term in (1, 2, 1)]
    for order in orders:
        letters._hear(Letter(order.term - 1, c.to_data(order)))
    assert [letters.next(0.0) for _ in orders] == [*orders[:2], None] and letters.coordinator == 1


# ------------------------------------------------------------------------------------------------------- the launcher

SCRIPT = """
import hashlib, json, os, signal, sys
import numpy as np
from minigrad import nn, optim
from minigrad.data import ArrayDataset
from minigrad.train import Trainer
from tests.train.runs import digest, train
on_failure, victims = sys.argv[1], json.loads(sys.argv[2])
x = np.random.default_rng(5).normal(size=(50, 3)).astype(np.float32)
calls, audits = 0, []
def train_fn(model, batch):
    global calls
    calls += 1
    if victims.get(os.environ["RANK"]) == calls:
        os.kill(os.getpid(), signal.SIGKILL)
    x, y = batch
    return (model(x).reshape(-1) - y).square().mean()
print("pid", os.getpid(), flush=True)
if on_failure == "shrink":  # first a run in which nobody dies
    print("same", digest(train(on_failure="shrink", timeout_s=20.0)), flush=True)
run = Trainer.start(
    lambda device: nn.Linear(3, 1), lambda params: optim.SGD(params, lr=0.05), train_fn, ArrayDataset(x, x.sum(1)),
    batch_size=4, epochs=3, seed=3, dispatch="progressive", on_failure=on_failure, timeout_s=20.0,
    callbacks=[lambda metrics, worker: audits.append(worker.ledger.audit(metrics.epoch).is_exact)],
)
told = b"".join(param.numpy().tobytes() for param in run.join().params.values())
print("ended", hashlib.md5(told).hexdigest(), audits, len(list(run.metrics())), flush=True)
"""


def launched(tmp_path, on_failure, victims):
    """Status, output, errors and process numbers of the script above."""
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    command = [sys.executable, "-m", "minigrad.distributed.launch", "-n", "3", "--on-failure", on_failure, str(path)]
    done = subprocess.run(
        [*command, on_failure, json.dumps(victims)],
        capture_output=True,
        text=True,
        timeout=50.0,
        env={**os.environ, "PYTHONPATH": str(Path(minigrad.__file__).parents[1])},
    )
    pids = [int(line.split()[-1]) for line in done.stdout.splitlines() if " pid " in line]
    return done.returncode, done.stdout, done.stderr, pids


def test_launched_with_shrink(tmp_path):
    """Ranks 1 and 0 are killed, on which the coordinator is: the last one trains all samples.

    Before that a run in which nobody dies has the bits of threads, with dropout too.
    """
    status, output, errors, pids = launched(tmp_path, "shrink", {"1": 5, "0": 9})
    assert status == 0, output + errors
    ended = [line.split("ended ")[1] for line in output.splitlines() if " ended " in line]
    assert len(ended) == 1 and ended[0].endswith("[True, True, True] 3"), output + errors
    assert len(pids) == 3 and all_gone(pids)
    same = {line.split()[-1] for line in output.splitlines() if " same " in line}
    assert same == {digest(train(ranks=3, on_failure="shrink"))}


def test_launched_with_stop(tmp_path):
    status, output, errors, pids = launched(tmp_path, "stop", {"0": 5})
    assert status == 128 + signal.SIGKILL and "launch: rank 0 failed first: it was ended by SIGKILL" in errors
    assert " ended " not in output and errors.count("RankFailedError: rank") >= 2
    assert all_gone(pids)


@pytest.mark.parametrize("signals, is_enough", [([2], False), ([2, 2], True), ([15], True), ([], False)])
def test_after_a_signal_the_launcher_waits_for_a_run_that_ends_by_itself_but_not_after_sigterm(signals, is_enough):
    rank = SimpleNamespace(rank=0, ended_at=math.inf, failed=lambda: False)
    assert launch._Watch([rank], SimpleNamespace(opened={0}), signals, "stop")._is_enough() is is_enough


def test_ranks_that_nobody_tells_of_deaths_are_refused(monkeypatch):
    for name in os.environ:
        if name.startswith(("MINIGRAD_", "OMPI_", "PMI_", "SLURM_")) or name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    with pytest.raises(ArgumentError, match="Trainer.start: .*mpirun ends all ranks where one dies"):
        start(on_failure="shrink")
    with pytest.raises(ArgumentError, match='expected on_failure="stop" with comm='):
        start(on_failure="shrink", comm=ThreadWorld(2).communicators()[0])
