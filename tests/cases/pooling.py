"""Cases for minigrad/ops/pooling.py."""

from minigrad import ops
from tests.cases.case import Case, normal

_BOTH = {
    "plain": ((2, 3, 4, 6), (2,), {}),
    "one_image": ((3, 4, 6), (2,), {}),
    "kernels": ((2, 2, 5, 7), ((2, 3),), {}),
    "cut_off": ((2, 2, 5, 7), (2,), {}),
    "overlap": ((2, 2, 6, 5), (3,), {"stride": 1}),
    "strides": ((2, 2, 7, 6), (2,), {"stride": (3, 1)}),
    "padding": ((2, 2, 5, 6), (3,), {"stride": 2, "padding": 1}),
    "paddings": ((2, 2, 5, 6), ((3, 2),), {"stride": 2, "padding": (0, 1)}),
    "ceil_mode": ((2, 2, 5, 6), (3,), {"stride": 2, "ceil_mode": True}),
    "ceil_mode_dropped": ((1, 2, 4, 4), (2,), {"stride": 3, "padding": 1, "ceil_mode": True}),
    "one_pixel": ((2, 3, 1, 1), (1,), {}),
    "empty_batch": ((0, 3, 4, 4), (2,), {}),
}
_MAX = {
    "dilation": ((2, 2, 6, 7), (2,), {"dilation": 2, "stride": 1}),
    "dilation_padding": ((2, 2, 6, 7), (3,), {"dilation": (2, 1), "padding": (1, 0)}),
}
_AVG = {
    "count_inside": ((2, 2, 5, 6), (3,), {"stride": 2, "padding": 1, "count_include_pad": False}),
    "ceil_count_inside": ((1, 2, 5, 6), (3,), {"stride": 2, "ceil_mode": True, "count_include_pad": False}),
    "ceil_padding": ((1, 2, 5, 6), (2,), {"stride": 3, "padding": 1, "ceil_mode": True}),
}
_ADAPTIVE = {
    "one": ((2, 3, 4, 5), 1),
    "even": ((2, 3, 4, 6), (2, 3)),
    "uneven": ((2, 3, 7, 5), (3, 4)),
    "larger": ((1, 2, 3, 2), (5, 4)),
    "kept": ((2, 2, 3, 4), (None, 2)),
    "one_image": ((3, 4, 5), 2),
    "empty_batch": ((0, 3, 4, 4), 2),
}
_ROWS = {
    "max_pool1d": {
        "plain": ((2, 3, 7), (2,), {}),
        "all": ((2, 2, 8), (3,), {"stride": 2, "padding": 1, "dilation": 2, "ceil_mode": True}),
        "one_row": ((3, 6), ((3,),), {"stride": 1}),
    },
    "avg_pool1d": {
        "plain": ((2, 3, 7), (2,), {}),
        "all": ((2, 2, 8), (3, 2, 1), {"ceil_mode": True, "count_include_pad": False}),
        "one_row": ((3, 6), (3,), {"stride": 1}),
    },
    "adaptive_avg_pool1d": {
        "uneven": ((2, 3, 7), (3,), {}),
        "larger": ((2, 2, 3), ((5,),), {}),
        "one_row": ((3, 6), (2,), {}),
    },
}


def _pool(op, label, shape, arguments, options):
    return Case(
        op,
        label,
        normal(shape),
        lambda x: getattr(ops, op)(x, *arguments, **options),
        lambda t, x: getattr(t.nn.functional, op)(x, *arguments, **options),
    )


CASES = (
    [_pool("max_pool2d", label, *case) for label, case in (_BOTH | _MAX).items()]
    + [_pool("avg_pool2d", label, *case) for label, case in (_BOTH | _AVG).items()]
    + [
        _pool("adaptive_avg_pool2d", label, shape, (output_size,), {})
        for label, (shape, output_size) in _ADAPTIVE.items()
    ]
    + [_pool(op, label, *case) for op, cases in _ROWS.items() for label, case in cases.items()]
)
