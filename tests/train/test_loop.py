"""DistributedTrainer: each rank's loop, on any communicator, makes the steps of one device."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import minigrad
from minigrad import nn, optim
from minigrad.data import ChunkPool
from minigrad.distributed import CadenceConfig, Dispatcher, Rounds, SoloCommunicator, run, simulate
from minigrad.distributed.simulate import Cluster
from minigrad.errors import ArgumentError, ReplicaMismatchError, ShapeError
from minigrad.train import DistributedCudaTrainer, DistributedTrainConfig, DistributedTrainer, SingleDeviceTrainer
from tests.distributed.models import Mlp, data, mean_loss
from tests.distributed.test_hooks import CountingEmpty
from tests.distributed.worlds import run_ranks

MAKERS = {
    "sgd": (lambda params: optim.SGD(params, lr=0.05), 1e-10),
    "momentum": (lambda params: optim.SGD(params, lr=0.05, momentum=0.9), 1e-10),
    "adam": (lambda params: optim.Adam(params, lr=0.02), 1e-8),
}


def loss_fn(model, batch):
    return mean_loss(model(batch[0]), batch[1].data)


def single(seed=0, kind="momentum", **options):
    model = Mlp(seed)
    return SingleDeviceTrainer(model, MAKERS[kind][0](list(model.parameters())), loss_fn, **options)


def tensors(arrays):
    return tuple(minigrad.Tensor(array) for array in arrays)


def values(trainer):
    return [param.data.copy() for param in trainer.model.parameters()]


def part_of(batch, sizes, rank):
    start = sum(sizes[:rank])
    return tensors(array[start : start + sizes[rank]] for array in batch)


def test_a_step_asks_for_no_new_memory_of_the_ranks():
    comm = CountingEmpty(SoloCommunicator())
    trainer = DistributedTrainer(single(), comm)
    trainer.train_batch(tensors(data(4, 0)))
    made = comm.made
    trainer.train_batch(tensors(data(4, 1)))
    assert comm.made == made


@pytest.mark.parametrize("kind", list(MAKERS))
@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow])
@given(world_size=st.integers(1, 4), accumulation=st.integers(1, 3), data_=st.data())
def test_any_batches_cut_in_any_way_make_the_steps_of_one_device(kind, world_size, accumulation, data_):
    sizes = st.lists(st.integers(0, 5), min_size=world_size, max_size=world_size).filter(any)
    steps = [data_.draw(sizes) for _ in range(5)]
    batches = [data(sum(each), seed) for seed, each in enumerate(steps)]

    def body(comm):
        config = DistributedTrainConfig(world_size, comm.rank, accumulation_steps=accumulation)
        trainer = DistributedTrainer(single(seed=comm.rank, kind=kind), comm, config)
        losses = [trainer.train_batch(part_of(b, s, comm.rank)) for b, s in zip(batches, steps)]
        return losses, values(trainer.trainer), trainer.steps

    alone = single(kind=kind)
    expected = [alone.train_batch(tensors(batch)) for batch in batches]
    results = run(body, world_size, timeout_s=10.0)
    for losses, found, made in results:
        assert losses == pytest.approx(expected) and losses == results[0][0] and made == 5
        for mine, other in zip(found, values(alone)):
            np.testing.assert_allclose(mine, other, rtol=0, atol=MAKERS[kind][1])


@pytest.mark.parametrize("kind", ["threads", "shm"])
def test_on_threads_and_processes(kind):
    batch, sizes = data(6, 0), [4, 0, 2]

    def body(comm):
        trainer = DistributedTrainer(single(seed=comm.rank), comm)
        return [trainer.train_batch(part_of(batch, sizes, comm.rank)) for _ in range(3)]

    alone = single()
    expected = [alone.train_batch(tensors(batch)) for _ in range(3)]
    for losses in run_ranks(kind, body, 3):
        assert losses == pytest.approx(expected)


def test_on_a_simulated_cluster():
    batch, sizes = data(6, 0), [4, 2]

    def body(comm):
        trainer = DistributedTrainer(single(), comm)
        return [trainer.train_batch(part_of(batch, sizes, comm.rank)) for _ in range(3)]

    trace = simulate.run(body, Cluster.of_speeds([2, 1]))
    assert trace.results[0] == trace.results[1] and trace.steps() == 3
    assert trace.step_times_s() == pytest.approx([0.002] * 3)


def test_the_mean_loss_is_over_samples_and_not_over_ranks():
    """1 sample of loss 1 and 3 of loss 5 make 4."""

    def body(comm):
        layer = nn.Linear(1, 1, bias=False)
        layer.weight.data[...] = 1.0
        own = SingleDeviceTrainer(layer, optim.SGD(layer.parameters(), lr=0.0), lambda model, x: model(x).mean())
        x = minigrad.full((1, 1), 1.0) if comm.rank == 0 else minigrad.full((3, 1), 5.0)
        return DistributedTrainer(own, comm).train_batch(x)

    assert run(body, 2) == [4.0, 4.0]


def test_losses_of_half_precision_are_added_in_double():
    """Two samples of loss 60000 are too much for a half, and their mean is not."""
    layer = nn.Linear(1, 1, bias=False, dtype=minigrad.float16)
    layer.weight.data[...] = 1.0
    own = SingleDeviceTrainer(layer, optim.SGD(layer.parameters(), lr=0.0), lambda model, x: model(x).mean())
    loss = DistributedTrainer(own, SoloCommunicator()).train_batch(minigrad.full((2, 1), 6e4, dtype=minigrad.float16))
    assert loss == np.float16(6e4)


def test_a_loss_over_something_else_says_what():
    """A mean over tokens: 2 of 2 rows that mean 1, and 6 of 1 row that mean 5, make 4."""

    def body(comm):
        layer = nn.Linear(1, 1, bias=False)
        layer.weight.data[...] = 1.0
        own = SingleDeviceTrainer(
            layer,
            optim.SGD(layer.parameters(), lr=1.0),
            lambda model, batch: model(batch["x"]).mean(),
            samples_of=lambda batch: batch["tokens"],
        )
        batch = {"x": minigrad.full((2 - comm.rank, 1), 1.0 + 4.0 * comm.rank), "tokens": 2 + 4 * comm.rank}
        loss = DistributedTrainer(own, comm).train_batch(batch)
        return loss, float(layer.weight.data.item())

    assert run(body, 2) == [(4.0, -3.0)] * 2


def test_the_combined_gradient_is_clipped():
    """Gradients of 10 and 0 under a limit of 1 make 1, not the mean of 1 and 0."""

    def body(comm):
        layer = nn.Linear(1, 1, bias=False)
        layer.weight.data[...] = 0.0
        own = SingleDeviceTrainer(layer, optim.SGD(layer.parameters(), lr=1.0), lambda model, x: model(x).mean())
        config = DistributedTrainConfig(2, comm.rank, max_grad_norm=1.0)
        DistributedTrainer(own, comm, config).train_batch(minigrad.full((1, 1), 10.0 * (1 - comm.rank)))
        return float(layer.weight.data.item())

    assert run(body, 2) == pytest.approx([-1.0, -1.0], abs=1e-5)


def test_ranks_with_different_numbers_of_batches_end_together():
    """7 batches on 2 ranks: each step has the samples that are there, epoch after epoch."""
    batches = [data(2, seed) for seed in range(7)]

    def body(comm):
        trainer = DistributedTrainer(single(), comm)
        means = [trainer.train_epoch([tensors(b) for b in batches[comm.rank :: 2]]) for _ in range(2)]
        return means, trainer.steps, values(trainer.trainer)

    alone = single()
    expected = []
    for _ in range(2):
        losses = []
        for first in range(0, 7, 2):
            pair = batches[first : first + 2]
            losses += [alone.train_batch(tensors(np.concatenate(f) for f in zip(*pair)))] * len(pair)
        expected.append(sum(losses) / 7)
    for means, made, found in run(body, 2, timeout_s=10.0):
        assert means == pytest.approx(expected) and made == 8
        for mine, other in zip(found, values(alone)):
            np.testing.assert_allclose(mine, other, atol=1e-12)


def test_batches_without_samples_do_not_end_an_epoch():
    """Not even where all ranks have one at a time."""
    empty, full = data(0, 0), data(4, 0)

    def body(comm):
        trainer = DistributedTrainer(single(), comm)
        own = [tensors(empty), tensors(full), None, tensors(full)][: 4 - comm.rank]
        return trainer.train_epoch(own), trainer.steps

    alone = single()
    losses = [alone.train_batch(tensors(np.concatenate([field] * n) for field in full)) for n in (2, 1)]
    for mean, steps in run(body, 2, timeout_s=10.0):
        assert mean == pytest.approx((8 * losses[0] + 4 * losses[1]) / 12) and steps == 2


def test_no_samples_anywhere_is_no_step():
    def body(comm):
        trainer = DistributedTrainer(single(), comm)
        before = values(trainer.trainer)
        loss = trainer.train_batch(None if comm.rank else tensors(data(0, 0)))
        unchanged = all((a == b).all() for a, b in zip(before, values(trainer.trainer)))
        return math.isnan(loss), unchanged, trainer.steps, math.isnan(trainer.train_epoch([]))

    assert run(body, 2, timeout_s=10.0) == [(True, True, 0, True)] * 2


def test_ranks_stop_together():
    batch = data(4, 0)

    def asked(comm):
        trainer = DistributedTrainer(single(), comm)
        while not trainer.should_stop:
            if comm.rank == 1 and trainer.steps == 2:
                trainer.request_stop()
            trainer.train_batch(tensors(batch))
        return trainer.steps, trainer.reached_max_steps

    def limited(comm):
        trainer = DistributedTrainer(single(), comm, DistributedTrainConfig(2, comm.rank, max_steps=3))
        trainer.train_epoch([tensors(batch)] * (5 + comm.rank))
        with pytest.raises(ArgumentError, match="while should_stop is false, got it after step 3"):
            trainer.train_batch(tensors(batch))
        return trainer.steps, trainer.reached_max_steps

    assert run(asked, 2, timeout_s=10.0) == [(3, False)] * 2
    assert run(limited, 2, timeout_s=10.0) == [(3, True)] * 2


def test_what_it_tells():
    def body(comm):
        own = single()
        trainer = DistributedCudaTrainer(own, comm, DistributedTrainConfig(2, comm.rank))
        assert trainer.trainer is own and trainer.dist_config.rank == comm.rank
        return trainer.is_coordinator, trainer.world_size, trainer.dist_config.role

    assert run(body, 2) == [(True, 2, "coordinator"), (False, 2, "worker")]


def test_a_schedule_moves_once_a_step():
    own = single()
    own.scheduler = optim.LRScheduler(own.optimizer, optim.StepDecay(1, gamma=0.5))
    trainer = DistributedTrainer(own, SoloCommunicator(), DistributedTrainConfig(1, accumulation_steps=2))
    for _ in range(2):
        trainer.train_batch(tensors(data(4, 0)))
    assert own.optimizer.param_groups[0]["lr"] == pytest.approx(0.0125)


@pytest.mark.parametrize("options", [
    ({"max_steps": 3}, {"max_steps": 5}),
    ({"max_grad_norm": 0.5}, {}),
], ids=lambda options: next(iter(options[0])))
def test_ranks_stop_and_clip_alike(options):
    """Others would go on alone, or become another model."""

    def body(comm):
        with pytest.raises(ReplicaMismatchError, match=f"equal options on all ranks, got {next(iter(options[0]))} is"):
            DistributedTrainer(single(), comm, DistributedTrainConfig(2, comm.rank, **options[comm.rank]))

    run(body, 2, timeout_s=10.0)


def test_wrong_arguments():
    solo = SoloCommunicator()
    with pytest.raises(ArgumentError, match="expected a communicator, got NoneType"):
        DistributedTrainer(single(), None)
    with pytest.raises(ArgumentError, match="expected a DistributedTrainConfig, got dict"):
        DistributedTrainer(single(), solo, {})
    with pytest.raises(ArgumentError, match="expected batches to iterate over, got NoneType"):
        DistributedTrainer(single(), solo).train_epoch(None)
    with pytest.raises(ArgumentError, match="expected the communicator's rank 0 of 1, got rank 1 of 2"):
        DistributedTrainer(single(), solo, DistributedTrainConfig(2, 1))
    with pytest.raises(ArgumentError, match="expected a trainer with the function loss_fn"):
        DistributedTrainer(object(), solo)
    trainer = DistributedTrainer(single(), solo)
    for batch, error, message in [
        ("text", ArgumentError, "expected a tensor in the batch, got none in a str"),
        (minigrad.tensor(1.0), ShapeError, "expected one sample a row"),
    ]:
        with pytest.raises(error, match=message):
            trainer.train_batch(batch)
    trainer.trainer.loss_fn = lambda model, batch: model(batch[0])
    with pytest.raises(ShapeError, match=r"one mean loss, got shape \(4, 2\)"):
        trainer.train_batch(tensors(data(4, 0)))
    uneven = DistributedTrainer(single(), SoloCommunicator(), DistributedTrainConfig(1, accumulation_steps=2))
    with pytest.raises(ShapeError, match="as many in each"):
        uneven.train_batch((minigrad.ones(4, 3), minigrad.ones(3, 2)))

    def body(comm):
        with pytest.raises(ReplicaMismatchError):
            model = Mlp(0, (3, 5 + comm.rank, 2))
            DistributedTrainer(SingleDeviceTrainer(model, optim.SGD(model.parameters(), lr=0.1), loss_fn), comm)

    run(body, 2, timeout_s=10.0)


def test_the_samples_of_the_last_batch_are_known_after_an_epoch():
    def body(comm):
        trainer = DistributedTrainer(single(), comm)
        trainer.train_epoch([tensors(data(n, seed=n)) for n in ((4, 3, 2) if comm.rank else (5,))])
        seen = [trainer.last_samples]
        trainer.train_batch(None)
        return [*seen, trainer.last_samples]

    assert run(body, 2) == [[2.0, 0.0]] * 2


@pytest.mark.parametrize("max_steps, ended", [(1, 0), (2, 1)])
def test_a_stop_leaves_a_dispatcher_where_training_stopped(max_steps, ended):
    def body(comm):
        seen = []

        def recorded(model, rows):
            seen.extend(rows.tolist())
            return loss_fn(model, tensors(data(len(rows), seed=0)))

        def trainer_of(max_steps):
            config = DistributedTrainConfig(2, comm.rank, max_steps=max_steps)
            one = single(samples_of=len)
            one.loss_fn = recorded
            return DistributedTrainer(one, comm, config, rounds=Rounds(comm, CadenceConfig.fixed(2)))

        dealt, rest = (Dispatcher(comm, ChunkPool(16, batch_size=2)) for _ in range(2))
        first = trainer_of(max_steps)
        first.train_epoch(dealt)
        if not first.epochs:
            rest.load_state_dict(dealt.state_dict())
            trainer_of(None).train_epoch(rest)
        return first.epochs, sorted(sum(comm.all_gather_object(seen), []))

    assert run(body, 2) == [(ended, list(range(16)))] * 2
