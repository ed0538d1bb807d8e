"""DistributedTrainer with Rounds, hooks, options of DDP, checks and metrics: as a loop that is written by hand."""

from contextlib import nullcontext

import numpy as np
import pytest

import minigrad
from minigrad import nn, optim, record_scalar
from minigrad.distributed import (
    DDP,
    CadenceConfig,
    CompressionState,
    Recording,
    Rounds,
    SoloCommunicator,
    fp16_compress_hook,
    run,
    simulate,
)
from minigrad.distributed.average import TrendGuard
from minigrad.distributed.simulate import Cluster
from minigrad.errors import ArgumentError, ReplicaMismatchError, StateDictError
from minigrad.train import (
    Accuracy,
    DistributedTrainConfig,
    DistributedTrainer,
    MetricCollection,
    SingleDeviceTrainer,
)
from tests.distributed.models import Mlp, data, mean_loss
from tests.distributed.worlds import run_ranks
from tests.train.test_loop import loss_fn, single, tensors, values

SIZES = [3, 2, 4, 1, 3, 2, 3]  # of the batches of an epoch


def batches(first=0):
    return [tensors(data(n, first + seed)) for seed, n in enumerate(SIZES)]


class Dealt(list):
    """Batches that note which of them this rank took in each round, for counts follow the ranks' speeds."""

    def __init__(self, batches):
        super().__init__(batches)
        self.taken = []

    def __getitem__(self, part):
        self.taken.append(part)
        return super().__getitem__(part)


def by_hand(comm, taken, hook, **options):
    """A loop over the same rounds without a trainer; its parameters."""
    ddp = DDP(Mlp(0), comm, **options)
    if hook is not None:
        ddp.register_comm_hook(CompressionState(), hook)
    optimizer = optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    for part in taken:
        mine = batches()[part]
        samples = sum(len(x) for x, _ in mine)
        for number, (x, y) in enumerate(mine, 1):
            with ddp.no_sync() if number < len(mine) else nullcontext():
                (mean_loss(ddp(x), y.data) * (len(x) / samples)).backward()
        if not mine:
            ddp.flush()
        optimizer.step()
        optimizer.zero_grad()
    return [param.data.tobytes() for param in ddp.module.parameters()]


@pytest.mark.parametrize("kind", ["threads", "shm", "simulated"])
@pytest.mark.parametrize("hook", [None, fp16_compress_hook])
def test_rounds_are_a_loop_by_hand_bit_for_bit(kind, hook):
    def body(comm):
        rounds, own = Rounds(comm, CadenceConfig.fixed(2)), Dealt(batches())
        options = {"bucket_cap_bytes": 100, "broadcast_buffers": "none"}
        config = DistributedTrainConfig(
            comm.world_size,
            comm.rank,
            ddp_options={**options, "check_replicas_every": 2},
            comm_hook=hook,
            hook_state=None if hook is None else CompressionState(),
        )
        trainer = DistributedTrainer(single(seed=comm.rank), comm, config, rounds=rounds)
        loss = trainer.train_epoch(own)
        found = [param.tobytes() for param in values(trainer.trainer)]
        assert len(trainer.ddp.plan.buckets) > 1 and trainer.steps == len(own.taken)
        return loss, found == by_hand(comm, own.taken, hook, **options), trainer.epochs

    if kind == "simulated":
        results = simulate.run(body, Cluster.of_speeds([1, 1, 1])).results
    else:
        results = run_ranks(kind, body, 3)
    assert results == [(results[0][0], True, 1)] * 3


def test_rounds_are_one_device_on_the_same_samples():
    def body(comm):
        own = Dealt(batches())
        trainer = DistributedTrainer(single(), comm, rounds=Rounds(comm, CadenceConfig.fixed(2)))
        return trainer.train_epoch(own), values(trainer.trainer), trainer.epoch_metrics, own.taken

    results = run(body, 2, timeout_s=10.0)
    alone, losses = single(), []
    for parts in zip(*(taken for *_, taken in results)):
        together = [batch for part in parts for batch in batches()[part]]
        x, y = (np.concatenate([field.data for field in fields]) for fields in zip(*together))
        losses.append((alone.train_batch(tensors((x, y))), len(x)))
    mean = sum(loss * n for loss, n in losses) / sum(SIZES)
    for loss, params, metrics, _ in results:
        assert loss == pytest.approx(mean, rel=1e-12) and metrics.loss == loss
        used = [sum(sum(SIZES[part]) for part in taken) for *_, taken in results]
        assert metrics.shares == tuple(n / 18 for n in used) and sum(used) == 18
        assert [each.steps for each in metrics.per_rank] == [len(losses)] * 2
        for mine, other in zip(params, values(alone)):
            np.testing.assert_allclose(mine, other, rtol=0, atol=1e-12)


def test_a_round_is_cut_into_micro_batches_as_a_batch_is():
    def body(comm):
        config = DistributedTrainConfig(2, comm.rank, accumulation_steps=2)
        trainer = DistributedTrainer(single(), comm, config)
        loss = trainer.train_round(batches()[:3] if comm.rank else [])
        return loss, trainer.last_loss_local, values(trainer.trainer)

    alone = single()
    x, y = (np.concatenate([field.data for field in fields]) for fields in zip(*batches()[:3]))
    expected = alone.train_batch(tensors((x, y)))
    (first, local, params), (second, other, _) = run(body, 2, timeout_s=10.0)
    assert first == second == pytest.approx(expected) and local is None and other == pytest.approx(expected)
    for mine, whole in zip(params, values(alone)):
        np.testing.assert_allclose(mine, whole, rtol=0, atol=1e-12)


def test_the_loss_of_this_rank_is_there_beside_that_of_all():
    def body(comm):
        trainer = DistributedTrainer(single(), comm)
        before = trainer.last_loss_local
        own = loss_fn(trainer.trainer.model, tensors(data(2 + comm.rank, comm.rank))).item()
        mean = trainer.train_batch(tensors(data(2 + comm.rank, comm.rank)))
        return before, mean, trainer.last_loss_local, own

    results = run(body, 2)
    assert [(before, local) for before, _, local, _ in results] == [(None, own) for *_, own in results]
    assert results[0][1] == pytest.approx((2 * results[0][2] + 3 * results[1][2]) / 5)


def test_an_epoch_tells_scalars_and_metrics_of_all_ranks():
    """5 batches on 2 ranks, each cut in two: the figures of all rows at once."""
    rows = [data(n, seed, outputs=3) for seed, n in enumerate([4, 3, 2, 4, 1])]

    def body(comm):
        metrics = MetricCollection({"accuracy": Accuracy()})

        def loss_fn(model, batch):
            output = model(batch[0])
            record_scalar("largest", batch[0].max())
            metrics["accuracy"].update(output, batch[1])
            return nn.functional.cross_entropy(output, batch[1])

        minigrad.manual_seed(0)
        model = nn.Linear(3, 3, dtype=minigrad.float64)
        own = SingleDeviceTrainer(model, optim.SGD(model.parameters(), lr=0.0), loss_fn)
        config = DistributedTrainConfig(2, comm.rank, accumulation_steps=2)
        trainer = DistributedTrainer(own, comm, config, metrics=metrics)
        mine = [(minigrad.Tensor(x), minigrad.Tensor(y.argmax(1))) for x, y in rows[comm.rank :: 2]]
        epochs = [trainer.train_epoch(mine) and trainer.epoch_metrics for _ in range(2)]
        assert metrics["accuracy"].read() == [0.0, 0.0] and metrics["accuracy"].per_rank
        return epochs, model(minigrad.Tensor(np.concatenate([x for x, _ in rows]))).detach().numpy()

    results = run(body, 2, timeout_s=10.0)
    (first, second), output = results[0]
    labels = np.concatenate([y.argmax(1) for _, y in rows])
    assert results[1][0] == [first, second] and (first.epoch, second.epoch) == (0, 1)
    assert first.scalars == second.scalars and first.loss == second.loss
    assert first.scalars["accuracy"] == (output.argmax(1) == labels).mean()
    by_hand = -np.log(np.exp(output) / np.exp(output).sum(1, keepdims=True))[np.arange(14), labels].mean()
    assert first.loss == pytest.approx(by_hand)
    halves = [half for x, _ in rows for half in np.array_split(x, 2) if len(half)]
    assert first.scalars["largest"] == pytest.approx(sum(half.max() * len(half) for half in halves) / 14)
    assert first.shares == (7 / 14, 7 / 14) and [each.samples for each in first.per_rank] == [7.0, 7.0]
    assert [each.steps for each in first.per_rank] == [3, 3]


def test_single_batches_make_an_epoch_too():
    trainer = DistributedTrainer(single(), SoloCommunicator())
    losses = [trainer.train_batch(batch) for batch in batches()]
    metrics = trainer.finish_epoch()
    assert metrics.loss == pytest.approx(sum(n * loss for n, loss in zip(SIZES, losses)) / sum(SIZES))
    assert (metrics.epoch, trainer.epochs) == (0, 1) and trainer.epoch_metrics is metrics
    trainer.train_batch(batches()[0])
    trainer.train_epoch(batches()[1:3])
    assert trainer.epoch_metrics.per_rank[0].samples == sum(SIZES[1:3])  # what came before is of no epoch


def test_checks_and_flags_are_those_of_the_wrapper():
    def body(comm):
        options = {"track_nonfinite": True, "check_replicas_every": 1}
        config = DistributedTrainConfig(2, comm.rank, ddp_options=options)
        trainer = DistributedTrainer(single(), comm, config)
        x, y = data(2, 0)
        trainer.train_batch(tensors((x * (np.nan if comm.rank else 1.0), y)))
        flags = trainer.ddp.nonfinite_gradients()
        fresh = DistributedTrainer(single(), comm, config)
        fresh.trainer.model.w1.data[...] += comm.rank
        with pytest.raises(ReplicaMismatchError):
            fresh.train_batch(tensors((x, y)))
        return [flag.rank for flag in flags]

    assert run(body, 2, timeout_s=10.0) == [[1], [1]]


def test_a_resumed_trainer_counts_on_and_ranks_do_alike():
    def body(comm):
        trainer = DistributedTrainer(single(), comm, DistributedTrainConfig(2, comm.rank, max_steps=4))
        trainer.train_epoch(batches()[:3])
        other = DistributedTrainer(single(), comm, DistributedTrainConfig(2, comm.rank, max_steps=4))
        other.load_state_dict(trainer.state_dict())
        other.train_epoch(batches())
        told = other.state_dict(), other.reached_max_steps, other.epoch_metrics.epoch
        resumed = DistributedTrainer(single(), comm)
        resumed.load_state_dict({"steps": 4, "epochs": 3})
        resumed.train_batch(batches()[0])
        assert resumed.finish_epoch().epoch == 3
        again = DistributedTrainer(single(), comm)
        again.train_batch(batches()[0])
        again.load_state_dict({"steps": 1, "epochs": 0})  # as it is
        again.train_batch(batches()[0])
        if comm.rank:
            again.load_state_dict({"steps": 9, "epochs": 2})
        with pytest.raises(ReplicaMismatchError, match="DistributedTrainer was loaded with"):
            again.train_batch(batches()[0])
        return told

    assert run(body, 2, timeout_s=10.0) == [({"steps": 4, "epochs": 1}, True, 1)] * 2


def test_a_trainer_that_alone_has_loaded_is_told_so():
    def body(comm):
        trainer = DistributedTrainer(single(), comm)
        if comm.rank:
            trainer.load_state_dict({"steps": 9, "epochs": 2})
        with pytest.raises(ReplicaMismatchError, match=r"was loaded with is \[0, 0\] on rank 0 and \[9, 2\] on rank 1"):
            trainer.train_batch(batches()[0])
        return True

    assert run(body, 2, timeout_s=10.0) == [True, True]


@pytest.mark.parametrize("mine, other, words", [
    ({"comm_hook": fp16_compress_hook}, {}, "got comm_hook is fp16_compress_hook on rank 0 and None on rank 1"),
    ({"ddp_options": {"bucket_cap_mb": 1}}, {}, "bucket_cap_mb"),
])
def test_options_that_differ_are_named(mine, other, words):
    def body(comm):
        with pytest.raises(ReplicaMismatchError, match=words):
            DistributedTrainer(single(), comm, DistributedTrainConfig(2, comm.rank, **(other if comm.rank else mine)))
        return True

    assert run(body, 2, timeout_s=10.0) == [True, True]


def test_only_some_ranks_with_rounds_are_refused():
    def body(comm):
        rounds = Rounds(comm)
        with pytest.raises(ReplicaMismatchError, match="got rounds is True on rank 0 and False on rank 1"):
            DistributedTrainer(single(), rounds.comm, rounds=None if comm.rank else rounds)
        return True

    assert run(body, 2, timeout_s=10.0) == [True, True]


def test_what_would_do_nothing_is_refused():
    solo = SoloCommunicator()
    rounds = Rounds(solo)
    with pytest.raises(ArgumentError, match="bucket_cap_mb, in MiB, to be a finite number > 0"):
        DistributedTrainer(single(), solo, DistributedTrainConfig(1, ddp_options={"bucket_cap_mb": -1}))
    with pytest.raises(ArgumentError, match="expected rounds made of its comm, got another's"):
        DistributedTrainer(single(), Recording(solo), rounds=rounds)
    with pytest.raises(ArgumentError, match="expected rounds without a guard, got TrendGuard.*: write the loop"):
        DistributedTrainer(single(), solo, rounds=Rounds(solo, guard=TrendGuard()))
    with pytest.raises(ArgumentError, match="expected rounds as distributed.Rounds, got bool"):
        DistributedTrainer(single(), solo, rounds=True)
    with pytest.raises(ArgumentError, match="expected a MetricCollection, got dict"):
        DistributedTrainer(single(), solo, metrics={})
    trainer = DistributedTrainer(single(), solo, rounds=rounds)
    with pytest.raises(ArgumentError, match=r"no rounds, got some: write train_round\(\[batch\]\), or train_epoch"):
        trainer.train_batch(batches()[0])
    for wrong in (batches()[0], batches()[0][0], None):
        with pytest.raises(ArgumentError, match=r"expected a list of whole batches, got \w+: write \[batch\] for one"):
            trainer.train_round(wrong)
    with pytest.raises(ArgumentError, match="expected a list of batches, got list_iterator"):
        trainer.train_epoch(iter(batches()))
    for state in ({"steps": 1}, None, {"steps": 1, "epochs": 0, "loss": 1.0}):
        with pytest.raises(StateDictError, match="expected a state of steps and epochs"):
            trainer.load_state_dict(state)
    with pytest.raises(ArgumentError, match="epochs to be an integer >= 0, got -1"):
        trainer.load_state_dict({"steps": 1, "epochs": -1})
