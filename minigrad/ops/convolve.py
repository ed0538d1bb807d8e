"""Convolution both ways, along one axis and along two: the transposed one is the input gradient of the plain one.

A row of pixels is an image of height 1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minigrad.arguments import Pair, as_integer, as_pair, kind_of
from minigrad.autograd.tape import Edge, Node, accumulate, destination
from minigrad.backend.dtypes import Array
from minigrad.backend.fused import convolution
from minigrad.backend.kernels import kernels_for
from minigrad.errors import ArgumentError, DtypeError, ShapeError
from minigrad.ops.axes import column_sum
from minigrad.ops.columns import Geometry, by_group, convolve, input_gradient, weight_gradient
from minigrad.ops.image_order import as_given, as_images, channels_first, channels_last, from_nhwc, to_nhwc
from minigrad.ops.operands import check_float, once, same_device
from minigrad.ops.precision import autocasts
from minigrad.ops.window import Window, count_windows, same_padding
from minigrad.tensor import Tensor, record

__all__ = ["conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d"]

_FORMS = {  # what each of them takes, and its number of axes beside samples and channels
    "conv1d": ("x (N, C, L) and weight (O, C / groups, K)", 1),
    "conv2d": ("x (N, C, H, W) and weight (O, C / groups, kH, kW)", 2),
    "conv_transpose1d": ("x (N, C, L) and weight (C, O / groups, K)", 1),
    "conv_transpose2d": ("x (N, C, H, W) and weight (C, O / groups, kH, kW)", 2),
}


# ------------------------------------------------------------------------------------------------------------ plain


@autocasts("low")
def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Pair = 1,
    padding: Pair | str = 0,
    dilation: Pair = 1,
    groups: int = 1,
) -> Tensor:
    """Cross-correlation of images with kernels: y[n, o] = bias[o] + Σ_c Σ_ij weight[o, c, i, j] · x[n, c, ·+i, ·+j].

    The channels are cut into groups of consecutive ones; each group of outputs sees its group of inputs only.

    Shapes:
        x: (N, C, H, W) or (C, H, W), weight: (O, C / groups, kH, kW), bias: (O,) -> (N, O, OH, OW) or (O, OH, OW),
        OH = (H + padding - dilation · (kH - 1) - 1) // stride + 1, with the padding of both sides; OW likewise

    Args:
        stride, dilation: >= 1; an int, or one for height and one for width.
        padding: Zeros at each side, >= 0; an int or two, "valid" for none, "same" to keep the size at stride 1.
        groups: A divisor of C and of O.

    Raises:
        ShapeError: the shapes do not fit as above, or the kernel does not fit into the padded input.
        ArgumentError: stride, padding, dilation or groups out of range.
        DtypeError: the dtypes differ or are no floats.
    """
    inputs = (x, weight) if bias is None else (x, weight, bias)
    geometry = _geometry("conv2d", inputs, stride, padding, dilation, groups)
    return _convolved(geometry, inputs, _conv2d_backward)


def _convolved(geometry: Geometry, inputs: tuple[Tensor, ...], backward: Callable[[Node, Array], None]) -> Tensor:
    x, kernel = inputs[0].data, _as_kernel(inputs[1].data)
    images, bias = as_images(x, geometry.axes), inputs[2].data if len(inputs) == 3 else None
    shape = (geometry.batch, *geometry.out_shape)
    if kernels_for(x) is not None:
        y = from_nhwc(convolution.convolve(images, kernel, bias, _lengths(geometry)), shape)
    else:
        y = channels_first(convolve(images, kernel, bias, geometry), shape)
    return record(as_given(y, geometry.axes, x.ndim), backward, inputs, (inputs[0], inputs[1], geometry))


def _conv2d_backward(node: Node, grad: Array) -> None:
    x, weight, geometry = node.saved
    dx, dweight = node.inputs[:2]
    images = as_images(x.data, geometry.axes)
    if kernels_for(grad) is not None:
        slopes = to_nhwc(as_images(grad, geometry.axes))
        _give_bias(node, slopes.reshape(-1, geometry.out_shape[0]))
        _give_both(node, convolution.gradients, images, slopes, (geometry.batch, *geometry.in_shape), grad.ndim)
        return
    rows = channels_last(as_images(grad, geometry.axes)).reshape(-1, geometry.out_shape[0])
    _give_bias(node, rows)
    grouped, kernel = by_group(rows, geometry.groups), _as_kernel(weight.data)
    if dweight is not None:
        _give_kernel(dweight, weight_gradient(images, grouped, geometry, kernel.shape), weight.data.ndim)
    if dx is not None:
        pixels = input_gradient(grouped, kernel, geometry)
        images = channels_first(pixels, (geometry.batch, *geometry.in_shape))
        accumulate(dx, as_given(images, geometry.axes, grad.ndim))


@autocasts("low")
def conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Pair = 1,
    padding: Pair | str = 0,
    dilation: Pair = 1,
    groups: int = 1,
) -> Tensor:
    """Cross-correlation along one axis: `conv2d` of images of height 1.

    Shapes:
        x: (N, C, L) or (C, L), weight: (O, C / groups, K), bias: (O,) -> (N, O, OL) or (O, OL),
        OL = (L + padding - dilation · (K - 1) - 1) // stride + 1, with the padding of both ends

    Args:
        stride, dilation: >= 1.
        padding: Zeros at each end, >= 0; "valid" for none, "same" to keep the length at stride 1.
        groups: A divisor of C and of O.

    Raises:
        ShapeError, ArgumentError, DtypeError: see `conv2d`.
    """
    inputs = (x, weight) if bias is None else (x, weight, bias)
    geometry = _geometry("conv1d", inputs, stride, padding, dilation, groups)
    return _convolved(geometry, inputs, _conv1d_backward)


def _conv1d_backward(node: Node, grad: Array) -> None:
    _conv2d_backward(node, grad)


# ------------------------------------------------------------------------------------------------------- transposed


@autocasts("low")
def conv_transpose2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Pair = 1,
    padding: Pair = 0,
    output_padding: Pair = 0,
    groups: int = 1,
    dilation: Pair = 1,
) -> Tensor:
    """What `conv2d` of this weight gives its input as gradient where x is that of its output, plus bias.

    So each pixel of x puts a whole kernel into the output, `stride` apart: y[n, o, i·stride + k·dilation - padding] +=
    Σ_c x[n, c, i] · weight[c, o, k] along each axis (Zeiler et al., "Deconvolutional networks", 2010). dx is `conv2d`
    of g with the weight, dweight the gradient of that one's weight.

    Shapes:
        x: (N, C, H, W) or (C, H, W), weight: (C, O / groups, kH, kW), bias: (O,) -> (N, O, OH, OW) or (O, OH, OW),
        OH = (H - 1) · stride - 2 · padding + dilation · (kH - 1) + output_padding + 1; OW likewise

    Args:
        stride, dilation: >= 1; an int, or one for height and one for width.
        padding: >= 0; so much is cut off at each side.
        output_padding: >= 0, and less than stride or dilation: so much is added at the bottom and the right, since
            `conv2d` gives one size for several of its input.
        groups: A divisor of C.

    Raises:
        ShapeError: the shapes do not fit as above, or nothing is left of the output.
        ArgumentError: stride, padding, output_padding, dilation or groups out of range.
        DtypeError: the dtypes differ or are no floats.
    """
    inputs = (x, weight) if bias is None else (x, weight, bias)
    geometry = _turned("conv_transpose2d", inputs, stride, padding, output_padding, groups, dilation)
    return _transposed(geometry, inputs, _conv_transpose2d_backward)


def _transposed(geometry: Geometry, inputs: tuple[Tensor, ...], backward: Callable[[Node, Array], None]) -> Tensor:
    x, kernel = inputs[0].data, _as_kernel(inputs[1].data)
    images, bias = as_images(x, geometry.axes), inputs[2].data if len(inputs) == 3 else None
    shape = (geometry.batch, *geometry.in_shape)
    if kernels_for(x) is not None:
        y = from_nhwc(convolution.input_gradient(to_nhwc(images), kernel, bias, _lengths(geometry)), shape)
    else:
        rows = channels_last(images).reshape(-1, geometry.out_shape[0])
        pixels = input_gradient(by_group(rows, geometry.groups), kernel, geometry)
        if bias is not None:
            pixels += bias
        y = channels_first(pixels, shape)
    return record(as_given(y, geometry.axes, x.ndim), backward, inputs, (inputs[0], inputs[1], geometry))


def _conv_transpose2d_backward(node: Node, grad: Array) -> None:
    x, weight, geometry = node.saved
    dx, dweight = node.inputs[:2]
    images = as_images(grad, geometry.axes)
    if kernels_for(grad) is not None:
        if len(node.inputs) == 3 and node.inputs[2] is not None:
            _give_bias(node, to_nhwc(images).reshape(-1, geometry.in_shape[0]))
        pixels = to_nhwc(as_images(x.data, geometry.axes))
        shape = (geometry.batch, *geometry.out_shape)
        _give_both(node, convolution.transposed_gradients, pixels, images, shape, grad.ndim)
        return
    _give_bias(node, channels_last(images).reshape(-1, geometry.in_shape[0]))
    kernel = _as_kernel(weight.data)
    if dweight is not None:
        rows = channels_last(as_images(x.data, geometry.axes)).reshape(-1, geometry.out_shape[0])
        grouped = by_group(rows, geometry.groups)
        _give_kernel(dweight, weight_gradient(images, grouped, geometry, kernel.shape), weight.data.ndim)
    if dx is not None:
        found = convolve(images, kernel, None, geometry)
        images = channels_first(found, (geometry.batch, *geometry.out_shape))
        accumulate(dx, as_given(images, geometry.axes, grad.ndim))


@autocasts("low")
def conv_transpose1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Pair = 1,
    padding: Pair = 0,
    output_padding: Pair = 0,
    groups: int = 1,
    dilation: Pair = 1,
) -> Tensor:
    """What `conv1d` of this weight gives its input as gradient: `conv_transpose2d` of images of height 1.

    Shapes:
        x: (N, C, L) or (C, L), weight: (C, O / groups, K), bias: (O,) -> (N, O, OL) or (O, OL),
        OL = (L - 1) · stride - 2 · padding + dilation · (K - 1) + output_padding + 1

    Args:
        stride, padding, output_padding, groups, dilation: See `conv_transpose2d`.

    Raises:
        ShapeError, ArgumentError, DtypeError: see `conv_transpose2d`.
    """
    inputs = (x, weight) if bias is None else (x, weight, bias)
    geometry = _turned("conv_transpose1d", inputs, stride, padding, output_padding, groups, dilation)
    return _transposed(geometry, inputs, _conv_transpose1d_backward)


def _conv_transpose1d_backward(node: Node, grad: Array) -> None:
    _conv_transpose2d_backward(node, grad)


# ------------------------------------------------------------------------------------------------ what both do alike


def _give_bias(node: Node, rows: Array) -> None:
    """The gradient of the bias, where there is one, from that of all pixels of the output: (R, O)."""
    if len(node.inputs) == 3 and node.inputs[2] is not None:
        accumulate(node.inputs[2], column_sum(rows, destination(node.inputs[2])))


def _give_both(
    node: Node, gradients: Callable[..., Any], x: Array, grad: Array, shape: tuple[int, ...], ndim: int
) -> None:
    """By kernels the gradients of the weight and of x, which is of this shape (N, C, H, W) with its axes as given."""
    weight, geometry = node.saved[1:]
    dx, dweight = node.inputs[:2]
    if dx is None and dweight is None:
        return
    kernel, out = _as_kernel(weight.data), destination(dweight)
    room = out if out is not None and out.flags.c_contiguous else None
    pixels, total = gradients(x, kernel, grad, _lengths(geometry), (dx is not None, dweight is not None), room)
    if total is not None:
        accumulate(dweight, total if total is room else total.reshape(weight.data.shape))
    if pixels is not None:
        accumulate(dx, as_given(from_nhwc(pixels, shape), geometry.axes, ndim))


def _give_kernel(edge: Edge, kernel: Array, ndim: int) -> None:
    accumulate(edge, kernel if ndim == 4 else kernel[:, :, 0])


def _as_kernel(weight: Array) -> Array:
    """The weight with a height, which a row of taps has not."""
    return weight if weight.ndim == 4 else weight[:, :, None]


# ------------------------------------------------------------------------------------------------------- arguments


def _check_tensors(who: str, inputs: tuple[Any, ...]) -> int:
    """How many axes there are beside samples and channels."""
    for tensor in inputs:
        if not isinstance(tensor, Tensor):
            raise DtypeError(f"{who}: expected tensors, got {kind_of(tensor)}")
    x, weight = inputs[:2]
    check_float(who, x)
    form, axes = _FORMS[who]
    if x.ndim not in (axes + 1, axes + 2) or weight.ndim != axes + 2:
        raise ShapeError(f"{who}: expected {form}, got x {x.shape} and weight {weight.shape}")
    if any([t.data.dtype != x.data.dtype for t in inputs]):
        raise DtypeError(f"{who}: expected one dtype, got {', '.join(t.dtype.name for t in inputs)}")
    if any([t.data.__class__ is not np.ndarray for t in inputs]):
        same_device(who, *inputs)
    return axes


def _check_bias(who: str, bias: tuple[int, ...] | None, outputs: int) -> None:
    if bias is not None and bias != (outputs,):
        raise ShapeError(f"{who}: expected bias of shape ({outputs},), got {bias}")


def _shapes(inputs: tuple[Tensor, ...]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...] | None]:
    """Those of x, weight and bias."""
    return inputs[0].shape, inputs[1].shape, inputs[2].shape if len(inputs) == 3 else None


@once
def _geometry(
    who: str, inputs: tuple[Tensor, ...], stride: Pair, padding: Pair | str, dilation: Pair, groups: int
) -> Geometry:
    """The lengths of a convolution of these tensors, checked."""
    axes = _check_tensors(who, inputs)
    given, weight, bias = _shapes(inputs)
    outputs, channels = weight[:2]
    _check_bias(who, bias, outputs)
    if outputs % as_integer(who, "groups", groups, 1):
        raise ArgumentError(f"{who}: expected groups to divide the {outputs} output channels, got {groups!r}")
    if given[-1 - axes] != channels * groups:
        raise ShapeError(
            f"{who}: expected x with {channels * groups} channels for weight {weight} and groups={groups}, "
            f"got x {given}"
        )
    if not min(weight):
        raise ShapeError(f"{who}: expected a weight without empty axes, got {weight}")
    kernel, size = _size(weight, axes), _size(given, axes)
    strides, dilations = as_pair(who, "stride", stride, 1, axes), as_pair(who, "dilation", dilation, 1, axes)
    pads = _paddings(who, padding, strides, [d * (k - 1) + 1 for d, k in zip(dilations, kernel)], axes)
    height, width = (Window(k, s, d, *p) for k, s, d, p in zip(kernel, strides, dilations, pads))
    batch = given[0] if len(given) == axes + 2 else 1
    out_size = count_windows(who, (height, width), given if axes == 2 else (*given[:-1], *size), axes=axes)
    return Geometry(height, width, groups, batch, (channels * groups, *size), (outputs, *out_size), axes)


@functools.lru_cache(maxsize=256)
def _lengths(geometry: Geometry) -> convolution.Lengths:
    """As kernels take them."""
    taps = [(w.kernel, w.stride, w.dilation, w.before) for w in (geometry.height, geometry.width)]
    return convolution.Lengths(geometry.batch, geometry.groups, geometry.in_shape, geometry.out_shape, *zip(*taps))


def _size(shape: Sequence[int], axes: int) -> tuple[int, int]:
    """Height and width of what has this shape; a row of pixels is 1 high."""
    return shape[-2] if axes == 2 else 1, shape[-1]


def _paddings(
    who: str, padding: Pair | str, strides: tuple[int, int], extents: list[int], axes: int
) -> list[tuple[int, int]]:
    if padding == "valid":
        return [(0, 0), (0, 0)]
    if padding == "same":
        if strides != (1, 1):
            raise ArgumentError(f"{who}: expected stride 1 with padding='same', got {strides[-axes:]}")
        return [same_padding(extent) for extent in extents]
    if isinstance(padding, str):
        raise ArgumentError(f"{who}: expected padding 'same', 'valid' or integers, got {padding!r}")
    return [(p, p) for p in as_pair(who, "padding", padding, 0, axes)]


@once
def _turned(
    who: str,
    inputs: tuple[Tensor, ...],
    stride: Pair,
    padding: Pair,
    output_padding: Pair,
    groups: int,
    dilation: Pair,
) -> Geometry:
    """The lengths of the convolution that a transposed one of these tensors is the input gradient of, checked."""
    axes = _check_tensors(who, inputs)
    given, weight, bias = _shapes(inputs)
    channels, outputs = weight[0], weight[1] * as_integer(who, "groups", groups, 1)
    _check_bias(who, bias, outputs)
    if given[-1 - axes] != channels:
        raise ShapeError(f"{who}: expected x with {channels} channels for weight {weight}, got x {given}")
    if channels % groups:
        raise ArgumentError(f"{who}: expected groups to divide the {channels} input channels, got {groups!r}")
    if not min(weight):
        raise ShapeError(f"{who}: expected a weight without empty axes, got {weight}")
    strides, dilations = as_pair(who, "stride", stride, 1, axes), as_pair(who, "dilation", dilation, 1, axes)
    pads, ends = as_pair(who, "padding", padding, 0, axes), as_pair(who, "output_padding", output_padding, 0, axes)
    if any(end >= max(s, d) for end, s, d in zip(ends, strides, dilations)):
        raise ArgumentError(
            f"{who}: expected output_padding less than stride {strides[-axes:]} or dilation {dilations[-axes:]}, "
            f"got {output_padding!r}"
        )
    size = _size(given, axes)
    height, width = (Window(k, s, d, p, p) for k, s, d, p in zip(_size(weight, axes), strides, dilations, pads))
    out_size = [(n - 1) * w.stride - 2 * w.before + w.extent + end for n, w, end in zip(size, (height, width), ends)]
    if not min(size) or min(out_size) < 1:
        raise ShapeError(
            f"{who}: expected x of which something is left, got x {given}, which gives a size of {out_size[-axes:]}"
        )
    batch = given[0] if len(given) == axes + 2 else 1
    return Geometry(height, width, groups, batch, (outputs, out_size[0], out_size[1]), (channels, *size), axes)
