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
_CONV1D = {
    "plain": ((2, 3, 6), (4, 3, 3), {}),
    "no_bias": ((2, 3, 6), (4, 3, 2), {"bias": False, "stride": 2}),
    "one_row": ((3, 6), (4, 3, 3), {"padding": 1}),
    "all": ((2, 4, 9), (6, 2, 3), {"stride": 2, "padding": (2,), "dilation": 2, "groups": 2}),
    "same": ((2, 2, 5), (3, 2, 4), {"padding": "same"}),
    "empty_batch": ((0, 3, 5), (4, 3, 3), {}),
}
_TRANSPOSED2D = {
    "plain": ((2, 3, 2, 3), (3, 4, 3, 3), {}),
    "no_bias": ((2, 3, 3, 2), (3, 2, 4, 4), {"bias": False, "stride": 2, "padding": 1}),
    "one_image": ((3, 2, 3), (3, 2, 2, 3), {"stride": (2, 1)}),
    "all": ((2, 4, 3, 2), (4, 3, 3, 2), {
        "stride": (2, 3), "padding": (1, 0), "output_padding": (1, 2), "groups": 2, "dilation": (1, 2),
    }),
    "depthwise": ((1, 3, 2, 2), (3, 2, 3, 3), {"groups": 3}),
    "stride_beyond_kernel": ((1, 2, 2, 3), (2, 2, 2, 2), {"stride": 3}),
    "end_beyond_stride": ((1, 2, 3, 2), (2, 2, 2, 2), {"dilation": 3, "output_padding": 2}),
    "empty_batch": ((0, 3, 2, 2), (3, 2, 2, 2), {}),
}
_TRANSPOSED1D = {
    "plain": ((2, 3, 4), (3, 4, 3), {}),
    "one_row": ((3, 4), (3, 2, 3), {"bias": False, "stride": 2}),
    "all": ((2, 4, 4), (4, 3, 3), {"stride": 3, "padding": 1, "output_padding": 2, "groups": 2, "dilation": 2}),
}


def _convolution(op, label, image, weight, bias=True, **options):
    outputs = weight[1] * options.get("groups", 1) if "transpose" in op else weight[0]
    shapes = (image, weight, (outputs,)) if bias else (image, weight)
    absent = () if bias else (None,)
    return Case(
        op,
        label,
        normal(*shapes),
        lambda *a: getattr(ops, op)(*a, *absent, **options),
        lambda t, *a: getattr(t.nn.functional, op)(*a, *absent, **options),
    )


_ALL = {"conv2d": _CONV2D, "conv1d": _CONV1D, "conv_transpose2d": _TRANSPOSED2D, "conv_transpose1d": _TRANSPOSED1D}
CASES = [
    _convolution(op, label, image, weight, **options)
    for op, cases in _ALL.items()
    for label, (image, weight, options) in cases.items()
] + [
    Case(
        "conv2d",
        "transposed_memory",
        normal((4, 5, 3, 2), (3, 3, 3, 4)),
        lambda x, w: ops.conv2d(x.permute(3, 2, 0, 1), w.permute(3, 2, 0, 1)),
        lambda t, x, w: t.nn.functional.conv2d(x.permute(3, 2, 0, 1), w.permute(3, 2, 0, 1)),
    ),
]
