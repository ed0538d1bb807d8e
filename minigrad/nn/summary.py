"""`summary`: what a model is made of, by module: shapes, parameters, bytes, products.

The model runs once, in evaluation mode, recording nothing, with random streams of its own; everything that a forward
may change is put back.
"""

from __future__ import annotations

import contextvars
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from minigrad.arguments import is_integer
from minigrad.backend.device import CPU, to_host
from minigrad.backend.dtypes import is_float
from minigrad.backend.memory import duplicate
from minigrad.backend.random import get_rng_state, set_rng_state
from minigrad.errors import ArgumentError
from minigrad.nn.module import Module
from minigrad.nn.parameter import Buffer
from minigrad.nn.state import overwrite
from minigrad.nn.watch import watching_calls
from minigrad.recording import no_grad
from minigrad.tensor import Tensor, tensors_in

__all__ = ["Summary", "summary"]

Shape = tuple[int, ...]

# A weight is used once for each place of the output, or of the input: which, and which attribute says how many elements
# belong to one place.
_PLACES = {
    "Linear": ("output", "out_features"),
    "Conv1d": ("output", "out_channels"),
    "Conv2d": ("output", "out_channels"),
    "ConvTranspose1d": ("input", "in_channels"),
    "ConvTranspose2d": ("input", "in_channels"),
}
_LOOKED_UP = "Embedding"  # its weight is multiplied by nothing
_COLUMNS = ("module", "kind", "output", "parameters", "trainable", "bytes", "products")


class Summary:
    """What `summary` found; print it.

    Attributes:
        rows: A dict for each module, parents first, plain data for JSON. `name`, `kind`, `depth`; `calls`, `outputs`:
            for each different output the shapes of the tensors in it; `parameters`, `trainable`: elements that the
            module itself holds and no row above; `bytes`: of these and of its buffers; `tied`: its parameters that a
            row above holds, with their names there; `products`: multiplications by a weight in all calls, None where
            that is not counted. A module in a second place has `same_as`, the name of the first, and nothing else that
            counts.
        totals: `parameters`, `trainable`, `parameter_bytes`, `buffer_bytes`, `products`, and `uncounted`: the names of
            modules that were called and have weights whose products are not in it.
    """

    def __init__(self, rows: list[dict[str, Any]], totals: dict[str, Any]) -> None:
        self.rows, self.totals = rows, totals

    def __str__(self) -> str:
        lines = [_COLUMNS, *map(_cells, self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines)]
        text = [
            "  ".join([*map(str.ljust, line[:3], widths), *map(str.rjust, line[3:], widths[3:])]).rstrip()
            for line in lines
        ]
        return "\n".join([text[0], "-" * len(text[0]), *text[1:], "-" * len(text[0]), *self._said_of_totals()])

    def _said_of_totals(self) -> list[str]:
        totals = self.totals
        said = [
            f"{totals['parameters']:,} parameters, {totals['trainable']:,} of them trainable: "
            f"{totals['parameter_bytes']:,} bytes, and {totals['buffer_bytes']:,} bytes of buffers"
        ]
        for row in self.rows:
            said += [f"{_dotted(row['name'], name)} is {first}, counted there" for name, first in row["tied"].items()]
        if any(row["calls"] for row in self.rows):
            but = ", ".join(totals["uncounted"])
            said.append(f"{totals['products']:,} products with weights{f', without those in {but}' if but else ''}")
        return said

    def __repr__(self) -> str:
        return str(self)


def summary(model: Module, *inputs: Any, **options: Any) -> Summary:
    """A table of the modules of a model: outputs, parameters, bytes, products.

    The model runs once on the inputs, and is as before afterwards: modes, buffers, gradients, hooks, random streams. A
    parameter, or a module, that is in several places counts once. Products are the multiplications by a weight in
    Linear and in convolutions, those by padding included; each is followed by an addition. Others, such as those of two
    activations in attention, are not counted.

    Args:
        model: Any module, wrapped or not; with several ranks each may call it by itself.
        inputs: What forward takes: tensors, or for a tensor of zeros its shape, batch included: (2, 3, 32, 32). Without
            any, nothing runs, and no outputs and products are told.
        options: More for forward, by name, as it is.

    Raises:
        ArgumentError: the model is no module.

    Example:
        >>> from minigrad import nn, summary
        >>> print(summary(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), (2, 3)))
        module  kind        output  parameters  trainable  bytes  products
        ------------------------------------------------------------------
                Sequential  (2, 4)           0          0      0         0
        0       Linear      (2, 4)          16         16     64        24
        1       ReLU        (2, 4)           0          0      0         0
        ------------------------------------------------------------------
        16 parameters, 16 of them trainable: 64 bytes, and 0 bytes of buffers
        24 products with weights
    """
    if not isinstance(model, Module):
        raise ArgumentError(f"summary: expected a Module, got {type(model).__name__}")
    calls: dict[int, list[_Call]] = {id(module): [] for module in model.modules()}
    if inputs or options:
        contextvars.copy_context().run(_run, model, [_as_input(model, x) for x in inputs], options, calls)
    rows = list(_rows(model, calls))
    counted = [row["products"] for row in rows if row["products"] is not None]
    params, buffers = list(model.parameters()), list(model.buffers())
    totals = {
        "parameters": sum(p.numel() for p in params),
        "trainable": sum(p.numel() for p in params if p.requires_grad),
        "parameter_bytes": sum(int(p.data.nbytes) for p in params),
        "buffer_bytes": sum(int(b.data.nbytes) for b in buffers),
        "products": sum(counted),
        "uncounted": [row["name"] or row["kind"] for row in rows if row["products"] is None],
    }
    return Summary(rows, totals)


# --------------------------------------------------------------------------------------------------------- running it

_Call = tuple[list[Shape], list[Shape]]  # the shapes of the tensors that a module was given, and of those it returned


def _as_input(model: Module, value: Any) -> Any:
    if not (isinstance(value, (tuple, list)) and value and all(is_integer(n) and n >= 0 for n in value)):
        return value
    like = next((p for p in model.parameters() if is_float(p.dtype)), None)
    with (CPU if like is None else like.device).current() as xp:
        return Tensor(xp.zeros(tuple(map(int, value)), "float32" if like is None else like.dtype))


def _run(model: Module, inputs: list[Any], options: dict[str, Any], calls: dict[int, list[_Call]]) -> None:
    """Run forward in a context of its own, and note the calls of each module."""
    set_rng_state(get_rng_state(), "theirs")  # streams of this context, which begin where those outside are

    def note(module: Module, args: tuple[Any, ...], output: Any) -> None:
        calls[id(module)].append(([x.shape for x in tensors_in(args)], [x.shape for x in tensors_in(output)]))

    with ExitStack() as stack:
        stack.enter_context(_as_it_was(model))
        for module in list(model.modules()):
            stack.callback(module.register_forward_hook(note).remove)
        stack.enter_context(no_grad())
        stack.enter_context(watching_calls(None))
        model(*inputs, **options)


@contextmanager
def _as_it_was(model: Module) -> Iterator[None]:
    """Evaluation mode inside; afterwards modes and buffers are what they were."""
    modes = [(module, module.training) for module in model.modules()]
    held = [(module, dict(module._buffers)) for module, _ in modes]
    values = [(buffer, duplicate(buffer.data)) for buffer in model.buffers()]
    for module, _ in modes:
        module.training = False
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        for module, buffers in held:
            for name in [name for name in module._buffers if name not in buffers]:
                delattr(module, name)
            for name, buffer in buffers.items():
                if module._buffers.get(name) is not buffer:
                    setattr(module, name, buffer)
        for buffer, value in values:
            if to_host(buffer.data).tobytes() != to_host(value).tobytes():
                overwrite(buffer, value)


# ---------------------------------------------------------------------------------------------------------- the table


def _rows(model: Module, calls: dict[int, list[_Call]]) -> Iterator[dict[str, Any]]:
    first: dict[int, str] = {}  # where a module or a parameter is for the first time
    again: list[str] = []
    for name, module in model.named_modules(remove_duplicate=False):
        if any(name.startswith(f"{place}.") for place in again):
            continue
        row: dict[str, Any] = {"name": name, "kind": type(module).__name__, "depth": name.count(".") + bool(name)}
        row |= {"calls": 0, "outputs": [], "parameters": 0, "trainable": 0, "bytes": 0, "tied": {}, "products": 0}
        if id(module) in first:
            again.append(name)
            yield {**row, "same_as": first[id(module)]}
            continue
        first[id(module)] = name
        yield {**row, **_counted(name, module, calls[id(module)], first)}


def _counted(name: str, module: Module, calls: list[_Call], first: dict[int, str]) -> dict[str, Any]:
    own, tied = [], {}
    for key, param in module._parameters.items():
        if param is not None and first.setdefault(id(param), _dotted(name, key)) == _dotted(name, key):
            own.append(param)
        elif param is not None:
            tied[key] = first[id(param)]
    buffers: list[Buffer] = [
        b for key, b in module._buffers.items()
        if b is not None and first.setdefault(id(b), _dotted(name, key)) == _dotted(name, key)
    ]
    outputs: list[list[list[int]]] = []
    for _, shapes in calls:
        if (lists := [*map(list, shapes)]) not in outputs:
            outputs.append(lists)
    return {
        "calls": len(calls),
        "outputs": outputs,
        "parameters": sum(p.numel() for p in own),
        "trainable": sum(p.numel() for p in own if p.requires_grad),
        "bytes": sum(int(x.data.nbytes) for x in (*own, *buffers)),
        "tied": tied,
        "products": _products(module, calls),
    }


def _products(module: Module, calls: list[_Call]) -> int | None:
    """Multiplications by the weight in all calls; None where nobody knows how often the weights here are used."""
    kind = next((kind for kind in type(module).__mro__ if kind.__name__ in _PLACES), None)
    if kind is not None and type(module).forward is kind.forward:  # type: ignore[attr-defined]
        of, per = _PLACES[kind.__name__]
        ends = [(given if of == "input" else returned)[:1] for given, returned in calls]
        if not all(ends):
            return None  # what it was given by name is not seen
        places: int = sum(math.prod(shape) // max(1, getattr(module, per)) for [shape] in ends)
        return places * sum(p.numel() for key, p in module._parameters.items() if p is not None and key == "weight")
    weights = [p for p in module._parameters.values() if p is not None and p.ndim > 1]
    known = any(kind.__name__ == _LOOKED_UP for kind in type(module).__mro__)
    return None if calls and weights and not known else 0


def _dotted(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    name = "  " * max(0, row["depth"] - 1) + row["name"].rpartition(".")[2]
    if "same_as" in row:
        return (name, row["kind"], f"the same as {row['same_as'] or 'the model'}", "", "", "", "")
    outputs = " or ".join(", ".join(str(tuple(shape)) for shape in shapes) for shapes in row["outputs"])
    times = f", {row['calls']} times" if row["calls"] > 1 else ""
    numbers = [f"{row[column]:,}" for column in _COLUMNS[3:6]]
    products = "?" if row["products"] is None else f"{row['products']:,}"
    return (name, row["kind"], *((outputs + times, *numbers, products) if row["calls"] else ("-", *numbers, "-")))
