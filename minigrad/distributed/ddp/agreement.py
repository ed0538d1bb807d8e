"""Do the replicas agree? Compared over the ranks when a module is wrapped, so that later steps need not doubt it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import attrgetter, is_
from typing import Any

from minigrad.distributed.comm.base import Communicator
from minigrad.distributed.comm.headers import announce
from minigrad.errors import ArgumentError, LayoutError, ReplicaMismatchError
from minigrad.nn.module import Module
from minigrad.nn.parameter import Buffer, Parameter

Description = list[list[Any]]
_registries = attrgetter("_parameters", "_buffers", "_modules")


def describe(module: Module) -> Description:
    """Name, kind, shape, dtype and requires_grad of each parameter and buffer, in order; plain data."""
    params = [
        [name, "parameter", list(p.shape), p.dtype.name, p.requires_grad] for name, p in module.named_parameters()
    ]
    buffers = [[name, "buffer", list(b.shape), b.dtype.name, False] for name, b in module.named_buffers()]
    return params + buffers


def first_difference(descriptions: list[Description]) -> str:
    """What differs first between rank 0 and another rank, in words; empty where all agree."""
    for rank, other in enumerate(descriptions):
        for i, (mine, theirs) in enumerate(zip(descriptions[0], other)):
            if mine != theirs:
                return f"entry {i} is {_words(mine)} on rank 0 and {_words(theirs)} on rank {rank}"
        if len(other) != len(descriptions[0]):
            return _missing(descriptions[0], other, rank)
    return ""


def _missing(mine: Description, theirs: Description, rank: int) -> str:
    longer, owner = (mine, 0) if len(mine) > len(theirs) else (theirs, rank)
    extra = _words(longer[min(len(mine), len(theirs))])
    return f"{len(mine)} entries on rank 0 and {len(theirs)} on rank {rank}: only rank {owner} has {extra}"


def _words(entry: list[Any]) -> str:
    name, kind, shape, dtype, trainable = entry
    frozen = "" if trainable or kind == "buffer" else ", frozen"
    return f"{kind} {name!r} {dtype} {tuple(shape)}{frozen}"


def first_unlike(options: Sequence[Mapping[str, Any]]) -> tuple[str, Any, Any, int] | None:
    """The first option, of the same names on all ranks, that a rank has otherwise than rank 0.

    Returns:
        Its name, its value on rank 0 and on the other rank, and that rank; None where all are alike.
    """
    for rank, theirs in enumerate(options):
        for name, value in options[0].items():
            if value != theirs[name]:
                return name, value, theirs[name], rank
    return None


def check_replicas(module: Module, comm: Communicator, options: Mapping[str, object]) -> None:
    """Refuse replicas that differ in the names, shapes, dtypes, order or requires_grad of parameters and buffers.

    Args:
        options: What else has to be alike, by name.

    Raises:
        ReplicaMismatchError: on all ranks; it names the first difference.
    """
    announce(comm, "DistributedDataParallel wraps a module")
    found = comm.all_gather_object([describe(module), {name: repr(value) for name, value in options.items()}])
    difference = first_difference([description for description, _ in found])
    unlike = first_unlike([theirs for _, theirs in found])
    if unlike and not difference:
        name, mine, theirs, rank = unlike
        difference = f"{name} is {mine} on rank 0 and {theirs} on rank {rank}"
    if difference:
        raise ReplicaMismatchError(
            f"rank {comm.rank}: DistributedDataParallel: expected equal replicas, got a difference: {difference}"
        )


def check_free(who: str, params: Iterable[Parameter]) -> None:
    """Refuse parameters whose gradients something combines already; ArgumentError."""
    if any(getattr(listener, "reduces", False) for param in params for listener in param.listeners):
        raise ArgumentError(
            f"{who}: expected parameters that nothing reduces yet, got some of a wrapper, or of a graph on several "
            "devices: unwrap() the one, build another model instead of the other"
        )


class Inventory:
    """What a module and all below it hold: compared in every step, and listed anew only where something has changed.

    Args:
        module: Whose parameters have to stay those that it has now; its buffers may change.
    """

    def __init__(self, module: Module) -> None:
        self._known = _identities(module)
        self._take(module)

    def _take(self, module: Module) -> None:
        self._module, self._modules = module, [*module.modules()]
        registries = self._held()
        self._sizes = [*map(len, registries)]
        self._names = [*chain.from_iterable(registries)]
        self._values = [*chain.from_iterable(map(dict.values, registries))]
        self._buffers = list(module.buffers())

    def _held(self) -> list[dict[str, Any]]:
        return [*chain.from_iterable(map(_registries, self._modules))]

    def _is_current(self) -> bool:
        """Whether every module holds what it held, in no more than a few calls."""
        registries = self._held()
        return (
            [*map(len, registries)] == self._sizes
            and [*chain.from_iterable(registries)] == self._names
            and all(map(is_, chain.from_iterable(map(dict.values, registries)), self._values))
        )

    def check(self, who: str, module: Module) -> None:
        """Refuse a module whose parameters are not those that it had.

        Args:
            module: The one that was given, or what has taken its place.

        Raises:
            LayoutError: a parameter was replaced, added or removed, and is named; or their order is another.
        """
        if module is self._module and self._is_current():
            return
        now = _identities(module)
        if now != self._known:
            changed = ", ".join(sorted({name for name, _ in set(now) ^ set(self._known)}))
            raise LayoutError(
                f"{who}: expected the parameters that were wrapped, got "
                f"{f'others at {changed}' if changed else 'them in another order'}: "
                "wrap the module after its last change"
            )
        self._take(module)

    def buffers(self) -> list[Buffer]:
        """The buffers that there are now, in order of registration, each once."""
        return self._buffers if self._is_current() else list(self._module.buffers())

    def modes(self) -> list[bool]:
        """Whether each module is in training, in the order of `modules()`."""
        return [module.training for module in self._modules]


def _identities(module: Module) -> list[tuple[str, int]]:
    return [(name, id(param)) for name, param in module.named_parameters()]
