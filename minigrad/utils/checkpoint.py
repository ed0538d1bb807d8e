"""What `torch.utils.checkpoint` has: functions and sequences of layers of which backward computes the inside again."""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Sequence

from minigrad.absent import absent as _absent
from minigrad.arguments import as_integer as _as_integer
from minigrad.autograd.recompute import check_options as _check_options, checkpoint as checkpoint
from minigrad.errors import ArgumentError as _ArgumentError
from minigrad.nn.container import Sequential

__all__ = ["checkpoint", "checkpoint_sequential"]


def checkpoint_sequential(
    functions: Sequential | Sequence[Callable[[typing.Any], typing.Any]],
    segments: int,
    input: typing.Any,
    use_reentrant: bool | None = False,
    preserve_rng_state: bool = True,
) -> typing.Any:
    """Run layers one after the other, in segments that are each a `checkpoint`, but for the last, which is next.

    Args:
        functions: A `Sequential`, or a list of layers or functions of one argument.
        segments: How many; of equal numbers of layers, the last has what is left. In [1, number of layers].
        input: What the first layer gets.
        use_reentrant, preserve_rng_state: See `checkpoint`.

    Raises:
        ArgumentError: no layers, or a number of segments out of range; as `checkpoint`.
        AutogradError: as `checkpoint`.

    Example:
        >>> from minigrad import nn, ones
        >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> checkpoint_sequential(model, 2, ones(5, 3)).shape
        (5, 2)
    """
    _check_options("checkpoint_sequential", use_reentrant, preserve_rng_state, None, "default", False, True)
    if not isinstance(functions, (Sequential, list, tuple)) or not len(functions):
        raise _ArgumentError(f"checkpoint_sequential: expected a Sequential or list of layers, got {functions!r:.100}")
    layers = list(functions)
    segments = _as_integer("checkpoint_sequential", "segments", segments, 1, len(layers) + 1)
    length = len(layers) // segments
    for start in range(0, length * (segments - 1), length):
        run = functools.partial(_run, layers[start : start + length])
        input = checkpoint(run, input, preserve_rng_state=preserve_rng_state)
    return _run(layers[length * (segments - 1) :], input)


def _run(layers: list[typing.Any], x: typing.Any) -> typing.Any:
    for layer in layers:
        x = layer(x)
    return x


if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> typing.Any:
        raise _absent(__name__, name)
