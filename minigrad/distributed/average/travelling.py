"""A fragment of the flat layout on its way to the other ranks and back: what a combination sends and waits for.

What travels is n_r times the values, beside n_r itself, so that nobody has to know Σn before it sends, and a fragment
can be on its way while its rank goes on training. The sum is divided when it has come back. Half precision travels,
and is combined, as float32, and is rounded once. n_r is counted in `SCALE` there, so that 4e9 samples of any
values do not overflow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minigrad.backend.device import to_host
from minigrad.backend.dtypes import Array, finfo, is_half
from minigrad.backend.stream import CommStream
from minigrad.distributed.average.fragments import Span
from minigrad.distributed.average.outer import OuterOptimizer, OuterState
from minigrad.distributed.average.report import Arrived, number_in
from minigrad.distributed.average.saved import array_on, check_fits, check_length, check_names
from minigrad.distributed.balance.divergence import add_sums, divide_and_add_sums, no_sums
from minigrad.distributed.comm.protocol import Communicator, Work
from minigrad.distributed.record.fingerprint import fingerprint
from minigrad.nn.companions import number_of
from minigrad.nn.flat import FlatBuffer
from minigrad.nn.parameter import Parameter
from minigrad.stamp import mark_changed
from minigrad.tensor import Tensor


SCALE = 2.0**32  # a power of two, so that no digit changes; values below 1e-28 alone lose some in float32


def limit_of(dtype: np.dtype[np.generic]) -> float:
    """The largest number of samples, and one over the smallest, that weigh values as wide as they travel."""
    return float(2.0 ** (finfo(np.float32 if is_half(dtype) else dtype).maxexp // 3))


class Piece:
    """The parameters of one fragment and dtype, and the array in which they travel.

    Args:
        comm: The ranks.
        buffers: The flat buffers.
        spans: Where the parameters lie in them; all of one dtype.

    Attributes:
        sent: What travels: float32 or float64, of the length of all spans.
    """

    def __init__(self, comm: Communicator, buffers: Sequence[FlatBuffer], spans: Sequence[Span]) -> None:
        self._places = [(buffers[span.buffer], slice(span.start, span.stop)) for span in spans]
        dtype = self._places[0][0].dtype
        self._is_narrow = is_half(dtype)
        self.sent = comm.empty(
            sum(span.stop - span.start for span in spans), np.dtype(np.float32) if self._is_narrow else dtype
        )

    def values(self) -> Array:
        """The values now, as wide as they travel; may be a view of the parameters."""
        parts = [buffer.data[at] for buffer, at in self._places]
        if len(parts) == 1 and not self._is_narrow:
            return parts[0]
        with self._places[0][0].device.current() as xp:
            return xp.concatenate([part.astype(self.sent.dtype, copy=False) for part in parts])

    def put(self, values: Array) -> None:
        """Overwrite the parameters."""
        first = 0
        for buffer, at in self._places:
            place = buffer.data[at]
            place[...] = values[first : first + place.size]
            first += place.size


class TravellingFragment:
    """The parameters of one fragment: sends them, and applies an outer optimizer to what comes back.

    Args:
        comm: The ranks.
        buffers: The flat buffers.
        spans: What of them it is.
        params: All parameters that lie there, or in part.
        outer: Its state begins with the values that the parameters have now.

    Attributes:
        params: As given.
        states: Of the outer optimizer, one for each dtype.
    """

    def __init__(
        self,
        comm: Communicator,
        buffers: Sequence[FlatBuffer],
        spans: Sequence[Span],
        params: Sequence[Parameter],
        outer: OuterOptimizer,
    ) -> None:
        self._comm, self._outer, self.params = comm, outer, list(params)
        dtypes = dict.fromkeys(buffers[span.buffer].dtype for span in spans)
        self.pieces = [
            Piece(comm, buffers, [span for span in spans if buffers[span.buffer].dtype == dtype]) for dtype in dtypes
        ]
        self._side = CommStream(comm.device) if outer.delay and comm.device.type != "cpu" else None
        self._samples = 0.0
        self._vector: Array = None
        self._works: list[Work] = []
        self._arrived: Arrived | None = None
        self._sums: Array | None = None  # of what has arrived, where it was to be measured
        self.states: list[OuterState] = []
        with comm.device.current():
            for piece in self.pieces:
                self.states.append(outer.start(piece.values().copy()))

    def send(self, samples: float, finished: bool, layout: str) -> None:
        """Launch the sums; waits for nothing.

        Args:
            samples: What this rank's values weigh.
            finished: Whether it has no more data.
            layout: What all ranks have to agree on.
        """
        self._samples = samples
        with self._comm.device.current() as xp:
            self._vector = xp.zeros(2, np.float64)
            self._vector[0], self._vector[1] = samples, float(finished)
            weight = xp.full(1, samples / SCALE, np.float64)
            for piece in self.pieces:
                piece.sent[...] = piece.values()
            if self._side is None:
                self._launch(weight, layout)
                return
            self._side.follow()
            with self._side.current():
                self._launch(weight, layout)

    def _launch(self, weight: Array, layout: str) -> None:
        self._works = [self._comm.all_reduce(self._vector, layout=layout)]
        self._works += [self._comm.weighted_all_reduce(piece.sent, weight, layout) for piece in self.pieces]

    @property
    def is_away(self) -> bool:
        """Whether it was sent and has not been applied."""
        return bool(self._works) or self._arrived is not None

    def receive(self, measure: bool = False) -> Arrived:
        """Wait for the sums, on a GPU by its stream alone, and make them means; once for each time it was sent.

        Args:
            measure: Add up what `sums` tells in the same pass over memory, with the values that this rank has now.
        """
        if self._arrived is None:
            self._arrived = self._wait(measure)
        return self._arrived

    def _wait(self, measure: bool) -> Arrived:
        works, self._works = self._works, []
        if self._side is None:
            for work in works:
                work.wait()
        else:
            with self._side.current():
                for work in works:
                    work.wait()
            with self._comm.waiting():
                self._side.join()
        nbytes = sum(int(piece.sent.nbytes) for piece in self.pieces)
        total = self._vector[:1]
        self._sums = no_sums(self.pieces[0].sent) if measure and self._samples else None
        if not self._is_void(total):
            with self._comm.device.current():
                for piece in self.pieces:
                    own = piece.sent if self._sums is None else piece.values()
                    divide_and_add_sums(self._sums, own, piece.sent, (total / SCALE).astype(piece.sent.dtype))
        return Arrived(total, self._vector[1:], nbytes, self._samples)

    def sums(self, arrived: Arrived) -> Array | None:
        """How far this rank's values are from the mean, see `divergence`; None where it brought none."""
        if not arrived.samples or self._sums is not None:
            return self._sums
        sums = no_sums(self.pieces[0].sent)
        for piece in self.pieces:
            add_sums(sums, piece.values(), piece.sent)
        return sums

    def apply(self, arrived: Arrived) -> None:
        """Let each piece go on from what the outer optimizer says; from its own values where no rank had samples."""
        total, self._arrived, self._sums = arrived.total, None, None
        if self._is_void(total):
            return
        with self._comm.device.current() as xp:
            for i, piece in enumerate(self.pieces):
                local, before = piece.values(), self.states[i]
                state, values = self._outer.combine(before, local, piece.sent)
                if self._comm.device.type != "cpu":  # the host does not know Σn
                    values = xp.where(total > 0.0, values, local)
                    state = {name: xp.where(total > 0.0, each, before[name]) for name, each in state.items()}
                self.states[i] = state
                piece.put(values)
        for param in self.params:
            mark_changed(param)

    def swap(self, values: Sequence[Array]) -> list[Array]:
        """Let the parameters be these values, an array for each dtype; copies of what they were."""
        with self._comm.device.current():
            before = [piece.values().copy() for piece in self.pieces]
            for piece, each in zip(self.pieces, values):
                piece.put(each)
        for param in self.params:
            mark_changed(param)
        return before

    def _is_void(self, total: Array) -> bool:
        """Whether the host knows that no rank had samples."""
        return self._comm.device.type == "cpu" and not total[0]

    def state(self) -> dict[str, Any]:
        """What to go on from: the outer optimizer's state, and what is away, for which it waits."""
        outer = [{name: Tensor(array) for name, array in each.items()} for each in self.states]
        if not self.is_away:
            return {"outer": outer, "away": None}
        arrived = self.receive()
        numbers = {"samples": arrived.samples, "total": number_in(arrived.total)}
        numbers["finished"] = number_in(arrived.finished)
        return {"outer": outer, "away": {**numbers, "mean": [Tensor(piece.sent.copy()) for piece in self.pieces]}}

    def check_state(self, who: str, state: Mapping[str, Any]) -> None:
        """Refuse what `state` of another fragment told; StateDictError."""
        saved_states = check_length(who, "dtypes", state["outer"], self.states)
        for piece, own, saved in zip(self.pieces, self.states, saved_states):
            check_names(who, "outer state", own, saved)
            for name in own:
                check_fits(who, f"the outer state {name}", saved[name], piece.sent)
        if state["away"] is not None:
            means = check_length(who, "means on their way", state["away"]["mean"], self.pieces)
            for piece, mean in zip(self.pieces, means):
                check_fits(who, "a mean that was on its way", mean, piece.sent)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` told, which was checked."""
        device, away = self._comm.device, state["away"]
        self._works, self._arrived = [], None
        with device.current() as xp:
            self.states = [
                {name: array_on(device, value) for name, value in each.items()} for each in state["outer"]
            ]
            if away is not None:
                for piece, mean in zip(self.pieces, away["mean"]):
                    piece.sent[...] = array_on(device, mean)
                total, finished = (xp.full(1, away[name], np.float64) for name in ("total", "finished"))
                nbytes = sum(int(piece.sent.nbytes) for piece in self.pieces)
                self._arrived = Arrived(total, finished, nbytes, away["samples"])

    def number(self) -> int:
        """A number that differs where what is alike on all ranks does; waits for the device."""
        arrays = [array for each in self.states for array in each.values()]
        if self._arrived is not None:
            arrays += [piece.sent for piece in self.pieces]
        return number_of([str(int(to_host(fingerprint(array)))) for array in arrays])
