"""This rank's sums, Σ n·value and Σ n, in float64 where the values are: what metrics and the figures of epochs keep."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from minigrad.arguments import as_real, as_samples, is_number, kind_of
from minigrad.backend.device import Device, array_module, device_of, to_host
from minigrad.backend.dtypes import Array
from minigrad.errors import ArgumentError, DeviceError, DtypeError, ShapeError
from minigrad.recording import is_recomputing
from minigrad.tensor import Tensor

Pair = list[float]  # Σ n·value and Σ n
Scalar = Any  # a float, or an array of no axes on a GPU, in float64


class Totals:
    """Σ n·value and Σ n of this rank, added up in float64 where the values are."""

    def __init__(self) -> None:
        self._host: Pair = [0.0, 0.0]
        self._there: dict[tuple[int, Device], Array] = {}  # the first or the second of them, on a GPU

    def add(self, value: Scalar, n: Scalar) -> None:
        """Count a mean over n samples; n = 0 takes nothing over, not even a NaN."""
        if isinstance(n, float):
            if n:
                self.add_sums(value * n, n)
            return
        with device_of(n).current() as xp:
            n = xp.where((n >= 0.0) & (n < math.inf), n, math.nan)  # which the result refuses
            self.add_sums(xp.where(n == 0.0, 0.0, value * n), n)

    def add_sums(self, total: Scalar, n: Scalar) -> None:
        """Count what is multiplied already; not in the second run of a `checkpoint`, which is no new forward."""
        if is_recomputing():
            return
        for which, part in enumerate((total, n)):
            if isinstance(part, float):
                self._host[which] += float(part)  # which may be one of NumPy
                continue
            place = which, device_of(part)
            with place[1].current():
                self._there[place] = self._there.get(place, 0.0) + part

    def read(self) -> Pair:
        """Both as floats; waits for the devices."""
        there = [(which, float(to_host(part))) for (which, _), part in self._there.items()]
        return [added([self._host[which], *(part for at, part in there if at == which)]) for which in (0, 1)]

    def state(self) -> list[Any]:
        """Plain data to go on from with the same bits: each part as it is, with its device; waits for these."""
        return [[*self._host], [[w, str(device), float(to_host(part))] for (w, device), part in self._there.items()]]

    @classmethod
    def from_state(cls, state: Any) -> Totals:
        """What `state` told; what lay on a device that is not there any more is added up on the host.

        Raises:
            TypeError, ValueError, LookupError, DeviceError: it is something else.
        """
        found = cls()
        (total, n), there = state
        found._host = [float(total), float(n)]
        for which, name, value in there:
            place = (0, 1)[which], Device(name)
            try:
                with place[1].current() as xp:
                    found._there[place] = xp.full((), float(value), np.float64)
            except DeviceError:
                found._host[which] += float(value)
        return found

    @classmethod
    def joined(cls, states: Iterable[Any]) -> Totals:
        """The sums of what several have told, on the host."""
        found = cls()
        found._host = [added(part) for part in zip(*(cls.from_state(state).read() for state in states))]
        return found


def added(values: Iterable[float]) -> float:
    """The exact sum, rounded once; with NaN and infinity as they come."""
    listed = list(values)
    try:
        return math.fsum(listed)
    except (OverflowError, ValueError):  # a sum too large, or infinities of both signs
        return sum(listed)


def as_scalar(who: str, name: str, value: Any, how: str = "mean") -> Scalar:
    """A number, or a tensor of one element; what lies on a GPU stays there."""
    if is_number(value):
        return _as_number(who, name, value)
    array = value.data if isinstance(value, Tensor) else value
    try:
        xp = array_module(array)
    except DtypeError:
        raise ArgumentError(f"{who}: expected {name} to be a number, got {kind_of(value)}") from None
    if array.size != 1:
        raise ShapeError(f"{who}: expected {name} to be one number, got shape {array.shape}: write {name}.{how}()")
    if xp is np:
        return float(array.item())
    with device_of(array).current():
        return array.astype(np.float64).reshape(())


def _as_number(who: str, name: str, value: Any) -> float:
    """A plain number as a float; NaN too."""
    if value != value:
        return math.nan
    return as_real(who, name, value)


def as_count(who: str, n: Any) -> Scalar:
    """A number of samples; where it lies on a GPU, it is checked with the result."""
    if n is None:
        raise ArgumentError(f"{who}: expected n, the samples that the value is a mean over, got none: give len(x)")
    array = n.data if isinstance(n, Tensor) else n
    if hasattr(array, "device") and not isinstance(array, (np.ndarray, np.generic)):
        return as_scalar(who, "n", n)
    return as_samples(who, n)
