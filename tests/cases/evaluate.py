"""Running a case: what it gives, and what flows back into its inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minigrad import Tensor
from minigrad.backend.device import to_device
from minigrad.backend.dtypes import as_dtype
from tests.cases.case import Case


def evaluate(case: Case, place: Callable[[Any], Any], dtype: str = "float64") -> tuple[Any, list[Any]]:
    """The output of a case as an array, and the gradient of each input, None where there is none.

    Args:
        place: Takes an array of NumPy to where the case is to run.
        dtype: Of the float inputs. The cotangent is a fixed normal one.
    """
    inputs = [_as_input(x, place, dtype, case.differentiable) for x in case.draw()]
    output = case.ours(*inputs)
    if output.requires_grad:
        cotangent = np.random.default_rng(1).standard_normal(output.shape)
        output.backward(Tensor(to_device(place(np.asarray(cotangent, output.dtype)), output.device)))
    return output.data, [x.grad_array if isinstance(x, Tensor) else None for x in inputs]


def _as_input(x: Any, place: Callable[[Any], Any], dtype: str, requires_grad: bool) -> Any:
    if not isinstance(x, (np.ndarray, np.generic)):
        return x
    x = np.asarray(x)
    if x.dtype == np.float64:
        return Tensor(place(x.astype(as_dtype(dtype))), requires_grad)
    return Tensor(place(x.copy()))
