"""cupy.ndarray on NumPy memory.

It is no subclass of numpy.ndarray, as CuPy's is none: np.asarray would take the memory of a subclass without asking.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.strict_cupy.call import check_current, check_sort, lower, run
from tests.strict_cupy.device import Device, current_id, syncs, used
from tests.strict_cupy.errors import RefusedError, StrictError
from tests.strict_cupy.indexing import check_no_duplicates, has_mask, index_arrays, lower_index
from tests.strict_cupy.streams import is_late


class Flags:
    """What CuPy tells of the layout; there is no `writeable`."""

    def __init__(self, flags: Any) -> None:
        self.c_contiguous, self.f_contiguous, self.owndata = flags.c_contiguous, flags.f_contiguous, flags.owndata
        self.fnc, self.forc = flags.fnc, flags.forc

    def __getitem__(self, name: str) -> bool:
        return bool(getattr(self, name.lower()))


class Pointer:
    """cupy.cuda.MemoryPointer: where an array begins, and on which device."""

    __slots__ = ("_array",)

    def __init__(self, array: ndarray) -> None:
        self._array = array

    ptr = property(lambda self: self._array.memory.ctypes.data)
    device_id = property(lambda self: self._array.device.id)


class ndarray:
    """An array on a device. `memory` is the NumPy array behind it, for tests only."""

    __slots__ = ("memory", "device", "__weakref__")
    __array_priority__ = 100

    def __init__(self, memory: np.ndarray[Any, Any], device: int) -> None:
        self.memory = memory
        self.device = Device(device)
        used.add(device)

    # ------------------------------------------------------------------------------------------- what it is

    shape = property(lambda self: self.memory.shape)
    ndim = property(lambda self: self.memory.ndim)
    size = property(lambda self: self.memory.size)
    dtype = property(lambda self: self.memory.dtype)
    itemsize = property(lambda self: self.memory.itemsize)
    nbytes = property(lambda self: self.memory.nbytes)
    strides = property(lambda self: self.memory.strides)
    flags = property(lambda self: Flags(self.memory.flags))
    data = property(lambda self: Pointer(self))
    T = property(lambda self: self._view(self.memory.T))
    mT = property(lambda self: self._view(self.memory.mT))
    real = property(lambda self: self._view(self.memory.real))
    imag = property(lambda self: self._view(self.memory.imag))

    @property
    def base(self) -> Any:
        """The array whose memory it shares."""
        return None if self.memory.base is None else self._view(self.memory.base)

    def _view(self, memory: np.ndarray[Any, Any]) -> ndarray:
        return ndarray(memory, self.device.id)

    def __len__(self) -> int:
        return len(self.memory)

    def __iter__(self) -> Iterator[ndarray]:
        return (self[i] for i in range(len(self)))

    __hash__ = None  # type: ignore[assignment]

    # ---------------------------------------------------------------------------------- to and from the host

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise RefusedError("Implicit conversion to a NumPy array is not allowed: use .get()")

    def get(self, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True) -> Any:
        """A copy in host memory."""
        syncs.note("get")
        if out is not None:
            out[...] = self.memory
            return out
        return self.memory.copy(order=order)

    def set(self, host: Any, stream: Any = None) -> None:
        """Overwrite it with a NumPy array of its shape and dtype."""
        if not isinstance(host, np.ndarray) or host.dtype != self.dtype or host.shape != self.shape:
            raise RefusedError(f"set: expected a NumPy array of {self.dtype.name} {self.shape}, got {host!r}")
        syncs.note_upload("set")
        run(self.memory.__setitem__, "setitem", [..., host.copy()], {})

    def __dlpack__(self, **options: Any) -> ndarray:
        return self  # in place of a capsule, for the namespace's from_dlpack

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device.id

    def _read(self, what: str) -> Any:
        syncs.note(what)
        return self.memory.item()

    def item(self, *index: int) -> Any:
        """One element as a Python number."""
        syncs.note("item")
        return self.memory.item(*index)

    def tolist(self) -> Any:
        """Nested lists of Python numbers."""
        syncs.note("tolist")
        return self.memory.tolist()

    def tobytes(self, order: str = "C") -> bytes:
        """The elements as bytes."""
        syncs.note("tobytes")
        return self.memory.tobytes(order)

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ValueError("The truth value of an array of other than one element is ambiguous")
        return bool(self._read("bool"))

    def __float__(self) -> float:
        return float(self._read("float"))

    def __int__(self) -> int:
        return int(self._read("int"))

    def __complex__(self) -> complex:
        return complex(self._read("complex"))

    def __repr__(self) -> str:
        syncs.note("repr")
        return repr(self.memory)

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(self._read("format"), spec) if spec else repr(self)

    # ---------------------------------------------------------------------------------------------- indexing

    def __getitem__(self, index: Any) -> ndarray:
        low = lower_index("getitem", index)
        if has_mask(low):
            syncs.note("indexing by a mask")
        advanced = bool(index_arrays(low))
        result = np.asarray(run(self.memory.__getitem__, "getitem", [low], {}, indexes=advanced))
        return self._view(result.copy() if advanced and not is_late() else result)

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(value, (list, tuple)):
            raise RefusedError("setitem: expected a device array or a scalar, got a list or a tuple")
        check_current("setitem", self)
        low, low_value = lower_index("setitem", index), lower("setitem", value)
        if has_mask(low):
            if np.size(low_value) > 1:
                syncs.note("assigning an array by a mask")
        elif index_arrays(low) and not is_late():
            check_no_duplicates(self.shape, low, low_value)
        run(self.memory.__setitem__, "setitem", [low, low_value], {}, indexes=bool(index_arrays(low)))

    # --------------------------------------------------------------------------------------- moving and making

    def copy(self, order: str = "C") -> ndarray:
        """A copy on the current device, wherever it lives; in its own order, "K", only contiguous memory moves."""
        if order == "K" and self.size and self.device.id != current_id() and not self.flags.forc:
            raise NotImplementedError("CuPy cannot copy non-contiguous array between devices.")
        return ndarray(run(self.memory.copy, "copy", [order], {}), current_id())

    def __copy__(self) -> ndarray:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> ndarray:
        return self.copy()

    def astype(self, dtype: Any, order: str = "K", casting: Any = None, subok: Any = None, copy: bool = True) -> Any:
        """It in another dtype."""
        if casting is not None or subok is not None:
            raise RefusedError("astype: expected no casting= and no subok=: CuPy does not take them")
        check_current("astype", self)
        if np.dtype(dtype).kind in "iu" and self.dtype.kind not in "iub" and not is_late():
            _check_castable(self.memory, np.dtype(dtype))
        converted = run(self.memory.astype, "astype", [dtype], {"copy": copy})
        return self if converted is self.memory else self._view(converted)

    def fill(self, value: Any) -> None:
        """Overwrite every element with a scalar."""
        self[...] = value

    def reshape(self, *shape: Any, order: str = "C", copy: Any = None) -> ndarray:
        """The elements in another shape: a view where that is possible."""
        return self._view(run(self.memory.reshape, "reshape", shape, {"order": order}))

    def sort(self, axis: int = -1, kind: Any = None) -> None:
        """Sort in place along an axis."""
        check_current("sort", self)
        check_sort("sort", self, kind)
        run(self.memory.sort, "sort", [axis], {"kind": kind})

    # -------------------------------------------------------------------------------------- NumPy's protocols

    def __array_ufunc__(self, function: np.ufunc, method: str, *args: Any, **options: Any) -> Any:
        own = getattr(sys.modules["tests.strict_cupy.namespace"].cupy, function.__name__)
        return own(*args, **options) if method == "__call__" else getattr(own, method)(*args, **options)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        space = sys.modules["tests.strict_cupy.namespace"].cupy
        inside = space.linalg if function.__module__.endswith("linalg") else space
        return getattr(inside, function.__name__)(*args, **options)


ndarray.__module__ = "cupy"


def _check_castable(memory: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> None:
    wide = memory.astype(np.float64)
    if not np.isfinite(wide).all() or (dtype.kind == "u" and (wide < 0).any()):
        raise StrictError(f"astype: NaN, infinite or negative values to {dtype.name} differ between NumPy and CuPy")
