"""Buffers of a module, such as running statistics, in flat memory: one collective for each device and dtype."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import numpy as np

from minigrad.backend.device import Device, device_of
from minigrad.backend.dtypes import Array
from minigrad.backend.memory import aligned_offsets, aligned_zeros, is_read_only, is_stretched
from minigrad.nn.inventory import Inventory
from minigrad.nn.parameter import Buffer
from minigrad.stamp import mark_changed, move_to, savers


class BufferPiece:
    """The buffers of one device and dtype, one after the other in one array that a collective overwrites.

    A buffer whose memory nobody else can see, or nobody can write to, moves into that array at once, so that nothing
    has to be copied later; any other is copied there and back. What a node of a tape has saved stays as it is: such a
    buffer lives in other memory afterwards, and who views the old one keeps that. Every other buffer is overwritten
    where it lives.

    Args:
        buffers: At least one; in an order that is the same on all ranks.

    Attributes:
        dtype: That of the buffers.
    """

    def __init__(self, buffers: Iterable[Buffer]) -> None:
        self._buffers = list(buffers)
        self._device: Device = self._buffers[0].device
        self.dtype = self._buffers[0].dtype
        self._home = self._array, self._views = self._new_memory()
        with self._device.current():
            for buffer, view in zip(self._buffers, self._views):
                if _is_private(buffer) or is_read_only(buffer.data) or is_stretched(buffer.data):
                    view[...] = buffer.data
                    move_to(buffer, view)
        self._savers = [savers(b) if b.data is view else [] for b, view in zip(self._buffers, self._views)]  # at home

    def _new_memory(self) -> tuple[Array, list[Array]]:
        offsets, count = aligned_offsets([buffer.numel() for buffer in self._buffers], self.dtype.itemsize)
        with self._device.current() as xp:
            array = aligned_zeros(count, self.dtype, xp)
        ends = [start + buffer.numel() for start, buffer in zip(offsets, self._buffers)]
        views = [array[start:end].reshape(b.shape) for start, end, b in zip(offsets, ends, self._buffers)]
        return array, views

    def fits(self) -> bool:
        """Whether the buffers have still the shapes, the dtype and the device for which it was made."""
        for buffer, view in zip(self._buffers, self._home[1]):
            data = buffer.data
            if data is not view and (data.shape, data.dtype, device_of(data)) != (view.shape, self.dtype, self._device):
                return False
        return True

    def pack(self) -> Array:
        """All values as one 1-D array, for a collective to overwrite."""
        self._array, self._views = self._new_memory() if any(self._savers) else self._home
        self._copy([(view, b.data) for b, view in zip(self._buffers, self._views) if b.data is not view])
        return self._array

    def unpack(self) -> None:
        """Take over what a collective has left in the array that was packed."""
        at_home = self._array is self._home[0]
        away = []
        for i, (buffer, view) in enumerate(zip(self._buffers, self._views)):
            if savers(buffer):
                move_to(buffer, view)
                if at_home:
                    self._savers[i] = savers(buffer)
            elif buffer.data is not view:
                away.append((buffer.data, view))
            mark_changed(buffer)
        self._copy(away)

    def _copy(self, pairs: list[tuple[Array, Array]]) -> None:
        if pairs:
            with self._device.current():
                for place, values in pairs:
                    place[...] = values


class BufferMemory:
    """The buffers that a module has now, as the pieces in which they travel.

    Args:
        inventory: Of the module.
    """

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._buffers: list[Buffer] = []
        self._pieces: list[BufferPiece] = []

    def pieces(self) -> list[BufferPiece]:
        """One for each device and dtype, in the order of their first buffers; the same ones while the buffers are."""
        buffers = self._inventory.buffers()
        if buffers is not self._buffers or not all(map(BufferPiece.fits, self._pieces)):
            groups: dict[tuple[Device, np.dtype[np.generic]], list[Buffer]] = {}
            for buffer in buffers:
                groups.setdefault((buffer.device, buffer.dtype), []).append(buffer)
            self._buffers, self._pieces = buffers, [BufferPiece(group) for group in groups.values()]
        return self._pieces


def _is_private(buffer: Buffer) -> bool:
    """Whether the array is the whole of its memory, and nothing refers to it but the buffer (and this call)."""
    return getattr(buffer.data, "base", None) is None and sys.getrefcount(buffer.data) <= 2
