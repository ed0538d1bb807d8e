"""Work that ranks take round by round, and the ledger of what they made of it, on ranks that train."""

import json

import numpy as np
import pytest

import minigrad
from minigrad import nn, optim
from minigrad.data import BatchSampler, ChunkPool, DataLoader, DistributedSampler, RandomSampler, SampleLedger
from minigrad.data import ArrayDataset
from minigrad.distributed import (
    DDP,
    Balancer,
    CadenceConfig,
    Dispatcher,
    ParameterAverager,
    Rounds,
    SoloCommunicator,
    average_gradients,
    keep_ledger,
    merge_ledger,
    run,
    simulate,
)
from minigrad.distributed.average import Async, EveryK, StreamingDiLoCo
from minigrad.distributed.simulate import Cluster
from minigrad.errors import ArgumentError, ReplicaMismatchError, StateDictError
from tests.distributed.worlds import run_ranks

X = np.random.default_rng(0).standard_normal((50, 3))


def on_ranks(kind, body, world):
    if kind == "simulated":
        return simulate.run(body, Cluster.of_speeds([3, 2, 1][:world])).results
    return run_ranks(kind, body, world)


def ledger_of(comm, length):
    return SampleLedger(length, rank=comm.rank, world_size=comm.world_size)


def make(comm, dtype="float64"):
    minigrad.manual_seed(0)
    ddp = DDP(nn.Linear(3, 1).to(dtype), comm)
    return ddp, optim.SGD(ddp.parameters(), lr=0.1)


def step(ddp, optimizer, batches):
    """One step on the mean over all samples of a round."""
    optimizer.zero_grad()
    samples = sum(map(len, batches))
    with ddp.no_sync():
        for batch in filter(len, batches):
            (ddp(minigrad.Tensor(X[batch])).square().mean() * (len(batch) / samples)).backward()
    ddp.flush()
    optimizer.step()


def told(comm, *ledgers):
    for ledger in ledgers:
        merge_ledger(comm, ledger)
    return [[str(ledger.audit(epoch)) for epoch in ledger.epochs] for ledger in ledgers]


EACH = [f"epoch {epoch} of 50 samples: each once" for epoch in range(3)]


@pytest.mark.parametrize("kind", ["threads", "shm", "nccl", "simulated"])
def test_rounds_take_a_dispatcher_in_place_of_a_list(kind):
    """Three epochs in which ranks run ahead, stopped in the second and resumed: each sample once, the same values."""

    def train(comm, stop=None, state=None):
        rounds, ledger = Rounds(comm, CadenceConfig(1, max_anchor=2, speed_hint=(1, 2.0))), ledger_of(comm, 50)
        pool = ChunkPool(50, 4, seed=1)
        dispatcher = Dispatcher(comm, pool, max_overshoot=1, max_batch_diff=2, epochs=3, ledger=ledger)
        ddp, optimizer = make(rounds.comm)
        keep_ledger(ddp, ledger)
        parts = {"ledger": ledger, "dispatcher": dispatcher, "ddp": ddp}
        for name, part in parts.items():
            if state is not None:
                part.load_state_dict(state[name])
        made = ledger.step
        while dispatcher.epoch < 3:
            for mine in rounds.deal(dispatcher):
                step(ddp, optimizer, mine)
                made += 1
                if made == stop:
                    merge_ledger(comm, ledger)
                    return {name: part.state_dict() for name, part in parts.items()}
        return told(comm, ledger), [p.detach().numpy().copy() for p in ddp.parameters()], ledger.entries(1)

    if kind == "simulated":
        def body(comm):
            return train(comm)
    else:
        def body(comm):
            state = train(comm, stop=6)
            plain = {name: json.loads(json.dumps(state[name])) for name in ("ledger", "dispatcher")}
            return train(comm, state={**state, **plain})

    results = on_ranks(kind, body, 2)
    for audits, params, entries in results:
        assert audits == [EACH] and entries == results[0][2]
        assert all((value == first).all() for value, first in zip(params, results[0][1]))


@pytest.mark.parametrize("mode", ["progressive", "static", "proportional"])
@pytest.mark.parametrize("world", [1, 3])
def test_each_sample_is_combined_once_in_every_mode(mode, world):
    """The ranks' shares are 3 : 2 : 1 where there are three."""

    def body(comm):
        ledger = ledger_of(comm, 50)
        shares = None if world == 1 else (1 / 2, 1 / 3, 1 / 6)
        dispatcher = Dispatcher(comm, ChunkPool(50, 4), mode, shares=shares, ledger=ledger)
        ddp, optimizer = make(comm)
        keep_ledger(ddp, ledger)
        order = []
        for _ in range(2):
            for mine in dispatcher:
                step(ddp, optimizer, mine)
                order += [index for batch in mine for index in batch.tolist()]
        return told(comm, ledger), order, ledger.step

    results = run(body, world, timeout_s=20.0)
    assert [audits for audits, *_ in results] == [[EACH[:2]]] * world
    assert sorted(index for _, order, _ in results for index in order) == sorted(2 * [*range(50)])
    assert results[0][2] == (26 if world == 1 else results[0][2])


def test_a_round_that_failed_or_was_skipped_is_dealt_again():
    """Before its reduction; by an overflow, which the loss scale tells; and after a state that was saved within it."""

    def body(comm):
        ledger, again = ledger_of(comm, 50), ledger_of(comm, 50)
        dispatcher = Dispatcher(comm, ChunkPool(50, 5), ledger=ledger)
        ddp, optimizer = make(comm, "float32")
        keep_ledger(ddp, ledger)
        scaler, taken = optim.GradScaler(), []
        number = 0
        while dispatcher.epoch == 0:
            for mine in dispatcher:
                number += 1
                taken.append([batch.tolist() for batch in mine])
                if number == 2:
                    break  # as an error in the loop would
                if number == 6:  # another one goes on from here, to which the round under way is none
                    other = Dispatcher(comm, ChunkPool(50, 5), ledger=again)
                    other.load_state_dict(json.loads(json.dumps(dispatcher.state_dict())))
                    again.load_state_dict(ledger.state_dict())
                optimizer.zero_grad()
                loss = ddp(minigrad.Tensor(X[np.concatenate(mine)].astype(np.float32))).square().mean()
                with np.errstate(all="ignore"):
                    scaler.scale(loss * (np.inf if number == 4 else 1.0)).backward()
                scaler.step(optimizer)
                before = scaler.get_scale()
                scaler.update()
                if scaler.get_scale() < before:
                    ledger.skipped()
        for _ in other:
            again.combined()
        return told(comm, ledger, again), taken

    for audits, taken in run(body, 2, timeout_s=20.0):
        assert audits == [EACH[:1], EACH[:1]]
        assert taken[1] == taken[2] and taken[3] == taken[4] and len(taken) == 7


@pytest.mark.parametrize("mode, said", [("exact", ": each once"), ("pad", ": padded 0 by rank 2 in step 8")])
def test_join_and_accumulation_write_what_was_combined(mode, said):
    """Batches of ranks are 14, 7 and 5 where they have shares; the last one of a rank comes with the flush of join."""

    def body(comm):
        shares = (0.56, 0.26, 0.18) if mode == "exact" else None
        sampler, ledger = DistributedSampler(50, mode=mode, shares=shares), ledger_of(comm, 50)
        ddp, optimizer = make(comm)
        keep_ledger(ddp, ledger)
        loader = DataLoader(ArrayDataset(X), 2, sampler=sampler)
        with ddp.join():
            for number, (x,) in enumerate(ledger.wrap(loader)):
                if number % 2 == 0 and mode == "exact":
                    with ddp.no_sync():
                        ddp(x).square().mean().backward()
                    continue
                ddp(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        return told(comm, ledger)

    assert run(body, 3, timeout_s=20.0) == [[[f"epoch 0 of 50 samples{said}"]]] * 3


def test_the_balancer_and_rounds_tell_what_they_deal():
    def body(comm):
        balanced, dealt = ledger_of(comm, 50), ledger_of(comm, 50)
        batches = BatchSampler(RandomSampler(50, seed=0), 8)
        balancer = Balancer(comm, ledger=balanced)
        ddp, optimizer = make(balancer.comm)
        keep_ledger(ddp, balanced)
        for _ in range(2):
            for mine in balancer.deal(batches):
                step(ddp, optimizer, [mine])
        rounds = Rounds(comm, CadenceConfig(2), ledger=dealt)
        ddp, optimizer = make(rounds.comm)
        keep_ledger(ddp, dealt)
        for _ in range(2):
            for mine in rounds.deal([range(start, min(start + 4, 50)) for start in range(0, 50, 4)]):
                step(ddp, optimizer, [list(batch) for batch in mine])
        return told(comm, balanced, dealt)

    assert run(body, 2, timeout_s=20.0) == [[EACH[:2], EACH[:2]]] * 2


@pytest.mark.parametrize(
    "policy, options, written",
    [
        (EveryK(3), {}, [0, 0, 15, 15, 15]),
        (EveryK(2), {"average": "gradients"}, [0, 10, 10, 20, 20]),
        (EveryK(4), {"outer": StreamingDiLoCo(fragments=2, delay=1)}, [0, 0, 0, 15, 15]),  # sent a step before
        (Async(k=2, bound=3), {}, None),
    ],
)
def test_an_averager_writes_what_is_in_what_it_combined(policy, options, written):
    def body(comm):
        ledger, model = ledger_of(comm, 50), nn.Linear(3, 1).to("float64")
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        averager = ParameterAverager(model, comm, policy, optimizer=optimizer, **options)
        keep_ledger(averager, ledger)
        samples = []
        for batch in ledger.wrap(BatchSampler(DistributedSampler(50, mode="exact"), 5)):
            model(minigrad.Tensor(X[batch])).square().mean().backward()
            if options.get("average") == "gradients":
                averager.step(len(batch))
                optimizer.step()
            else:
                optimizer.step()
                averager.step(len(batch))
            optimizer.zero_grad()
            samples.append(sum(entry.steps * entry.samples for entry in ledger.entries()))
        averager.finish()
        return told(comm, ledger), samples, ledger.entries()

    for audits, samples, entries in run(body, 2, timeout_s=20.0):
        assert audits == [EACH[:1]] and samples == (written or samples)
        assert {entry.weight for entry in entries} == {1.0}


def test_a_loop_of_ones_own_says_when_it_has_combined():
    def body(comm):
        ledger = ledger_of(comm, 6)
        model = nn.Linear(3, 1).to("float64")
        for batch in ledger.wrap(BatchSampler(DistributedSampler(6, mode="exact"), 2)):
            model(minigrad.Tensor(X[batch])).square().mean().backward()
            average_gradients(model.parameters(), comm, len(batch))
            ledger.combined(len(batch))
        return told(comm, ledger)

    assert run(body, 2) == [[["epoch 0 of 6 samples: each once"]]] * 2


def test_a_bundle_keeps_ledger_and_dispatcher(tmp_path):
    def body(comm):
        ledger = ledger_of(comm, 50)
        dispatcher = Dispatcher(comm, ChunkPool(50, 5), ledger=ledger)
        parts = {"ledger": ledger, "dispatcher": dispatcher}
        for number, _ in enumerate(dispatcher):
            ledger.combined()
            if number == 1:
                merge_ledger(comm, ledger)
                minigrad.save(parts, tmp_path / "run.safetensors")
                break
        other = ledger_of(comm, 50)
        rest = Dispatcher(comm, ChunkPool(50, 5), ledger=other)
        minigrad.load(tmp_path / "run.safetensors", into={"ledger": other, "dispatcher": rest})
        for _ in rest:
            other.combined()
        return told(comm, other)

    assert run(body, 2) == [[EACH[:1]]] * 2


def test_with_an_averager_each_batch_of_a_round_counts_from_when_it_is_taken():
    """A rank steps by them one by one: what is written has its own step, and what the loop left is missing."""

    def body(comm):
        ledger, model = ledger_of(comm, 50), nn.Linear(3, 1).to("float64")
        averager, optimizer = ParameterAverager(model, comm, EveryK(2)), optim.SGD(model.parameters(), lr=0.1)
        keep_ledger(averager, ledger)
        dispatcher = Dispatcher(comm, ChunkPool(50, 5, shuffle=False), ledger=ledger)
        for mine in dispatcher.rounds(lambda: (3, 3)):
            for batch in mine[:2]:
                model(minigrad.Tensor(X[batch])).square().mean().backward()
                optimizer.step()
                averager.step(len(batch))
            break
        with pytest.raises(StateDictError, match="a state behind the batches of a round, got one with 1 of 3 still"):
            dispatcher.state_dict()
        assert mine[-1].tolist() == list(range(10 + 15 * comm.rank, 15 + 15 * comm.rank))
        assert dispatcher.state_dict() and len(ledger.pending) == 1
        ledger.give_back()
        for _ in dispatcher:  # what a loop that is over has left is no part of a state
            pass
        assert dispatcher.state_dict() and dispatcher.epoch == 1
        return told(comm, ledger), [entry.weight for entry in ledger.entries()]

    for audits, weights in run(body, 2, timeout_s=20.0):
        assert audits == [["epoch 0 of 50 samples: missing 10-14, 25-49"]] and weights == [1.0, 1.0]


def test_what_differs_between_ranks_is_refused():
    def options(comm):
        Dispatcher(comm, ChunkPool(10, 2, seed=comm.rank))

    def states(comm):
        dispatcher, ledger = Dispatcher(comm, ChunkPool(10, 2)), ledger_of(comm, 10)
        next(iter(dispatcher))
        if comm.rank:
            dispatcher.load_state_dict({**dispatcher.state_dict(), "over": [0, 1]})
        next(iter(dispatcher))
        return ledger

    def rounds(comm):
        ledger = ledger_of(comm, 10)
        for _ in range(comm.rank + 1):
            ledger.combined()
        merge_ledger(comm, ledger)

    for body, words in [
        (options, "equal options and states on all ranks, got pool is .*'seed': 0.* on rank 0 and .*'seed': 1"),
        (states, r"equal options and states on all ranks, got over is \[0, 0\] on rank 0 and \[0, 1\] on rank 1"),
        (rounds, "equal ledgers on all ranks, got combinations is 1 on rank 0 and 2 on rank 1"),
    ]:
        with pytest.raises(ReplicaMismatchError, match=words):
            run(body, 2, timeout_s=20.0)


def test_a_dispatcher_ends_with_its_epochs_and_goes_by_one_measure():
    def body(comm):
        dispatcher = Dispatcher(comm, ChunkPool(4, 2), epochs=1)
        list(dispatcher)
        with pytest.raises(ArgumentError, match="Dispatcher: expected 1 epochs, got another one: 1"):
            list(dispatcher)
        shared = Dispatcher(comm, ChunkPool(4, 2), shares=(1.0,))
        with pytest.raises(ArgumentError, match="expected no shares with mode=\"progressive\""):
            next(Rounds(comm).deal(shared))
        with pytest.raises(ArgumentError, match="the ledger to be the Dispatcher's, got one of Rounds"):
            Rounds(comm, ledger=ledger_of(comm, 4)).deal(dispatcher)
        with pytest.raises(ArgumentError, match="Rounds.deal: expected the indices of a batch, got Tensor"):
            next(Rounds(comm, ledger=ledger_of(comm, 4)).deal([minigrad.ones(2, 2)]))
        with pytest.raises(ArgumentError, match="Dispatcher: expected a ledger of 4 samples, got one of 5"):
            Dispatcher(comm, ChunkPool(4, 2), ledger=ledger_of(comm, 5))

    run(body, 1)


def test_a_ledger_that_is_kept_again_is_told_once_and_one_before_it_no_more():
    """And what DDP does itself at the end of a pass is done as before: all have the statistics of one rank."""

    def body(comm):
        model = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1))
        ddp, first, ledger = DDP(model, comm), SampleLedger(4), SampleLedger(4)
        for each in (first, ledger, ledger):
            keep_ledger(ddp, each)
        ledger.dealt(2 * comm.rank, 2)
        ddp(minigrad.full((2, 2), comm.rank + 1.0)).mean().backward()
        steps = first.step, ledger.step
        ledger.skipped()
        merge_ledger(comm, ledger)
        return steps, ledger.audit().missing, model[1].running_mean.tolist()

    (told, *mean), *others = run(body, 2, timeout_s=20.0)
    assert [(told, *mean)] == others and (told, mean[0]) == ((0, 1), ((0, 4),))


@pytest.mark.parametrize("made", [Balancer, lambda comm, ledger: Rounds(comm, CadenceConfig.fixed(1), ledger=ledger)])
@pytest.mark.parametrize("combines", [True, False])  # the last step before the run broke off
def test_the_rest_of_an_epoch_goes_on_in_the_ledger_that_was_loaded(made, combines):
    def body(comm):
        def started(state=None):
            ledger = SampleLedger(12)
            if state is not None:
                ledger.load_state_dict(json.loads(json.dumps(state)))
            dealer = made(comm, ledger=ledger)
            ddp = DDP(nn.Linear(1, 1), dealer.comm)
            keep_ledger(ddp, ledger)
            return ledger, dealer, ddp

        batches = [np.arange(start, start + 2) for start in range(0, 12, 2)]
        ledger, dealer, ddp = started()
        for number, mine in enumerate(dealer.deal(batches)):
            if number < 1 or combines:
                ddp(minigrad.ones(np.size(mine), 1)).mean().backward()
            if number == 1:
                break
        merge_ledger(comm, ledger)
        done = sum(entry.places().size for entry in ledger.entries()) // 2
        ledger, dealer, ddp = started(ledger.state_dict())
        for rest in (batches[done:], batches):  # and the whole of the next one
            for mine in dealer.deal(rest):
                ddp(minigrad.ones(np.size(mine), 1)).mean().backward()
        merge_ledger(comm, ledger)
        return done > 0, str(ledger.audit(0)), str(ledger.audit(1)), ledger.epochs

    each = "epoch {} of 12 samples: each once".format
    assert run(body, 2, timeout_s=20.0) == [(True, each(0), each(1), [0, 1])] * 2


def test_a_loaded_state_of_another_seed_brings_its_order():
    other = Dispatcher(SoloCommunicator(), ChunkPool(8, batch_size=8, seed=2))
    used = Dispatcher(SoloCommunicator(), ChunkPool(8, batch_size=8, seed=1))
    next(iter(used))
    used.load_state_dict(other.state_dict())
    assert next(iter(used))[0].tolist() == next(iter(other))[0].tolist() == ChunkPool(8, 8, seed=2).order().tolist()
