"""A stand-in for CuPy on NumPy memory, for machines without a GPU: stricter than CuPy, and with two devices.

It refuses what CuPy 14.2 refuses (NumPy arrays and lists among device arrays, implicit conversion, unknown keywords
and names), and what CuPy takes but does wrong or undefined: an index array out of range or with duplicates, arrays
away from the current device, matrix products into memory that CuPy would only copy to, reading memory that nobody
wrote, writing into broadcast views. It counts what would wait for the GPU. Results of elementwise functions are in
C order whatever the order of the inputs. The fixture `strict_cupy` of tests/conftest.py puts it in CuPy's place.
"""

from tests.strict_cupy.array import ndarray
from tests.strict_cupy.call import wrapping
from tests.strict_cupy.device import no_sync, syncs
from tests.strict_cupy.errors import CaptureError, MissingError, RefusedError, StrictError
from tests.strict_cupy.namespace import MODULES, cupy
from tests.strict_cupy.streams import machine
from tests.strict_cupy.work import Work, counted

__all__ = [
    "MODULES",
    "CaptureError",
    "MissingError",
    "RefusedError",
    "StrictError",
    "Work",
    "counted",
    "cupy",
    "machine",
    "ndarray",
    "no_sync",
    "syncs",
    "wrapping",
]
