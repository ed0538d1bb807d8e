"""What `save` writes: plain data by its place, and tensors by name; how objects get into it, and are filled from it.

An object that has state_dict() and load_state_dict() is kept by its state, whatever it is: nothing here knows what an
optimizer, a loader or a wrapper is. The file is a safetensors file with the plain data as JSON in its metadata.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from minigrad.backend.device import Device
from minigrad.backend.random import get_rng_state
from minigrad.errors import DtypeError, StateDictError
from minigrad.nn.module import Module
from minigrad.nn.serialize import Content, content_of, load_metadata, read_file
from minigrad.ops.foreign import array_of
from minigrad.tensor import Tensor

KEY = "minigrad.nested"  # of the metadata
VERSION = 1
WHOLE, STREAMS = "obj", "random streams"  # places
_PLAIN = (str, bool, int, float, type(None))

Plain = dict[str, Any]  # JSON: {"value": 1}, {"list": [...]}, {"tensor": its name}, {"object": its kind}, ...
Path = str | os.PathLike[str]


def is_stateful(value: Any) -> bool:
    """Whether it has a state that can be kept and put back."""
    names = ("state_dict", "load_state_dict")
    return not isinstance(value, type) and all(callable(getattr(value, name, None)) for name in names)


def leaves_in(value: Any, place: str = WHOLE) -> Iterator[tuple[str, Any]]:
    """What nested dicts, lists and tuples hold, with its place, such as "obj['model']"."""
    if isinstance(value, (list, tuple)):
        value = dict(enumerate(value))
    if not isinstance(value, Mapping) or (is_stateful(value) and place != WHOLE):
        yield place, value
        return
    for key, part in value.items():
        yield from leaves_in(part, f"{place}[{key!r}]")


def objects_in(obj: Any) -> dict[str, Any]:
    """The objects with state in nested dicts, lists and tuples, by place; obj itself is none of them."""
    return {place: thing for place, thing in leaves_in(obj) if place != WHOLE and is_stateful(thing)}


def kind_of(thing: Any) -> str:
    """What an object has to be to take a state over. Modules are told apart by the names and shapes in it."""
    return "Module" if isinstance(thing, Module) else type(thing).__name__


def beside(thing: Any) -> Plain:
    """What belongs to an object's state and is not in its state_dict, as plain data.

    These are the attributes that it, or a module in it, names in kept_beside; of a module also what is not in training,
    and not trained.
    """
    found: Plain = {name: getattr(part, attribute) for name, part, attribute in _kept_beside(thing)}
    if isinstance(thing, Module):
        found["evaluating"] = [name for name, part in _by_name(thing, thing.named_modules()) if not part.training]
        found["frozen"] = [name for name, x in _by_name(thing, thing.named_parameters()) if not x.requires_grad]
    return found


def set_beside(thing: Any, values: Plain) -> None:
    """Put back what `beside` returned."""
    for name, part, attribute in _kept_beside(thing):
        if name in values:
            setattr(part, attribute, values[name])
    if not isinstance(thing, Module) or not values.keys() >= {"evaluating", "frozen"}:
        return
    evaluating, frozen = set(values["evaluating"]), set(values["frozen"])
    others = getattr(thing, "replicas", None)  # of a graph on several devices, which is the first of them
    for module in others if isinstance(others, tuple) and thing in others else (thing,):
        for name, part in _by_name(module, module.named_modules()):
            part.training = name not in evaluating
        for name, param in _by_name(module, module.named_parameters()):
            param.requires_grad = name not in frozen


def _by_name(whole: Module, named: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """By names that do not say what is wrapped, as those in a state_dict do not: a wrapper is as what it wraps is."""
    wrapping = [f"{place}.module".lstrip(".") for place, part in whole.named_modules() if _is_wrapper(part)]
    for name, thing in named:
        parts = name.split(".") if name else []
        kept = [part for i, part in enumerate(parts) if ".".join(parts[: i + 1]) not in wrapping]
        yield ".".join(kept), thing


def _is_wrapper(module: Any) -> bool:
    inner = getattr(module, "module", None)
    return isinstance(inner, Module) and [*module.state_dict()] == [*inner.state_dict()]


def _kept_beside(thing: Any) -> Iterator[tuple[str, Any, str]]:
    """A name, whose attribute it is, and the attribute."""
    for place, part in thing.named_modules() if isinstance(thing, Module) else (("", thing),):
        for attribute in getattr(part, "kept_beside", ()):
            yield f"{place}.{attribute}" if place else attribute, part, attribute


class Bundle:
    """Plain data and tensors.

    Attributes:
        trees: How things are nested, by place: all of it, the state of each object, the random streams.
        tensors: Tensors or arrays, by name.
    """

    def __init__(self) -> None:
        self.trees: dict[str, Plain] = {}
        self.tensors: dict[str, Any] = {}

    def take(self, obj: Any) -> Bundle:
        """Take a value over; with objects in it also their states, and the random streams. Returns the bundle.

        Raises:
            DtypeError: something in it is neither plain nor a tensor, and has no state.
        """
        self.trees[WHOLE] = self.put(obj, WHOLE)
        if len(self.trees) > 1:
            self.trees[STREAMS] = self.put(get_rng_state(), STREAMS)
        return self

    def put(self, value: Any, place: str, name: str = "", inside: bool = False) -> Plain:
        """A value as plain data; its tensors are put aside.

        Args:
            place, name: Of the value, for errors and for its tensors.
            inside: Whether this is part of the state of an object.
        """
        if isinstance(value, _PLAIN):
            return {"value": value}
        if is_stateful(value) and place != WHOLE and not inside:
            self.trees[place] = self.put(value.state_dict(), f"{place}.state_dict()", name, inside=True)
            return {"object": kind_of(value), "beside": beside(value)}
        if isinstance(value, Mapping):
            pairs = [[self.put(k, place), self._put_part(v, place, name, k, inside)] for k, v in value.items()]
            return {"dict": pairs}
        if isinstance(value, (list, tuple)):
            parts = [self._put_part(part, place, name, i, inside) for i, part in enumerate(value)]
            return {"tuple" if isinstance(value, tuple) else "list": parts}
        if not isinstance(value, Module) and array_of("save", value) is not None:
            name = free_name(name or "tensor", self.tensors)
            self.tensors[name] = value
            return {"tensor": name}
        hint = ": save its state_dict()" if hasattr(value, "state_dict") else ""
        raise DtypeError(f"save: expected tensors and plain values, got {type(value).__name__} in {place}{hint}")

    def _put_part(self, value: Any, place: str, name: str, key: Any, inside: bool) -> Plain:
        return self.put(value, f"{place}[{key!r}]", f"{name}.{key}" if name else str(key), inside)

    def built(self, tree: Plain, place: str = WHOLE, objects: Mapping[str, Any] | None = None) -> Any:
        """The value again; in the place of an object that one, or its state where none is given."""
        if "dict" in tree:
            pairs = [(self.built(key), value) for key, value in tree["dict"]]
            return {key: self.built(value, f"{place}[{key!r}]", objects) for key, value in pairs}
        if "list" in tree or "tuple" in tree:
            [(kind, content)] = tree.items()
            parts = [self.built(part, f"{place}[{i!r}]", objects) for i, part in enumerate(content)]
            return parts if kind == "list" else tuple(parts)
        if "object" in tree:
            return self.state(place) if objects is None else objects[place]
        return self.tensors[tree["tensor"]] if "tensor" in tree else tree["value"]

    def state(self, place: str) -> Any:
        """What the state_dict of the object at a place returned."""
        return self.built(self.trees[place])

    def kinds(self) -> dict[str, Plain]:
        """The kind of the object at each place, with what is kept beside its state."""
        return dict(_objects(self.trees[WHOLE], WHOLE, self))

    def check_whole(self) -> None:
        """Look up all that is referred to; KeyError, TypeError, ValueError or AttributeError where that fails."""
        for tree in self.trees.values():
            self.built(tree)
        kinds = self.kinds()
        for place, said in kinds.items():
            self.trees[place], dict(said["beside"])
        self.built(self.trees[STREAMS if kinds else WHOLE])

    def over(self, other: Bundle) -> Bundle:
        """A bundle with what is in this one, and with all else as in the other."""
        both = Bundle()
        both.trees, both.tensors = {**other.trees, **self.trees}, {**other.tensors, **self.tensors}
        return both


def _objects(tree: Plain, place: str, bundle: Bundle) -> Iterator[tuple[str, Plain]]:
    if "object" in tree:
        yield place, tree
    for key, value in tree.get("dict", ()):
        yield from _objects(value, f"{place}[{bundle.built(key)!r}]", bundle)
    for i, part in enumerate([*tree.get("list", ()), *tree.get("tuple", ())]):
        yield from _objects(part, f"{place}[{i!r}]", bundle)


def free_name(name: str, taken: Mapping[str, Any]) -> str:
    """A name for a tensor that no other has, as near to this one as can be."""
    while name in taken or name in (KEY, "__metadata__"):
        name += "'"
    return name


# ---------------------------------------------------------------------------------------------------------- on disk


class Recorded(Bundle):
    """A bundle as a file has it: that of rank 0, and what of each other rank's is not the same.

    Attributes:
        own: By rank; what those ranks have alike with rank 0 is not in it.
        world_size: The ranks that have saved it; 0 where there was no object, and so no rank is asked for.
        number: That of this file alone.
        note: Plain data of who has it written; `load` does not look at it.
    """

    def __init__(self, own: Mapping[int, Bundle], world_size: int, number: str = "") -> None:
        super().__init__()
        self.own, self.world_size, self.number = own, world_size, number or secrets.token_hex(8)
        self.note: Plain = {}

    def content(self, copy: bool = False) -> Content:
        """What its file is made of.

        Args:
            copy: See `content_of`.
        """
        tensors, ranks = dict(self.tensors), dict[str, Any]()
        for rank, bundle in self.own.items():
            names = {}
            for name, array in bundle.tensors.items():
                names[name] = free_name(f"rank {rank}: {name}", tensors)
                tensors[names[name]] = array
            ranks[str(rank)] = {"trees": bundle.trees, "tensors": names}
        said = {"version": VERSION, "number": self.number, "world_size": self.world_size, "note": self.note}
        return content_of(tensors, {KEY: json.dumps({**said, "trees": self.trees, "ranks": ranks})}, copy)

    def of_rank(self, rank: int) -> Bundle:
        """What one rank has saved."""
        return self.own[rank].over(self) if rank in self.own else self


def read(path: Path, device: Device | str) -> Recorded | dict[str, Tensor]:
    """The bundle in a file; of a safetensors file without one its tensors.

    Raises:
        StateDictError: no safetensors file, one of a newer version, or one whose plain data were changed.
        FileNotFoundError: there is no file.
    """
    tensors, texts = read_file(path, device)
    if KEY not in texts:
        return tensors
    try:
        facts = json.loads(texts[KEY])
        check_version("load", path, facts)
        own = {}
        for rank, facts_of in facts["ranks"].items():
            own[int(rank)] = bundle = Bundle()
            bundle.trees = facts_of["trees"]
            bundle.tensors = {name: tensors.pop(stored) for name, stored in facts_of["tensors"].items()}
        found = Recorded(own, facts["world_size"], facts["number"])
        found.trees, found.tensors = facts["trees"], tensors
        for each in (found, *(found.of_rank(rank) for rank in own)):
            each.check_whole()
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, StateDictError):
            raise
        raise _scribbled(path, error) from error
    return found


def facts_in(path: Path) -> Plain:
    """What a file that `save` wrote says of itself: its version, world_size and note; no tensor is read.

    Raises:
        StateDictError: the file is not whole, or another one.
    """
    texts = load_metadata(path)
    try:
        facts = json.loads(texts[KEY])
        return {"version": facts["version"], "world_size": facts.get("world_size"), "note": dict(facts.get("note", {}))}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _scribbled(path, error) from error


def check_version(who: str, path: Path, facts: Plain) -> None:
    """Refuse what a newer minigrad has written; StateDictError."""
    version = facts["version"]
    if isinstance(version, int) and version > VERSION:
        raise StateDictError(
            f"{who}: expected a file of version {VERSION} or older, got {os.fspath(path)} of version {version}: "
            "read it with the minigrad that wrote it, or a newer one"
        )


def _scribbled(path: Path, error: Exception) -> StateDictError:
    return StateDictError(
        f"load: expected a file that minigrad.save wrote, got {os.fspath(path)} with other metadata: {error!r}"
    )
