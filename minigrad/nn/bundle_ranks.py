"""Bundles of several ranks: rank 0's is kept whole, and of every other one what is not the same there.

What is alike on all ranks, as parameters and the state of optimizers are, is compared by digest and not sent. Who the
ranks are is asked of the context, or of an object that has them; their communicator is not known by class.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np

from minigrad.autograd.tape import backwards_under_way
from minigrad.backend.device import to_host
from minigrad.backend.dtypes import Array, as_dtype
from minigrad.backend.ranks import ranks_here
from minigrad.errors import AutogradError, DistributedError, RankFailedError, ReplicaMismatchError
from minigrad.nn.bundle import Bundle, Recorded
from minigrad.nn.module import Module
from minigrad.ops.foreign import array_of

T = TypeVar("T")


def ranks_of(objects: Iterable[Any]) -> Any:
    """The communicator of the ranks that train these objects; None where there is one rank."""
    parts = [part for thing in objects for part in (thing.modules() if isinstance(thing, Module) else [thing])]
    found = [ranks_here(), *(getattr(part, "comm", None) for part in parts)]
    return next((comm for comm in found if getattr(comm, "world_size", 1) > 1), None)


def begin(comm: Any, who: str) -> None:
    """Meet the other ranks: one that makes another call, or none, is told what the others do."""
    if comm is not None:
        what = f"minigrad.{who} of a training state, which every rank calls"
        comm.check_headers(what)
        with comm.device.current() as xp:
            comm.all_reduce(xp.zeros(1, np.float64), layout=what).wait()


def together(comm: Any, who: str, do: Callable[[], T]) -> T:
    """What do() returns; where it fails on any rank, all raise.

    Raises:
        Exception: what it raised here. RankFailedError: it raised on another rank alone, which is named.
    """
    if comm is None:
        return do()
    failure: Exception | None = None
    try:
        result = do()
    except DistributedError:
        raise  # the others hear of it
    except Exception as error:
        failure = error
    told = comm.all_gather_object(None if failure is None else f"{type(failure).__name__}: {failure}")
    if failure is not None:
        raise failure
    for rank, words in enumerate(told):
        if words is not None:
            raise RankFailedError(f"rank {comm.rank}: {who}: expected it to go well on rank {rank}, got {words}")
    return result


def check_one_file(comm: Any, number: str) -> None:
    """Refuse ranks that have read files of different numbers; ReplicaMismatchError on all."""
    other, _ = _first_other(comm, number)
    if other:
        raise ReplicaMismatchError(
            f"rank {comm.rank}: load: expected one file on all ranks, got another one on rank {other} than on "
            "rank 0: save to a path that all see, or copy it"
        )


def check_one_path(comm: Any, path: str) -> None:
    """Refuse ranks that each want a file of their own, which would not be written; ReplicaMismatchError on all."""
    other, paths = _first_other(comm, path)
    if other:
        raise ReplicaMismatchError(
            f"rank {comm.rank}: save: expected one path on all ranks, got {paths[0]} on rank 0 and {paths[other]} on "
            f"rank {other}: rank 0 writes what all have into one file"
        )


def _first_other(comm: Any, value: str) -> tuple[int, list[str]]:
    """The first rank with another value than rank 0, 0 where there is none; and all values."""
    values = [value] if comm is None else comm.all_gather_object(value)
    return next((rank for rank, each in enumerate(values) if each != values[0]), 0), values


def check_at_rest(who: str, objects: Iterable[Any]) -> None:
    """Refuse gradients of which a part is still to come: inside a backward, or not combined yet over the ranks.

    Raises:
        AutogradError: there are such.
    """
    if backwards_under_way():
        raise AutogradError(f"{who}: expected to be called between two steps, got it inside a backward")
    for module in (thing for thing in objects if isinstance(thing, Module)):
        for name, param in module.named_parameters():
            if param.grad_array is not None and any(map(_has_own, param.listeners)):
                raise AutogradError(
                    f"{who}: expected gradients that are combined and used, since they are not kept, got one of {name} "
                    "that waits for the other ranks, as under no_sync: save after the step, or zero_grad() first"
                )


def _has_own(listener: Any) -> bool:
    return bool(getattr(getattr(listener, "own", None), "weighed", False))


def recorded(comm: Any, bundle: Bundle, with_objects: bool) -> Recorded:
    """A bundle as it is written: on rank 0 with what the others have that is not the same. All ranks call it."""
    found = Recorded({} if comm is None else _differing(comm, bundle), 0)
    found.world_size = 0 if not with_objects else 1 if comm is None else comm.world_size
    found.trees, found.tensors = bundle.trees, bundle.tensors
    return found


def _differing(comm: Any, bundle: Bundle) -> dict[int, Bundle]:
    """By rank the parts that are not as on rank 0, on rank 0; the others, which send theirs, get no tensors."""
    arrays: dict[str, Array] = {name: array_of("save", value) for name, value in bundle.tensors.items()}
    texts = {place: json.dumps(tree) for place, tree in bundle.trees.items()}
    mine = [{place: _digest(text.encode()) for place, text in texts.items()}, {n: _said(a) for n, a in arrays.items()}]
    first = comm.all_gather_object(mine)[0]
    own = {place: text for place, text in texts.items() if first[0].get(place) != mine[0][place]}
    names = [[n, a.dtype.name, list(a.shape)] for n, a in arrays.items() if first[1].get(n) != mine[1][n]]
    found = {}
    for rank, (trees, listed) in enumerate(comm.all_gather_object([own, names])):
        there = Bundle()
        there.trees = {place: json.loads(text) for place, text in trees.items()}
        for name, dtype, shape in listed:
            array = _sent(comm, rank, arrays[name] if comm.rank == rank else None, dtype, shape)
            if comm.rank == 0:
                there.tensors[name] = array
        if trees or listed:
            found[rank] = there
    return found


def _sent(comm: Any, root: int, array: Array, dtype: str, shape: list[int]) -> Array:
    """An array of one rank, on the host, for the others to keep."""
    with comm.device.current() as xp:
        flat = xp.zeros(int(np.prod(shape)), as_dtype(dtype))
        if comm.rank == root:
            flat[...] = xp.asarray(to_host(array)).reshape(-1)
        if flat.size:
            comm.broadcast(flat, root).wait(host=True)
        return to_host(flat).reshape(shape)


def _said(array: Array) -> str:
    host = np.ascontiguousarray(to_host(array))
    return f"{array.dtype.name} {array.shape} {_digest(host.reshape(-1).view(np.uint8).data)}"


def _digest(data: Any) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
