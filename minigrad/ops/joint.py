"""An affine map and an activation in one operation, which a GPU runs with one kernel after the product."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minigrad.autograd.tape import Node, accumulate, destination
from minigrad.backend.dtypes import Array
from minigrad.backend.fused.activation import ACTIVATIONS, is_activated
from minigrad.backend.fused.bias import activation_and_bias_gradient, add_bias
from minigrad.ops.activation import relu
from minigrad.ops.elementwise import sigmoid, tanh
from minigrad.ops.gated import gelu, silu
from minigrad.ops.linalg import check_linear, give_linear, linear, matrix_of, product
from minigrad.ops.precision import at_precision
from minigrad.recording import is_grad_enabled
from minigrad.tensor import Tensor, record

_ALONE: dict[str, Callable[[Any], Tensor]] = {
    "relu": relu,
    "tanh": tanh,
    "sigmoid": sigmoid,
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": lambda x: gelu(x, "tanh"),
}


def linear_activation(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """The activation of `linear(x, weight, bias)`, by its name among `ACTIVATIONS`.

    Shapes:
        x: (..., in_features), weight: (out_features, in_features), bias: (out_features,) -> (..., out_features)

    Raises:
        ShapeError, DtypeError: see `linear`.
    """
    if bias is None or not isinstance(x, Tensor) or not is_activated(x.data):
        return _ALONE[activation](linear(x, weight, bias))
    x, weight, bias = at_precision("linear", x, weight, bias)
    check_linear((x, weight, bias))
    h = product(matrix_of(x.data), weight.data.T)
    y, kept = add_bias(h, bias.data, activation, is_grad_enabled())
    y = y.reshape(x.data.shape[:-1] + h.shape[-1:])
    saved, is_output = (x, weight, kept, activation), ACTIVATIONS[activation].keeps_output
    return record(y, _linear_activation_backward, (x, weight, bias), saved, saves_output=is_output)


def _linear_activation_backward(node: Node, grad: Array) -> None:
    x, weight, kept, activation = node.saved
    dbias = node.inputs[2]
    rows, sums = activation_and_bias_gradient(activation, matrix_of(grad), kept, destination(dbias))
    if dbias is not None:
        accumulate(dbias, sums)
    give_linear(node, rows, x.data, weight.data)
