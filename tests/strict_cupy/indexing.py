"""What may stand between the brackets, and what of it would go wrong or wait on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.strict_cupy.call import lower
from tests.strict_cupy.errors import StrictError


def lower_index(who: str, index: Any) -> Any:
    """An index with the memory of its stand-in arrays; lists become arrays."""
    low = lower(who, index)
    if isinstance(low, tuple):
        return tuple(np.asarray(part) if isinstance(part, list) else part for part in low)
    return np.asarray(low) if isinstance(low, list) else low


def index_arrays(index: Any) -> list[np.ndarray[Any, Any]]:
    """The arrays in a lowered index."""
    parts = index if isinstance(index, tuple) else (index,)
    return [part for part in parts if isinstance(part, np.ndarray)]


def has_mask(index: Any) -> bool:
    """Whether one of them is a mask: the size of the selection is then known on the device only."""
    return any(array.dtype.kind == "b" for array in index_arrays(index))


def check_no_duplicates(shape: tuple[int, ...], index: Any, value: Any) -> None:
    """Refuse to assign different values to one element: which of them stays is undefined in CuPy.

    Raises:
        StrictError: an element is named twice, and the values are not all equal.
    """
    values = np.asarray(value).ravel()
    if not values.size or (values == values[0]).all():
        return
    positions = np.arange(int(np.prod(shape))).reshape(shape)[index]
    if np.unique(positions).size != positions.size:
        raise StrictError("setitem: expected an index that names each element once, got duplicates: use add.at")
