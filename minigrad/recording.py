"""Whether operations are recorded: no_grad and its kin, in this context only, so that ranks in threads are apart."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, TypeVar

from minigrad.arguments import check_switch

_recording: ContextVar[bool] = ContextVar("minigrad_recording", default=True)
is_grad_enabled = _recording.get
_recomputing: ContextVar[bool] = ContextVar("minigrad_recomputing", default=False)
is_recomputing = _recomputing.get  # within a backward, which is no new forward: nothing is to be counted twice
_Blocks = tuple[tuple[object, bool], ...]  # those that are open in this context, and what each found
_open: ContextVar[_Blocks] = ContextVar("minigrad_recording_blocks", default=())

Function = TypeVar("Function", bound=Callable[..., Any])


class _Block:
    """A block that can be entered, and decorate a function or a generator: each call of that is in one of its own.

    It may be entered again, also inside itself, and by several threads.
    """

    __slots__ = ("_mode",)

    def __init__(self, mode: bool) -> None:
        self._mode = mode

    def __enter__(self) -> None:
        _open.set((*_open.get(), (self, _recording.get())))
        _recording.set(self._mode)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        blocks = _open.get()
        for here in reversed(range(len(blocks))):
            if blocks[here][0] is self:
                _recording.set(blocks[here][1])
                _open.set(blocks[:here] + blocks[here + 1 :])
                return

    def __call__(self, function: Function) -> Function:
        """Decorate a function; while a generator waits for its reader, its block is left."""
        mode = self._mode

        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            with _Block(mode):
                return function(*args, **options)

        @functools.wraps(function)
        def generate(*args: Any, **options: Any) -> Generator[Any, Any, Any]:
            made, sent = function(*args, **options), None
            try:
                while True:
                    with _Block(mode):
                        try:
                            value = made.send(sent)
                        except StopIteration as end:
                            return end.value
                    sent = yield value
            finally:
                made.close()

        return generate if inspect.isgeneratorfunction(function) else call  # type: ignore[return-value]


def _decorates(kind: type[_Block], *args: Any) -> Any:
    """`@no_grad` without brackets: the function, decorated."""
    made = object.__new__(kind)
    if args and callable(args[0]):
        made.__init__()  # type: ignore[misc]
        return made(args[0])
    return made


@contextmanager
def recomputing() -> Iterator[None]:
    """Record inside what was recorded before, and dropped since."""
    token = _recomputing.set(True)
    try:
        yield
    finally:
        _recomputing.reset(token)


class no_grad(_Block):
    """Record nothing inside the block, or inside a decorated function, in this context only."""

    __slots__ = ()

    def __new__(cls, *args: Any) -> Any:
        """The block; of a function, as in a decorator without brackets, that function decorated."""
        return _decorates(cls, *args)

    def __init__(self) -> None:
        super().__init__(False)


class enable_grad(_Block):
    """Record again inside the block, or inside a decorated function, also within `no_grad`."""

    __slots__ = ()

    def __new__(cls, *args: Any) -> Any:
        """The block; of a function, as in a decorator without brackets, that function decorated."""
        return _decorates(cls, *args)

    def __init__(self) -> None:
        super().__init__(True)


class inference_mode(_Block):
    """`no_grad` under another name of PyTorch's: tensors made in it are as all others.

    Args:
        mode: False leaves recording on.
    """

    __slots__ = ()

    def __new__(cls, *args: Any, **options: Any) -> Any:
        """The block; of a function, as in a decorator without brackets, that function decorated."""
        return _decorates(cls, *args)

    def __init__(self, mode: bool = True) -> None:
        check_switch("inference_mode", mode=mode)
        super().__init__(not mode)


class set_grad_enabled(_Block):
    """Record from now on, or not; used as a block, what it was before comes back at its end. In this context only.

    Args:
        mode: Whether to record.
    """

    __slots__ = ("_found",)

    def __init__(self, mode: bool) -> None:
        check_switch("set_grad_enabled", mode=mode)
        super().__init__(mode)
        self._found: bool | None = _recording.get()  # until it is a block, or decorates
        _recording.set(mode)

    def __enter__(self) -> None:
        """What was before has been noted when it was made, the first time."""
        self._take_back()
        super().__enter__()

    def __call__(self, function: Function) -> Function:
        """Decorate a function, and leave everything outside it as it was."""
        self._take_back()
        return super().__call__(function)

    def _take_back(self) -> None:
        """Record as before it was made, the first time."""
        if self._found is not None:
            _recording.set(self._found)
            self._found = None
