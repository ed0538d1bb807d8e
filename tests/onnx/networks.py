"""Convolution, pooling, normalisation, losses."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import minigrad as mg
from minigrad.nn import functional as F
from tests.onnx.node import Function, Inexpressible, Node

# ---------------------------------------------------------------------------------------------------------- windows


def _as_image(x: Any) -> Any:
    """A row of pixels as an image of height 1.

    Raises:
        Inexpressible: a volume.
    """
    if x.ndim not in (3, 4):
        raise Inexpressible("windows over three axes of space")
    return x.unsqueeze(2) if x.ndim == 3 else x


def _pair(values: Sequence[int], filling: int) -> tuple[int, int]:
    values = (filling,) * (2 - len(values)) + tuple(values)
    return values[0], values[1]


def _geometry(node: Node, x: Any, kernel: Sequence[int]) -> tuple[Any, ...]:
    """Kernel, strides, dilations, and the padding as ((top, bottom), (left, right)), of an image."""
    axes = len(kernel)
    kernel = _pair(kernel, 1)
    strides, dilations = _pair(node.get("strides", (1,) * axes), 1), _pair(node.get("dilations", (1,) * axes), 1)
    given = node.get("pads", (0,) * (2 * axes))
    pads = tuple(zip(_pair(given[:axes], 0), _pair(given[axes:], 0)))
    how = node.get("auto_pad", "NOTSET")
    if how.startswith("SAME"):
        pads = tuple(
            _same(size, k, s, d, how == "SAME_UPPER")
            for size, k, s, d in zip(x.shape[2:], kernel, strides, dilations)
        )
    return kernel, strides, dilations, pads


def _same(size: int, kernel: int, stride: int, dilation: int, upper: bool) -> tuple[int, int]:
    """The padding with which the output has the input's length over the stride; what is odd at one end."""
    total = max(0, (-(-size // stride) - 1) * stride + dilation * (kernel - 1) + 1 - size)
    return (total // 2, total - total // 2) if upper else (total - total // 2, total // 2)


def _padded(x: Any, pads: tuple[Any, ...], value: float) -> Any:
    (top, bottom), (left, right) = pads
    return mg.ops.pad(x, (left, right, top, bottom), value=value) if any((top, bottom, left, right)) else x


def _like(y: Any, x: Any) -> Any:
    return y.squeeze(2) if x.ndim == 3 else y


def _conv(node: Node, x: Any, weight: Any, bias: Any = None) -> Any:
    image, filters = _as_image(x), _as_image(weight)
    _, strides, dilations, pads = _geometry(node, image, weight.shape[2:])
    image = _padded(image, pads, 0.0)
    return _like(F.conv2d(image, filters, bias, strides, 0, dilations, node.get("group", 1)), x)


def _conv_transpose(node: Node, x: Any, weight: Any, bias: Any = None) -> Any:
    """Whole first, then cut to size: ONNX may cut more at one side."""
    image, filters = _as_image(x), _as_image(weight)
    kernel, strides, dilations, pads = _geometry(node, image, weight.shape[2:])
    ends = _pair(node.get("output_padding", (0,) * (x.ndim - 2)), 0)
    y = F.conv_transpose2d(image, filters, bias, strides, 0, ends, node.get("group", 1), dilations)
    how, sizes = node.get("auto_pad", "NOTSET"), node.get("output_shape")
    if how.startswith("SAME") and sizes is None:
        sizes = [n * s for n, s in zip(image.shape[2:], strides)]
    if sizes is not None:
        more = [n - wanted for n, wanted in zip(y.shape[2:], _pair(sizes, 1))]
        pads = tuple((n // 2, n - n // 2) if how == "SAME_UPPER" else (n - n // 2, n // 2) for n in more)
    (top, bottom), (left, right) = pads
    return _like(mg.ops.pad(y, (-left, -right, -top, -bottom)), x)


def _causal_conv(node: Node, x: Any, weight: Any, bias: Any = None, past: Any = None) -> Any:
    """Each channel by itself, over what came before; the last pixels are what comes before the next ones."""
    before = weight.shape[2] - 1
    seen = F.pad(x, (before, 0)) if past is None else mg.cat([past, x], 2)
    y = F.conv1d(seen, weight, bias, groups=x.shape[1])
    return y if node.get("activation", "none") == "none" else F.silu(y), seen[:, :, seen.shape[2] - before :]


def _max_pool(node: Node, x: Any) -> Any:
    if node.outputs > 1:
        raise Inexpressible("pooling says no indices")
    if not x.dtype.kind == "f":
        raise Inexpressible("pooling of integers")
    image = _as_image(x)
    kernel, strides, dilations, pads = _geometry(node, image, node.get("kernel_shape"))
    ceil = bool(node.get("ceil_mode"))
    if ceil and any(map(any, pads)):
        raise Inexpressible("windows that begin in the padding are dropped")
    return _like(F.max_pool2d(_padded(image, pads, -math.inf), kernel, strides, 0, dilations, ceil), x)


def _average_pool(node: Node, x: Any) -> Any:
    """What is not counted: a mean of ones beside it, of the same windows, says how much of each was real."""
    image = _as_image(x)
    kernel, strides, dilations, pads = _geometry(node, image, node.get("kernel_shape"))
    if dilations != (1, 1):
        raise Inexpressible("means of dilated windows")
    ceil = bool(node.get("ceil_mode"))
    if ceil and any(map(any, pads)):
        raise Inexpressible("windows that begin in the padding are dropped")
    means = F.avg_pool2d(_padded(image, pads, 0.0), kernel, strides, 0, ceil)
    if not node.get("count_include_pad") and any(map(any, pads)):
        means = means / F.avg_pool2d(_padded(mg.ones_like(image), pads, 0.0), kernel, strides, 0, ceil)
    return _like(means, x)


def _lp_pool(node: Node, x: Any) -> Any:
    image = _as_image(x)
    kernel, strides, dilations, pads = _geometry(node, image, node.get("kernel_shape"))
    if dilations != (1, 1):
        raise Inexpressible("means of dilated windows")
    p = node.get("p", 2)
    powers = F.avg_pool2d(_padded(mg.abs(image) ** p, pads, 0.0), kernel, strides)
    return _like((powers * math.prod(kernel)) ** (1 / p), x)


def _resize(node: Node, x: Any, roi: Any = None, scales: Any = None, sizes: Any = None) -> Any:
    """What is resized has to be the axes of space, all of them."""
    how, mode = node.get("coordinate_transformation_mode", "half_pixel"), node.get("mode", "nearest")
    if node.get("antialias"):
        raise Inexpressible("interpolation looks at two or four elements, however small the result is")
    if how in ("tf_crop_and_resize", "half_pixel_symmetric"):
        raise Inexpressible(f"places by {how}")
    if node.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise Inexpressible("sizes that keep the proportions")
    axes = [axis % x.ndim for axis in node.get("axes", range(x.ndim))]
    given = sizes if sizes is not None else scales
    asked = dict(zip(axes, given.tolist()))
    size = {axis: n if sizes is not None else math.floor(x.shape[axis] * n) for axis, n in asked.items()}
    if any(size.get(axis, x.shape[axis]) != x.shape[axis] for axis in (0, 1)):
        raise Inexpressible("samples and channels resized")
    options = _places(node, how, mode, x.ndim)
    if sizes is not None:
        if how == "pytorch_half_pixel" and 1 in size.values():
            raise Inexpressible("one pixel that is looked for at the first place")
        turned = _space(x) if options["mode"] == "nearest-exact" else ()  # of two as near, ONNX takes the one before
        y = F.interpolate(mg.flip(x, turned), tuple(size.get(axis, x.shape[axis]) for axis in _space(x)), **options)
        return mg.flip(y, turned)
    if how == "align_corners" and any(n != asked[axis] * x.shape[axis] for axis, n in size.items()):
        raise Inexpressible("corners of a size that is no integer")
    return F.interpolate(x, scale_factor=tuple(asked.get(axis, 1.0) for axis in _space(x)), **options)


def _places(node: Node, how: str, mode: str, ndim: int) -> dict[str, Any]:
    """The arguments that look at ONNX's places in x."""
    if mode == "nearest":
        nearest = node.get("nearest_mode", "round_prefer_floor")
        found = {("asymmetric", "floor"): "nearest", ("half_pixel", "round_prefer_floor"): "nearest-exact"}
        if (how, nearest) not in found:
            raise Inexpressible("another element than the one before its place, or the nearest to its middle")
        return {"mode": found[how, nearest]}
    if how not in ("half_pixel", "pytorch_half_pixel", "align_corners"):
        raise Inexpressible(f"places by {how}")
    if mode == "cubic" and (node.get("cubic_coeff_a", -0.75) != -0.75 or node.get("exclude_outside")):
        raise Inexpressible("another cubic kernel")
    name = {"linear": "linear" if ndim == 3 else "bilinear", "cubic": "bicubic"}[mode]
    return {"mode": name, "align_corners": how == "align_corners"}


def _upsample(node: Node, x: Any, scales: Any) -> Any:
    mode = {"nearest": "nearest", "linear": "bilinear"}[node.get("mode", "nearest")]
    return F.interpolate(x, scale_factor=tuple(scales.tolist()[2:]), mode=mode)


def _space(x: Any) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


# ---------------------------------------------------------------------------------------------------- normalisation


def _batch_norm(node: Node, x: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
    """ONNX weighs the old statistics by its momentum, and keeps the biased variance."""
    eps, momentum = node.get("epsilon", 1e-5), node.get("momentum", 0.9)
    if not node.get("training_mode"):
        return F.batch_norm(x, mean, var, scale, bias, eps=eps)
    dims = (0, *_space(x))
    now, spread = mg.mean(x, dims), mg.var(x, dims, unbiased=False)
    y = F.batch_norm(x, None, None, scale, bias, training=True, eps=eps)
    return y, mean * momentum + now * (1 - momentum), var * momentum + spread * (1 - momentum)


def _group_norm(node: Node, x: Any, scale: Any, bias: Any) -> Any:
    return F.group_norm(x, node.get("num_groups"), scale, bias, node.get("epsilon", 1e-5))


def _instance_norm(node: Node, x: Any, scale: Any, bias: Any) -> Any:
    return F.instance_norm(x, None, None, scale, bias, eps=node.get("epsilon", 1e-5))


def _layer_norm(node: Node, x: Any, scale: Any, bias: Any = None) -> Any:
    axis = node.get("axis", -1) % x.ndim
    eps = node.get("epsilon", 1e-5)
    y = F.layer_norm(x, x.shape[axis:], scale, bias, eps)
    dims = tuple(range(axis, x.ndim))
    return y, mg.mean(x, dims, True), mg.rsqrt(mg.var(x, dims, unbiased=False, keepdim=True) + eps)


def _rms_norm(node: Node, x: Any, scale: Any) -> Any:
    return F.rms_norm(x, x.shape[node.get("axis", -1) % x.ndim :], scale, node.get("epsilon", 1e-5))


def _mean_variance(node: Node, x: Any) -> Any:
    dims = tuple(node.get("axes", (0, 2, 3)))
    return (x - mg.mean(x, dims, True)) / (mg.std(x, dims, unbiased=False, keepdim=True) + 1e-9)


# ----------------------------------------------------------------------------------------------------------- losses


def _nll(node: Node, logs: Any, target: Any, weight: Any = None) -> Any:
    """Classes on axis 1, any number of axes behind it: as rows of classes."""
    classes = logs.shape[1]
    rows = mg.movedim(logs, 1, -1).reshape(-1, classes)
    how = node.get("reduction", "mean")
    labels = target.reshape(-1)
    ignored = node.get("ignore_index")
    if ignored is None:
        ignored = -100
    found = F.nll_loss(rows, labels, weight, ignore_index=ignored, reduction=how)
    return found.reshape(target.shape) if how == "none" else found


def _cross_entropy(node: Node, scores: Any, target: Any, weight: Any = None) -> Any:
    logs = F.log_softmax(scores, 1)
    return _nll(node, logs, target, weight), logs


def _lrn(node: Node, x: Any) -> Any:
    """Krizhevsky and others, 2012: over the squares of the channels beside each."""
    size = node.get("size")
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    squares = mg.ops.pad(x * x, (0, 0) * (x.ndim - 2) + (before, after))
    total = functools.reduce(mg.add, [mg.narrow(squares, 1, i, x.shape[1]) for i in range(size)])
    return x / (node.get("bias", 1.0) + node.get("alpha", 1e-4) / size * total) ** node.get("beta", 0.75)


FUNCTIONS: dict[str, Function] = {
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "CausalConvWithState": _causal_conv,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "GlobalAveragePool": lambda node, x: mg.mean(x, _space(x), True),
    "GlobalMaxPool": lambda node, x: mg.amax(x, _space(x), True),
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "LRN": _lrn,
    "LayerNormalization": _layer_norm,
    "LogSoftmax": lambda node, x: F.log_softmax(x, node.get("axis", -1)),
    "LpPool": _lp_pool,
    "MaxPool": _max_pool,
    "MeanVarianceNormalization": _mean_variance,
    "NegativeLogLikelihoodLoss": _nll,
    "Resize": _resize,
    "RMSNormalization": _rms_norm,
    "Softmax": lambda node, x: F.softmax(x, node.get("axis", -1)),
    "SoftmaxCrossEntropyLoss": _cross_entropy,
    "Upsample": _upsample,
}
