"""A graph that trains itself, and a rank's loop, on a device that is no CPU: the values of the CPU."""

import numpy as np
import pytest

import minigrad
from minigrad import Trainer
from minigrad.backend.device import to_host
from minigrad.distributed import DdpConfig, SoloCommunicator
from minigrad.train import DistributedTrainConfig, DistributedTrainer, SingleDeviceTrainer
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
