"""The functions of cupy that are more than NumPy's under another roof."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np

from tests.strict_cupy.array import ndarray
from tests.strict_cupy.call import call, lower
from tests.strict_cupy.device import current_id, syncs
from tests.strict_cupy.errors import RefusedError, StrictError
from tests.strict_cupy.streams import check_memory, perform, refuse_while_capturing


def array(
    obj: Any,
    dtype: Any = None,
    copy: bool = True,
    order: str = "K",
    subok: bool = False,
    ndmin: int = 0,
    *,
    blocking: bool = False,
) -> ndarray:
    """An array on the current device: an upload from the host, or a copy from another device."""
    if isinstance(obj, ndarray):
        if obj.device.id != current_id():
            obj, copy = obj.copy("K"), False
        made = obj.astype(obj.dtype if dtype is None else dtype, copy=copy)
        return made if made.ndim >= ndmin else made.reshape((1,) * (ndmin - made.ndim) + made.shape)
    if isinstance(obj, (list, tuple)) and any(isinstance(part, ndarray) for part in obj):
        obj = np.array(lower("array", list(obj)))
    syncs.note_upload("array")
    host = np.array(obj, dtype, ndmin=ndmin, order="C")  # taken at once, and there when the stream comes to it
    return ndarray(perform(host.copy, "upload", [], None), current_id())


def asarray(a: Any, dtype: Any = None, order: Any = None, *, copy: Any = None, blocking: bool = False) -> ndarray:
    """The array itself where it is of the dtype on the current device, else one there."""
    return array(a, dtype, bool(copy))


def ascontiguousarray(a: Any, dtype: Any = None) -> ndarray:
    """It in C order, at least one axis."""
    made = asarray(a, dtype)
    made = made if made.flags.c_contiguous else made.copy()
    return made if made.ndim else made.reshape(1)


def asnumpy(a: Any, stream: Any = None, order: str = "C", out: Any = None, *, blocking: bool = True) -> Any:
    """A copy in host memory; what is there already stays."""
    return a.get(stream, order, out, blocking) if isinstance(a, ndarray) else np.asarray(a)


def empty(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    """Memory without values: NaN where the dtype has it, so that nothing is read before it is written."""
    check_memory("empty")
    made = np.empty(shape, dtype, order)
    made.fill(np.nan if made.dtype.kind in "fc" else 1)
    return ndarray(made, current_id())


def empty_like(a: Any, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None) -> ndarray:
    """Like `empty`, with the shape, the dtype and the order of an array."""
    lower("empty_like", a)
    check_memory("empty_like")
    made = np.empty_like(a.memory, a.dtype if dtype is None else dtype, order, shape=shape)
    made.fill(np.nan if made.dtype.kind in "fc" else 1)
    return ndarray(made, current_id())


def dot(a: Any, b: Any, out: Any = None) -> Any:
    """The matrix product of matrices."""
    return _product(np.dot, "dot", a, b, out)


def matmul(a: Any, b: Any, out: Any = None, **options: Any) -> Any:
    """The matrix product over batches."""
    if options.keys() - {"dtype", "casting"}:
        raise RefusedError(f"matmul: expected out=, dtype= or casting=, got {', '.join(sorted(options))}")
    if isinstance(out, tuple):
        (out,) = out
    return _product(np.matmul, "matmul", a, b, out, **options)


def _product(function: Any, who: str, a: Any, b: Any, out: Any, **options: Any) -> Any:
    for operand in (a, b):
        if not isinstance(operand, ndarray):
            raise RefusedError(f"{who}: expected device arrays, got {type(operand).__name__}")
        if operand.dtype.kind not in "iub" and operand.ndim > 2:
            raise StrictError(f"{who}: expected matrices, got shape {operand.shape}: CuPy's batched product copies")
    refuse_while_capturing(who, "call of cuBLAS")
    if out is None:
        return call(function, who, (a, b), options)
    dtype = np.result_type(a.dtype, b.dtype)
    if not isinstance(out, ndarray) or not out.flags.c_contiguous or out.dtype != dtype:
        raise StrictError(f"{who}: expected out to be a device array in C order of {dtype.name}, got another")
    return call(function, who, (a, b), {**options, "out": out})


def einsum(*operands: Any, **options: Any) -> Any:
    """Einstein's summation; dtype= and optimize= are taken."""
    if options.keys() - {"dtype", "optimize"}:
        raise RefusedError(f"einsum: expected dtype= or optimize=, got {', '.join(sorted(options))}")
    refuse_while_capturing("einsum", "call of cuBLAS")
    return call(np.einsum, "einsum", operands, options)


def where(condition: Any, *choices: Any) -> Any:
    """x where the condition holds, else y; with the condition alone its indices, which waits."""
    if not choices:
        syncs.note("where")
    if any(isinstance(value, list) for value in (condition, *choices)):
        raise RefusedError("where: expected arrays or scalars, got a list")
    return call(np.where, "where", (condition, *choices), {})


def repeat(a: Any, repeats: Any, axis: Any = None) -> Any:
    """Elements repeated; numbers of repetitions on the device are read back, which waits."""
    if isinstance(repeats, ndarray):
        syncs.note("repeat")
    return call(np.repeat, "repeat", (a, repeats, axis), {})


def array_equal(a: Any, b: Any, equal_nan: bool = False) -> Any:
    """Whether all is equal, as an array of no axes."""
    return asarray(call(np.array_equal, "array_equal", (a, b, equal_nan), {}))


def allclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    """Whether all is close, as an array of no axes."""
    return asarray(call(np.allclose, "allclose", (a, b, rtol, atol, equal_nan), {}))


def from_dlpack(source: Any) -> ndarray:
    """An array on the memory of one of ours, or of what wraps it."""
    shared = source.__dlpack__()
    if not isinstance(shared, ndarray):
        raise RefusedError(f"from_dlpack: expected device memory, got {type(source).__name__}")
    return ndarray(shared.memory, shared.device.id)


class MemoryPool:
    """The pool of all device memory, which knows what is in use."""

    def used_bytes(self) -> int:
        """Bytes of the memory that arrays hold, views counted once."""
        roots = (_root(found.memory) for found in gc.get_objects() if type(found) is ndarray)
        return sum({id(root): root.nbytes for root in roots}.values())

    def total_bytes(self) -> int:
        """The same: no memory is kept for later."""
        return self.used_bytes()

    def free_all_blocks(self) -> None:
        """Nothing is kept."""


def _root(memory: Any) -> Any:
    while isinstance(memory.base, np.ndarray):
        memory = memory.base
    return memory


def get_default_memory_pool() -> MemoryPool:
    """The one pool there is."""
    return MemoryPool()


def get_array_module(*args: Any) -> Any:
    """This namespace when one of the arguments is an array of it, else numpy."""
    import tests.strict_cupy.namespace as namespace

    return namespace.cupy if any(isinstance(arg, ndarray) for arg in args) else np


OWN = {
    function.__name__: function
    for function in (
        allclose,
        array,
        array_equal,
        asarray,
        ascontiguousarray,
        asnumpy,
        dot,
        einsum,
        empty,
        empty_like,
        from_dlpack,
        get_array_module,
        get_default_memory_pool,
        matmul,
        repeat,
        where,
    )
}
OWN["asanyarray"] = asarray
