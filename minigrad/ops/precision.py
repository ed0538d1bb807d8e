"""Mixed precision: which operations run in half precision inside `autocast`, and which in float32."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

import numpy as np

from minigrad.arguments import check_choice, check_switch
from minigrad.backend.dtypes import Array, DtypeLike, as_dtype, converted, float_dtypes_mixed, is_float
from minigrad.errors import ArgumentError
from minigrad.ops.operands import cast
from minigrad.tensor import Tensor

# Products run low: they are most of the work, and they sum in float32 whatever their operands are. What sums many
# elements, or has a range that half precision has not, runs high. Every other operation takes its tensors as they
# come; two float dtypes meet in the wider one. float64 stays float64.
PRECISION: dict[str, str] = {}  # "low" or "high" by operation, as their @autocasts say

_FLOAT32 = np.dtype(np.float32)


class _Mode(NamedTuple):
    """What an autocast block asks for, and the parameters that it has converted: (data, stamp, converted) by id."""

    dtype: np.dtype[Any]
    kept: dict[int, tuple[Array, int, Array]]
    device_type: str | None = None

    def holds_for(self, data: Array) -> bool:
        """Whether it is asked for where an array lies."""
        return self.device_type is None or (self.device_type == "cpu") == (data.__class__ is np.ndarray)


Function = TypeVar("Function", bound=Callable[..., Any])
_mode: ContextVar[_Mode | None] = ContextVar("minigrad_autocast", default=None)


class autocast:
    """Run products in half precision inside the block (or the decorated function), in this context only.

    Put forward and loss into it, and call backward outside. Conversions are recorded, so a gradient comes back in the
    dtype of its parameter. A parameter is converted once a block. float16 needs `optim.GradScaler`.

    Args:
        target: "cuda" or "cpu" for the tensors of such devices alone, by default for those of all; a dtype,
            "bfloat16" or "float16"; or enabled; in any order.
        dtype: By default float16 for "cuda", as PyTorch has it, else bfloat16.
        enabled: False leaves every operation as it is, also inside another block.
        device_type: As target has it.
        cache_enabled: Must be True: a parameter is converted once a block.

    Raises:
        ArgumentError: another dtype or device, or one of them twice.

    Example:
        >>> from minigrad import nn, ones
        >>> layer = nn.Linear(3, 2)
        >>> with autocast("bfloat16"):
        ...     y = layer(ones(4, 3))
        ...     loss = y.mean()
        >>> loss.backward()
        >>> y.dtype.name, loss.dtype.name, layer.weight.grad.dtype.name
        ('bfloat16', 'float32', 'float32')
    """

    def __init__(
        self,
        *target: Any,
        dtype: DtypeLike = None,
        enabled: bool = True,
        device_type: str | None = None,
        cache_enabled: bool | None = True,
    ) -> None:
        for part in target:
            if isinstance(part, bool):
                enabled = part
            elif (device_type if _names_device(part) else dtype) is not None:
                raise ArgumentError(f"autocast: expected one device and one dtype, got {part!r} as a second one")
            elif _names_device(part):
                device_type = str(part)
            else:
                dtype = part
        check_switch("autocast", enabled=enabled)
        if cache_enabled is False:
            raise ArgumentError("autocast: expected cache_enabled=True, got False: a block converts a parameter once")
        if device_type not in (None, "cpu", "cuda"):
            raise ArgumentError(f"autocast: expected device_type cpu or cuda, got {device_type!r:.100}")
        low = as_dtype(dtype if dtype is not None else "float16" if device_type == "cuda" else "bfloat16")
        if low.name not in ("bfloat16", "float16"):
            raise ArgumentError(f"autocast: expected dtype bfloat16 or float16, got {low.name}")
        self._asked = (low, device_type, enabled)
        self._open: list[ExitStack] = []

    def __enter__(self) -> None:
        low, device_type, enabled = self._asked
        block = ExitStack()
        token = _mode.set(_Mode(low, {}, device_type) if enabled else None)
        block.callback(_mode.reset, token)
        block.enter_context(float_dtypes_mixed(enabled))
        self._open.append(block)

    def __exit__(self, *error: Any) -> None:
        self._open.pop().close()

    def __call__(self, function: Function) -> Function:
        """Decorate a function: each call is in a block of its own."""
        low, device_type, enabled = self._asked

        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            with autocast(dtype=low, enabled=enabled, device_type=device_type):
                return function(*args, **options)

        return call  # type: ignore[return-value]


def _names_device(part: Any) -> bool:
    return isinstance(part, str) and part.split(":")[0] in ("cpu", "cuda")


def is_autocast_enabled() -> bool:
    """Whether this context is inside an `autocast` block."""
    return _mode.get() is not None


def autocasts(precision: str, itself: bool = False) -> Callable[[Function], Function]:
    """Let an operation run in half precision ("low") or in float32 ("high") inside `autocast`.

    Args:
        itself: The operation converts its tensors, by `at_precision`, rather than all of them being converted first.

    Raises:
        ArgumentError: another word for precision, or the function is a method already, which would be left out.
    """
    check_choice("@autocasts", ("low", "high"), precision=precision)

    def mark(function: Function) -> Function:
        who = function.__name__
        bound = vars(Tensor).get(who)
        if bound is not None and function in (bound, getattr(bound, "__wrapped__", None)):
            raise ArgumentError(f"@autocasts: expected {who} before it is a method, got one: put @method above it")
        PRECISION[who] = precision

        @functools.wraps(function)
        def run(*args: Any, **options: Any) -> Any:
            if _mode.get() is None:
                return function(*args, **options)
            values = at_precision(who, *args, *options.values())
            return function(*values[: len(args)], **dict(zip(options, values[len(args) :])))

        return function if itself else run  # type: ignore[return-value]

    return mark


def at_precision(who: str, *values: Any) -> tuple[Any, ...]:
    """The arguments of an operation, float tensors among them in the dtype that its @autocasts says."""
    mode = _mode.get()
    if mode is None:
        return values
    convert = _lowered if PRECISION[who] == "low" else _raised
    return tuple(
        convert(x, mode) if isinstance(x, Tensor) and is_float(x.data.dtype) and mode.holds_for(x.data) else x
        for x in values
    )


def convert_anew() -> None:
    """Let this context, and no other, keep none of the conversions so far: they live as long as it does."""
    mode = _mode.get()
    if mode is not None:
        _mode.set(mode._replace(kept={}))


def _raised(x: Tensor, mode: _Mode) -> Tensor:
    return cast(x, _FLOAT32) if x.data.dtype.itemsize == 2 else x


def _lowered(x: Tensor, mode: _Mode) -> Tensor:
    if x.data.dtype == mode.dtype or x.data.dtype == np.float64:
        return x
    if x.node is not None or not x.requires_grad:
        return cast(x, mode.dtype)
    data, stamp = x.data, 0 if x.stamp is None else x.stamp.changed
    kept = mode.kept.get(id(data))
    if kept is None or kept[1] != stamp:
        kept = mode.kept[id(data)] = data, stamp, converted(data, mode.dtype)
    return cast(x, mode.dtype, kept[2])  # the array is shared, the node is not: each graph is freed by its backward
