"""Flat buffers: parameters, gradients and optimizer state of one (device, dtype) share one layout.

Whoever needs a layout first, an optimizer or a data-parallel wrapper, makes it by `flatten`; everyone after that
gets the same one. In each buffer parameters lie in reverse order of registration, which is about the order in which
backward completes their gradients, so a bucket is a contiguous range. Between two buffers there is no such order.
Each starts on a cache line, a multiple of 64 bytes: up to there padding follows the one before, and is always zero.
What `grad_array`, `grad_view`, `grad_given` and `grad_by_hand` of a parameter mean is said at `autograd.Variable`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from minigrad.backend.device import Device, device_of
from minigrad.backend.dtypes import Array
from minigrad.backend.memory import aligned_offsets, aligned_zeros
from minigrad.backend.workspace import shared_workspace
from minigrad.errors import LayoutError
from minigrad.kept import gradient_changed, keep_given, move_given
from minigrad.nn.companions import Attached
from minigrad.nn.parameter import Parameter, distinct_parameters
from minigrad.stamp import move_to


class FlatBuffer:
    """The parameters of one device and dtype, one after the other in one array.

    Attributes:
        params: In the order of the layout.
        offsets: The first element of each.
        count: Elements of the whole, padding included; the padding is zero in data and grad.
        data, grad: 1-D arrays of count elements. Parameters are views of data; gradients are written into views
            of grad, but the range of a parameter without gradient (`grad is None`) holds old values.
        companions: Optimizers, schedules and loss scales of its parameters, which must be alike; see `nn.companions`.
    """

    def __init__(self, params: Sequence[Parameter]) -> None:
        self.params = list(params)
        self.device: Device = params[0].device
        self.dtype: np.dtype[Any] = params[0].dtype
        self.offsets, self.count = aligned_offsets([p.numel() for p in params], self.dtype.itemsize)
        self.position = {id(p): i for i, p in enumerate(params)}
        self.companions: Attached = ()
        self.workspace = shared_workspace()  # which ends with the last of those who train
        self._data_views: list[Array] = []
        self._padding: Array | None = None  # the numbers of its elements, once somebody needs them
        with self.device.current() as xp:
            self.data: Array = aligned_zeros(self.count, self.dtype, xp)
            self.grad: Array = aligned_zeros(self.count, self.dtype, xp)
            for param, offset in zip(params, self.offsets):
                view = self.data[offset : offset + param.numel()].reshape(param.shape)
                view[...] = param.data
                move_to(param, view)
                param.flat = self
                self._data_views.append(view)
        self._bind_gradients()

    def _bind_gradients(self) -> None:
        with self.device.current():
            for param, offset in zip(self.params, self.offsets):
                view = self.grad[offset : offset + param.numel()].reshape(param.shape)
                if param.grad_array is not None:
                    view[...] = param.grad_array
                    move_given(param, view)
                else:
                    param.grad_given = None  # the old memory is left to those who view it
                param.grad_view = view

    def rebind_grad(self, grad: Array) -> None:
        """Move the gradients, those present included, to other memory: for example a segment that ranks share.

        Args:
            grad: 1-D, of count elements and the buffer's dtype, apart from the present memory; its values are
                overwritten with zeros, then with the gradients.

        Raises:
            LayoutError: another shape, dtype or device.
        """
        if grad.shape != (self.count,) or grad.dtype != self.dtype or device_of(grad) != self.device:
            raise LayoutError(
                f"rebind_grad: expected {self.dtype.name} ({self.count},) on {self.device}, "
                f"got {grad.dtype.name} {grad.shape} on {device_of(grad)}"
            )
        if grad is self.grad:
            return
        with self.device.current():
            grad[...] = 0
        self.grad = grad
        self._bind_gradients()

    def clear_padding(self) -> None:
        """Make the padding of the gradients zero again, where they were multiplied by NaN."""
        with self.device.current() as xp:
            if self._padding is None:
                ends = [offset + param.numel() for offset, param in zip(self.offsets, self.params)]
                gaps = [np.arange(end, start) for end, start in zip(ends, [*self.offsets[1:], self.count])]
                self._padding = xp.asarray(np.concatenate(gaps))
            if self._padding.size:
                self.grad[self._padding] = 0

    def span(self, param: Parameter) -> tuple[int, int]:
        """The elements [start, stop) of a parameter; LayoutError where it is not of this buffer."""
        start = self.offsets[self._place(param)]
        return start, start + param.numel()

    def _place(self, param: Parameter) -> int:
        place = self.position.get(id(param))
        if place is None:
            raise LayoutError(f"flat layout: expected one of its parameters, got another one of shape {param.shape}")
        return place

    def check(self) -> None:
        """Refuse to go on when a parameter no longer lives here.

        Raises:
            LayoutError: its data was replaced, for example by `param.data = ...`.
        """
        for i, (param, view) in enumerate(zip(self.params, self._data_views)):
            if param.data is not view:
                raise LayoutError(
                    f"flat layout: expected parameter {param.name or i} of {self.dtype.name} {view.shape} to stay in "
                    f"its place, got one whose data was replaced by {param.dtype.name} {param.shape}: "
                    "use copy_() to change its values"
                )

    def runs(self, params: Iterable[Parameter]) -> list[tuple[int, int]]:
        """The maximal contiguous ranges [start, stop) that cover these parameters, with the padding after each."""
        found: list[tuple[int, int]] = []
        previous = -2
        for i in sorted(self._place(param) for param in params):
            stop = self.offsets[i + 1] if i + 1 < len(self.params) else self.count
            if i == previous + 1:
                found[-1] = (found[-1][0], stop)
            else:
                found.append((self.offsets[i], stop))
            previous = i
        return found


def flatten(params: Iterable[Parameter]) -> list[FlatBuffer]:
    """The flat buffers that hold these parameters; those not yet in one get one.

    Args:
        params: In order of registration; the layout has them in reverse, each once.

    Returns:
        Each buffer once, ordered by the first of its parameters from the end.

    Raises:
        ArgumentError: params is no iterable. DtypeError: something in it is no Parameter.
    """
    backwards = distinct_parameters("flatten", params)[::-1]
    groups: dict[tuple[Device, np.dtype[Any]], list[Parameter]] = {}
    for param in backwards:
        if param.flat is None:
            groups.setdefault((param.device, param.dtype), []).append(param)
    for group in groups.values():
        FlatBuffer(group)
    return list({id(p.flat): p.flat for p in backwards if p.flat is not None}.values())


def fill_missing(params: Sequence[Parameter]) -> None:
    """Zero the place of every gradient that is not there: whatever lies there is old."""
    for param in params:
        if param.grad_array is None:
            if param.grad_given is not None:
                keep_given(param)
            with param.device.current():
                param.grad_view[...] = 0  # type: ignore[index]


def adopt_gradients(params: Iterable[Parameter]) -> None:
    """Say that the gradients of these parameters are what lies in their places."""
    for param in params:
        param.grad_array, param.grad_owned, param.grad_by_hand = param.grad_view, True, False
        if param.grad_given is not None:
            gradient_changed(param)
