"""NCCL through CuPy: its module, its codes, and what its calls raise."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from minigrad.errors import DtypeError, MissingPackageError

DTYPES = {"int8": 0, "uint8": 1, "int32": 2, "int64": 4, "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9}
BYTE = DTYPES["uint8"]
_IN_PROGRESS = 7


def load_nccl() -> Any:
    """The module cupy.cuda.nccl.

    Raises:
        MissingPackageError: CuPy is not there, or finds no NCCL library.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy's own words for the error below
        try:
            from cupy.cuda import nccl
        except ImportError:
            nccl = None
    if nccl is None or not nccl.available:
        raise MissingPackageError(
            "nccl: expected CuPy and the NCCL library, got none: pip install 'minigrad[cuda12]' or 'minigrad[cuda13]'"
        )
    return nccl


def dtype_code(who: str, dtype: np.dtype[Any]) -> int:
    """NCCL's code for the elements of a reduction.

    Raises:
        DtypeError: NCCL does not add them up.

    Example:
        >>> dtype_code("all_reduce", np.dtype(np.float32))
        7
    """
    code = DTYPES.get(dtype.name)
    if code is None:
        raise DtypeError(f"{who}: expected one of {', '.join(DTYPES)} for NCCL, got {dtype.name}")
    return code


def problem_of(nccl: Any, call: Callable[[], Any]) -> str:
    """What a call of NCCL raises, in words; empty where it succeeds, or is still in progress.

    CuPy's NcclError has no name for the codes 7, in progress, and 8, timeout: there it is a KeyError of the code.
    """
    try:
        call()
    except nccl.NcclError as error:
        return str(error)
    except KeyError as error:
        return "" if error.args == (_IN_PROGRESS,) else f"NCCL error {error.args[0]}"
    return ""
