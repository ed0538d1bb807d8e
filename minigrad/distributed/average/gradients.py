"""Gradients of several steps of a rank, weighted by samples, until they are combined over the ranks.

Σ n·g / Σ n over its own steps is a rank's gradient; Σ N_r·g_r / Σ N_r over the ranks, with N_r its samples in all
of these, is that of the mean over all of them, as in `ddp.combine`. Where there was one step only, its gradients are
combined as they are, so that the bits are those of a DDP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minigrad.autograd.tape import backwards_under_way
from minigrad.backend.dtypes import Array, is_half
from minigrad.distributed.average.report import Arrived
from minigrad.distributed.average.saved import array_on, check_fits
from minigrad.distributed.average.travelling import SCALE
from minigrad.distributed.comm.protocol import Communicator
from minigrad.errors import ArgumentError, AutogradError, StateDictError, UnreducedGradientError
from minigrad.kept import check_finished, drop_gradient
from minigrad.nn.flat import FlatBuffer, adopt_gradients, fill_missing
from minigrad.nn.parameter import Parameter
from minigrad.tensor import Tensor

_WHO = "ParameterAverager"


class LocalGradients:
    """What a rank has gathered of the gradients of some parameters since they were combined last.

    Args:
        comm: The ranks.
        buffers: The flat buffers of the parameters.
        params: Those that are trained.

    Attributes:
        samples: What was gathered weighs.
    """

    def __init__(self, comm: Communicator, buffers: Sequence[FlatBuffer], params: Sequence[Parameter]) -> None:
        self._comm, self._buffers, self.params = comm, list(buffers), list(params)
        check_not_reduced(self.params)
        self.sums: list[Array] = []  # n·g / SCALE of earlier steps, buffer by buffer, once there are any
        self.present = set[int]()  # which parameters these are of
        self.samples = 0.0

    def among(self, comm: Communicator) -> None:
        """Combine over other ranks from now on; what was gathered stays."""
        self._comm = comm

    def take(self, samples: float) -> None:
        """Take the gradients of a step that is not combined yet, and drop them where they are.

        Raises:
            AutogradError: a backward that adds to them is under way.
        """
        self._check()
        self._make_room()
        self._add(samples)
        self.samples += samples
        for param in self.params:
            drop_gradient(param)

    def _make_room(self) -> None:
        for buffer in self._buffers[len(self.sums) :]:
            with buffer.device.current() as xp:
                wide = np.dtype(np.float32) if is_half(buffer.dtype) else buffer.dtype
                self.sums.append(xp.zeros(buffer.count, wide))

    def _add(self, samples: float) -> None:
        for number, param in enumerate(self.params):
            if param.grad_array is not None and samples:
                place = self._place(param)
                with param.device.current():
                    place += param.grad_array.astype(place.dtype, copy=False) * place.dtype.type(samples / SCALE)
                self.present.add(number)

    def _as_gathered(self, param: Parameter) -> Array:
        """An array of the shape and the dtype in which the gradient of a parameter is gathered."""
        with param.device.current() as xp:
            return xp.empty(param.shape, np.float32 if is_half(param.dtype) else param.dtype)

    def _place(self, param: Parameter) -> Array:
        buffer: FlatBuffer = param.flat
        start, stop = buffer.span(param)
        number = next(i for i, each in enumerate(self._buffers) if each is buffer)
        return self.sums[number][start:stop].reshape(param.shape)

    def combine(self, samples: float, layout: str, finished: bool = False) -> Arrived:
        """Replace the gradients by those of the mean over all samples of all ranks since the last time.

        Args:
            samples: Of the last step, whose gradients are where backward left them.
            layout: What all ranks have to agree on.
            finished: Whether this rank has no more data.

        Raises:
            UnreducedGradientError: a rank with samples has no gradient of a parameter.
        """
        self._check()
        weight_samples = self._merge(samples)
        self._check_whole(weight_samples)
        comm, nbytes = self._comm, 0
        with comm.device.current() as xp:
            row = xp.zeros(2, np.float64)
            row[0], row[1] = weight_samples, float(finished)
            comm.all_reduce(row, layout=layout).wait()
            total = row[:1]
            fill_missing(self.params)
            if comm.device.type == "cpu" and not total[0]:
                adopt_gradients(self.params)
                return Arrived(total, row[1:], 0, weight_samples)
            weight = self._weight(weight_samples, total)
            works = []
            for buffer in self._buffers:
                for start, stop in buffer.runs([param for param in self.params if param.flat is buffer]):
                    works.append(comm.weighted_all_reduce(buffer.grad[start:stop], weight, layout))
                    nbytes += (stop - start) * buffer.dtype.itemsize
        for work in works:
            work.wait()
        adopt_gradients(self.params)
        return Arrived(total, row[1:], nbytes, weight_samples)

    def _weight(self, samples: float, total: Array) -> Array | None:
        """n_r / Σn; on a GPU as it stands in device memory, where rank 0 weighs 1 if no rank has any samples."""
        with self._comm.device.current() as xp:
            if self._comm.device.type == "cpu":
                return None if samples == total[0] else samples / total
            if samples > 0.0:
                return samples / total
            return (total == 0.0).astype(np.float64) if self._comm.rank == 0 else xp.zeros(1, np.float64)

    def _merge(self, samples: float) -> float:
        """Let what was gathered before, and the last step, be the gradients; their samples."""
        whole = self.samples + samples
        if not samples:
            for param in self.params:
                drop_gradient(param)
        if self.samples:
            self._add(samples)
            for number in self.present:
                param = self.params[number]
                place = self._place(param)
                drop_gradient(param)
                fill_missing([param])
                with param.device.current():
                    param.grad_view[...] = place / place.dtype.type(whole / SCALE)  # type: ignore[index]
            adopt_gradients([self.params[number] for number in self.present])
        self.clear()
        return whole

    def clear(self) -> None:
        """Forget what was gathered."""
        for buffer, array in zip(self._buffers, self.sums):
            if self.present:
                with buffer.device.current():
                    array[...] = 0
        self.present.clear()
        self.samples = 0.0

    def state(self) -> dict[str, Any]:
        """What was gathered, to go on from."""
        sums = {str(i): Tensor(self._place(self.params[i]).copy()) for i in sorted(self.present)}
        return {"samples": self.samples, "sums": sums}

    def check_state(self, who: str, state: Mapping[str, Any]) -> None:
        """Refuse what `state` of other parameters told; StateDictError."""
        for name, value in state["sums"].items():
            number = int(name)
            if not 0 <= number < len(self.params):
                raise StateDictError(f"{who}: expected gathered gradients of {len(self.params)} parameters, got {name}")
            check_fits(who, f"the gathered gradient {name}", value, self._as_gathered(self.params[number]))

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` told, which was checked."""
        self.clear()
        self.samples = state["samples"]
        if state["sums"]:
            self._make_room()
        for name, value in state["sums"].items():
            place = self._place(self.params[int(name)])
            with self._comm.device.current():
                place[...] = array_on(self._comm.device, value)
            self.present.add(int(name))

    def _check(self) -> None:
        leaves = {id(leaf) for reached in backwards_under_way() for leaf in reached}
        for param in self.params:
            check_finished(_WHO, param)
            if id(param) in leaves:
                raise AutogradError(f"{_WHO}: expected no backward under way, got one: call step(n) when it is over")

    def _check_whole(self, samples: float) -> None:
        missing = [p.name or f"number {i}" for i, p in enumerate(self.params) if p.grad_array is None]
        if samples and missing:
            words = (
                f"rank {self._comm.rank}: {_WHO}: expected a gradient of each trained parameter where there are "
                f"samples, got none of {', '.join(missing)}: use it in the loss, freeze it on all ranks, or count 0 "
                "samples"
            )
            self._comm.give_up(words)
            raise UnreducedGradientError(words)


def check_not_reduced(params: Sequence[Parameter]) -> None:
    """Refuse gradients that a wrapper combines in backward; ArgumentError."""
    if any(getattr(listener, "reduces", False) for param in params for listener in param.listeners):
        raise ArgumentError(
            f'{_WHO}: expected parameters that nothing reduces yet with average="gradients", got those of a wrapper, '
            "whose backward combines them: give unwrap(), or accumulate under no_sync() and flush()"
        )
