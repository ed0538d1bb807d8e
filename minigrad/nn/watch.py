"""Who hears of the calls of modules: a clock that charges what they cost; a hook of a user, in backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

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
