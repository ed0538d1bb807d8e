"""Ranks that a coordinator directs: nothing is lost or twice, whoever fails, and the living end with equal bits."""

import threading
import time

import sys

import numpy as np
import pytest

from minigrad import nn, optim, rand, tensor
from minigrad.data import ArrayDataset
from minigrad.data.dispatch import Portion
from minigrad.distributed.average import Async, EveryK, Sync
from minigrad.distributed.simulate import Cluster, Link
from minigrad.errors import RankFailedError
from minigrad.train import Trainer, coordinator as c
from minigrad.train.epoch import EpochMeter
from minigrad.train.run.combining import CombinedGradients, CombinedParameters
from minigrad.distributed.comm.solo import SoloCommunicator
from tests.train.directing import X, Y, RaisedError, Trainee, bits, config_of, drawn_fails, on_threads, rank_of

pytestmark = pytest.mark.filterwarnings("ignore:.*is left behind:RuntimeWarning")

POLICIES = [(Sync(), "gradients"), (EveryK(2), "gradients"), (EveryK(2), "parameters"), (Async(2, k=1), "parameters")]


def check(ranks, config):
    """All who live agree, and have taken the data set once an epoch."""
    assert len({tuple(bits(rank)) for rank in ranks.values()}) == 1
    for rank in ranks.values():
        for epoch in range(config.dispatch.epochs):
            assert rank.ledger.audit(epoch).is_exact, rank.ledger.audit(epoch)


@pytest.mark.parametrize("policy, average", POLICIES)
def test_run(policy, average):
    config = config_of(policy, 3)
    ranks, state = on_threads(config, average=average)
    assert sorted(ranks) == [0, 1, 2]
    check(ranks, config)
    epochs = [rank._hears.epochs for rank in ranks.values()]
    assert epochs[0] == epochs[1] == epochs[2] and [each.epoch for each in epochs[0]] == [0, 1]
    assert epochs[0][1].loss < epochs[0][0].loss and sum(each.samples for each in epochs[0][0].per_rank) == 64


@pytest.mark.parametrize("seed", range(12))
def test_ranks_that_raise(seed):
    policy, average = POLICIES[seed % 4]
    fails = drawn_fails(seed, 4)
    config = config_of(policy, 4, on_failure="shrink")
    ranks, state = on_threads(config, average=average, fails=fails)
    assert ranks
    check(ranks, config)


def test_stop():
    config = config_of(Sync(), 3)
    with pytest.raises(RaisedError, match="batch 3"):
        on_threads(config, fails={1: (3, "backward")})


@pytest.mark.parametrize("policy, average", POLICIES)
def test_simulation(policy, average):
    """The same in each run, and nobody waits for a slow rank under Async."""
    config = config_of(policy, 3, on_failure="shrink")
    cluster = Cluster.of_speeds([3.0, 2.0, 1.0], link=Link(latency_s=1e-4))
    stories = []
    for _ in range(2):
        commands = []
        ranks, run = on_threads(
            config, average=average, cluster=cluster, fails={1: (7, "backward")}, desk={"event": commands.append}
        )
        assert sorted(ranks) == [0, 2]
        check(ranks, config)
        stories.append((commands, bits(ranks[0]), [each.decisions for each in run.trace.ranks]))
    assert stories[0] == stories[1]


def test_a_rank_that_hangs_is_dropped():
    """It comes neither to a batch's end nor back from a round: the others go on, without it."""
    over = threading.Event()
    config = config_of(EveryK(2), 3, on_failure="shrink", timeout_s=0.4)
    try:
        ranks, run = on_threads(config, timeout_s=0.3, fails={1: (3, over)})
    finally:
        over.set()
    assert sorted(ranks) == [0, 2]
    check(ranks, config)
    assert run.state.living == (0, 2) and run.state.did[1] == "was dropped"


@pytest.mark.parametrize("how", ["hang", "exit"])
def test_a_rank_that_hangs_or_ends_by_exit(how):
    """In simulation, too, where its turn would never end; and a run does not end its caller by SystemExit."""
    release, all_fail = threading.Event(), []

    def train_fn(model, batch):
        if all_fail or threading.current_thread().name == "rank-1":
            if how == "exit":
                sys.exit(0)
            release.wait()
        return model(batch[0]).square().mean()

    def run(**options):
        made = (lambda device: nn.Linear(3, 1), lambda params: optim.SGD(params, lr=0.1), train_fn)
        data = ArrayDataset(X.astype(np.float32), Y)
        return Trainer.start(*made, data, batch_size=4, epochs=1, timeout_s=0.3, **options).join()

    try:
        run(on_failure="shrink", cluster=Cluster.of_speeds([1.0, 1.0], link=Link(latency_s=1e-4)))
        with pytest.raises(RankFailedError, match="SystemExit: 0|got none of rank 1"):
            run(dispatch="progressive", ranks=2)
        if how == "exit":
            all_fail.append(True)
            with pytest.raises(RankFailedError, match="got exit"):
                run(ranks=2)
    finally:
        release.set()


@pytest.mark.parametrize("bound", [None, 0, 2])
def test_going_back_is_to_the_last_commit_in_all_that_steps_change(bound):
    """Momentum, buffers and random streams too, not parameters alone; with no bound gradients are combined."""
    trainee, comm = Trainee(EpochMeter(SoloCommunicator())), SoloCommunicator()
    trainee.model.register_buffer("seen", tensor([0.0]))
    combining = CombinedGradients(trainee) if bound is None else CombinedParameters(trainee, bound)
    combining.meet(comm)

    def make(number, is_committed):
        trainee.model.seen.data += 1.0
        drawn.append(rand(1).item())
        samples = trainee.backward([np.arange(4)])
        combining.stepped(samples, True)
        combining.end(number, samples)
        combining.combine(number, samples)
        if is_committed:
            combining.commit(number, samples)

    def state():
        moments = trainee.optimizer.state_dict()["state"]
        return [each.tolist() for each in trainee.model.state_dict().values()], repr(moments)

    drawn = []
    make(1, True)
    kept = state()
    make(2, False)
    combining.restore()
    assert state() == kept
    make(2, True)
    assert drawn[1] == drawn[2] != drawn[0] and state() != kept


def test_a_run_that_is_to_end_does_so_without_a_rank_that_hangs():
    """Also where the others wait for it in a round: they are called from there, and not taken for dead too."""
    release, hangs, calls = threading.Event(), threading.Event(), []

    def train_fn(model, batch):
        if threading.current_thread().name != "rank-1":
            hangs.wait()
        elif calls:
            hangs.set()
            release.wait()
        else:
            calls.append(1)
        return model(batch[0]).square().mean()

    made = (lambda device: nn.Linear(3, 1), lambda params: optim.SGD(params, lr=0.1), train_fn)
    options = {"policy": Async(2), "average": "parameters", "on_failure": "shrink", "timeout_s": 0.5}
    try:
        run = Trainer.start(*made, ArrayDataset(X.astype(np.float32), Y), batch_size=4, epochs=1, ranks=3, **options)
        hangs.wait()
        time.sleep(0.1)
        run.stop()
        assert len(run.join().params) == 2
    finally:
        release.set()


class Orders:
    """Letters that bring these commands, and keep what was said."""

    clock = None

    def __init__(self, orders):
        self.orders, self.said = list(orders), []

    def now_s(self):
        return 0.0

    def say(self, message):
        self.said.append(type(message).__name__)

    def next(self, timeout_s):
        return self.orders.pop(0)


def test_parts_that_were_dealt_before_going_back_are_not_made_after_it():
    """Also one that waits behind the one under way, and what ranks told of them is forgotten."""
    config = config_of(Async(2), 2)
    first, second = ((Portion(0, ((start, start + 4),)),) for start in (0, 4))
    parts = [c.Train(1, "", 0, 1, 1, first), c.Train(1, "", 0, 2, 2, second)]
    letters = Orders([*parts, c.Restore(1, "", 0, 0, 3, (0,)), None, c.Stop(1, "", 0, 0)])
    rank = rank_of(0, letters, config, average="parameters")
    before = bits(rank)
    rank._told[7] = [[0, {}]]
    rank.run()
    assert letters.said == ["Restored"] and bits(rank) == before and not rank._told
