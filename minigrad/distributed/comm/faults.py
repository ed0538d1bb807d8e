"""Faults on purpose, at chosen calls of chosen ranks: to see that they are noticed, or survived."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from minigrad.arguments import as_amount, as_integer, check_choice, check_switch, keep_as
from minigrad.backend.device import to_host
from minigrad.backend.dtypes import Array, is_float
from minigrad.distributed.comm.protocol import Communicator, Work
from minigrad.distributed.comm.work import OVER, WorkAround
from minigrad.distributed.comm.wrappers import KINDS, Call, Make, Wrapper
from minigrad.errors import ArgumentError, DtypeError, InjectedFaultError

Action = Literal["delay", "drop", "corrupt", "nan", "raise", "kill", "reorder"]


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong at one call of one rank.

    It strikes the first call that fits rank, step, call, kind and bucket; None fits any.

    Attributes:
        action: "delay" the call by delay_s; "drop" it, as a rank does that skips a step; "corrupt" one bit of one
            element; make one element "nan"; "raise" an InjectedFaultError; "kill" this process; "reorder" it behind
            the call that follows.
        rank: On which rank.
        step: In which step, as counted by `FaultInjecting.next_step`, from 0.
        call: Number of the call within the step, from 0.
        kind: Name of the collective, as in `Call`.
        bucket: Number of the bucket, for collectives of gradients.
        delay_s: Seconds.
        element: Which element "corrupt" and "nan" change; -1 is the last.
        bit: Which bit of the element "corrupt" flips, from the lowest.
        after: Change what this rank gets back, rather than what it sends: only this replica is then wrong.

    Raises:
        ArgumentError: an unknown action or kind, a negative number, or another type.
    """

    action: Action
    rank: int
    step: int | None = None
    call: int | None = None
    kind: str | None = None
    bucket: int | None = None
    delay_s: float = 0.0
    element: int = 0
    bit: int = 0
    after: bool = False

    def __post_init__(self) -> None:
        check_choice("Fault", get_args(Action), action=self.action)
        keep_as(self, as_integer, "rank", "bit", least=0)
        keep_as(self, as_integer, "step", "call", "bucket", least=0, optional=True)
        keep_as(self, as_integer, "element")
        keep_as(self, as_amount, "delay_s")
        check_switch("Fault", after=self.after)
        if self.kind is not None:
            check_choice("Fault", KINDS, kind=self.kind)

    def fits(self, rank: int, step: int, number: int, call: Call) -> bool:
        """Whether it strikes this call."""
        if rank != self.rank or self.step not in (None, step) or self.call not in (None, number):
            return False
        in_bucket = self.bucket is None or f"{call.detail} ".endswith(f" bucket {self.bucket} ")
        return in_bucket and self.kind in (None, call.kind)

    def __str__(self) -> str:
        named = {"step": self.step, "call": self.call, "kind": self.kind, "bucket": self.bucket}
        where = ", ".join(f"{name} {value}" for name, value in named.items() if value is not None)
        return f"{self.action} on rank {self.rank}{' at ' if where else ''}{where}"


class FaultInjecting(Wrapper):
    """Makes things go wrong at chosen calls: to see that they are noticed, or survived.

    Args:
        comm: The communicator to pass calls on to.
        faults: What goes wrong; the faults of other ranks are ignored, so that all ranks may get one list.
        sleep: What a delay calls with its seconds.
        kill: What ends this process; by default SIGKILL, so that it gets no chance to say goodbye.

    Attributes:
        step: The step so far; see `next_step`.
        struck: The faults that have happened, in order.

    Example:
        >>> from minigrad.distributed import SoloCommunicator
        >>> comm = FaultInjecting(SoloCommunicator(), [Fault("nan", rank=0, call=1)])
        >>> x = np.zeros(2)
        >>> comm.all_reduce(x).wait(); comm.all_reduce(x).wait()
        >>> x.tolist()
        [nan, 0.0]
    """

    def __init__(
        self,
        comm: Communicator,
        faults: Iterable[Fault],
        *,
        sleep: Callable[[float], None] = time.sleep,
        kill: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(comm)
        self._of = comm.rank
        self._waiting = [fault for fault in _checked(faults) if fault.rank == self._of]
        self._sleep, self._kill = sleep, kill if kill is not None else _kill_process
        self.step, self._number = 0, 0
        self.struck: list[Fault] = []
        self._held: list[_HeldWork] = []

    def for_group(self, comm: Communicator) -> Communicator:
        """Another one, for which the faults of this rank are the same, each of which strikes once; it counts anew."""
        group = FaultInjecting(comm, (), sleep=self._sleep, kill=self._kill)
        group._waiting, group.struck, group._of = self._waiting, self.struck, self._of
        return group

    def next_step(self) -> None:
        """Say that a training step is over: steps count on, calls count from 0 again."""
        self._release()
        self.step, self._number = self.step + 1, 0

    def around(self, call: Call, arrays: Sequence[Array], make: Make) -> Any:
        """Make the call, spoilt where a fault fits."""
        fault = next((f for f in self._waiting if f.fits(self._of, self.step, self._number, call)), None)
        self._number += 1
        if fault is None:
            result = make()
            self._release()
            return result
        self._waiting.remove(fault)
        self.struck.append(fault)
        return self._spoil(fault, call, arrays, make)

    def _spoil(self, fault: Fault, call: Call, arrays: Sequence[Array], make: Make) -> Any:
        if fault.action == "raise":
            raise InjectedFaultError(f"rank {self.rank}: {call.kind}: injected: {fault}")
        if fault.action == "kill":
            self._kill()
        if fault.action == "delay":
            self._sleep(fault.delay_s)
        if fault.action in ("drop", "reorder"):
            if not arrays:
                raise ArgumentError(f"FaultInjecting: expected a call that does not block for {fault}, got {call.kind}")
            if fault.action == "drop":
                return OVER
            self._held.append(_HeldWork(make))
            return self._held[-1]
        if fault.action in ("corrupt", "nan"):
            return _spoilt_call(fault, call, arrays, make)
        return make()

    def _release(self) -> None:
        held, self._held = self._held, []
        for work in held:
            work.release()


def _checked(faults: Iterable[Fault]) -> list[Fault]:
    listed = list(faults) if isinstance(faults, Iterable) else None
    if listed is None or not all(isinstance(fault, Fault) for fault in listed):
        raise ArgumentError(f"FaultInjecting: expected a list of Faults, got {faults!r:.100}")
    return listed


class _HeldWork(WorkAround):
    """A call that is made later than the caller thinks: at the next one, or when somebody waits for it."""

    def __init__(self, make: Make) -> None:
        super().__init__(OVER)  # until the call is made
        self._make: Make | None = make

    def release(self) -> None:
        """Make the call now, if it was not made yet."""
        if self._make is not None:
            self.inner, self._make = self._make(), None

    def done(self) -> bool:
        """Whether it was made, and is done."""
        return self._make is None and self.inner.done()

    def wait(self, host: bool = False) -> None:
        """Make the call if it was not made, and wait for it."""
        self.release()
        self.inner.wait(host)


class _SpoilAfter(WorkAround):
    """Work whose result is changed on this rank once it is there."""

    def __init__(self, work: Work, fault: Fault, array: Array) -> None:
        super().__init__(work)
        self._fault, self._array = fault, array
        self._spoilt = False

    def wait(self, host: bool = False) -> None:
        """Block until the result is there, then change it."""
        self.inner.wait(host=True)
        if not self._spoilt:
            self._spoilt = True
            _spoil_element(self._fault, self._array)


def _spoilt_call(fault: Fault, call: Call, arrays: Sequence[Array], make: Make) -> Any:
    if not arrays or arrays[-1 if fault.after else 0].size == 0:
        raise ArgumentError(f"FaultInjecting: expected a call with an array to spoil for {fault}, got {call}")
    if call.kind in ("send", "recv") and fault.after != (call.kind == "recv"):
        what = "gives nothing back" if fault.after else "overwrites what is spoilt before"
        wanted = f"FaultInjecting: expected after={not fault.after} for {fault}"
        raise ArgumentError(f"{wanted}, got a {call.kind}: it {what}")
    if fault.after:
        return _SpoilAfter(make(), fault, arrays[-1])
    _spoil_element(fault, arrays[0])
    return make()


def _spoil_element(fault: Fault, array: Array) -> None:
    """Flip one bit of one element, or make it NaN."""
    if not -array.size <= fault.element < array.size:
        raise ArgumentError(f"FaultInjecting: expected an element of {array.size} for {fault}, got {fault.element}")
    flat = array.reshape(-1)
    at = fault.element % array.size
    if fault.action == "nan":
        if not is_float(array.dtype):
            raise DtypeError(f"FaultInjecting: expected a float dtype for {fault}, got {array.dtype.name}")
        flat[at] = float("nan")
        return
    if fault.bit >= 8 * array.dtype.itemsize:
        raise ArgumentError(f"FaultInjecting: expected a bit of {array.dtype.name} for {fault}, got {fault.bit}")
    raw = np.array(to_host(flat[at : at + 1])).view(np.uint8)
    raw[fault.bit // 8] ^= np.uint8(1 << fault.bit % 8)
    flat[at] = raw.view(array.dtype)[0]


def _kill_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
