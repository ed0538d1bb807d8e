"""PyTorch's values as ours, and ours compared with PyTorch's."""

from types import BuiltinFunctionType

import numpy as np
import torch

import minigrad
from minigrad import Tensor

# |ours - PyTorch's| <= tolerance · (1 + |PyTorch's|), in each element
TOLERANCE = {"float16": 1e-2, "bfloat16": 5e-2, "float32": 2e-5, "float64": 1e-11}
DTYPES = {
    torch.float16: np.dtype("float16"),
    torch.bfloat16: minigrad.bfloat16,
    torch.float32: np.dtype("float32"),
    torch.float64: np.dtype("float64"),
    torch.uint8: np.dtype("uint8"),
    torch.int8: np.dtype("int8"),
    torch.int16: np.dtype("int16"),
    torch.int32: np.dtype("int32"),
    torch.int64: np.dtype("int64"),
    torch.bool: np.dtype("bool"),
}


class Foreign(Exception):
    """A value of a kind that only PyTorch has: its key in `table.FOREIGN`."""


class Differs(Exception):
    """Ours is not PyTorch's: what, and how."""


def dtype_of(dtype):
    """A dtype of PyTorch as ours."""
    if dtype in DTYPES:
        return DTYPES[dtype]
    raise Foreign("complex" if dtype.is_complex else "dtype")


def array_of(tensor):
    """The values of a tensor of PyTorch, in memory of their own and in the same order of it."""
    if tensor.layout != torch.strided:
        raise Foreign("sparse")
    if tensor.device.type != "cpu":
        raise Foreign("device")
    dtype = dtype_of(tensor.dtype)
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if dtype.name == "bfloat16":
        return tensor.float().numpy().astype(dtype)
    return np.array(tensor.numpy())


def renewed(value, known):
    """Arguments with each dense tensor in memory of its own; `known`: (old, new) of those met so far."""
    if isinstance(value, torch.Tensor) and value.layout == torch.strided and value.device.type == "cpu":
        for old, new in known:
            if old is value:
                return new
        known.append((value, value.detach().clone().requires_grad_(value.requires_grad)))
        return known[-1][1]
    if type(value) in (list, tuple):
        return type(value)(renewed(one, known) for one in value)
    if isinstance(value, dict):
        return {name: renewed(one, known) for name, one in value.items()}
    return value


def encoder_layer(layer):
    """A layer of a transformer of PyTorch as one of ours; its values are taken over where it is part of a module."""
    attention, wide = layer.self_attn, layer.linear1
    return minigrad.nn.TransformerEncoderLayer(
        wide.in_features, attention.num_heads, wide.out_features, layer.dropout.p,
        {1: "relu", 2: "gelu"}[layer.activation_relu_or_gelu], layer.norm1.eps, attention.batch_first,
        layer.norm_first, wide.bias is not None,
    )


class Crossing:
    """Takes PyTorch's arguments over: the same tensor twice is the same tensor twice here."""

    def __init__(self):
        self.pairs = []  # (PyTorch's tensor, ours)

    def __call__(self, value):
        """A value, or values in lists, tuples and dicts, as ours."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, torch.dtype):
            return dtype_of(value)
        if isinstance(value, (torch.layout, torch.memory_format)):
            raise Foreign("layout")
        if isinstance(value, torch.device):
            return str(value)
        if isinstance(value, torch.Generator):
            raise Foreign("generator")
        if isinstance(value, complex):
            raise Foreign("complex")
        if isinstance(value, (list, tuple)):
            return (list if isinstance(value, list) else tuple)(self(one) for one in value)
        if isinstance(value, dict):
            return {name: self(one) for name, one in value.items()}
        if isinstance(value, torch.nn.TransformerEncoderLayer):
            return encoder_layer(value)
        if isinstance(value, BuiltinFunctionType) and hasattr(minigrad.nn.functional, value.__name__):
            return getattr(minigrad.nn.functional, value.__name__)
        return value

    def _tensor(self, value):
        for theirs, ours in self.pairs:
            if theirs is value:
                return ours
        self.pairs.append((value, Tensor(array_of(value), requires_grad=value.requires_grad)))
        return self.pairs[-1][1]

    def differentiated(self):
        """The pairs that get a gradient."""
        return [(theirs, ours) for theirs, ours in self.pairs if theirs.requires_grad]


def compare(ours, theirs, what="output", values=True):
    """Check a result, or a nest of them, against PyTorch's.

    Args:
        values: Whether values count, or only shapes and dtypes, as of random numbers.

    Raises:
        Differs: they do.
    """
    if isinstance(theirs, torch.Tensor):
        if not isinstance(ours, Tensor):
            raise Differs(f"{what}: a {type(ours).__name__} for a tensor")
        compare_arrays(ours.data, array_of(theirs), what, values)
    elif isinstance(theirs, (list, tuple)):
        if not isinstance(ours, (list, tuple)) or len(ours) != len(theirs):
            raise Differs(f"{what}: {describe(ours)} for {len(theirs)} values")
        for i, (one, other) in enumerate(zip(ours, theirs)):
            compare(one, other, f"{what}[{i}]", values)
        for name in getattr(theirs, "_fields", ()) or [n for n in FIELDS if hasattr(theirs, n)]:
            if not hasattr(ours, name):
                raise Differs(f"{what}: no field .{name}")
    elif isinstance(theirs, torch.dtype):
        if ours != dtype_of(theirs):
            raise Differs(f"{what}: {ours} for {theirs}")
    elif values and not (type(ours) is type(theirs) and (ours == theirs or (ours != ours and theirs != theirs))):
        raise Differs(f"{what}: {ours!r} for {theirs!r}")


FIELDS = ("values", "indices")


def describe(value):
    """What a result is, in short."""
    return f"{len(value)} values" if isinstance(value, (list, tuple)) else f"a {type(value).__name__}"


def compare_arrays(ours, theirs, what, values=True):
    """Check an array against PyTorch's: dtype, shape, and values within rounding; NaN is NaN.

    Raises:
        Differs: it differs; says where most.
    """
    ours = np.asarray(ours)
    if ours.dtype != theirs.dtype:
        raise Differs(f"{what}: {ours.dtype.name} for {theirs.dtype.name}")
    if ours.shape != theirs.shape:
        raise Differs(f"{what}: shape {ours.shape} for {theirs.shape}")
    if not values or not ours.size:
        return
    tolerance = TOLERANCE.get(ours.dtype.name, 0.0)
    x, y = (a if tolerance == 0.0 else a.astype(np.float64) for a in (ours, theirs))
    if tolerance == 0.0:
        wrong = x != y
    else:
        with np.errstate(invalid="ignore", over="ignore"):
            near = np.abs(x - y) <= tolerance * (1.0 + np.abs(y))
        near &= np.isfinite(x) & np.isfinite(y)
        wrong = ~(near | (x == y) | (np.isnan(x) & np.isnan(y)))
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise Differs(f"{what}: {ours[at]} for {theirs[at]} at {at}, {int(wrong.sum())} of {wrong.size}")


def brief(value):
    """A sample in one line: small tensors with their values, others by shape and dtype."""
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        if value.layout == torch.strided and value.numel() <= 4 and value.ndim < 2:
            return f"{value.detach().tolist()}:{dtype}"
        return f"{tuple(value.shape)}:{dtype}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(brief, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}={brief(one)}" for name, one in value.items()) + "}"
    return repr(value)


def size_of(value):
    """The elements of all tensors in a nest of arguments."""
    if isinstance(value, torch.Tensor):
        return value.numel()
    if isinstance(value, dict):
        value = list(value.values())
    return sum(map(size_of, value)) if isinstance(value, (list, tuple)) else 0
