"""GradientGuard: what of a gradient is not this rank's own is never taken for a gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from minigrad.autograd.tape import Reached
from minigrad.errors import AutogradError
from minigrad.kept import keep_given
from minigrad.nn.parameter import Parameter

_WHY = (
    "of which this rank has its own run alone: step, clip and unscale by the ShardedOptimizer, which has to train all "
    "parameters of the wrapper"
)


class GradientGuard:
    """Listens to parameters whose gradients are divided among ranks once they are combined.

    Until such a gradient is forgotten, reading it is an error, and so are the step of a plain optimizer, clipping,
    unscaling, and a backward that would add to it; see `kept.check_finished` and `kept.check_undivided`.

    Args:
        params: All of the wrapper, each once.
        listener: Of them; it hears a backward after this one. Once it has left them so does this, as soon as nothing is
            divided.
        check: Raises where a backward may not begin; asked while the listener is there.
    """

    def __init__(self, params: Sequence[Parameter], listener: Any, check: Callable[[], None]) -> None:
        self._listener, self._check = listener, check
        self._params, self._held, self._is_lifted = list(params), set[int](), False
        for param in params:
            for other in (each for each in param.listeners if isinstance(each, GradientGuard)):
                self._held |= other._held  # that of a wrapper which was there before
            heard = [each for each in param.listeners if not isinstance(each, GradientGuard)]
            at = heard.index(listener)
            param.listeners = (*heard[:at], self, *heard[at:])

    @property
    def unfinished(self) -> str:
        """Why gradients are not whole, for messages; empty where they are."""
        return _WHY if self._held and not self._is_lifted else ""

    def divides(self, param: Any) -> bool:
        """Whether the gradient of a parameter is divided: one that was set by hand since is not."""
        return id(param) in self._held and not param.grad_by_hand

    def hold(self, params: Iterable[Parameter]) -> None:
        """The gradients of these parameters are divided from now on; what was kept of them keeps its numbers."""
        for param in params:
            self._held.add(id(param))
            if param.grad_given is not None:
                keep_given(param)

    def release(self, params: Iterable[Parameter]) -> None:
        """The gradients of these parameters are the same on all ranks: zeros."""
        self._held.difference_update(map(id, params))

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Around what touches this rank's own runs alone."""
        before, self._is_lifted = self._is_lifted, True
        try:
            yield
        finally:
            self._is_lifted = before

    def check_forgotten(self, who: str) -> None:
        """Refuse to add to gradients that are divided.

        Raises:
            AutogradError: there are such; the first is named.
        """
        if not self._held:
            return
        for param in self._params:
            if self.divides(param) and param.grad_array is not None:
                raise AutogradError(
                    f"{who}: expected gradients that were forgotten since the last step, got that of "
                    f"{param.name or 'a parameter'}, of which this rank has its own run alone: call "
                    "zero_grad() of the wrapper first, or of optimizers that train all its parameters"
                )
        self._held.clear()

    def begin(self, leaves: Reached) -> None:
        """A backward begins: it may not add to what is divided. Nobody has begun to wait for other ranks yet."""
        is_wrapped = self._listener in self._params[0].listeners
        if is_wrapped:
            self._check()
        self.check_forgotten("backward")
        for param in self._params if not is_wrapped else ():
            param.listeners = tuple(kept for kept in param.listeners if kept is not self)

    def leaf(self, leaf: Any) -> None:
        """A gradient is complete."""

    def end(self, error: BaseException | None) -> None:
        """A backward is over."""
