"""One replica of several in a process: where it lives, what it holds, and its gradients in their flat layout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import TypeVar

from minigrad.backend.device import Device
from minigrad.distributed.ddp.agreement import check_free
from minigrad.distributed.ddp.alike import Alike
from minigrad.distributed.ddp.buffers import BufferMemory
from minigrad.distributed.ddp.layout import Layout, give_names
from minigrad.errors import ArgumentError, DeviceError, LayoutError
from minigrad.nn.flat import adopt_gradients
from minigrad.nn.inventory import Inventory
from minigrad.nn.module import Module
from minigrad.tensor import Tensor


T = TypeVar("T", bound=Tensor)


class ReplicaGroup(tuple[T, ...]):
    """A parameter or a buffer of all replicas, in order of rank.

    Attributes:
        name: Its name in the module.
    """

    name: str


def groups_of(replicas: Sequence[Iterable[tuple[str, T]]]) -> tuple[ReplicaGroup[T], ...]:
    """The named tensors of replicas, as one group a name, in order.

    Raises:
        LayoutError: one has others than the first.
    """
    groups, listed = [], [list(each) for each in replicas]
    first, *others = ([name for name, _ in each] for each in listed)
    for rank, names in enumerate(others, 1):
        if names != first:
            odd = next(a if a is not None else b for a, b in zip_longest(first, names) if a != b)
            raise LayoutError(f"rank {rank}: expected the tensors of rank 0, in its order, got others at {odd}")
    for same in zip(*listed):
        group = ReplicaGroup(tensor for _, tensor in same)
        group.name = same[0][0]
        groups.append(group)
    return tuple(groups)


class ModelCopy:
    """A model copy, which gets a flat layout if it has none.

    Args:
        who: For messages.
        model: On its device, and checked; see `check_models`.

    Attributes:
        layout: Its parameters.
        buffers: Its buffers, as they travel.
        alike: What it must have in common with the others beside the model.
    """

    def __init__(self, who: str, model: Module) -> None:
        self._who, self._model = who, model
        self._inventory = Inventory(model)
        self.buffers = BufferMemory(self._inventory)
        self.layout = Layout(list(model.named_parameters()))
        self.alike = Alike(self.layout)
        give_names(model.named_parameters())

    def check(self) -> None:
        """Refuse parameters that were replaced, moved or added.

        Raises:
            LayoutError: it names them.
        """
        self._inventory.check(self._who, self._model)
        self.layout.check()

    def adopt(self, numbers: Iterable[int]) -> None:
        """Say that the gradients of these parameters are what lies in their places."""
        adopt_gradients(self.layout.params[i] for i in numbers)

    def modes(self) -> list[bool]:
        """Whether each module in it is in training."""
        return self._inventory.modes()


def check_models(who: str, models: Sequence[Module], devices: Sequence[Device]) -> None:
    """Refuse what can't be replicas: each a module of its own, on its device, with something to train.

    Raises:
        ArgumentError: no replicas, not a device for each, no modules, parts that two of them share, parameters that
            something combines already, or nothing to train.
        DeviceError: a part of one is elsewhere.
    """
    if not models or len(models) != len(devices):
        raise ArgumentError(f"{who}: expected replicas and a device for each, got {len(models)} and {len(devices)}")
    owner: dict[int, int] = {}
    for rank, model in enumerate(models):
        if not isinstance(model, Module):
            raise ArgumentError(f"{who}: expected modules, got {type(model).__name__} as replica {rank}")
        for name, tensor in _state(model):
            first = owner.setdefault(id(tensor), rank)
            if first != rank:
                raise ArgumentError(
                    f"{who}: expected replicas of their own, got one {name} in replicas {first} and {rank}: "
                    "copy the module with copy.deepcopy"
                )
        check_free(f"{who}: replica {rank}", model.parameters())
    if not any(p.requires_grad for p in models[0].parameters()):
        raise ArgumentError(f"{who}: expected a parameter that requires grad, got none in {type(models[0]).__name__}")


def check_devices(who: str, models: Sequence[Module], devices: Sequence[Device], in_memory: bool) -> None:
    """Refuse replicas that are not where they are said to be, or have no way to each other.

    Args:
        in_memory: Whether they reach each other in the memory of one kind of device, by default.

    Raises:
        ArgumentError: a GPU named twice. DeviceError: several GPUs, or a part of a replica elsewhere.
    """
    listed = ", ".join(map(str, devices))
    gpus = [device for device in devices if device.type != "cpu"]
    if in_memory and len(set(gpus)) != len(gpus):
        raise ArgumentError(
            f"{who}: expected each GPU once, got {listed}: pass collectives=minigrad.distributed.collectives, "
            "which combines replicas that share one in its memory"
        )
    if in_memory and len(set(devices)) > 1:
        raise DeviceError(f"{who}: expected replicas on the CPU, or collectives for several devices, got {listed}")
    for rank, (model, device) in enumerate(zip(models, devices)):
        for name, tensor in _state(model):
            if tensor.device != device:
                raise DeviceError(
                    f"{who}: expected replica {rank} on {device}, got {name} on {tensor.device}: move the module first"
                )


def _state(model: Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]
