"""What cases can't say of looking things up: values that are in the line, row by row."""

import numpy as np
import pytest

from minigrad import Tensor, ops


@pytest.mark.parametrize("side", ["left", "right"])
def test_rows_are_searched_as_lines_are(side):
    lines, values = np.array([[1, 2, 2, 5], [0, 0, 7, 9]]), np.array([[0, 2, 9], [0, 7, 8]])
    found = ops.searchsorted(Tensor(lines), Tensor(values), side=side)
    assert found.tolist() == [line.searchsorted(row, side).tolist() for line, row in zip(lines, values)]
