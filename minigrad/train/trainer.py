"""Trainer: one call after which a loop trains a graph, on one device or on many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar, runtime_checkable

from minigrad.absent import tell_lacking
from minigrad.backend.device import Device
from minigrad.distributed.config import DdpConfig
from minigrad.errors import ArgumentError, CallError
from minigrad.train.fleet import Builder, Devices
from minigrad.train.graph import Graph
from minigrad.train.run.builder import DdpBuilder
from minigrad.train.run.config import RunConfig
from minigrad.train.run.handle import Run
from minigrad.train.run.start import start
from minigrad.train.stepper import MakeOptimizer


@runtime_checkable
class HasGraph(Protocol):
    """A model around a graph, such as a task's head: what `Trainer.setup_head` takes. A Graph is one too."""

    def graph(self) -> Graph:
        """The graph that the model's forward and loss go through."""


_HOW = ": minigrad.FlowBuilder makes one, and setup_head takes a model around one"

H = TypeVar("H", bound=HasGraph)


class Trainer:
    """Sets a graph up for training: replicas, optimizers, training mode, and a line on stderr that says on what.

    The loop afterwards is the same on one device, on several, and on simulated ones:

        for batch in graph.epoch(number):
            loss = graph.backward_batch(batch)
            graph.step()

    with `graph.set_loss_fn` and `graph.set_data_loader`; or, where El Che is off,

        for image, label in loader:
            loss = cross_entropy(graph(image), label)
            loss.backward()
            graph.step()

    Example:
        >>> from minigrad import FlowBuilder, nn, optim, randn
        >>> graph = FlowBuilder.from_(nn.Linear(3, 1)).build()
        >>> Trainer.setup(graph, graph.replicate, lambda params: optim.SGD(params, lr=0.1), devices=["cpu", "cpu"])
        >>> graph(randn(8, 3)).square().mean().backward()
        >>> graph.step()
        >>> graph.world_size, graph.shard_sizes
        (2, (4, 4))
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        """There is none to make.

        Raises:
            CallError: always.
        """
        raise CallError(
            "Trainer: expected Trainer.start(make_model, make_optimizer, train_fn, dataset, batch_size=32, epochs=10), "
            "or Trainer.setup(graph, builder, make_optimizer), got a call"
        )

    @staticmethod
    def start(
        make_model: Callable[[Device], Any],
        make_optimizer: Callable[[list[Any]], Any],
        train_fn: Callable[[Any, Any], Any],
        dataset: Any,
        **options: Any,
    ) -> Run:
        """Train, and own ranks, data and epochs: the same call for threads, devices, processes and simulations.

        Under a launcher or mpirun every process makes the same call. batch_size is that of a rank and a step.

        Args:
            make_model, make_optimizer, train_fn, dataset: See `RunConfig`.
            options: batch_size and epochs, and whatever else `RunConfig` has.

        Returns:
            The run, which goes on beside the caller.

        Raises:
            ArgumentError: see `RunConfig`.

        Example:
            >>> from minigrad import nn, optim, tensor
            >>> from minigrad.data import TensorDataset
            >>> run = Trainer.start(
            ...     lambda device: nn.Linear(2, 1).to(device),
            ...     lambda params: optim.SGD(params, lr=0.1),
            ...     lambda model, batch: model(batch[0]).square().mean(),
            ...     TensorDataset(tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])),
            ...     batch_size=1, epochs=2, ranks=2, seed=0,
            ... )
            >>> [metrics.epoch for metrics in run.metrics()], sorted(run.join().params)
            ([0, 1], ['bias', 'weight'])
        """
        return start(RunConfig(make_model, make_optimizer, train_fn, dataset, **options))

    @staticmethod
    def builder(
        make_model: Callable[[Device], Any],
        make_optimizer: Callable[[list[Any]], Any],
        train_fn: Callable[[Any, Any], Any],
    ) -> DdpBuilder:
        """The same in a chain of calls, with the names and the defaults of flodl: parameters are combined, by El Che.

        Example:
            >>> from minigrad import nn, ones, optim
            >>> from minigrad.data import TensorDataset
            >>> builder = Trainer.builder(
            ...     lambda device: nn.Linear(2, 1).to(device),
            ...     lambda params: optim.SGD(params, lr=0.1),
            ...     lambda model, batch: model(batch[0]).square().mean(),
            ... )
            >>> run = builder.dataset(TensorDataset(ones(6, 2))).batch_size(1).num_epochs(2).run()
            >>> sorted(run.join().params)
            ['bias', 'weight']
        """
        return DdpBuilder(make_model, make_optimizer, train_fn)

    @staticmethod
    def setup(
        model: Graph, builder: Builder, optimizer: MakeOptimizer, *, devices: Devices = None, el_che: bool | None = None
    ) -> None:
        """Set a graph up with the default options; see `setup_with`."""
        Trainer.setup_with(model, builder, optimizer, DdpConfig(), devices=devices, el_che=el_che)

    @staticmethod
    def setup_with(
        model: Graph,
        builder: Builder,
        optimizer: MakeOptimizer,
        config: DdpConfig,
        *,
        devices: Devices = None,
        el_che: bool | None = None,
    ) -> None:
        """Set a graph up for training.

        Args:
            model: The graph, on the first of the devices.
            builder: builder(device) makes a graph of the same structure there, for each of the other devices.
            optimizer: optimizer(params) makes the optimizer of a replica.
            config: See `DdpConfig`.
            devices: See `Graph.distribute`.
            el_che: Whether each device runs several whole batches between two reductions, which needs
                `set_loss_fn`. None: where the devices differ.

        Raises:
            ArgumentError, DeviceError, ReplicaMismatchError: see `Graph.distribute`.
        """
        if not isinstance(model, Graph):
            raise ArgumentError(f"Trainer.setup: expected a Graph, got {type(model).__name__}{_HOW}")
        model.set_up(builder, optimizer, config, devices, el_che)

    @staticmethod
    def setup_head(
        head: H,
        head_factory: Callable[[Device], H],
        optimizer: MakeOptimizer,
        *,
        devices: Devices = None,
        el_che: bool | None = None,
    ) -> None:
        """Set up a model around a graph with the default options; see `setup_head_with`."""
        Trainer.setup_head_with(head, head_factory, optimizer, DdpConfig(), devices=devices, el_che=el_che)

    @staticmethod
    def setup_head_with(
        head: H,
        head_factory: Callable[[Device], H],
        optimizer: MakeOptimizer,
        config: DdpConfig,
        *,
        devices: Devices = None,
        el_che: bool | None = None,
    ) -> None:
        """Set up a model around a graph: its methods go on to work, and use all devices.

        Args:
            head: A `HasGraph`.
            head_factory: head_factory(device) makes another one there.
            optimizer, config, devices, el_che: See `setup_with`.

        Raises:
            ArgumentError: no head, or one whose graph() is no Graph; and see `setup_with`.
        """
        if not callable(head_factory):
            raise ArgumentError(
                f"Trainer.setup_head: expected a function from a device to a head, got {type(head_factory).__name__}"
            )

        def builder(device: Device) -> Graph:
            return _graph_of(head_factory(device))

        Trainer.setup_with(_graph_of(head), builder, optimizer, config, devices=devices, el_che=el_che)


def _graph_of(head: HasGraph) -> Graph:
    if not isinstance(head, HasGraph):
        raise ArgumentError(f"Trainer.setup_head: expected a model with graph(), got {type(head).__name__}")
    graph = head.graph()
    if not isinstance(graph, Graph):
        raise ArgumentError(f"Trainer.setup_head: expected graph() to give a Graph, got {type(graph).__name__}{_HOW}")
    return graph


tell_lacking("Trainer", Trainer)
