"""The mean over all pixels of images whose channels lie last on a GPU: one kernel each way, which keeps that order."""

from __future__ import annotations

from minigrad.autograd.tape import Node, accumulate
from minigrad.backend.dtypes import Array
from minigrad.backend.fused.pool import Axes, Axis, mean_pool, mean_pool_gradient
from minigrad.backend.kernels import kernels_for
from minigrad.ops.axes import reduced_shape
from minigrad.ops.image_order import from_nhwc, to_nhwc
from minigrad.tensor import Tensor, record


def are_pixels(x: Array, axes: tuple[int, ...]) -> bool:
    """Whether these are the axes of the pixels of (N, C, ...), and such a kernel fits."""
    if kernels_for(x) is None or x.ndim < 3 or axes != tuple(range(2, x.ndim)) or x.flags.c_contiguous:
        return False
    return bool(x.transpose(0, *axes, 1).flags.c_contiguous)


def mean_of_pixels(x: Tensor, axes: tuple[int, ...], keepdim: bool) -> Tensor:
    """The mean over the axes of the pixels.

    Shapes:
        x: (N, C, ...) -> (N, C), or with axes of length 1 for those of the pixels
    """
    images = to_nhwc(x.data)
    lengths = Axis(images.shape[1], 1), Axis(images.shape[2], 1)
    data = mean_pool(images, lengths).reshape(reduced_shape(x.data.shape, axes, keepdim))
    return record(data, _mean_backward, (x,), (lengths, x.data.shape))


def _mean_backward(node: Node, grad: Array) -> None:
    lengths: Axes
    lengths, shape = node.saved
    dx = mean_pool_gradient(grad.reshape(shape[0], 1, 1, shape[1]), lengths)
    accumulate(node.inputs[0], from_nhwc(dx, shape))
