"""Whoever deals, whoever combines, whatever fails: the ledger holds the data set once an epoch, and says what was done.

What a step was made of is told by the values themselves. The model has one parameter for each sample, and a batch's
gradient is where its samples are; so the parameters of a run must be those that the ledger's entries alone lead to.
"""

import tempfile
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import minigrad
from minigrad import nn, optim
from minigrad.data import BatchSampler, ChunkPool, DistributedSampler, RandomSampler, SampleLedger
from minigrad.data.dispatch import DISPATCHES
from minigrad.distributed import DDP, Balancer, CadenceConfig, Dispatcher, ParameterAverager, Rounds
from minigrad.distributed import keep_ledger, merge_ledger, run
from minigrad.distributed.balance import dispatcher
from minigrad.distributed.average import Async, Cadence, EveryK, PostLocalSGD, StreamingDiLoCo, Sync

DDP_ITSELF = "every pass of DDP"
POLICIES = {
    "Sync": (Sync(), {}),
    "EveryK": (EveryK(2), {}),
    "gradients": (EveryK(3), {"average": "gradients"}),
    "post-local": (PostLocalSGD(2, 3), {}),
    "streaming": (EveryK(4), {"outer": StreamingDiLoCo(fragments=2, delay=1)}),
    "Cadence": (Cadence(CadenceConfig(2, max_anchor=4)), {}),
    "Async": (Async(k=2, bound=2), {}),
}
KNOWN_STEPS = ["Sync", "EveryK", "gradients", "post-local", "streaming"]  # combined after so many of each rank


@dataclass(frozen=True)
class Case:
    """One training, and what happens in its rounds, by their number."""

    world: int
    length: int
    batch_size: int
    epochs: int
    dealer: str
    policy: str = DDP_ITSELF
    options: dict = field(default_factory=dict)
    counts: tuple = ()  # of the rounds of a dispatcher, in turn, as speeds would say
    events: dict = field(default_factory=dict)


@st.composite
def cases(draw):
    world = draw(st.integers(1, 4))
    dealer = draw(st.sampled_from(["dispatcher", "dispatcher", "rounds", "list", "balancer", "sampler"]))
    goes_apart = dealer in ("dispatcher", "sampler") and draw(st.booleans())
    policy = draw(st.sampled_from([*POLICIES])) if goes_apart else DDP_ITSELF
    weights = draw(st.none() | st.lists(st.integers(0, 3), min_size=world, max_size=world).filter(any))
    shares = None if weights is None else tuple(weight / sum(weights) for weight in weights)
    options, counts, events = {}, [], {}
    if dealer in ("dispatcher", "rounds"):
        options = {
            "mode": draw(st.sampled_from(DISPATCHES)),
            "max_overshoot": draw(st.sampled_from([0, 0, 1, 3])),
            "max_batch_diff": draw(st.sampled_from([None, 0, 1])),
        }
        if options["mode"] != "progressive" or dealer == "dispatcher":
            options["shares"] = shares
        if dealer == "dispatcher" and (options["mode"] != "progressive" or shares is None):
            least = 0 if options["mode"] == "progressive" else 1  # who has a part of its own has to come for it
            of_ranks = st.lists(st.integers(least, 3), min_size=world, max_size=world)
            counts = draw(st.lists(of_ranks.filter(any), max_size=3))
        kinds = ["saved", "saved", "died"] + ["broken", "skipped", "saved within"] * (policy == DDP_ITSELF)
        events = draw(st.dictionaries(st.integers(0, 5), st.sampled_from(kinds), max_size=4))
    elif dealer == "sampler":
        options = {"shares": shares}
    sizes = draw(st.integers(1, 30)), draw(st.integers(1, 6)), draw(st.integers(1, 3))
    return Case(world, *sizes, dealer, policy, options, tuple(map(tuple, counts)), events)


class Values(nn.Module):
    """One parameter for each sample."""

    def __init__(self, length):
        super().__init__()
        self.w = nn.Parameter(np.zeros(length))

    def forward(self, x):
        return x @ self.w


class Died(Exception):
    """In a round of this number."""


def is_again(case):
    """Whether who deals it deals again what came to nothing."""
    return case.dealer in ("dispatcher", "rounds")


class Parts:
    """What a rank trains with, from its file where there is one."""

    def __init__(self, comm, case, folder):
        self.comm, self.case, self.file = comm, case, folder / "run.safetensors"
        self.ledger, self.model = SampleLedger(case.length), Values(case.length)
        self.saved = {"model": self.model, "ledger": self.ledger}
        if is_again(case):
            pool = ChunkPool(case.length, case.batch_size, seed=1)
            self.dispatcher = Dispatcher(comm, pool, epochs=case.epochs, ledger=self.ledger, **case.options)
            self.saved["dispatcher"] = self.dispatcher
        if case.dealer in ("rounds", "list"):
            ledger = self.ledger if case.dealer == "list" else None
            self.rounds = Rounds(comm, CadenceConfig(1, max_anchor=3), ledger=ledger)
        elif case.dealer == "balancer":
            self.rounds = Balancer(comm, ledger=self.ledger)
        else:
            self.rounds = None
        self.optimizer = optim.SGD(self.model.parameters(), lr=1.0)
        if case.policy == DDP_ITSELF:
            self.ddp = DDP(self.model, comm if self.rounds is None else self.rounds.comm)
        else:
            policy, options = POLICIES[case.policy]
            self.ddp = ParameterAverager(self.model, comm, policy, optimizer=self.optimizer, **options)
            self.saved["averager"] = self.ddp
        keep_ledger(self.ddp, self.ledger)
        if self.file.exists():
            minigrad.load(self.file, into=self.saved)

    def save(self):
        merge_ledger(self.comm, self.ledger)
        minigrad.save(self.saved, self.file)

    def epoch(self, number):
        """This rank's batches of each round of an epoch; of a dispatcher from round `number` on."""
        case, size = self.case, self.case.batch_size
        if case.dealer == "rounds":
            return self.rounds.deal(self.dispatcher)
        if case.dealer == "dispatcher":
            coming = (case.counts[i % len(case.counts)] for i in range(number, 10**6)) if case.counts else None
            return self.dispatcher.rounds(None if coming is None else lambda: next(coming))
        if case.dealer == "list":
            places = np.arange(case.length)
            return self.rounds.deal([places[start : start + size] for start in range(0, case.length, size)])
        if case.dealer == "balancer":
            return ([mine] for mine in self.rounds.deal(self.batches))
        return ([np.array(mine)] for mine in self.ledger.wrap(self.batches))

    def epochs(self):
        """The number of those that are to come, one after the other."""
        case = self.case
        if case.dealer == "sampler":  # which counts them itself
            self.batches = BatchSampler(DistributedSampler(case.length, mode="exact", **case.options), case.batch_size)
        if case.dealer == "balancer":
            self.batches = BatchSampler(RandomSampler(case.length, seed=0), case.batch_size * self.comm.world_size)
        if not is_again(case):
            yield from range(case.epochs)
        else:
            while self.dispatcher.epoch < case.epochs:
                yield self.dispatcher.epoch


def rows(case, batch):
    return minigrad.Tensor(np.eye(case.length)[batch])


def train_ddp(parts, case, events, number=0):
    """One pass a round, whose batches are accumulated; what is not finite is not stepped by."""
    ddp = parts.ddp
    for _ in parts.epochs():
        with ddp.join() if case.dealer == "sampler" else nullcontext():
            for mine in parts.epoch(number):
                event, number = events.get(number), number + 1
                samples = sum(map(len, mine))
                parts.optimizer.zero_grad()
                if event == "saved within":
                    parts.save()
                if case.dealer == "sampler":
                    ddp(rows(case, mine[0])).mean().backward()
                else:
                    with ddp.no_sync():
                        for batch in filter(len, mine):
                            share = np.inf if event == "skipped" else len(batch) / samples
                            with np.errstate(invalid="ignore"):
                                (ddp(rows(case, batch)).mean() * share).backward()
                    if event == "broken":
                        break
                    if event == "died" and parts.comm.rank == parts.comm.world_size - 1:
                        raise Died(number - 1)
                    with np.errstate(invalid="ignore"):
                        ddp.flush()
                if np.isfinite(parts.model.w.grad.numpy()).all():
                    parts.optimizer.step()
                else:
                    parts.ledger.skipped()
                if event == "saved":
                    parts.save()


def train_apart(parts, case, events, number=0):
    """Each rank steps by its own batches, and goes on with the others where its policy says so."""
    averager, optimizer, is_level = parts.ddp, parts.optimizer, case.policy in KNOWN_STEPS
    for _ in parts.epochs():
        rounds = parts.epoch(number)
        while True:
            before = getattr(parts, "dispatcher", None) and parts.dispatcher.dispatch
            if (mine := next(rounds, None)) is None:
                break
            event, number = events.get(number), number + 1
            for batch in mine:
                optimizer.zero_grad()
                out = parts.model(rows(case, batch))
                (out.mean() if averager.options.average == "gradients" else out.sum()).backward()
                if event == "died" and parts.comm.rank == parts.comm.world_size - 1:
                    raise Died(number - 1)
                if averager.options.average == "gradients":
                    averager.step(len(batch))
                    optimizer.step()
                else:
                    optimizer.step()
                    averager.step(len(batch))
            if before is not None:
                counts = case.counts[(number - 1) % len(case.counts)] if case.counts else None
                is_level &= len({*map(len, before.round(counts)[1].of_ranks)}) == 1
            if event == "saved":
                if not is_level:
                    averager.finish()
                parts.save()
        averager.finish()
        is_level = case.policy in KNOWN_STEPS


def ids(case, epoch):
    """The samples of an epoch, in its order."""
    if case.dealer == "list":
        return np.arange(case.length)
    if is_again(case):
        return ChunkPool(case.length, 1, seed=1, epoch=epoch).order()
    sampler = DistributedSampler(case.length, rank=0, world_size=1, mode="exact") if case.dealer == "sampler" else None
    sampler = sampler or RandomSampler(case.length, seed=0)
    sampler.set_epoch(epoch)
    return np.array(list(sampler))


def replayed(case, ledger):
    """The parameters that the entries of a ledger lead to."""
    made = defaultdict(lambda: defaultdict(lambda: np.zeros(case.length)))  # by step and rank
    for epoch in range(case.epochs):
        order = ids(case, epoch)
        for entry in ledger.entries(epoch):
            for step, places in enumerate(entry.places(), entry.step):
                np.add.at(made[step][entry.rank], order[places], 1.0)
    w = np.zeros(case.length)
    for of_ranks in made.values():
        samples = sum(counts.sum() for counts in of_ranks.values())
        if case.policy in (DDP_ITSELF, "gradients"):  # the mean over samples
            w -= sum(of_ranks.values()) / samples
        else:  # the mean over ranks of what each has come to, by samples
            w -= sum(counts.sum() * counts for counts in of_ranks.values()) / samples
    return w


def check(case):
    """Train it, from the last save wherever a rank died; then ask the ledger, and the values."""
    def body(comm, events):
        parts = Parts(comm, case, folder)
        (train_ddp if case.policy == DDP_ITSELF else train_apart)(parts, case, events)
        merge_ledger(comm, parts.ledger)
        return parts.ledger, parts.model.w.detach().numpy().copy()

    events = dict(case.events)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        while True:
            try:
                results = run(body, case.world, events, timeout_s=20.0)
                break
            except Died as death:
                events = {number - death.args[0] - 1: what for number, what in events.items() if number > death.args[0]}
    for ledger, w in results:
        for epoch in range(case.epochs):
            assert ledger.audit(epoch).is_exact, str(ledger.audit(epoch))
            assert sorted(ledger.taken(epoch).places.tolist()) == list(range(case.length))
            assert {*ledger.taken(epoch).weights.tolist()} == {1.0}
        assert ledger.epochs == list(range(case.epochs)) and not ledger.pending
        assert ledger.entries() == results[0][0].entries()
        assert (w == results[0][1]).all()
        if case.policy not in ("Async", "streaming"):
            np.testing.assert_allclose(w, replayed(case, ledger), rtol=0, atol=1e-12)


@settings(max_examples=80)
@given(cases())
def test_each_sample_is_combined_once_an_epoch(case):
    check(case)


def written_when_dealt(monkeypatch):
    """By who deals, before anything is combined."""
    dealt = SampleLedger.dealt

    def told(self, *args, **options):
        dealt(self, *args, **options)
        self.give_back = lambda: None

    monkeypatch.setattr(SampleLedger, "dealt", told)


def never_again(monkeypatch):
    """What was skipped is gone."""
    monkeypatch.setattr(Dispatcher, "_settled", lambda self: self.dispatch)


def one_rank_is_forgotten(monkeypatch):
    """In a merge."""
    told = SampleLedger.told
    monkeypatch.setattr(SampleLedger, "told", lambda self: {**told(self), **({"entries": []} if self.rank else {})})


def a_round_is_told_at_once(monkeypatch):
    """Though a rank steps by one of its batches after the other."""
    given_out = dispatcher._Taken.__init__

    def init(self, *args):
        given_out(self, *args)
        list(self)

    monkeypatch.setattr(dispatcher._Taken, "__init__", init)


FAULTS = [written_when_dealt, never_again, one_rank_is_forgotten, a_round_is_told_at_once]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_ledger_that_says_anything_else_is_found_out(fault, monkeypatch):
    fault(monkeypatch)
    found = settings(max_examples=100, phases=[Phase.generate], report_multiple_bugs=False)(given(cases())(check))
    with pytest.raises(AssertionError):
        found()


def test_a_dispatcher_saved_behind_a_round_that_was_not_combined_is_found_out(monkeypatch):
    """One case, for under this fault a search need not end."""
    case = Case(1, 8, 2, 1, "dispatcher", events={1: "saved within", 2: "died"})
    check(case)
    monkeypatch.setattr(Dispatcher, "state_dict", lambda self: self.dispatch.state_dict())
    with pytest.raises(AssertionError, match="missing 2-3"):
        check(case)
