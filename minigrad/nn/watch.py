"""Who hears of the calls of modules: a clock that charges what they cost; a hook of a user, in backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, Protocol

from minigrad.backend.capturing import current_capture
from minigrad.backend.nvtx import nvtx_range
from minigrad.removal import Removal


class CallWatcher(Protocol):
    """What hears of the outermost calls of modules that have parameters."""

    def call(self, samples: float) -> AbstractContextManager[None]:
        """Around one of them, on so many samples."""


_watching: ContextVar[CallWatcher | None] = ContextVar("minigrad_watching_calls", default=None)
current_watcher = _watching.get


@contextmanager
def watching_calls(watcher: CallWatcher | None) -> Iterator[None]:
    """Let one hear of the calls of modules inside the block, in this context only; None for nobody."""
    token = _watching.set(watcher)
    try:
        yield
    finally:
        _watching.reset(token)


class _Naming:
    """Tells a profiler of each call of a module, those inside others too.

    Args:
        charges: Hears of the outermost calls besides.
    """

    def __init__(self, charges: CallWatcher | None) -> None:
        self.charges = charges

    def call(self, samples: float) -> AbstractContextManager[None]:
        """Around an outermost call."""
        return nullcontext() if self.charges is None else self.charges.call(samples)


@contextmanager
def naming_calls() -> Iterator[None]:
    """Tell a profiler of each call of a module inside the block, in this context only."""
    with watching_calls(_Naming(current_watcher())):
        yield


def call_watched(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the forward of a module, with the hooks around it, and tell the watcher; of none inside, but by name."""
    if (capture := current_capture()) is not None:
        from minigrad.nn.captured import modules_of

        modules_of(capture).add(module)
    watcher = current_watcher()
    is_named = isinstance(watcher, _Naming)
    with nvtx_range(type(module).__name__) if is_named else nullcontext():
        charges = watcher.charges if isinstance(watcher, _Naming) else watcher
        if charges is None or next(module.parameters(), None) is None:
            return module._call_with_hooks(args, kwargs)
        inside = _Naming(None) if is_named else None
        with charges.call(module._count_samples(args, kwargs)), watching_calls(inside):
            return module._call_with_hooks(args, kwargs)


def register_full_backward_hook(module: Any, hook: Callable[..., Any]) -> Removal:
    """Call hook(module, grad_input, grad_output) in backward once the gradients of the module's inputs are there.

    Both are tuples: grad_input has the gradient of each positional argument, None for what is no tensor or gets none,
    grad_output that of each output. A tuple, or a tensor, that the hook returns takes the place of grad_input.

    Within the module inputs and outputs are views, which may not be changed in place.

    Returns:
        What removes the hook, by `.remove()`.

    Raises:
        ArgumentError: in backward, where the hook returns another number of gradients.
        DtypeError: no function; in forward, where the module returns something else than a tensor, or a tuple or list
            of them.

    Example:
        >>> from minigrad import nn, ones
        >>> layer, seen = nn.Linear(2, 3), []
        >>> handle = layer.register_full_backward_hook(lambda layer, inputs, outputs: seen.append(outputs[0].shape))
        >>> layer(ones(4, 2)).sum().backward()
        >>> seen
        [(4, 3)]
    """
    from minigrad.nn.backward_hooks import listen

    return listen(module, hook)
