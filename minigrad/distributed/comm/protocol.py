"""What a communicator is: every method of one rank that the library calls. `comm.front` makes most of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from minigrad.backend.device import Device
from minigrad.backend.dtypes import Array, DtypeLike
from minigrad.distributed.collectives import ReduceOp
from minigrad.errors import ArgumentError


class Work(Protocol):
    """A collective under way. The array must be left alone until `wait` returned."""

    @property
    def span(self) -> tuple[float, float] | None:
        """When all ranks had called it, and when it was over, on this rank's clock.

        None where the communicator does not tell, or it is not over.
        """

    def done(self) -> bool:
        """Whether the result is there, without waiting."""

    def wait(self, host: bool = False) -> None:
        """Order what the caller's stream does next after the collective; on the CPU, and with host=True, block.

        Raises:
            CollectiveTimeoutError: a rank did not come in time; it is named.
            CollectiveMismatchError: another rank made another call.
            RankFailedError: another rank failed.
        """


class Clock(Protocol):
    """What time is, for the time models: the host's clock, or a simulation's."""

    def now_s(self) -> float:
        """Seconds since some fixed moment."""

    def compute(self, samples: float) -> None:
        """This rank is about to compute on so many samples: a simulation advances its time, the host's clock runs.

        Said of what no call of a module stands for: a simulation hears of those, and of backwards, by itself.
        """

    def progress(self, fraction: float) -> None:
        """So much of the backward of that is done, from 0 to 1: buckets of gradients that are ready may travel."""

    def advance(self, seconds: float) -> None:
        """Code of one's own takes so long: a simulation advances its time, the host's clock runs."""


_SUMS = {"all_reduce", "weighted_all_reduce", "adds_weighted"}


class Communicator(Protocol):
    """The collectives of one rank. Every rank makes the same calls in the same order.

    Arrays are contiguous and changed in place, on the caller's current stream. A tensor on this device is as good as
    its array; it counts as changed in place, so it may not require grad outside `no_grad`. One thread calls at a time.
    One of your own is a `Wrapper` around another, or a `Front` that moves bytes in a way of its own.

    Attributes:
        rank: This rank, 0 <= rank < world_size.
        world_size: How many ranks there are.
        device: Where the arrays live.
        clock: What time is for the time models.
        timeout_s: How long a collective waits for the others.
        global_ranks: Its ranks in order, as the communicator knows them that no other was split into.
    """

    rank: int
    world_size: int
    device: Device
    clock: Clock
    timeout_s: float

    def __init_subclass__(cls, **options: Any) -> None:
        """A class that overrides `all_reduce` alone is to see every sum: weighted ones are made by it."""
        super().__init_subclass__(**options)
        said = next(found for kind in cls.__mro__ if (found := _SUMS & vars(kind).keys()))
        if said == {"all_reduce"}:
            cls.adds_weighted = False  # type: ignore[assignment,method-assign]

    @property
    def adds_weighted(self) -> bool:
        """Whether `weighted_all_reduce` weights inside the sum, which spares a pass over memory."""

    # ----------------------------------------------------------------------------------------------- collectives

    def empty(self, count: int, dtype: DtypeLike) -> Array:
        """A 1-D array of zeros on which collectives are cheapest: in a shared segment where there is one.

        Raises:
            ArgumentError: count is no integer >= 0. DtypeError: no dtype of a tensor.
        """

    def all_reduce(self, array: Array, op: ReduceOp = ReduceOp.SUM, layout: str = "") -> Work:
        """Overwrite array by its reduction over the ranks; the same bits on all of them.

        Args:
            layout: An id that all ranks have to agree on, for example of a bucket plan.
        """

    def weighted_all_reduce(self, array: Array, weight: Array | None = None, layout: str = "") -> Work:
        """Overwrite array by the sum over the ranks of array · weight, each with its own weight.

        The bits are those of weighting in place first, but for float16 and bfloat16, which are weighted and added up
        in float32 and rounded once: inside the sum of ranks in one memory, and else they travel as float32. Other
        ranks may call `all_reduce` instead, where their elements are weighted already.

        Args:
            array: Contiguous and float.
            weight: float64 (1,) where the array lives; None for 1. A weight of 0 takes nothing over, not even NaN.
            layout: See `all_reduce`.

        Raises:
            DtypeError: the array is not float.
        """

    def broadcast(self, array: Array, root: int = 0) -> Work:
        """Overwrite array by the root's."""

    def reduce_scatter(self, output: Array, source: Array, op: ReduceOp = ReduceOp.SUM) -> Work:
        """Overwrite output (n,) by part `rank` of the reduction of source (world_size * n,).

        The output may be that part of the source; all of the source may be overwritten.
        """

    def all_gather(self, output: Array, source: Array) -> Work:
        """Overwrite output (world_size * n,) by the sources (n,) of all ranks, in order of rank.

        The source may be part `rank` of the output.
        """

    def reduce(self, array: Array, root: int = 0, op: ReduceOp = ReduceOp.SUM) -> Work:
        """Overwrite array by the reduction over the ranks, on the root alone; but for NCCL with its bits."""

    def gather(self, output: Array | None, source: Array, root: int = 0) -> Work:
        """Overwrite the root's output (world_size * n,) by the sources (n,) of all ranks, in order of rank.

        Args:
            output: On the root; None on all other ranks.
        """

    def scatter(self, output: Array, source: Array | None, root: int = 0) -> Work:
        """Overwrite output (n,) by part `rank` of the root's source (world_size * n,).

        Args:
            source: On the root; None on all other ranks.
        """

    def all_to_all(self, output: Array, source: Array) -> Work:
        """Overwrite part r of output by part `rank` of the source of rank r; both are (world_size * n,)."""

    def all_gather_object(self, value: Any) -> list[Any]:
        """The values of all ranks, in order of rank; blocks. JSON data only, for small things."""

    def barrier(self) -> None:
        """Return when all ranks have called it."""

    def send(self, array: Array, dst: int, tag: int = 0) -> Work:
        """Let rank dst have the elements of array; it waits for nobody, and only these two ranks take part.

        The n-th message from one rank to another with one tag goes to the n-th `recv` of these. The work is done when
        rank dst has taken it: to wait for it before this rank takes what dst sends is to wait for each other.

        Args:
            array: Contiguous; to be left alone until the work is done.
            dst: Another rank.
            tag: Says which of the messages between two ranks it is; 0 <= tag < 2**31.

        Raises:
            ArgumentError: dst is this rank, or none; or a tag out of range.
        """

    def recv(self, array: Array, src: int, tag: int = 0) -> Work:
        """Overwrite array by what rank src sends with this tag, of the same dtype and number of elements; see `send`.

        Where these differ, or nothing comes, waiting raises the errors of `Work.wait`: they say what rank src was last
        seen doing, and with which other tags it has sent something.
        """

    # ---------------------------------------------------------------------------------------------------- groups

    @property
    def global_ranks(self) -> tuple[int, ...]:
        """See above: range(world_size) where it was not split off another one."""

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """The communicator of a group: of the ranks that give one color, in order of key, then of rank here.

        All ranks call it, and wait for each other. A group has numbers of its own for its ranks and its calls, and
        fails by itself: by a call that differs, a rank that is late, gone, or closes it. What fails this communicator
        fails its groups too, and its close closes them. A group can be split again.

        Args:
            color: >= 0; None is in no group.

        Returns:
            None where color is None.

        Raises:
            ArgumentError: a color or a key that is no such integer, of any rank; on all ranks.

        Example:
            >>> from minigrad.distributed import run
            >>> def body(comm):
            ...     row = comm.split(comm.rank // 2)
            ...     return row.rank, row.global_ranks
            >>> run(body, 4)
            [(0, (0, 1)), (1, (0, 1)), (0, (2, 3)), (1, (2, 3))]
        """

    # ------------------------------------------------------------------- whether ranks do the same, and what they do

    def check_headers(self, layout: str = "") -> None:
        """Compare what the ranks have called so far, where that is not done in each call.

        All ranks call it at the same place, and wait for each other: the reducer does when it has made a plan.

        Args:
            layout: An id that all ranks have to agree on.

        Raises:
            CollectiveMismatchError: the calls, or the layouts, differ.
        """

    def end_pass(self, layout: str, mark: float | None, news: bool) -> list[float] | None:
        """Note the end of a pass where the communicator compares what ranks have called later, and lets none wait.

        Args:
            layout: An id that all ranks have to agree on.
            mark: A number that may differ, but has to be looked into then; None where all ranks know those of all.
            news: Whether something has come up on this rank that may not be alike: it is looked into at once.

        Returns:
            The marks of all ranks where they are to be looked into here, on all ranks; empty where they are not. None
            where the communicator compares each call.
        """

    def check_same(self, who: str) -> None:
        """Before something is kept of this rank: raise where ranks have parted, even where that was not compared yet.

        A rank calls it when it likes; it waits until the others have come as far as this one.

        Raises:
            CollectiveMismatchError, ReplicaMismatchError: they have parted. CollectiveTimeoutError: one does not come.
        """

    def last_calls(self) -> Sequence[str]:
        """The last calls that this rank made, the latest first, 64 at most; in words."""

    def waiting(self) -> AbstractContextManager[None]:
        """Around a wait of the caller's stream for what ran on another one: a communicator may time it."""

    def event(self, kind: str, **fields: Any) -> None:
        """Hear what happened on this rank: a simulation takes notes."""

    # ------------------------------------------------------------------------------------------------------ ends

    def give_up(self, reason: str) -> None:
        """Say that this rank does not make the call that comes next, and why; never waits, and raises nothing.

        Where all ranks give up at the same place they go on as if nothing had been. Else all fail, as by `abort`:
        those that make another call there at once, and this one at a later call.
        """

    def abort(self, reason: str) -> None:
        """Fail all ranks: their pending and later calls raise RankFailedError with this reason."""

    def close(self) -> None:
        """Give everything back; idempotent. Later calls raise."""


def check_is_communicator(who: str, comm: Any) -> None:
    """Refuse what is no communicator by descent: what merely looks like one could miss calls without a word.

    Raises:
        ArgumentError: its class does not derive from Communicator, as `Front` and `Wrapper` do.
    """
    if Communicator not in type(comm).__mro__:
        raise ArgumentError(
            f"{who}: expected a communicator, got {type(comm).__name__}: see distributed.init and run; one of your own "
            "derives from distributed.Wrapper"
        )
