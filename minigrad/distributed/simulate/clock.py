"""A rank's clock in a simulation: computing and collectives move it, real time does not."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from minigrad.arguments import as_amount, as_real
from minigrad.autograd.tape import Reached
from minigrad.distributed.simulate.cluster import Cluster
from minigrad.distributed.simulate.trace import Recorder
from minigrad.recording import is_grad_enabled, is_recomputing
from minigrad.stamp import next_number

_MOST_CALLS = 65536  # remembered at once, to tell which backward is theirs


@dataclass(eq=False)
class _Call:
    """A call of a module that recorded.

    Attributes:
        began, ended: Numbers of the tape around it.
        owed_s: Of its backward, what has not passed.
        is_old: Whether a backward has ended since: its own may never come.
    """

    began: int
    ended: int
    owed_s: float
    is_old: bool = False


@dataclass(eq=False)
class _Walk:
    """A backward under way: its seconds, those left, bytes of its gradients, and of those that are complete."""

    whole_s: float
    left_s: float
    nbytes: int = 0
    done_bytes: int = 0


class VirtualClock:
    """The virtual time of one rank.

    It hears of the outermost calls of modules and of backwards, and `compute` says the same by hand: the forward part
    passes at once. The backward part passes as leaves get their gradients, by bytes, so that collectives can travel
    meanwhile; what never comes to a backward passes before the rank waits for anything outside of one.

    Attributes:
        local_steps: Forwards since the rank's last collective.
        last_wait: When all ranks had called what it waited for last, and when that was over.
        called_s: When it began to charge the last call of a module; a timeline takes it away.
    """

    called_s: float | None = None
    last_wait: tuple[float, float] = (0.0, 0.0)

    def __init__(self, cluster: Cluster, rank: int, recorder: Recorder) -> None:
        self._cluster, self._rank, self._recorder = cluster, rank, recorder
        self._now_s = 0.0
        self._step = self.local_steps = 0
        self._calls = deque[_Call](maxlen=_MOST_CALLS)
        self._owing: list[_Call] = []  # whose backward has not passed
        self._by_hand = _Walk(0.0, 0.0)  # the backward of what `compute` charged
        self._unused = 0  # charges of `compute` that no backward has come for
        self._in_progress = False  # as `progress` told
        self._walks: list[_Walk] = []  # that the tape tells of, the innermost last

    @property
    def facts(self) -> dict[str, Any]:
        """What a timeline keeps of the machine: the link, as plain data."""
        return {"link": asdict(self._cluster.link)}

    @property
    def in_backward(self) -> bool:
        """Whether backward is under way."""
        return bool(self._walks) or self._in_progress

    def now_s(self) -> float:
        """Seconds of virtual time since the start."""
        return self._now_s

    # ------------------------------------------------------------------------------------------------- computing

    def compute(self, samples: float) -> None:
        """Compute on so many samples: forward, and where gradients are recorded backward too.

        For computing that no call of a module stands for.

        Raises:
            ArgumentError: samples is no number >= 0.
        """
        samples = as_amount("VirtualClock.compute", "samples", samples)
        self.settle()
        backward_s = self._forward(samples)
        self._by_hand = _Walk(backward_s, backward_s)
        self._unused += 1

    def advance(self, seconds: float) -> None:
        """Let seconds pass in code of one's own, which the trace counts as computing.

        Raises:
            ArgumentError: seconds is no number >= 0.
        """
        seconds = as_amount("VirtualClock.advance", "seconds", seconds)
        self._recorder.compute(self._now_s, seconds, 0.0)
        self._now_s += seconds

    @contextmanager
    def call(self, samples: float) -> Iterator[None]:
        """Around a call of a module; see `CallWatcher`. One that is made again in backward costs its forward."""
        if is_recomputing():
            again_s = self._cluster.compute_s(self._rank, samples, max(0, self._step - 1))
            again_s *= 1.0 - self._cluster.backward_fraction
            self._recorder.compute_again(self._now_s, again_s)
            self._now_s += again_s
            yield
            return
        self._pay([call for call in self._owing if call.is_old])
        self.called_s = self._now_s
        began, backward_s = next_number(), self._forward(samples)
        yield
        if is_grad_enabled():
            made = _Call(began, next_number(), backward_s)
            self._calls.append(made)
            self._owing.append(made)

    def _forward(self, samples: float) -> float:
        """Let a forward pass; the seconds of the backward that belongs to it."""
        total_s = self._cluster.compute_s(self._rank, samples, self._step)
        backward_s = total_s * self._cluster.backward_fraction
        self._step += 1
        self.local_steps += 1
        recording = is_grad_enabled()
        self._recorder.compute(self._now_s, total_s if recording else total_s - backward_s, samples)
        self._now_s += total_s - backward_s
        return backward_s if recording else 0.0

    def _pay(self, calls: list[_Call]) -> None:
        """Let the backwards of some calls pass."""
        self._now_s += self._take(calls)

    def _take(self, calls: list[_Call]) -> float:
        """The seconds that calls owe, which somebody lets pass from now on."""
        owed_s = sum(call.owed_s for call in calls)
        for call in calls:
            call.owed_s = 0.0
        self._owing = [call for call in self._owing if call.owed_s]
        return owed_s

    # -------------------------------------------------------------------------------------------------- backward

    def begin(self, leaves: Reached) -> None:
        """A backward begins; see `BackwardListener`."""
        calls = self._behind(leaves.numbers)
        if not calls and not self._unused:
            self._recorder.uncharged_backwards += 1
        whole_s = self._take(calls) + self._by_hand.left_s
        self._by_hand, self._unused, self._in_progress = _Walk(0.0, 0.0), max(0, self._unused - 1), False
        self._walks.append(_Walk(whole_s, whole_s, sum(leaf.data.nbytes for leaf in leaves)))

    def leaf(self, leaf: Any) -> None:
        """The gradient of a leaf is complete: so much more of the backward has passed."""
        walk = self._walks[-1]
        walk.done_bytes += leaf.data.nbytes
        self._walk_to(walk, walk.done_bytes / max(1, walk.nbytes))

    def end(self, error: BaseException | None) -> None:
        """The backward is over."""
        self._walk_to(self._walks.pop(), 1.0)
        for call in self._owing:
            call.is_old = True

    def _behind(self, numbers: list[int]) -> list[_Call]:
        """The calls that recorded some of these nodes, which are in ascending order."""
        found = []
        for call in reversed(self._calls):
            if not numbers or call.ended < numbers[0]:
                break
            after = bisect_right(numbers, call.began)
            if after < len(numbers) and numbers[after] < call.ended:
                found.append(call)
        return found

    def _walk_to(self, walk: _Walk, fraction: float) -> None:
        left_s = walk.whole_s * (1.0 - fraction)
        if walk.left_s > left_s:
            self._now_s += walk.left_s - left_s
            walk.left_s = left_s

    def progress(self, fraction: float) -> None:
        """So much of a backward that `compute` charged is done: 0 at its start; 1 where all that was charged is.

        Nothing happens inside a backward that the tape tells of.

        Raises:
            ArgumentError: fraction is not in [0, 1].
        """
        fraction = as_real("VirtualClock.progress", "fraction", fraction, 0.0, 1.0)
        if self._walks:
            return
        self._in_progress = fraction < 1.0
        self._walk_to(self._by_hand, fraction)
        if not self._in_progress:
            self.settle()

    # --------------------------------------------------------------------------------------------------- waiting

    def settle(self) -> None:
        """Let what is left of every backward pass, but of one that is under way."""
        self._walk_to(self._by_hand, 1.0)
        self._pay(self._owing)
        self._in_progress = False

    def arrive_s(self) -> float:
        """When the rank calls a collective, or waits for one.

        In the midst of a backward that is at once, else the backward is over.
        """
        if not self.in_backward:
            self.settle()
        return self._now_s

    def wait_until(self, moment_s: float, started_s: float) -> None:
        """Wait for a collective that all ranks had called at started_s and that is over at moment_s.

        A wait in the midst of a backward leaves the rest of it for later.
        """
        now_s, self.last_wait = self.arrive_s(), (started_s, moment_s)
        if moment_s > now_s:
            idle_s = max(0.0, started_s - now_s)
            self._recorder.wait(now_s, idle_s, moment_s - now_s - idle_s)
            self._now_s = moment_s
