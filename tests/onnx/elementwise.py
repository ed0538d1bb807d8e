"""Arithmetic, comparisons, activations, conversions: an element of the output for each of the inputs."""

from __future__ import annotations

import functools
import math
from typing import Any

import minigrad as mg
from minigrad.nn import functional as F
from tests.onnx.node import Function, Inexpressible, Node, by_name, is_float

_DTYPES = {1: "float32", 2: "uint8", 3: "int8", 5: "int16", 6: "int32", 7: "int64", 9: "bool_", 10: "float16",
           11: "float64", 16: "bfloat16"}  # of onnx.TensorProto


def dtype_of(number: int) -> Any:
    """The dtype that ONNX has this number for.

    Raises:
        Inexpressible: minigrad has no such dtype.
    """
    if number not in _DTYPES:
        raise Inexpressible("a dtype that minigrad has not")
    return getattr(mg, _DTYPES[number])


def _divide(node: Node, x: Any, y: Any) -> Any:
    """Integers towards zero."""
    return mg.div(x, y) if is_float(x) else mg.div(x, y, rounding_mode="trunc")


def _power(node: Node, x: Any, y: Any) -> Any:
    """In the dtype of the base, also where the power is of another kind."""
    if x.dtype == y.dtype:
        return mg.pow(x, y)
    return mg.pow(x, y.to(x.dtype)) if is_float(x) else mg.pow(x.to(y.dtype), y).to(x.dtype)


def _all_by(function: Function) -> Function:
    return lambda node, *xs: functools.reduce(function, xs)


def _clip(node: Node, x: Any, low: Any = None, high: Any = None) -> Any:
    return x if low is None and high is None else mg.clamp(x, low, high)


def _is_infinite(node: Node, x: Any) -> Any:
    found = mg.isinf(x)
    if not node.get("detect_negative", 1):
        found = found & (x > 0)
    return found & (x < 0) if not node.get("detect_positive", 1) else found


def _selu(node: Node, x: Any) -> Any:
    alpha, gamma = node.get("alpha", 1.67326319217681884765625), node.get("gamma", 1.05070102214813232421875)
    return gamma * F.elu(x, alpha)


def _hard_sigmoid(node: Node, x: Any) -> Any:
    return mg.clamp(node.get("alpha", 0.2) * x + node.get("beta", 0.5), 0.0, 1.0)


def _shrink(node: Node, x: Any) -> Any:
    bound, bias = node.get("lambd", 0.5), node.get("bias", 0.0)
    return mg.where(x < -bound, x + bias, mg.where(x > bound, x - bias, mg.zeros_like(x)))


def _dropout(node: Node, x: Any, ratio: Any = None, training: Any = None) -> Any:
    """Of what is dropped ONNX says which, by NumPy's generator: expressed where nothing is."""
    share = 0.5 if ratio is None else ratio.item()
    if training is not None and training.item() and share:
        raise Inexpressible("it names the elements that are dropped at random")
    return F.dropout(x, share, training=False), mg.ones_like(x, dtype=mg.bool_)


def _window(*weights: float) -> Function:
    """A sum of cosines over one period, of the length itself or of one less."""

    def make(node: Node, size: Any) -> Any:
        count = size.item()
        angle = mg.arange(count, dtype=mg.float32) * (2 * math.pi / (count if node.get("periodic", 1) else count - 1))
        terms = [weight * mg.cos(k * angle) for k, weight in enumerate(weights)]
        return functools.reduce(mg.add, terms).to(dtype_of(node.get("output_datatype", 1)))

    return make


FUNCTIONS: dict[str, Function] = {
    **by_name(
        Abs="abs", Acos="acos", Acosh="acosh", Add="add", And="logical_and", Asin="asin", Asinh="asinh", Atan="atan",
        Atanh="atanh", BitwiseAnd="bitwise_and", BitwiseNot="bitwise_not", BitwiseOr="bitwise_or",
        BitwiseXor="bitwise_xor", Ceil="ceil", Cos="cos", Cosh="cosh", Equal="eq", Erf="erf", Exp="exp", Floor="floor",
        Greater="gt", GreaterOrEqual="ge", HardSwish="hardswish", Identity="clone", IsNaN="isnan", Less="lt",
        LessOrEqual="le", Log="log", Mish="mish", Mul="mul", Neg="neg", Not="logical_not", Or="logical_or",
        Reciprocal="reciprocal", Relu="relu", Round="round", Sigmoid="sigmoid", Sign="sign", Sin="sin", Sinh="sinh",
        Softplus="softplus", Softsign="softsign", Sqrt="sqrt", Sub="sub", Tan="tan", Tanh="tanh", Where="where",
        Xor="logical_xor",
    ),
    "Binarizer": lambda node, x: (x > node.get("threshold", 0.0)).to(x.dtype),
    "BlackmanWindow": _window(0.42, -0.5, 0.08),
    "Cast": lambda node, x: x.to(dtype_of(node.get("to"))),
    "CastLike": lambda node, x, like: x.to(like.dtype),
    "Celu": lambda node, x: F.celu(x, node.get("alpha", 1.0)),
    "Clip": _clip,
    "Div": _divide,
    "Dropout": _dropout,
    "Elu": lambda node, x: F.elu(x, node.get("alpha", 1.0)),
    "Gelu": lambda node, x: F.gelu(x, approximate=node.get("approximate", "none")),
    "HammingWindow": _window(25 / 46, -21 / 46),
    "HannWindow": _window(0.5, -0.5),
    "HardSigmoid": _hard_sigmoid,
    "IsInf": _is_infinite,
    "LeakyRelu": lambda node, x: F.leaky_relu(x, node.get("alpha", 0.01)),
    "Max": _all_by(mg.maximum),
    "Mean": lambda node, *xs: functools.reduce(mg.add, xs) / len(xs),
    "Min": _all_by(mg.minimum),
    "Mod": lambda node, x, y: mg.fmod(x, y) if node.get("fmod") else mg.remainder(x, y),
    "PRelu": lambda node, x, slope: mg.where(x < 0, slope * x, x),
    "Pow": _power,
    "Selu": _selu,
    "Shrink": _shrink,
    "Sum": _all_by(mg.add),
    "SwiGLU": lambda node, x, y: x * mg.sigmoid(node.get("alpha", 1.0) * x) * y,
    "Swish": lambda node, x: x * mg.sigmoid(node.get("alpha", 1.0) * x),
    "ThresholdedRelu": lambda node, x: mg.where(x > node.get("alpha", 1.0), x, mg.zeros_like(x)),
}
