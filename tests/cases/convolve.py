"""Cases for minigrad/ops/convolve.py."""

from minigrad import ops
from tests.cases.case import Case, normal

_CONV2D = {
    "plain": ((2, 3, 5, 6), (4, 3, 3, 3), {}),
    "no_bias": ((2, 3, 5, 6), (4, 3, 3, 3), {"bias": False}),
    "one_image": ((3, 5, 6), (4, 3, 3, 3), {"padding": 1}),
    "pointwise": ((2, 3, 4, 5), (4, 3, 1, 1), {}),
    "pointwise_stride": ((2, 3, 5, 5), (4, 3, 1, 1), {"stride": 2}),
    "whole_image": ((2, 3, 4, 5), (4, 3, 4, 5), {}),
    "odd_kernel": ((2, 2, 7, 5), (3, 2, 2, 4), {"padding": 1}),
    "row": ((2, 2, 4, 7), (3, 2, 1, 5), {"padding": (0, 2)}),
    "column": ((2, 2, 7, 4), (3, 2, 5, 1), {"padding": (2, 0)}),
    "padding": ((2, 3, 4, 4), (2, 3, 3, 3), {"padding": (1, 2)}),
    "padding_beyond_kernel": ((1, 2, 3, 3), (2, 2, 2, 2), {"padding": 3}),
    "same": ((2, 2, 5, 6), (3, 2, 3, 5), {"padding": "same"}),
    "same_dilation": ((2, 2, 5, 6), (3, 2, 2, 3), {"padding": "same", "dilation": (2, 3)}),
    "valid": ((2, 2, 5, 6), (3, 2, 3, 4), {"padding": "valid"}),
    "stride": ((2, 3, 8, 7), (4, 3, 3, 3), {"stride": 2, "padding": 1}),
    "strides": ((2, 2, 9, 8), (3, 2, 3, 3), {"stride": (3, 1)}),
    "stride_beyond_kernel": ((2, 2, 9, 8), (3, 2, 2, 2), {"stride": 4}),
    "dilation": ((2, 2, 7, 8), (3, 2, 3, 3), {"dilation": 2}),
    "stride_and_dilation": ((2, 2, 9, 9), (3, 2, 3, 3), {"stride": (2, 3), "dilation": (3, 2), "padding": 2}),
    "groups": ((2, 4, 5, 5), (6, 2, 3, 3), {"groups": 2, "padding": 1}),
    "depthwise": ((2, 4, 5, 5), (8, 1, 3, 3), {"groups": 4, "padding": 1, "stride": 2}),
    "kernel_larger_than_input": ((2, 2, 2, 3), (3, 2, 5, 5), {"padding": 2}),
    "one_pixel": ((2, 3, 1, 1), (4, 3, 3, 3), {"padding": 1}),
    "empty_batch": ((0, 3, 5, 5), (4, 3, 3, 3), {"padding": 1}),
}


def _conv2d(label, image, weight, bias=True, **options):
    shapes = (image, weight, weight[:1]) if bias else (image, weight)
    absent = () if bias else (None,)
    return Case(
        "conv2d",
        label,
        normal(*shapes),
        lambda *a: ops.conv2d(*a, *absent, **options),
        lambda t, *a: t.nn.functional.conv2d(*a, *absent, **options),
    )


CASES = [_conv2d(label, image, weight, **options) for label, (image, weight, options) in _CONV2D.items()] + [
    Case(
        "conv2d",
        "transposed_memory",
        normal((4, 5, 3, 2), (3, 3, 3, 4)),
        lambda x, w: ops.conv2d(x.permute(3, 2, 0, 1), w.permute(3, 2, 0, 1)),
        lambda t, x, w: t.nn.functional.conv2d(x.permute(3, 2, 0, 1), w.permute(3, 2, 0, 1)),
    ),
]
