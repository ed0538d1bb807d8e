"""Range checks in host memory raise at once, with or without `debug`."""

import numpy as np
import pytest

import minigrad
from minigrad.backend.flags import check_range
from minigrad.errors import IndexRangeError


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "int8", "uint8"])
@pytest.mark.parametrize("enabled", [False, True])
def test_at_once(dtype, enabled):
    x = np.array([3, 0, 1], dtype)
    with minigrad.debug(enabled):
        check_range("op", "labels", x, 0, 4)
        with pytest.raises(IndexRangeError, match=r"^op: expected labels in \[0, 3\), got some in \[3, 3\]$"):
            check_range("op", "labels", x, 0, 3)
        check_range("op", "labels", x, 0, 3, allowed=3)
        with pytest.raises(IndexRangeError, match=r"\[2, 4\), got some in \[0, 1\]"):
            check_range("op", "labels", x, 2, 4)
        check_range("op", "labels", x[:0], 0, 0)
    minigrad.raise_all_found()
