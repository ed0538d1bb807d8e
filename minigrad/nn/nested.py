"""`save` and `load`: a whole training state in one file, or nested dicts and lists of tensors and plain values.

What is in the file is described in `nn/bundle.py`, what several ranks do in `nn/bundle_ranks.py`. Nothing in a file is
ever run.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from minigrad.arguments import check_switch
from minigrad.backend.device import CPU, Device, to_host
from minigrad.backend.random import get_rng_state, set_rng_state
from minigrad.errors import ArgumentError, MinigradError, StateDictError
from minigrad.foreign import spoken
from minigrad.nn.bundle import (
    STREAMS, WHOLE, Bundle, Path, Recorded, beside, is_stateful, kind_of, leaves_in, objects_in, read, set_beside
)
from minigrad.nn.bundle_ranks import begin, check_at_rest, check_one_file, check_one_path, ranks_of, recorded, together
from minigrad.nn.companions import loading_turns
from minigrad.nn.serialize import save_file
from minigrad.ops.foreign import array_of
from minigrad.tensor import Tensor


@spoken
def save(obj: Any, f: Path) -> None:
    """Write objects with their states, tensors, numbers, texts, None, and dicts, lists and tuples of them to a file.

    `load` reads it. An old file of that name is replaced only once the new one is whole. A dict of tensors alone, such
    as the state_dict of a module, becomes a safetensors file that any program can read.

    Objects that have state_dict() and load_state_dict() make it a training state: models, wrapped or not, optimizers,
    schedules, loss scales, loaders, balancers. Each is kept by its state, and the random streams are kept with them, so
    that a run that is killed and resumed ends in the same bits. With several ranks every one of them calls it then, at
    the same place, and all return once the file is there; inside `join` that is while no rank has left it. Rank 0
    writes; what is not alike on all ranks (random streams, buffers that each keeps for itself, plain values) is kept
    for each. Of a module it is also kept what is in evaluation mode or does not require a gradient. Call it between two
    steps: gradients are not kept, nor is what no object named here has in its state, such as what a comm hook
    remembers, or the streams of `random` and NumPy.

    Args:
        obj: For example `{"model": model, "optimizer": optimizer, "loader": loader, "step": 3}`, or in PyTorch's way
            `{"model": model.state_dict(), "epoch": 3}`, which a rank may save by itself.
        f: The path of the file; its folder has to be there.

    Raises:
        DtypeError: something in obj is neither plain nor a tensor, and has no state; or obj itself is an object.
        ArgumentError: a path that is none.
        AutogradError: inside a backward, or with gradients that were not combined over the ranks yet.
        CollectiveMismatchError, CollectiveTimeoutError: objects, and a rank does something else, or nothing.
        ReplicaMismatchError: ranks name different paths.
        RankFailedError: another rank could not. OSError: the file can't be written; on rank 0.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> import minigrad
        >>> from minigrad import nn, optim
        >>> model = nn.Linear(2, 1)
        >>> run = {"model": model, "optimizer": optim.Adam(model.parameters())}
        >>> with TemporaryDirectory() as folder:
        ...     minigrad.save({**run, "epoch": 3}, f"{folder}/run")
        ...     minigrad.load(f"{folder}/run", into=run)["epoch"]
        3
    """
    _check_path("save", f)
    objects = objects_in(obj)
    if not objects and isinstance(obj, Mapping) and obj and all(isinstance(key, str) for key in obj):
        if all(array_of("save", value) is not None for value in obj.values()):
            save_file(obj, f)
            return
    comm = ranks_of(objects.values()) if objects else None
    whole = gathered(comm, obj, f)
    together(comm, "save", lambda: whole.content().write(f) if comm is None or comm.rank == 0 else None)


def gathered(comm: Any, obj: Any, f: Path, ready: Callable[[], object] = tuple) -> Recorded:
    """What these ranks have of obj, as rank 0 writes it to f. All call it, between two steps.

    Args:
        ready: ready() comes first; where it raises, on any rank, all do, and nothing is gathered.

    Raises:
        Exception: see `save`.
    """
    objects = objects_in(obj)

    def prepare() -> None:
        ready()
        check_at_rest("save", objects.values())

    begin(comm, "save")
    check_one_path(comm, os.fspath(f))
    together(comm, "save", prepare)
    bundle = together(comm, "save", lambda: Bundle().take(obj))  # which ranks may do together
    return recorded(comm, bundle, with_objects=bool(objects))


@spoken
def load(
    f: Path,
    map_location: Device | str | None = None,
    *,
    weights_only: bool = True,
    into: Any = None,
    every_rank: bool = False,
) -> Any:
    """Read what `save` wrote, or the tensors of any safetensors file.

    Without into, an object is there as its state, that of rank 0: `model.load_state_dict(load(f)["model"])`.

    Args:
        f: The path of the file.
        map_location: Where the tensors go; the CPU by default.
        weights_only: Either: a file holds no code.
        into: Objects to fill, in the places in which those were that were saved, and no others. The random streams are
            put back too. Every rank calls it, of as many as have saved. It is all or nothing: where something does not
            fit, on any rank, everything is as before on all.
        every_rank: Whether to return what each rank has saved, from rank 0 on, as a list: to go on with another number
            of ranks. What is alike there shares its memory.

    Returns:
        What was saved; the objects of into are in it.

    Raises:
        StateDictError: another kind of file, which of one of torch.save says how to convert it; one of a newer version;
            objects of other kinds, states that do not fit, or another number of ranks.
        ArgumentError: weights_only or every_rank is no bool, map_location names no device, into holds something else
            than objects, or is given with every_rank; or a path that is none.
        FileNotFoundError: there is no file.
        RankFailedError: another rank could not load. ReplicaMismatchError: ranks have read different files.
    """
    _check_path("load", f)
    check_switch("load", weights_only=weights_only, every_rank=every_rank)
    if not isinstance(map_location, (Device, str, type(None))):
        raise ArgumentError(f"load: expected map_location to name a device, got {type(map_location).__name__}")
    device = CPU if map_location is None else map_location
    if into is not None:
        if every_rank:
            raise ArgumentError("load: expected into, or every_rank=True, got both: a rank fills its own with its own")
        return _load_into(f, device, into)
    bundle = read(f, device)
    if not isinstance(bundle, Recorded):
        return [bundle] if every_rank else bundle
    ranks = max(1, bundle.world_size) if every_rank else 1
    found = [each.built(each.trees[WHOLE]) for each in map(bundle.of_rank, range(ranks))]
    return found if every_rank else found[0]


def _load_into(f: Path, device: Device | str, into: Any) -> Any:
    objects = objects_to_fill(into)
    comm = ranks_of(objects.values())
    begin(comm, "load")
    rank, world_size = (0, 1) if comm is None else (comm.rank, comm.world_size)
    number, bundle = together(comm, "load", lambda: _fitting(f, device, objects, rank, world_size))
    check_one_file(comm, number)
    undo: list[Callable[[], object]] = []
    try:
        together(comm, "load", lambda: _fill(objects, bundle, undo))
    except BaseException:
        for each in undo:
            with contextlib.suppress(Exception):  # of an object that takes no state at all, not even its own
                each()
        raise
    return bundle.built(bundle.trees[WHOLE], objects=objects)


def objects_to_fill(into: Any) -> dict[str, Any]:
    """The objects in what `load` is given to fill, by place; ArgumentError where there is anything else in it."""
    for place, leaf in leaves_in(into):
        if place == WHOLE or not is_stateful(leaf):
            todo = "plain values are in what load returns" if place != WHOLE else 'write {"model": model}, as in save'
            raise ArgumentError(
                f"load: expected into to hold objects with load_state_dict() by name, got {type(leaf).__name__} at "
                f"{_in_into(place)}: {todo}"
            )
    objects = objects_in(into)
    if not objects:
        raise ArgumentError(f"load: expected into to hold objects to fill, got {into!r}")
    return objects


def _in_into(place: str) -> str:
    return place.replace(WHOLE, "into", 1)


def _fitting(
    f: Path, device: Device | str, objects: Mapping[str, Any], rank: int, world_size: int
) -> tuple[str, Bundle]:
    """The number of a file, and what this rank, of so many, has in it: exactly these objects.

    Raises:
        StateDictError: it has something else.
    """
    check_at_rest("load", objects.values())
    name, found = os.fspath(f), read(f, device)
    if not isinstance(found, Recorded) or not found.world_size:
        raise StateDictError(
            f"load: expected a file that save wrote with objects in it, got {name} without: leave into out"
        )
    if found.world_size != world_size:
        raise StateDictError(
            f"load: expected a training state of {world_size} rank(s), got {name}, which {found.world_size} rank(s) "
            "have saved: start as many, or take single states from load(f, every_rank=True)"
        )
    bundle = found.of_rank(rank)
    kinds, own = bundle.kinds(), {place: kind_of(thing) for place, thing in objects.items()}
    for place in {**kinds, **own}:
        saved, given = kinds.get(place, {}).get("object", "nothing"), own.get(place, "nothing")
        if saved != given:
            raise StateDictError(
                f"load: expected into to have the objects that were saved, got {given} at "
                f"{_in_into(place)}, where {name} has {saved}"
            )
    return found.number, bundle


def _fill(objects: Mapping[str, Any], bundle: Bundle, undo: list[Callable[[], object]]) -> None:
    """Load each state, and put down how to go back."""
    kinds, streams = bundle.kinds(), get_rng_state()
    undo.append(lambda: set_rng_state(streams, "theirs"))
    _set_streams(bundle)  # a loader asks whose noise this is
    turns = loading_turns(objects.values())
    in_order = sorted(objects.items(), key=lambda item: turns[id(item[1])])
    undo += [_way_back(thing) for _, thing in in_order]
    for place, thing in in_order:
        with _naming(_in_into(place)):
            thing.load_state_dict(bundle.state(place))
        set_beside(thing, kinds[place]["beside"])
    _set_streams(bundle)  # an object may have drawn


def _set_streams(bundle: Bundle) -> None:
    with _naming(STREAMS):
        set_rng_state(bundle.state(STREAMS), "theirs")  # this rank's own, whatever key it has here


@contextlib.contextmanager
def _naming(place: str) -> Iterator[None]:
    try:
        yield
    except MinigradError as error:
        raise StateDictError(f"load: {place}: {error}") from error


def _way_back(thing: Any) -> Callable[[], object]:
    """What gives an object the state that it has now; on the host, where there may be more room."""
    copied, kept = Bundle(), beside(thing)
    tree = copied.put(thing.state_dict(), "a state", inside=True)
    arrays = {name: array_of("load", x) for name, x in copied.tensors.items()}
    copied.tensors = {name: Tensor(np.array(to_host(array))) for name, array in arrays.items()}

    def go_back() -> None:
        thing.load_state_dict(copied.built(tree))
        set_beside(thing, kept)

    return go_back


def _check_path(who: str, path: Any) -> None:
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentError(f"{who}: expected a path, got {type(path).__name__}: a file on disk is read and written")
