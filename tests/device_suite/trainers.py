"""A graph that trains itself, and a rank's loop, on a device that is no CPU: the values of the CPU."""

import numpy as np
import pytest

import minigrad
from minigrad import Trainer, nn, ops, optim, record_scalar
from minigrad.backend.device import to_host
from minigrad.distributed import DdpConfig, SoloCommunicator
from minigrad.errors import IndexRangeError
from minigrad.train import (
    Accuracy,
    DistributedTrainConfig,
    DistributedTrainer,
    MetricCollection,
    SingleDeviceTrainer,
)
from tests.train.graphs import OPTIMIZERS, loss_fn, make_batch, make_graph, trained_alone


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_graph_trains_as_on_the_cpu(cuda, kind):
    batches = [make_batch(8, seed) for seed in range(6)]
    graph = make_graph(device=cuda)
    config = DdpConfig(max_grad_norm=0.5)
    Trainer.setup_with(graph, graph.replicate, OPTIMIZERS[kind], config, devices=[cuda])
    graph.set_loss_fn(loss_fn)
    graph.set_data_loader(batches)  # on the CPU: they are moved
    for batch in graph.epoch(0):
        loss = graph.backward_batch(batch)
        graph.step()
    assert loss.device == cuda and graph.shard_sizes == (8,)
    for mine, other in zip(graph.parameters(), trained_alone(batches, OPTIMIZERS[kind], max_norm=0.5)):
        np.testing.assert_allclose(to_host(mine.data), other, rtol=0, atol=1e-9)


def test_the_loop_of_a_rank_trains_as_on_the_cpu(cuda):
    batches = [make_batch(7, seed) for seed in range(4)]

    def mean_loss(model, batch):
        error = model(batch[0], batch[1]) - batch[2]
        return (error * error).sum() / len(error)

    model = make_graph(device=cuda)
    own = SingleDeviceTrainer(model, OPTIMIZERS["momentum"](list(model.parameters())), mean_loss)
    trainer = DistributedTrainer(own, SoloCommunicator(cuda), DistributedTrainConfig(1, accumulation_steps=3))
    losses = [trainer.train_batch(tuple(minigrad.Tensor(x.data).to(cuda) for x in batch)) for batch in batches]
    assert np.isfinite(losses).all() and trainer.steps == 4
    for mine, other in zip(model.parameters(), trained_alone(batches, OPTIMIZERS["momentum"])):
        np.testing.assert_allclose(to_host(mine.data), other, rtol=0, atol=1e-10)


def test_the_figures_of_an_epoch_are_those_of_the_cpu(cuda):
    """Of what a loss_fn records and of labels that are met, which lie on the device until the epoch is over."""

    def epoch(device):
        metrics = MetricCollection({"accuracy": Accuracy()})

        def loss_fn(model, batch):
            output = model(batch[0])
            record_scalar("largest", output.abs().max())
            metrics["accuracy"].update(output, batch[1])
            return ops.cross_entropy(output, batch[1])

        minigrad.manual_seed(0)
        model = nn.Linear(3, 2).to(device)
        own = SingleDeviceTrainer(model, optim.SGD(model.parameters(), lr=0.1), loss_fn)
        config = DistributedTrainConfig(1, accumulation_steps=2)
        trainer = DistributedTrainer(own, SoloCommunicator(device), config, metrics=metrics)
        rng = np.random.default_rng(0)
        rows = [(rng.standard_normal((n, 3)).astype(np.float32), rng.integers(0, 2, n)) for n in (5, 4)]
        trainer.train_epoch([tuple(minigrad.Tensor(x).to(device) for x in batch) for batch in rows])
        return trainer.epoch_metrics

    there, here = epoch(cuda), epoch(minigrad.Device("cpu"))
    assert there.loss == pytest.approx(here.loss, rel=1e-5) and there.scalars == pytest.approx(here.scalars, rel=1e-5)
    assert there.shares == (1.0,) and there.per_rank[0].samples == 9.0 and there.throughput > 0.0


def test_a_label_out_of_range_is_raised_by_the_loop_of_a_rank_and_at_the_end_of_an_epoch(cuda):
    def mean_loss(model, batch):
        return ops.cross_entropy(model(batch[0]), batch[1])

    def batches():
        return [(minigrad.ones(2, 3, device=cuda), minigrad.tensor(labels, device=cuda)) for labels in ([0, 1], [0, 7])]

    model = nn.Linear(3, 2, device=cuda)
    own = SingleDeviceTrainer(model, optim.SGD(model.parameters(), lr=0.1), mean_loss)
    with pytest.raises(IndexRangeError, match="labels in .0, 2., got 7"):
        DistributedTrainer(own, SoloCommunicator(cuda), DistributedTrainConfig(1)).train_epoch(batches())
    graph = minigrad.FlowBuilder.from_(nn.Linear(3, 2, device=cuda)).build()
    graph.set_optimizer(lambda params: optim.SGD(params, lr=0.1))
    graph.set_data_loader(batches())
    seen = 0
    with pytest.raises(IndexRangeError, match="cross_entropy"):
        for x, labels in graph.epoch(0):
            ops.cross_entropy(graph(x), labels).backward()
            seen += 1
    assert seen == 2
