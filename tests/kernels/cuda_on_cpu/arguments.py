"""The arguments of a launch: checked against the kernel's parameters, and moved to guarded memory."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

GUARD_BYTES = 512
_ALIGNMENT = 256  # of fresh device memory
_SCALARS: dict[str, tuple[type, Any]] = {
    "f4": (np.float32, ctypes.c_float),
    "f8": (np.float64, ctypes.c_double),
    "i4": (np.int32, ctypes.c_int32),
    "u4": (np.uint32, ctypes.c_uint32),
    "i8": (np.int64, ctypes.c_int64),
    "u8": (np.uint64, ctypes.c_uint64),
    "b1": (np.bool_, ctypes.c_bool),
}


class Region(ctypes.Structure):
    """cpu::Region of runtime.h."""

    _fields_ = [
        ("start", ctypes.c_size_t),
        ("stop", ctypes.c_size_t),
        ("reads", ctypes.c_void_p),
        ("writes", ctypes.c_void_p),
        ("writers", ctypes.c_void_p),
        ("writable", ctypes.c_int),
    ]


class Counts(NamedTuple):
    """How often each element of an array was read and written."""

    reads: np.ndarray[Any, Any]
    writes: np.ndarray[Any, Any]


class _Copy:
    """A copy of one array, or of several that overlap, alone in its memory, so that no neighbour can be hit."""

    def __init__(self, start: int, stop: int, writable: bool, counted: bool) -> None:
        self.start, self.stop, self.writable = start, stop, writable
        length = stop - start
        self.memory = np.empty(length + 2 * GUARD_BYTES + _ALIGNMENT, np.uint8)
        first = self.memory.ctypes.data + GUARD_BYTES
        offset = GUARD_BYTES + (start - first) % _ALIGNMENT  # as aligned as the array itself
        self.bytes = self.memory[offset : offset + length]
        self.original = np.frombuffer((ctypes.c_char * length).from_address(start), np.uint8)
        self.bytes[:] = self.original
        self.counts = np.zeros((2, length), np.uint8) if counted else None
        self.writers = np.full(length, -1, np.int32)

    def region(self) -> Region:
        first = self.bytes.ctypes.data
        reads, writes = (None, None) if self.counts is None else (row.ctypes.data for row in self.counts)
        return Region(first, first + len(self.bytes), reads, writes, self.writers.ctypes.data, self.writable)

    def copy_back(self) -> None:
        if self.writable:
            target = np.frombuffer((ctypes.c_char * len(self.bytes)).from_address(self.start), np.uint8)
            target.flags.writeable = True
            target[:] = self.bytes


class Arguments:
    """The arguments of one launch, as the library takes them.

    Args:
        kernel: Its name, for messages.
        parameters: The code of each parameter; see Code in cuda.h.
        values: NumPy arrays, NumPy scalars, None for a null pointer; for a struct an array of one element with fields.
        reached: Arrays to which a table of addresses among the values points, or a field `addresses` of a struct.
        counted: Count accesses.

    Raises:
        TypeError: an argument that the kernel would misread.
    """

    def __init__(
        self, kernel: str, parameters: Sequence[str], values: Sequence[Any], reached: Sequence[Any], counted: bool
    ) -> None:
        if len(values) != len(parameters):
            raise TypeError(f"{kernel}: expected {len(parameters)} arguments, got {len(values)}")
        for i, (code, value) in enumerate(zip(parameters, values)):
            _check(f"{kernel}, argument {i}", code, value)
        for i, array in enumerate(reached):
            _check_array(f"{kernel}, array {i} behind an address", "?", array)
        arrays = [value for value in values if isinstance(value, np.ndarray) and value.dtype.names is None]
        self._kernel, self._reached = kernel, reached
        self._copies = _copies([*arrays, *reached], counted)
        self._tables: list[np.ndarray[Any, Any]] = []
        self._kept = [self._convert(code, value) for code, value in zip(parameters, values)]
        self.pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(kept) for kept in self._kept))
        regions = [copy.region() for copy in self._copies]
        regions += [Region(t.ctypes.data, t.ctypes.data + t.nbytes, None, None, None, False) for t in self._tables]
        self.regions = (Region * len(regions))(*regions)

    def _convert(self, code: str, value: Any) -> Any:
        """The argument as a C value."""
        if code[0] == "V":
            return self._struct(value)
        if code[0] != "*":
            return _SCALARS[code][1](value.item())
        if value is None or not value.size:
            return ctypes.c_void_p(None)
        if code[1] != "*":
            return ctypes.c_void_p(self._moved(value.ctypes.data))
        self._check_reached(code[2:], value)
        table = np.array([self._moved(int(address)) for address in value.reshape(-1)], np.uint64)
        self._tables.append(table)
        return ctypes.c_void_p(table.ctypes.data)

    def _struct(self, value: np.ndarray[Any, Any]) -> Any:
        """Its bytes, with the addresses of the copies in place of those of the arrays; null ones stay."""
        fields = value.copy()
        if "addresses" in (fields.dtype.names or ()):
            table = fields["addresses"].reshape(-1)
            self._check_reached("?", table[table != 0])
            table[:] = [self._moved(int(address)) if address else 0 for address in table]
        return (ctypes.c_char * fields.nbytes).from_buffer_copy(fields.tobytes())

    def _check_reached(self, wanted: str, table: np.ndarray[Any, Any]) -> None:
        """Each address points into an array that was named, of the dtype that the kernel sees there."""
        for address in map(int, table.reshape(-1)):
            found = [a for a in self._reached if a.ctypes.data <= address < a.ctypes.data + max(a.nbytes, 1)]
            if not found:
                raise TypeError(f"{self._kernel}: expected addresses of the arrays named in `reaches`, got another")
            if wanted != "?" and all(_code(array) != wanted for array in found):
                raise TypeError(f"{self._kernel}: expected addresses of {wanted} arrays, got one of {_code(found[0])}")

    def _moved(self, address: int) -> int:
        """Where the copy of what lies at an address lies."""
        for copy in self._copies:
            if copy.start <= address < copy.stop:
                return int(copy.bytes.ctypes.data) + address - copy.start
        return 0

    def copy_back(self) -> None:
        """Bring what the kernel wrote to the arrays themselves."""
        for copy in self._copies:
            copy.copy_back()

    def counts(self, array: np.ndarray[Any, Any]) -> Counts:
        """How often the kernel read and wrote the elements of an array among its arguments."""
        copy = next(copy for copy in self._copies if copy.start <= array.ctypes.data < copy.stop)
        assert copy.counts is not None
        first = array.ctypes.data - copy.start
        inside = copy.counts[:, first : first + array.nbytes].reshape(2, -1, array.itemsize)
        return Counts(*inside.max(axis=2))


def _copies(arrays: Sequence[np.ndarray[Any, Any]], counted: bool) -> list[_Copy]:
    spans: list[list[Any]] = []
    for array in sorted((a for a in arrays if a.nbytes), key=lambda a: (a.ctypes.data, -a.nbytes)):
        start, stop = array.ctypes.data, array.ctypes.data + array.nbytes
        if spans and start < spans[-1][1]:
            spans[-1][1:] = max(spans[-1][1], stop), spans[-1][2] or array.flags.writeable
        else:
            spans.append([start, stop, array.flags.writeable])
    return [_Copy(*span, counted) for span in spans]


def _code(array: np.ndarray[Any, Any]) -> str:
    return "bf2" if array.dtype.name == "bfloat16" else array.dtype.str[1:]


def _check(who: str, code: str, value: Any) -> None:
    if code[0] == "V":
        fits = isinstance(value, np.ndarray) and value.dtype.names and value.size == 1 and value.nbytes == int(code[1:])
        if not fits:
            got = f"{value.nbytes} bytes" if isinstance(value, np.ndarray) else type(value).__name__
            raise TypeError(f"{who}: expected an array of one element with fields, of {code[1:]} bytes, got {got}")
    elif code[0] != "*":
        wanted = _SCALARS[code][0]
        if not isinstance(value, wanted):  # CuPy would pass its bytes as they are
            raise TypeError(f"{who}: expected a {wanted.__name__} scalar, got {type(value).__name__}")
    elif value is not None:
        _check_array(who, "i8" if code[1] == "*" else code[1:], value)


def _check_array(who: str, code: str, value: Any) -> None:
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{who}: expected an array, got {type(value).__name__}")
    if code != "?" and _code(value) != code:
        raise TypeError(f"{who}: expected a {code} array, got {_code(value)}")
    if not value.flags.c_contiguous:
        raise TypeError(f"{who}: expected a contiguous array, got strides {value.strides}")
