"""What a timeline gets of a module, by hooks on it and listeners on its leaves: its forward by part, its backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from minigrad.autograd.tape import Reached
from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.record.moments import DeviceMoments
from minigrad.distributed.record.timeline import Timeline
from minigrad.distributed.record.track import Moment, Track
from minigrad.nn.module import Module
from minigrad.recording import is_grad_enabled, is_recomputing
from minigrad.removal import Removal


class Charges(Protocol):
    """Charges calls of modules, as a simulation does, before the module hears of its call.

    Attributes:
        called_s: When it began to charge the call that comes next; None where nobody does.
    """

    called_s: float | None


def listen_forward(track: Track, module: Module, depth: int, charges: Charges | None) -> list[Removal]:
    """Note the calls of a module, and those of the modules in it, so deep.

    Returns:
        What ends it.
    """
    forward = Forward(track, charges)
    removals = forward.whole(module)
    for name, each in module.named_modules():
        if name and name.count(".") < depth:
            removals += forward.part(each, name)
    return removals


class Forward:
    """Notes the calls of a module in which gradients are recorded, and within them those of its parts.

    Args:
        track: Where they are written.
        charges: See `Charges`; None on the host's clock.
    """

    def __init__(self, track: Track, charges: Charges | None) -> None:
        self._track, self._charges, self._now_s, self._mark = track, charges, track.now_s, track.mark
        self._began_s, self._began = 0.0, cast(Moment, 0.0)
        self._is_noted = False  # the call under way

    def whole(self, module: Module) -> list[Removal]:
        """Begin to listen to the module."""
        name, charges = type(module).__name__, self._charges

        def begin(called: Module, args: Any) -> None:
            charged_s = None
            if charges is not None:
                charged_s, charges.called_s = charges.called_s, None
            self._is_noted = called is module and is_grad_enabled() and not is_recomputing()
            if self._is_noted:
                self._track.begin_if_over()
                self._began_s = self._now_s() if charged_s is None else charged_s
                self._began = self._began_s if self._mark is self._now_s else self._mark()

        def end(called: Module, args: Any, output: Any) -> None:
            if self._is_noted and called is module:  # a copy of the module has copies of its hooks
                self._is_noted, ended_s = False, self._now_s()
                ended = ended_s if self._mark is self._now_s else self._mark()
                self._track.note("forward", name, self._began, ended, {"forward_s": ended_s - self._began_s})

        return [module.register_forward_pre_hook(begin), module.register_forward_hook(end)]

    def part(self, module: Module, name: str) -> list[Removal]:
        """Begin to listen to a module in it."""
        mark, note, began = self._mark, self._track.note, cast(Moment, 0.0)

        def begin(called: Module, args: Any) -> None:
            nonlocal began
            if self._is_noted and called is module:
                began = mark()

        def end(called: Module, args: Any, output: Any) -> None:
            if self._is_noted and called is module:
                note("forward", name, began, mark())

        return [module.register_forward_pre_hook(begin), module.register_forward_hook(end)]


class LocalBackward:
    """A backward listener of a module that nothing reduces: notes when the gradient of each leaf was complete.

    Args:
        track: Where that is written.
        named: The parameters, by name.
        of: What the module is called.
    """

    def __init__(self, track: Track, named: Sequence[tuple[str, Any]], of: str) -> None:
        self.track, self._mark = track, track.mark
        self._names = {id(param): name for name, param in named}
        self._fields = {"of": of}
        self._leaves: list[tuple[str, Moment]] = []
        self._began, self._began_s = cast(Moment, 0.0), 0.0

    def begin(self, leaves: Reached) -> None:
        """Backward starts."""
        self._leaves, self._began_s = [], self.track.now_s()
        self._began = self._began_s if self._mark is self.track.now_s else self._mark()

    def leaf(self, leaf: Any) -> None:
        """A gradient is complete."""
        self._leaves.append((self._names.get(id(leaf), ""), self._mark()))

    def end(self, error: BaseException | None) -> None:
        """Backward is over."""
        leaves, self._leaves = self._leaves, []
        if error is None:
            ended_s, note, last_s = self.track.now_s(), self.track.note, self._began
            note("backward", "local", self._began_s, ended_s, {**self._fields, "backward_s": ended_s - self._began_s})
            for name, moment_s in leaves:
                note("backward", name, last_s, moment_s)
                last_s = moment_s


def is_noted(module: Module, track: Track) -> bool:
    """Whether backwards of a module are written on this track already, by its wrapper say."""
    return any(getattr(each, "track", None) is track for param in module.parameters() for each in param.listeners)


def note_module(timeline: Timeline, comm: Communicator, module: Module) -> Callable[[], None]:
    """Note forward and backward of a rank's module on its track, where nothing does so yet.

    Returns:
        What to call when a step is over; it waits for nothing.
    """
    track = timeline.at(comm)
    moments = DeviceMoments.of(track, comm.device)
    note_on(track, module, timeline.depth, comm.clock)
    return track.end_step if moments is None else _settled(track, moments)


def note_on(track: Track, module: Module, depth: int, clock: Any) -> None:
    """Note forward, so deep, and backward of a module on a track, where nothing does so yet."""
    if is_noted(module, track):
        return
    listen_forward(track, module, depth, clock if hasattr(clock, "called_s") else None)
    named = list(module.named_parameters())
    listener = LocalBackward(track, named, type(module).__name__)
    for _, param in named:
        param.listeners = (listener, *param.listeners)


def _settled(track: Track, moments: DeviceMoments) -> Callable[[], None]:
    def end_step() -> None:
        track.end_step()
        moments.settle()

    return end_step
