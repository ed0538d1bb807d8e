"""What operations and their arguments refuse."""

from types import SimpleNamespace

import numpy as np

import minigrad
from minigrad import Tensor, data, nn, ops, optim
from minigrad.arguments import as_integer, as_real, check_choice, check_real, check_switch
from minigrad.errors import (
    ArgumentError,
    AutogradError,
    DeviceError,
    DivisionByZeroError,
    DtypeError,
    IndexRangeError,
    MinigradError,
    ShapeError,
)
from minigrad.nn import init
from tests.refusals import each, run
from tests.unit.ops.test_arguments import X
from tests.unit.ops.test_convolve import tensor
from tests.unit.ops.test_losses import LABELS, LOGITS
from tests.unit.ops.test_noise import ones
from tests.unit.ops.test_precision import vector

IMAGES = Tensor(np.ones((2, 4, 3, 3), np.float32))


def torch_like():
    """What has a dtype that is not NumPy's."""
    return SimpleNamespace(dtype=SimpleNamespace())


ROWS = [
    # activation
    (lambda: ops.gelu(Tensor(np.ones(2)), approximate="erf"), ArgumentError, "gelu: expected approximate to be one"),
    (lambda: ops.softplus(Tensor(np.ones(2)), beta=0), ArgumentError, "softplus: expected beta other than 0, got 0"),
    (lambda: ops.celu(X, alpha=0), ArgumentError, "celu: expected alpha other than 0, got 0"),
    (lambda: ops.hardtanh(X, 2, 1), ArgumentError, "hardtanh: expected min_val <= max_val, got 2 and 1"),
    (lambda: ops.hardtanh(X, None), ArgumentError, "hardtanh: expected min_val to be a number, got None"),
    (lambda: ops.softshrink(X, -1), ArgumentError, "softshrink: expected lambd to be a finite number >= 0, got -1"),
    *each(
        (lambda x, dim: ops.glu(x, dim), ShapeError),
        (X, -1, r"glu: expected an axis of even length, got axis -1 of \(2, 3\)"),
        (X, 2, r"glu: expected an axis in \[-2, 2\), got 2"),
        (minigrad.tensor(1.0), 0, r"glu: expected an axis of even length, got axis 0 of \(\)"),
    ),
    *each(
        (lambda x, weight: ops.prelu(x, weight), ShapeError),
        (X, minigrad.ones(2), r"prelu: expected weight of shape .* got \(2,\) for \(2, 3\)"),
        (X, minigrad.ones(1, 1), r"prelu: expected weight of shape .* got \(1, 1\) for \(2, 3\)"),
    ),
    (lambda: ops.prelu(X, minigrad.tensor([1])), DtypeError, r"prelu: expected a float tensor, got int64 \(1,\)"),
    (lambda: ops.prelu(X, minigrad.ones(1).double()), DtypeError, "prelu: expected operands of one float dtype"),
    (lambda: ops.glu(minigrad.tensor([1, 2])), DtypeError, r"glu: expected a float tensor, got int64 \(2,\)"),
    *each(
        (lambda name: getattr(ops, name)(Tensor(np.ones((2, 3))), 2), ShapeError, r"%s: expected an axis in \[-2, 2\)"),
        *["softmax", "log_softmax"],
    ),
    # arguments
    (lambda: X.sum(0, 1), ArgumentError, "sum: expected keepdim to be True or False, got 1"),
    (lambda: X.amax(0, 1), ArgumentError, "amax: expected keepdim"),
    (lambda: X.max(0, 1), ArgumentError, "max: expected keepdim"),
    (lambda: X.argmax(0, None), ArgumentError, "argmax: expected keepdim"),
    (lambda: X.all(0, None), ArgumentError, "all: expected keepdim"),
    (lambda: X.var(0, 1), ArgumentError, "var: expected unbiased to be True or False, got 1"),
    (lambda: X.std(correction="1"), ArgumentError, "std: expected correction to be a number, got '1'"),
    (lambda: X.size(0.5), ShapeError, r"size: expected an axis of shape \(2, 3\), got 0.5"),
    (lambda: X.broadcast_to(3), ArgumentError, "broadcast_to: expected shape to be a list or a tuple, got 3"),
    (lambda: X.unflatten(1, 3), ArgumentError, "unflatten: expected sizes to be a list or a tuple, got 3"),
    (lambda: minigrad.tensor(1.0).unflatten(0, (1,)), ShapeError, r"at least one axis, got shape \(\)"),
    (lambda: X.narrow(1, 0, "2"), DtypeError, "narrow: expected integers, got '2'"),
    (lambda: ops.pad(X, 1), ArgumentError, "pad: expected pad to be a list or a tuple, got 1"),
    (lambda: ops.one_hot(minigrad.tensor([1]), "3"), ArgumentError, "one_hot: expected num_classes to be an integer"),
    (lambda: ops.embedding(X, minigrad.tensor([0]), (1,)), ArgumentError, "expected padding_idx to be an integer"),
    (lambda: ops.embedding(X, minigrad.tensor([0]), 2), IndexRangeError, r"padding_idx in \[0, 2\), got 2"),
    (lambda: ops.cross_entropy(X, minigrad.tensor([0, 1]), ignore_index=None), ArgumentError, "expected ignore_index"),
    (lambda: ops.nll_loss(X, minigrad.tensor([0, 1]), ignore_index=[1, 2, 3]), ArgumentError, "expected ignore_index"),
    (lambda: ops.pad(X, [1, 1], value=minigrad.ones(3)), DtypeError, "pad: expected a number as value, got Tensor"),
    (lambda: ops.tril(X, 2**70), DtypeError, r"tril: expected an integer diagonal of less than 2\*\*48, got 118"),
    (lambda: ops.dropout(X, 0.5, np.ones(2)), ArgumentError, "dropout: expected training to be True or False"),
    (lambda: ops.batch_norm(X, X, X, training=np.ones(2)), ArgumentError, "batch_norm: expected training to be True"),
    (lambda: ops.max_pool2d(IMAGES, 2, ceil_mode=X), ArgumentError, "max_pool2d: expected ceil_mode to be True or"),
    (lambda: ops.avg_pool2d(IMAGES, 2, count_include_pad=1), ArgumentError, "avg_pool2d: expected count_include_pad"),
    (lambda: ops.avg_pool2d(IMAGES, 2, 2**70), ArgumentError, r"stride to be an integer >= 1 and < 2\*\*31"),
    (lambda: ops.adaptive_avg_pool2d(IMAGES, 2**70), ArgumentError, "expected output_size to be an integer"),
    (lambda: ops.getitem(X, torch_like()), DtypeError, "getitem: expected integers, slices, .* got SimpleNamespace"),
    (lambda: X.sum(dtype=torch_like()), DtypeError, "dtype: expected one of bool, .*got namespace"),
    (lambda: ops.mse_loss(X, X, np.ones(2)), ArgumentError, "mse_loss: expected reduction to be one of 'mean'"),
    (lambda: ops.layer_norm(X, "3"), DtypeError, "layer_norm: expected integers, got '3'"),
    (lambda: ops.layer_norm(None, 3), DtypeError, "layer_norm: expected tensors, got NoneType"),
    (lambda: ops.group_norm(IMAGES, 2.0), ArgumentError, "group_norm: expected num_groups to be an integer >= 1"),
    (lambda: ops.getitem("abc", 0), DtypeError, "getitem: expected a tensor, an array or a number, got str"),
    (lambda: ops.dropout(X, rng=7), ArgumentError, "dropout: expected rng to be a numpy.random.Generator, got int"),
    (lambda: minigrad.normal(0.0), ArgumentError, "normal: expected a size, or a tensor for mean or std"),
    (lambda: minigrad.randn(2, rng=0), ArgumentError, "randn: expected rng to be a numpy.random.Generator, got int"),
    (lambda: minigrad.rand(2, rng="a"), ArgumentError, "rand: expected rng"),
    (lambda: minigrad.randint(2, size=2, rng=1), ArgumentError, "randint: expected rng"),
    (lambda: minigrad.randperm(2, rng=1), ArgumentError, "randperm: expected rng"),
    (lambda: minigrad.randperm(2**70), ArgumentError, r"randperm: expected n to be an integer in \[0, 2\*\*48\)"),
    (lambda: minigrad.randint(2**70, size=2), ArgumentError, "randint: expected a range that fits into int64"),
    (lambda: minigrad.randint(257, size=2, dtype="uint8"), ArgumentError, r"fits into uint8, got \[0, 257\)"),
    (lambda: minigrad.arange(2**70), ShapeError, r"arange: expected integers of less than 2\*\*48"),
    (lambda: minigrad.linspace(0, 1, 2**70), ArgumentError, r"linspace: expected steps .* \[0, 2\*\*48\)"),
    (lambda: minigrad.randn_like([1.0]), DtypeError, "randn_like: expected a Tensor, got list"),
    (lambda: minigrad.empty_like(3), DtypeError, "empty_like: expected a Tensor, got int"),
    (lambda: minigrad.zeros(2, device=np.ones(2)), DeviceError, "expected 'cpu' or 'cuda:<index>'"),
    (lambda: minigrad.zeros(2, requires_grad=1), ArgumentError, "expected requires_grad to be True or False, got 1"),
    (lambda: minigrad.zeros(10**30), ShapeError, r"zeros: expected integers of less than 2\*\*48"),
    (lambda: minigrad.zeros(2**30, 2**30), ShapeError, r"zeros: expected fewer than 2\*\*48 elements"),
    (lambda: minigrad.full((2,), float("inf"), dtype="int64"), DtypeError, "a value that fits into int64, got inf"),
    (lambda: minigrad.from_dlpack(np.array(["a"])), DtypeError, "from_dlpack: expected data that a tensor can hold"),
    (lambda: minigrad.set_rng_state(np.ones(2)), ArgumentError, "set_rng_state: expected what get_rng_state returned"),
    (lambda: init.calculate_gain(np.ones(2)), ArgumentError, "calculate_gain: expected nonlinearity to be one of"),
    (lambda: init.kaiming_normal_(X, mode=np.ones(2)), ArgumentError, "expected mode to be one of 'fan_in'"),
    (lambda: nn.Linear((2, 3), 1), ArgumentError, r"Linear: expected in_features to be an integer >= 1, got \(2, 3\)"),
    (lambda: nn.Unflatten("1", (2, 3)), ArgumentError, "Unflatten: expected dim to be an integer, got '1'"),
    (lambda: nn.Unflatten(1, 6), ArgumentError, "expected unflattened_size to be a list or a tuple, got 6"),
    (lambda: nn.ModuleList(nn.Linear(2, 2)), DtypeError, "ModuleList: expected several Modules, got Linear"),
    (lambda: nn.ModuleDict([1]), DtypeError, "ModuleDict: expected a mapping of names to Modules, got list"),
    (lambda: optim.Piecewise(5, [1]), ArgumentError, "Piecewise: expected a list of schedules, got 5"),
    (lambda: data.Subset(5, [0]), ArgumentError, "Subset: expected a dataset with __len__ and __getitem__, got 5"),
    (lambda: data.Subset([1, 2], [[0], [0, 1]]), DtypeError, "Subset: expected a sequence of integers"),
    (lambda: data.random_split(5, [5]), ArgumentError, "random_split: expected a dataset"),
    (lambda: data.random_split([1, 2], 2), ArgumentError, "expected lengths to be a list or a tuple, got 2"),
    (lambda: data.default_collate(5), ArgumentError, "collate: expected a list of samples, got int"),
    (lambda: data.DataLoader([1, 2], shuffle=1), ArgumentError, "expected shuffle to be True or False, got 1"),
    (lambda: data.DataLoader([1, 2], drop_last=X), ArgumentError, "expected drop_last to be True or False"),
    *each(
        (run, MinigradError),
        (lambda: as_real("who", "x", 2, 0, 1), r"who: expected x to be a number in \[0, 1\], got 2"),
        (lambda: as_real("who", "x", -1, 0), "who: expected x to be a number >= 0, got -1"),
        (lambda: as_integer("who", "n", 1.0), "who: expected n to be an integer, got 1.0"),
        (lambda: check_real("who", x=float("inf")), "who: expected x to be a finite number, got inf"),
        (lambda: check_choice("who", ("a", "b"), x=["a"]), r"who: expected x to be one of 'a', 'b', got \['a'\]"),
        (lambda: check_switch("who", x=0), "who: expected x to be True or False, got 0"),
        who="^",
    ),
    # convolve
    *each(
        lambda x, weight, options: ops.conv2d(tensor(*x), tensor(*weight), **options),
        ((2, 3, 5, 5), (4, 3, 7, 3), {}, ShapeError, r"window \(7, 3\).*\(5, 5\)"),
        ((2, 3, 5, 5), (4, 3, 3, 3), {"dilation": 3}, ShapeError, r"window \(7, 7\)"),
        ((2, 3, 0, 5), (4, 3, 1, 1), {}, ShapeError, r"\(2, 3, 0, 5\)"),
        ((2, 3, 5, 5), (4, 2, 3, 3), {}, ShapeError, r"2 channels.*\(2, 3, 5, 5\)"),
        ((2, 3, 5, 5), (4, 3, 3), {}, ShapeError, r"\(4, 3, 3\)"),
        ((5, 5), (4, 3, 3, 3), {}, ShapeError, r"\(5, 5\)"),
        ((2, 3, 5, 5), (4, 3, 0, 3), {}, ShapeError, r"empty axes.*\(4, 3, 0, 3\)"),
        ((2, 3, 5, 5), (4, 3, 3, 3), {"groups": 3}, ArgumentError, r"divide the 4 output channels, got 3"),
        ((2, 3, 5, 5), (4, 3, 3, 3), {"groups": 0}, ArgumentError, r"groups.*got 0"),
        ((2, 3, 5, 5), (4, 3, 3, 3), {"stride": 0}, ArgumentError, r"stride.*>= 1.*got 0"),
        ((2, 3, 5, 5), (4, 3, 3, 3), {"stride": (1, 2, 3)}, ArgumentError, r"stride.*\(1, 2, 3\)"),
        ((2, 3, 5, 5), (4, 3, 3, 3), {"padding": -1}, ArgumentError, r"padding.*>= 0.*got -1"),
        ((2, 3, 5, 5), (4, 3, 3, 3), {"padding": "full"}, ArgumentError, r"'same', 'valid'.*'full'"),
        ((2, 3, 5, 5), (4, 3, 3, 3), {"padding": "same", "stride": 2}, ArgumentError, r"stride 1.*\(2, 2\)"),
        ((2, 3, 5, 5), (4, 3, 3, 3), {"dilation": 0}, ArgumentError, r"dilation.*got 0"),
        ((2, 3, 5, 5), (4, 3, 3, 3), {"bias": tensor(3)}, ShapeError, r"bias of shape \(4,\), got \(3,\)"),
        ((2, 3, 5, 5), (4, 3, 3, 3), {"bias": tensor(4, dtype=np.float64)}, DtypeError, r"float32.*float64"),
        ((2, 3, 5, 5), (4, 3, 3, 3), {"bias": 0.0}, DtypeError, r"tensors, got float"),
        who="conv2d: expected .*",
    ),
    *each(
        lambda x, weight, options: ops.conv1d(tensor(*x), tensor(*weight), **options),
        ((2, 3, 5), (4, 3, 7), {}, ShapeError, r"window \(7,\) that fits into padded rows of \(5,\), got x \(2, 3, 5"),
        ((2, 3, 5), (4, 3, 3, 3), {}, ShapeError, r"x \(N, C, L\) and weight \(O, C / groups, K\)"),
        ((2, 3, 5), (4, 3, 3), {"stride": (1, 1)}, ArgumentError, r"stride to be an integer >= 1 .* got \(1, 1\)"),
        who="conv1d: expected .*",
    ),
    *each(
        lambda x, weight, options: ops.conv_transpose2d(tensor(*x), tensor(*weight), **options),
        ((2, 3, 5, 5), (4, 3, 3, 3), {}, ShapeError, r"4 channels for weight \(4, 3, 3, 3\), got x \(2, 3"),
        ((2, 3, 5, 5), (3, 4, 3, 3), {"groups": 2}, ArgumentError, "groups to divide the 3 input channels, got 2"),
        ((2, 3, 5, 5), (3, 4, 3, 3), {"output_padding": 1}, ArgumentError, r"output_padding less than stride \(1, 1\)"),
        ((2, 3, 5, 5), (3, 4, 3, 3), {"padding": "same"}, ArgumentError, "padding to be an integer >= 0"),
        ((2, 3, 1, 1), (3, 4, 3, 3), {"padding": 2}, ShapeError, r"is left, got x .* a size of \[-1, -1\]"),
        ((2, 3, 0, 1), (3, 4, 3, 3), {}, ShapeError, "something is left, got x"),
        ((2, 3, 5, 5), (3, 4, 0, 3), {}, ShapeError, "a weight without empty axes"),
        ((2, 3, 5, 5), (3, 4, 3, 3), {"bias": tensor(3)}, ShapeError, r"bias of shape \(4,\), got \(3,\)"),
        ((2, 3, 5, 5), (3, 4, 3, 3), {"bias": tensor(4, dtype=np.float64)}, DtypeError, r"float32.*float64"),
        who="conv_transpose2d: expected .*",
    ),
    (lambda: ops.conv_transpose1d(tensor(2, 3, 5), tensor(2, 3, 5)), ShapeError, "conv_transpose1d: .* 2 channels"),
    (
        lambda: ops.conv2d(tensor(1, 1, 3, 3, dtype=np.int64), tensor(1, 1, 2, 2)),
        DtypeError,
        "a float tensor, got int64",
    ),
    # arithmetic
    *each(
        lambda name, y: getattr(ops, name)(minigrad.tensor([1, 2]), y),
        ("floor_divide", 0, DivisionByZeroError, r"^floor_divide: expected integers other than 0 .* int64 \(\) "),
        ("fmod", 0, DivisionByZeroError, r"^fmod: expected integers other than 0 .* int64 \(\) "),
        ("remainder", minigrad.tensor([2, 0]), DivisionByZeroError, r"^remainder: .* got int64 \(2,\) with 0 in"),
        ("remainder", minigrad.tensor([2, 0], dtype="uint8"), ZeroDivisionError, "got int64"),
    ),
    *each(
        (lambda name: getattr(ops, name)(True, Tensor(np.array([True]))), DtypeError, "%s: expected numbers, got bool"),
        *["floor_divide", "fmod", "remainder"],
    ),
    (lambda: ops.pad(minigrad.tensor([1]), (1, 1), value=float("nan")), DtypeError, "that fits into int64, got nan"),
    # elementwise
    (lambda: ops.round(X, decimals=0.5), ArgumentError, "round: expected decimals to be an integer, got 0.5"),
    (lambda: minigrad.tensor([1]).round(decimals=1), DtypeError, "round: expected a float tensor, got int64"),
    *each(
        (lambda name: getattr(ops, name)(Tensor(np.array([True, False]))), DtypeError, "%s: expected numbers"),
        *["abs", "ceil", "floor", "relu", "round"],
    ),
    (lambda: Tensor(np.array([1], np.uint8)).clamp(-1, 5), DtypeError, "clamp: expected a number that fits into uint8"),
    # extremum
    *each(
        (lambda name: getattr(ops, name)(Tensor(np.ones((0, 3))), 0), ShapeError, "%s: expected at least one element"),
        *["max", "min", "amax", "amin", "argmax", "argmin"],
    ),
    *each(
        (lambda name: getattr(ops, name)(Tensor(np.ones((0,)))), ShapeError, "%s: expected at least one element"),
        *["max", "min", "amax", "amin", "argmax", "argmin"],
    ),
    *each(
        (lambda name: getattr(ops, name)(Tensor(np.ones((2, 3))), 2), ShapeError, r"%s: expected an axis in \[-2, 2\)"),
        *["max", "min", "amax", "amin", "argmax", "argmin"],
    ),
    # losses
    (lambda: ops.cross_entropy(Tensor(np.zeros(3)), Tensor(np.asarray(5))), IndexRangeError, r"got 5 at position \(\)"),
    (lambda: ops.cross_entropy(LOGITS, Tensor(LABELS[:1])), ShapeError, r"labels of shape \(2, 4\).*\(1, 4\)"),
    (lambda: ops.cross_entropy(LOGITS, Tensor(LABELS == 0)), DtypeError, "integers, got bool"),
    (lambda: ops.cross_entropy(LOGITS, LABELS), DtypeError, "integers, got ndarray"),
    (lambda: ops.cross_entropy(LOGITS, Tensor(np.zeros((2, 4)))), ShapeError, r"\(2, 3, 4\) and \(2, 4\)"),
    (lambda: ops.cross_entropy(Tensor(LABELS), Tensor(LABELS)), DtypeError, "float tensor, got int64"),
    (lambda: ops.cross_entropy(Tensor(np.zeros((2, 0))), Tensor(LABELS[0])), ShapeError, r"C >= 1, got \(2, 0\)"),
    (lambda: ops.cross_entropy(Tensor(np.asarray(0.0)), Tensor(LABELS)), ShapeError, r"got \(\)"),
    (lambda: ops.cross_entropy(LOGITS, Tensor(LABELS), reduction="avg"), ArgumentError, "'none', got 'avg'"),
    (lambda: ops.cross_entropy(LOGITS, Tensor(LABELS), label_smoothing=1.5), ArgumentError, r"\[0, 1\], got 1.5"),
    (lambda: ops.cross_entropy(LOGITS, Tensor(LABELS), Tensor(np.ones(4))), ShapeError, r"\(3,\), got \(4,\)"),
    (lambda: ops.cross_entropy(LOGITS, Tensor(LABELS), Tensor(np.ones(3, "f"))), DtypeError, "float64, got float32"),
    (lambda: ops.cross_entropy(LOGITS, Tensor(LABELS), Tensor(np.ones(3), True)), AutogradError, "without gradient"),
    (lambda: ops.mse_loss(LOGITS, Tensor(np.zeros((3, 4)))), ShapeError, r"\(2, 3, 4\) and \(3, 4\)"),
    (lambda: ops.mse_loss(LOGITS, Tensor(LABELS)), ShapeError, "one shape"),
    (lambda: ops.l1_loss(LOGITS, LOGITS.numpy()), DtypeError, "tensors, got ndarray"),
    (lambda: ops.l1_loss(LOGITS, Tensor(np.zeros((2, 3, 4), np.float32))), DtypeError, "float64 and float32"),
    (lambda: ops.huber_loss(LOGITS, LOGITS, delta=0.0), ArgumentError, "delta > 0, got 0"),
    (lambda: ops.smooth_l1_loss(LOGITS, LOGITS, beta=-1.0), ArgumentError, "beta to be a number >= 0, got -1.0"),
    (
        lambda: ops.binary_cross_entropy_with_logits(LOGITS, LOGITS, pos_weight=Tensor(np.ones(3))),
        ShapeError,
        r"pos_weight to broadcast to \(2, 3, 4\), got \(3,\)",
    ),
    # noise
    *each(
        (lambda p: ops.dropout(ones(2), p), ArgumentError, r"dropout: expected p to be a number in \[0, 1\], got"),
        *[-0.1, 1.1, float("nan")],
    ),
    (lambda: ops.dropout(Tensor(np.zeros(3, np.int64))), DtypeError, "dropout: expected a float tensor, got int64"),
    (lambda: ops.dropout2d(ones(3, 4)), ShapeError, r"dropout2d: expected x of shape \(N, C, H, W\), got \(3, 4\)"),
    # pooling
    (lambda: ops.adaptive_avg_pool2d(Tensor(np.zeros((1, 2, 0, 4))), 1), ShapeError, r"with pixels, got \(1, 2, 0"),
    *each(
        lambda name, *rest: getattr(ops, name)(tensor(3, 4), *rest),
        ("max_pool1d", 5, ShapeError, r"max_pool1d: .* window \(5,\) .* padded rows of \(4,\), got x \(3, 4"),
        ("avg_pool1d", (2, 2), ArgumentError, r"avg_pool1d: expected kernel_size to be an integer .* got \(2, 2\)"),
        ("adaptive_avg_pool1d", 0, ArgumentError, "adaptive_avg_pool1d: expected output_size to be an integer >= 1"),
    ),
    (lambda: ops.max_pool1d(tensor(3), 1), ShapeError, r"max_pool1d: expected x of shape \(N, C, L\) or \(C, L\)"),
    # interpolate
    *each(
        lambda shape, options: ops.interpolate(tensor(*shape), **options),
        ((2, 3, 4), {}, ArgumentError, "size or scale_factor, got size=None and scale_factor=None"),
        ((2, 3, 4), {"size": 2, "scale_factor": 2}, ArgumentError, "size or scale_factor, got size=2"),
        ((2, 3, 4), {"size": (2, 2)}, ArgumentError, r"size with 1 values, got \(2, 2\)"),
        ((2, 3, 4), {"size": 0}, ArgumentError, "size to be an integer >= 1, got 0"),
        ((2, 3, 4), {"size": 2.0}, ArgumentError, "size to be an integer >= 1, got 2.0"),
        ((2, 3, 4), {"scale_factor": 0}, ArgumentError, "scale_factor to be a finite number > 0, got 0"),
        ((2, 3, 4), {"scale_factor": 0.1}, ShapeError, r"lengths of at least 1, got x \(2, 3, 4\) to \(0,\)"),
        ((2, 3, 0), {"size": 2}, ShapeError, "lengths of at least 1, got x"),
        ((2, 3, 4), {"size": 2, "mode": "trilinear"}, ArgumentError, "mode to be one of .* got 'trilinear'"),
        ((2, 3, 4), {"size": 2, "mode": "bilinear"}, ShapeError, r"x of shape \(N, C, H, W\) for mode 'bilinear', got"),
        ((3, 4), {"size": 2}, ShapeError, r"\(N, C, L\) or \(N, C, H, W\) for mode 'nearest', got \(3, 4"),
        ((2, 3, 4), {"size": 2, "align_corners": False}, ArgumentError, "no align_corners for mode 'nearest', got"),
        ((2, 3, 4), {"size": 2, "recompute_scale_factor": True}, ArgumentError, "recompute_scale_factor with scale_"),
        ((2, 3, 4, 4), {"size": 2, "mode": "bilinear", "antialias": True}, ArgumentError, "antialias=False, got True"),
        who="interpolate: expected .*",
    ),
    (lambda: ops.interpolate(tensor(2, 3, 4, dtype=np.int64), 2), DtypeError, "interpolate: expected a float tensor"),
    (lambda: ops.instance_norm(tensor(2, 3, 1, 1)), ShapeError, "instance_norm: expected several values for each"),
    (lambda: ops.instance_norm(tensor(2, 3, 4), use_input_stats=False), ArgumentError, "instance_norm: .* got None"),
    (lambda: ops.threshold(X, None, 0), ArgumentError, "threshold: expected threshold to be a finite number, got None"),
    (lambda: ops.hardshrink(X, float("inf")), ArgumentError, "hardshrink: expected lambd to be a finite number"),
    (lambda: ops.softmin(minigrad.tensor([1]), 0), DtypeError, "softmin: expected a float tensor, got int64"),
    # precision
    (lambda: vector(4, 6) + vector(4, 6).to("float16"), DtypeError, "one float dtype"),
    # reduce
    *each(
        (lambda name: getattr(ops, name)(Tensor(np.array([1, 2]))), DtypeError, "%s: expected a float tensor"),
        *["mean", "var", "std", "norm"],
    ),
    *each(
        (lambda name: getattr(ops, name)(Tensor(np.ones((2, 3))), (0, 1)), ShapeError, r"%s: expected an axis in \[-2"),
        *["prod", "cumsum"],
    ),
    *each(
        (
            lambda name: getattr(ops, name)(Tensor(np.ones(3)), unbiased=True, correction=1),
            ArgumentError,
            "%s: expected unbiased or correction, got both: True and 1",
        ),
        *["var", "std"],
    ),
]
