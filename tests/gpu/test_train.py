"""The suite of graphs that train themselves, on a GPU; and what a stand-in has no time for."""

import pytest

from minigrad import Trainer
from tests.device_suite.trainers import *  # noqa: F401, F403
from tests.train.graphs import OPTIMIZERS, loss_fn, make_batch, make_graph

pytestmark = pytest.mark.gpu


def test_a_graph_knows_what_its_device_does(cuda):
    graph = make_graph(device=cuda)
    Trainer.setup(graph, graph.replicate, OPTIMIZERS["sgd"], devices=[cuda])
    graph.set_loss_fn(loss_fn)
    for _ in range(3):
        loss = graph.backward_batch(make_batch(64))
        graph.step()
        loss.item()  # by now the device has passed all that came before
    assert graph.throughput[0] > 0.0
