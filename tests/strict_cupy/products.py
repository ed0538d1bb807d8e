"""What multiplies in the place of cuBLAS: on the arrays of the stand-in for CuPy, or on NumPy's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minigrad.backend.cublas import Cublas, Gemm
from tests.strict_cupy.cublas import Library


class StandInCublas(Cublas):
    """Products of stand-in arrays, on their current stream.

    Attributes:
        library: The one that it calls.
    """

    def __init__(self) -> None:
        self.library = Library()
        super().__init__(lambda: self.library)

    def multiply(self, gemms: Sequence[Gemm], a: Any, b: Any, c: Any) -> None:
        """Queue calls on the memory of three arrays."""
        with self.library.holding(a.memory, b.memory, c.memory):
            super().multiply(gemms, a, b, c)

    def multiply_listed(self, gemm: Gemm, lists: tuple[Any, Any, Any], arrays: Sequence[Any]) -> None:
        """Queue a call on lists of addresses, which lie in these arrays."""
        with self.library.holding(*(x.memory for x in (*arrays, *lists))):
            super().multiply((gemm,), *lists)


class HostCublas(Cublas):
    """Products of NumPy's arrays, at once.

    Attributes:
        library: The one that it calls.
    """

    def __init__(self) -> None:
        self.library = Library(on_host=True)
        super().__init__(lambda: self.library)

    def multiply(self, gemms: Sequence[Gemm], a: Any, b: Any, c: Any) -> None:
        """Make calls on the memory of three arrays."""
        with self.library.holding(a, b, c):
            super().multiply(gemms, a, b, c)

    def _here(self) -> tuple[int, int]:
        return 0, 0

    def _place(self, array: Any, device: int) -> int:
        return int(array.ctypes.data)

    def _start(self, workspace: Any) -> int:
        return int(workspace.ctypes.data)

    def _memory(self, device: int) -> Any:
        return np.empty(256, np.uint8)
