"""What is under way on one reducer: one pass at a time; backwards that stay local may lie within each other."""

from __future__ import annotations

from collections.abc import Iterable

from minigrad.autograd import backwards_under_way
from minigrad.distributed.ddp.own import OwnGradients
from minigrad.errors import AutogradError
from minigrad.nn.parameter import Parameter


_UNFINISHED = "of a backward that is under way: do it when that is over"


class Begun:
    """A backward, or a synchronisation without one, that has begun and is not over.

    Args:
        what: In words, such as "its backward", of a rank.
        combines: Whether it is combined with those of other ranks, which then wait for it.
        own: What is kept of these as it is now: samples, and whether anybody has said them.
        hosts: Whether local backwards are a part of it.
    """

    __slots__ = ("what", "combines", "hosts", "samples", "weighed")

    def __init__(self, what: str, combines: bool, own: OwnGradients, hosts: bool = False) -> None:
        self.what, self.combines, self.hosts = what, combines, hosts
        self.samples, self.weighed = own.samples, own.weighed


class Nesting:
    """Those that have begun, the outermost first.

    Attributes:
        refusal: What was refused within the outermost one, which must not end as if nothing had been; None else.
    """

    def __init__(self) -> None:
        self._begun: list[Begun] = []
        self.refusal: AutogradError | None = None

    def enter(self, rank: int, begun: Begun) -> str:
        """Let another one begin; `leave` has to follow in any case.

        Returns:
            What is said from now on to who would use a gradient too early.

        Raises:
            AutogradError: one is under way already, and not both are local.
        """
        outer = self._begun[-1] if self._begun else None
        self._begun.append(begun)
        if outer is not None and (begun.combines or outer.combines and not outer.hosts):
            self.refusal = self.refusal or _refused(rank, begun.what, outer.what)
            raise self.refusal
        return _UNFINISHED

    def check_refusal(self) -> None:
        """Raise what was refused, when the outermost one is over: whoever caught it there would lose a gradient."""
        if self.refusal is not None and len(self._begun) == 1:
            raise self.refusal

    def take_refusal(self) -> bool:
        """Whether anything was refused; the outermost one is over, so nothing is any more."""
        refused, self.refusal = self.refusal is not None, None
        return refused

    def leave(self) -> tuple[Begun, str]:
        """The innermost one, which is over, and what is said from now on to who would use a gradient too early."""
        begun = self._begun.pop()
        return begun, _UNFINISHED if self._begun else ""

    @property
    def weighed_before(self) -> bool:
        """Whether there were counted gradients, not yet combined, when the innermost one began."""
        return bool(self._begun) and self._begun[-1].weighed

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._begun

    def check_idle(self, rank: int, what: str) -> None:
        """Refuse what would pull the ground from under a backward.

        Raises:
            AutogradError: something is under way.
        """
        if self._begun:
            raise _refused(rank, what, self._begun[-1].what)


def check_complete(who: str, params: Iterable[Parameter]) -> None:
    """Refuse to combine gradients while a backward is under way that adds to them.

    Raises:
        AutogradError: one is.
    """
    for leaves in backwards_under_way():
        reached = {id(leaf) for leaf in leaves}
        for param in params:
            if id(param) in reached:
                raise AutogradError(
                    f"{who}: expected no backward under way, got one that reaches {param.name or 'a parameter'}: "
                    "call it when that is over"
                )


def _refused(rank: int, what: str, outer: str) -> AutogradError:
    what, outer = what.removeprefix("its "), outer.removeprefix("its ")
    return AutogradError(
        f"rank {rank}: DistributedDataParallel: expected one pass at a time, got {what}() inside {outer}() of the same "
        "wrapper: call it when the outer one is over, or add the losses up and call backward() once"
    )
