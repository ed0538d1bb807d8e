"""The layers: constructed with care, initialised as PyTorch's, and each no more than its operation."""

import math

import numpy as np
import pytest

import minigrad
from minigrad import Tensor, manual_seed, nn, ops
from minigrad.errors import DeviceError, DtypeError, ShapeError
from minigrad.testing import assert_close


def normal(*shape, seed=0, dtype=np.float32):
    return Tensor(np.asarray(np.random.default_rng(seed).standard_normal(shape)).astype(dtype))


def integers(high, *shape):
    return Tensor(np.random.default_rng(0).integers(0, high, shape))


IMAGE, SERIES, ROWS = (2, 4, 6, 6), (2, 4, 6), (5, 4)
PADS = {"Zero": "constant", "Reflection": "reflect", "Replication": "replicate", "Circular": "circular"}

# a layer, the shape of its input, and the call of the operation that it stands for
CALLS = {
    "Linear": (lambda: nn.Linear(4, 3), ROWS, lambda m, x: ops.linear(x, m.weight, m.bias)),
    "Linear without bias": (lambda: nn.Linear(4, 3, bias=False), ROWS, lambda m, x: ops.linear(x, m.weight)),
    "Conv2d": (
        lambda: nn.Conv2d(4, 6, (3, 2), stride=2, padding=(1, 0), dilation=(1, 2), groups=2),
        IMAGE,
        lambda m, x: ops.conv2d(x, m.weight, m.bias, 2, (1, 0), (1, 2), 2),
    ),
    "Conv2d without bias": (
        lambda: nn.Conv2d(4, 2, 3, padding="same", bias=False),
        IMAGE,
        lambda m, x: ops.conv2d(x, m.weight, padding=1),
    ),
    "Conv1d": (
        lambda: nn.Conv1d(4, 6, 3, 2, 1, 2, 2),
        SERIES,
        lambda m, x: ops.conv1d(x, m.weight, m.bias, 2, 1, 2, 2),
    ),
    "ConvTranspose1d": (
        lambda: nn.ConvTranspose1d(4, 6, 3, 2, 1, 1, 2, True, 2),
        SERIES,
        lambda m, x: ops.conv_transpose1d(x, m.weight, m.bias, 2, 1, 1, 2, 2),
    ),
    "ConvTranspose2d": (
        lambda: nn.ConvTranspose2d(4, 6, (3, 2), 2, (1, 0), 1, 2, False, (1, 2)),
        IMAGE,
        lambda m, x: ops.conv_transpose2d(x, m.weight, None, 2, (1, 0), 1, 2, (1, 2)),
    ),
    "InstanceNorm1d": (
        lambda: nn.InstanceNorm1d(4, 0.1, affine=True),
        SERIES,
        lambda m, x: ops.instance_norm(x, None, None, m.weight, m.bias, eps=0.1),
    ),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(4), IMAGE, lambda m, x: ops.instance_norm(x)),
    **{
        f"{kind}Pad{axes}d": (
            lambda kind=kind, axes=axes: getattr(nn, f"{kind}Pad{axes}d")((1, 2) * axes),
            shape,
            lambda m, x, mode=mode, axes=axes: ops.pad(x, (1, 2) * axes, mode),
        )
        for kind, mode in PADS.items()
        for axes, shape in ((1, SERIES), (2, IMAGE))
    },
    "ConstantPad1d": (lambda: nn.ConstantPad1d(1, 0.5), SERIES, lambda m, x: ops.pad(x, (1, 1), value=0.5)),
    "ConstantPad2d": (lambda: nn.ConstantPad2d(1, 2), IMAGE, lambda m, x: ops.pad(x, (1, 1, 1, 1), value=2)),
    "PixelShuffle": (lambda: nn.PixelShuffle(2), IMAGE, lambda m, x: ops.pixel_shuffle(x, 2)),
    "PixelUnshuffle": (lambda: nn.PixelUnshuffle(3), IMAGE, lambda m, x: ops.pixel_unshuffle(x, 3)),
    "Upsample": (
        lambda: nn.Upsample(None, (1.5, 2), "bilinear", False, True),
        IMAGE,
        lambda m, x: ops.interpolate(x, None, (1.5, 2), "bilinear", False, True),
    ),
    "UpsamplingNearest2d": (lambda: nn.UpsamplingNearest2d(3), IMAGE, lambda m, x: ops.interpolate(x, 3)),
    "UpsamplingBilinear2d": (
        lambda: nn.UpsamplingBilinear2d(None, 2),
        IMAGE,
        lambda m, x: ops.interpolate(x, None, 2, "bilinear", True),
    ),
    "Threshold": (lambda: nn.Threshold(0.1, 2), ROWS, lambda m, x: ops.threshold(x, 0.1, 2)),
    "Hardshrink": (lambda: nn.Hardshrink(0.2), ROWS, lambda m, x: ops.hardshrink(x, 0.2)),
    "Softmin": (lambda: nn.Softmin(0), ROWS, lambda m, x: ops.softmin(x, 0)),
    "Softmax2d": (nn.Softmax2d, IMAGE, lambda m, x: ops.softmax(x, 1)),
    "MaxPool1d": (
        lambda: nn.MaxPool1d(3, 1, 1, 2, ceil_mode=True),
        SERIES,
        lambda m, x: ops.max_pool1d(x, 3, 1, 1, 2, True),
    ),
    "AvgPool1d": (lambda: nn.AvgPool1d(3, 2, 1), SERIES, lambda m, x: ops.avg_pool1d(x, 3, 2, 1)),
    "AdaptiveAvgPool1d": (lambda: nn.AdaptiveAvgPool1d(2), SERIES, lambda m, x: ops.adaptive_avg_pool1d(x, 2)),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), IMAGE, lambda m, x: ops.max_pool2d(x, 2)),
    "MaxPool2d with all": (
        lambda: nn.MaxPool2d((3, 2), 1, (1, 0), 2, ceil_mode=True),
        IMAGE,
        lambda m, x: ops.max_pool2d(x, (3, 2), 1, (1, 0), 2, True),
    ),
    "AvgPool2d": (
        lambda: nn.AvgPool2d(3, 2, 1, True, False),
        IMAGE,
        lambda m, x: ops.avg_pool2d(x, 3, 2, 1, True, False),
    ),
    "AdaptiveAvgPool2d": (
        lambda: nn.AdaptiveAvgPool2d((2, None)),
        IMAGE,
        lambda m, x: ops.adaptive_avg_pool2d(x, (2, None)),
    ),
    "AdaptiveAvgPool2d of one": (
        lambda: nn.AdaptiveAvgPool2d(3),
        IMAGE,
        lambda m, x: ops.adaptive_avg_pool2d(x, 3),
    ),
    "LayerNorm": (lambda: nn.LayerNorm(4), ROWS, lambda m, x: ops.layer_norm(x, (4,), m.weight, m.bias)),
    "LayerNorm without bias": (
        lambda: nn.LayerNorm((6, 6), eps=0.1, bias=False),
        IMAGE,
        lambda m, x: ops.layer_norm(x, (6, 6), m.weight, None, 0.1),
    ),
    "RMSNorm": (lambda: nn.RMSNorm(4), ROWS, lambda m, x: ops.rms_norm(x, 4, m.weight)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), IMAGE, lambda m, x: ops.group_norm(x, 2, m.weight, m.bias)),
    "GroupNorm without weights": (
        lambda: nn.GroupNorm(4, 4, 0.1, affine=False),
        IMAGE,
        lambda m, x: ops.group_norm(x, 4, eps=0.1),
    ),
    "ReLU": (nn.ReLU, ROWS, lambda m, x: ops.relu(x)),
    "LeakyReLU": (lambda: nn.LeakyReLU(0.2), ROWS, lambda m, x: ops.leaky_relu(x, 0.2)),
    "ELU": (lambda: nn.ELU(0.5), ROWS, lambda m, x: ops.elu(x, 0.5)),
    "GELU": (nn.GELU, ROWS, lambda m, x: ops.gelu(x)),
    "GELU by tanh": (lambda: nn.GELU("tanh"), ROWS, lambda m, x: ops.gelu(x, "tanh")),
    "SiLU": (nn.SiLU, ROWS, lambda m, x: ops.silu(x)),
    "Sigmoid": (nn.Sigmoid, ROWS, lambda m, x: ops.sigmoid(x)),
    "Tanh": (nn.Tanh, ROWS, lambda m, x: ops.tanh(x)),
    "Softplus": (lambda: nn.Softplus(2.0, 1.0), ROWS, lambda m, x: ops.softplus(x, 2.0, 1.0)),
    "Softmax": (lambda: nn.Softmax(0), ROWS, lambda m, x: ops.softmax(x, 0)),
    "LogSoftmax": (lambda: nn.LogSoftmax(-1), ROWS, lambda m, x: ops.log_softmax(x, -1)),
    "ReLU6": (nn.ReLU6, ROWS, lambda m, x: ops.relu6(x)),
    "Hardtanh": (lambda: nn.Hardtanh(-0.1, 2.0), ROWS, lambda m, x: ops.hardtanh(x, -0.1, 2.0)),
    "Hardsigmoid": (nn.Hardsigmoid, ROWS, lambda m, x: ops.hardsigmoid(x)),
    "Hardswish": (nn.Hardswish, ROWS, lambda m, x: ops.hardswish(x)),
    "Mish": (nn.Mish, ROWS, lambda m, x: ops.mish(x)),
    "LogSigmoid": (nn.LogSigmoid, ROWS, lambda m, x: ops.logsigmoid(x)),
    "Softsign": (nn.Softsign, ROWS, lambda m, x: ops.softsign(x)),
    "Tanhshrink": (nn.Tanhshrink, ROWS, lambda m, x: ops.tanhshrink(x)),
    "Softshrink": (lambda: nn.Softshrink(0.2), ROWS, lambda m, x: ops.softshrink(x, 0.2)),
    "PReLU": (nn.PReLU, ROWS, lambda m, x: ops.prelu(x, m.weight)),
    "PReLU of channels": (lambda: nn.PReLU(4, 0.1), IMAGE, lambda m, x: ops.leaky_relu(x, 0.1)),
    "CELU": (lambda: nn.CELU(0.5), ROWS, lambda m, x: ops.celu(x, 0.5)),
    "SELU": (nn.SELU, ROWS, lambda m, x: ops.selu(x)),
    "GLU": (lambda: nn.GLU(1), ROWS, lambda m, x: ops.glu(x, 1)),
    "Flatten": (nn.Flatten, IMAGE, lambda m, x: ops.flatten(x, 1)),
    "Unflatten": (lambda: nn.Unflatten(1, (2, -1)), IMAGE, lambda m, x: ops.unflatten(x, 1, (2, 2))),
    "Identity": (lambda: nn.Identity(3, any="thing"), ROWS, lambda m, x: x),
}


@pytest.mark.parametrize("make, shape, call", CALLS.values(), ids=CALLS)
def test_forward_is_the_operation(make, shape, call):
    layer, x = make(), normal(*shape)
    assert_close(layer(x), call(layer, x).data, tolerance=0)


@pytest.mark.parametrize("make, shape, call", CALLS.values(), ids=CALLS)
def test_every_parameter_gets_a_gradient_of_its_dtype(make, shape, call):
    layer = make().double()
    y = layer(normal(*shape, dtype=np.float64))
    if y.requires_grad:
        y.backward(Tensor(np.ones(y.shape)))
    assert [param.grad.dtype for param in layer.parameters()] == [np.float64] * len(list(layer.parameters()))


# ------------------------------------------------------------------------------------------------ initial values


@pytest.mark.parametrize(
    "make, fan_in",
    [
        (lambda: nn.Linear(50, 400), 50),
        (lambda: nn.Conv2d(20, 60, (5, 3), groups=2), 150),
        (lambda: nn.Conv1d(40, 200, 5), 200),
        (lambda: nn.ConvTranspose2d(60, 200, (5, 3), groups=5), 600),
    ],
    ids=["Linear", "Conv2d", "Conv1d", "ConvTranspose2d"],
)
def test_weights_start_uniform_within_one_over_root_fan_in(make, fan_in):
    manual_seed(0)
    layer, bound = make(), 1 / math.sqrt(fan_in)
    weight, bias = layer.weight.data, layer.bias.data
    assert 0.999 * bound < np.abs(weight).max() <= bound * (1 + 1e-6)
    assert abs(weight.var() / (bound**2 / 3) - 1) < 0.03 and abs(weight.mean()) < 0.03 * bound
    assert 0.8 * bound < np.abs(bias).max() <= bound and np.unique(bias).size == bias.size


def test_embedding_starts_normal():
    manual_seed(0)
    weight = nn.Embedding(200, 100).weight.data
    assert abs(weight.std() - 1) < 0.02 and abs(weight.mean()) < 0.02


def test_norms_start_as_identity():
    for layer in (nn.BatchNorm1d(4), nn.BatchNorm2d(4), nn.LayerNorm((2, 2)), nn.GroupNorm(2, 4)):
        assert (layer.weight.data == 1).all() and not layer.bias.data.any()
        assert layer.weight.dtype == np.float32
    norm = nn.BatchNorm2d(4)
    assert not norm.running_mean.data.any() and (norm.running_var.data == 1).all()
    assert norm.num_batches_tracked.dtype == np.int64 and norm.num_batches_tracked.item() == 0


MADE = [
    lambda **kwargs: nn.Linear(2, 2, **kwargs),
    lambda **kwargs: nn.Conv2d(2, 2, 1, **kwargs),
    lambda **kwargs: nn.BatchNorm1d(2, **kwargs),
    lambda **kwargs: nn.LayerNorm(2, **kwargs),
    lambda **kwargs: nn.RMSNorm(2, **kwargs),
    lambda **kwargs: nn.GroupNorm(1, 2, **kwargs),
    lambda **kwargs: nn.Embedding(2, 2, **kwargs),
    lambda **kwargs: nn.PReLU(2, **kwargs),
]


@pytest.mark.parametrize("make", MADE)
def test_device_and_dtype(make):
    layer = make(device="cpu", dtype="float64")
    assert {param.dtype.name for param in layer.parameters()} == {"float64"}
    assert {buffer.dtype.name for buffer in layer.buffers()} <= {"float64", "int64"}
    with pytest.raises(DeviceError, match="cuda:63"):
        make(device="cuda:63")
    with pytest.raises(DtypeError, match="complex64"):
        make(dtype="complex64")


def test_one_seed_gives_the_same_network():
    def build():
        manual_seed(7)
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Linear(3, 2), nn.Embedding(3, 2))

    for one, other in zip(build().parameters(), build().parameters()):
        assert_close(one, other.data, tolerance=0)


# ---------------------------------------------------------------------------------------------------- batch norm


@pytest.mark.parametrize(
    "make, shape", [(nn.BatchNorm1d, (5, 4)), (nn.BatchNorm1d, (5, 4, 3)), (nn.BatchNorm2d, IMAGE)]
)
def test_batch_norm_in_training_and_evaluation(make, shape):
    norm, x = make(4), normal(*shape)
    mean, var = Tensor(np.zeros(4, np.float32)), Tensor(np.ones(4, np.float32))
    for step in (1, 2):
        assert_close(norm(x), ops.batch_norm(x, mean, var, norm.weight, norm.bias, True).data, tolerance=0)
        assert norm.num_batches_tracked.item() == step
    assert_close(norm.running_mean, mean.data, tolerance=0)
    assert_close(norm.running_var, var.data, tolerance=0)
    assert mean.data.all()
    expected = ops.batch_norm(x, mean, var, norm.weight, norm.bias, False).data
    assert_close(norm.eval()(x), expected, tolerance=0)
    assert norm.num_batches_tracked.item() == 2
    norm.reset_running_stats()
    assert not norm.running_mean.data.any() and norm.num_batches_tracked.item() == 0


def test_batch_norm_that_averages_all_batches():
    norm, batches = nn.BatchNorm1d(4, momentum=None), [normal(5, 4, seed=seed) for seed in range(3)]
    for x in batches:
        norm(x)
    assert_close(norm.running_mean, np.mean([x.data.mean(0) for x in batches], 0))
    assert_close(norm.running_var, np.mean([x.data.var(0, ddof=1) for x in batches], 0))


def test_batch_norm_without_running_statistics():
    norm, x = nn.BatchNorm1d(4, affine=False, track_running_stats=False), normal(5, 4)
    assert list(norm.state_dict()) == []
    trained = norm(x).data
    assert_close(norm.eval()(x), trained, tolerance=0)
    assert_close(trained, ops.batch_norm(x, None, None, training=True).data, tolerance=0)


def test_a_wrong_or_empty_batch_moves_nothing():
    norm = nn.BatchNorm2d(4)
    with pytest.raises(ShapeError, match=r"BatchNorm2d: expected x with 4 axes, got shape \(5, 4\)"):
        norm(normal(5, 4))
    with pytest.raises(ShapeError, match=r"BatchNorm1d: expected x with 2 or 3 axes, got shape \(5,\)"):
        nn.BatchNorm1d(5)(normal(5))
    with pytest.raises(ShapeError, match="several values for each channel"):
        norm(normal(1, 4, 1, 1))
    norm(normal(0, 4, 2, 2))
    assert norm.num_batches_tracked.item() == 0 and not norm.running_mean.data.any()


# ------------------------------------------------------------------------------------------- dropout, embedding


@pytest.mark.parametrize("make, shape", [(nn.Dropout, ROWS), (nn.Dropout2d, IMAGE)])
def test_dropout(make, shape):
    layer, x = make(0.4), normal(*shape)
    manual_seed(1)
    dropped = layer(x).data
    manual_seed(1)
    operation = ops.dropout if make is nn.Dropout else ops.dropout2d
    assert_close(operation(x, 0.4), dropped, tolerance=0)
    assert (dropped == 0).any() and (dropped != 0).any()
    assert layer.eval()(x).data is x.data


def test_embedding():
    table, index = nn.Embedding(5, 3, padding_idx=-1), integers(5, 2, 4)
    assert table.padding_idx == 4 and not table.weight.data[4].any() and table.weight.data[:4].all()
    y = table(index)
    assert_close(y, table.weight.data[index.data], tolerance=0)
    y.backward(Tensor(np.ones(y.shape, np.float32)))
    counts = np.bincount(index.data.ravel(), minlength=5) * [1, 1, 1, 1, 0]
    assert_close(table.weight.grad, np.repeat(counts[:, None], 3, 1).astype(np.float32))


def test_embedding_of_given_rows():
    rows = normal(5, 3)
    frozen, trained = nn.Embedding.from_pretrained(rows), nn.Embedding.from_pretrained(rows, False, padding_idx=-2)
    assert frozen.weight.data is rows.data and (frozen.num_embeddings, frozen.embedding_dim) == (5, 3)
    assert not frozen.weight.requires_grad and trained.weight.requires_grad and trained.padding_idx == 3
    assert_close(frozen(integers(5, 4)), rows.data[integers(5, 4).data], tolerance=0)
    assert list(trained.state_dict()) == ["weight"] and repr(frozen) == "Embedding(5, 3)"


# --------------------------------------------------------------------------------------------------------- losses

PAIR = lambda: (normal(5, 4), normal(5, 4, seed=1))  # noqa: E731
SIGNS = Tensor(np.array([1, -1, 1, 1, -1]))

# a loss, the operation that it stands for, what both are given, and options of both beside the reduction
LOSSES = {
    "MSELoss": (nn.MSELoss, ops.mse_loss, PAIR, {}),
    "L1Loss": (nn.L1Loss, ops.l1_loss, PAIR, {}),
    "HuberLoss": (nn.HuberLoss, ops.huber_loss, PAIR, {"delta": 0.3}),
    "SmoothL1Loss": (nn.SmoothL1Loss, ops.smooth_l1_loss, PAIR, {"beta": 0.3}),
    "CrossEntropyLoss": (
        nn.CrossEntropyLoss,
        ops.cross_entropy,
        lambda: (normal(5, 4), integers(4, 5)),
        {"ignore_index": 1, "label_smoothing": 0.1},
    ),
    "NLLLoss": (nn.NLLLoss, ops.nll_loss, lambda: (normal(5, 4), integers(4, 5)), {"ignore_index": 1}),
    "BCEWithLogitsLoss": (
        nn.BCEWithLogitsLoss,
        ops.binary_cross_entropy_with_logits,
        lambda: (normal(5, 4), normal(5, 4, seed=1).sigmoid()),
        {"pos_weight": Tensor(np.array([1, 2, 0.5, 3], np.float32))},
    ),
    "BCELoss": (
        nn.BCELoss,
        ops.binary_cross_entropy,
        lambda: (normal(5, 4).sigmoid(), normal(5, 4, seed=1).sigmoid()),
        {"weight": Tensor(np.array([1, 2, 0.5, 3], np.float32))},
    ),
    "KLDivLoss": (
        nn.KLDivLoss,
        ops.kl_div,
        lambda: (normal(5, 4), normal(5, 4, seed=1).sigmoid()),
        {"log_target": True},
    ),
    "PoissonNLLLoss": (
        nn.PoissonNLLLoss,
        ops.poisson_nll_loss,
        lambda: (normal(5, 4).exp(), normal(5, 4, seed=1).exp()),
        {"log_input": False, "full": True, "eps": 0.1},
    ),
    "GaussianNLLLoss": (
        nn.GaussianNLLLoss,
        ops.gaussian_nll_loss,
        lambda: (*PAIR(), normal(5, 4, seed=2).exp()),
        {"full": True, "eps": 1.0},
    ),
    "CosineEmbeddingLoss": (
        nn.CosineEmbeddingLoss,
        ops.cosine_embedding_loss,
        lambda: (*PAIR(), SIGNS),
        {"margin": 0.2},
    ),
    "HingeEmbeddingLoss": (
        nn.HingeEmbeddingLoss,
        ops.hinge_embedding_loss,
        lambda: (normal(5, 4), SIGNS[:, None]),
        {"margin": 0.2},
    ),
    "MarginRankingLoss": (
        nn.MarginRankingLoss,
        ops.margin_ranking_loss,
        lambda: (*PAIR(), SIGNS[:, None]),
        {"margin": 0.2},
    ),
    "TripletMarginLoss": (
        nn.TripletMarginLoss,
        ops.triplet_margin_loss,
        lambda: (*PAIR(), normal(5, 4, seed=2)),
        {"margin": 2.0, "p": 1.0, "eps": 0.1, "swap": True},
    ),
}


@pytest.mark.parametrize("make, operation, arguments, options", LOSSES.values(), ids=LOSSES)
def test_losses(make, operation, arguments, options):
    given = arguments()
    for reduction in ("mean", "sum", "none"):
        expected = operation(*given, reduction=reduction, **options).data
        assert_close(make(reduction=reduction, **options)(*given), expected, tolerance=0)
    assert_close(make()(*given), operation(*given).data, tolerance=0)


def test_divergence_of_a_batch():
    given = normal(5, 4), normal(5, 4, seed=1).sigmoid()
    expected = ops.kl_div(*given, reduction="batchmean").data
    assert_close(nn.KLDivLoss(reduction="batchmean")(*given), expected, tolerance=0)
    assert np.isnan(ops.kl_div(minigrad.zeros(0, 3), minigrad.zeros(0, 3), reduction="batchmean").item())


def test_distances():
    given = PAIR()
    for layer, expected in (
        (nn.CosineSimilarity(), ops.cosine_similarity(*given)),
        (nn.CosineSimilarity(0, 2.0), ops.cosine_similarity(*given, 0, 2.0)),
        (nn.PairwiseDistance(), ops.pairwise_distance(*given)),
        (nn.PairwiseDistance(1.0, 0.1, True), ops.pairwise_distance(*given, 1.0, 0.1, True)),
    ):
        assert_close(layer(*given), expected.data, tolerance=0)


def test_losses_with_weights():
    x, y, weight = normal(5, 4), integers(4, 5), Tensor(np.array([1, 2, 0, 3], np.float32))
    options = {"ignore_index": 1, "label_smoothing": 0.1}
    loss = nn.CrossEntropyLoss(weight, **options)
    assert_close(loss(x, y), ops.cross_entropy(x, y, weight=weight, **options).data, tolerance=0)
    assert list(loss.state_dict()) == ["weight"] and list(loss.parameters()) == []
    assert_close(
        nn.NLLLoss(weight, ignore_index=1)(x, y), ops.nll_loss(x, y, weight=weight, ignore_index=1).data, tolerance=0
    )
    target = Tensor(np.full((5, 4), 0.25, np.float32))
    loss = nn.BCEWithLogitsLoss(weight, pos_weight=weight)
    expected = ops.binary_cross_entropy_with_logits(x, target, weight=weight, pos_weight=weight)
    assert_close(loss(x, target), expected.data, tolerance=0)
    assert loss.double().weight.dtype == np.float64


# ---------------------------------------------------------------------------------------------- wrong arguments


@pytest.mark.parametrize(
    "layer, text",
    [
        (nn.Conv2d(4, 4, (3, 2), 2, 1, 2, 2, False), "Conv2d(4, 4, kernel_size=(3, 2), stride=(2, 2), padding=(1, 1), "
         "dilation=(2, 2), groups=2, bias=False)"),
        (nn.Conv2d(1, 2, 3, padding="same"), "Conv2d(1, 2, kernel_size=(3, 3), stride=(1, 1), padding='same')"),
        (nn.Conv1d(1, 2, 3, padding="same"), "Conv1d(1, 2, kernel_size=(3,), stride=(1,), padding='same')"),
        (nn.ConvTranspose2d(4, 4, 3, 2, 1, 1, 2, False, 2), "ConvTranspose2d(4, 4, kernel_size=(3, 3), stride=(2, 2), "
         "padding=(1, 1), dilation=(2, 2), output_padding=(1, 1), groups=2, bias=False)"),
        (nn.AdaptiveAvgPool1d(2), "AdaptiveAvgPool1d(output_size=2)"),
        (nn.MaxPool2d(2), "MaxPool2d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False)"),
        (nn.AvgPool2d(2, 1), "AvgPool2d(kernel_size=2, stride=1, padding=0)"),
        (nn.AdaptiveAvgPool2d((1, None)), "AdaptiveAvgPool2d(output_size=(1, None))"),
        (nn.BatchNorm1d(3), "BatchNorm1d(3, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True)"),
        (nn.LayerNorm(3), "LayerNorm((3,), eps=1e-05, elementwise_affine=True)"),
        (nn.RMSNorm(3), "RMSNorm((3,), eps=None, elementwise_affine=True)"),
        (nn.InstanceNorm2d(3), "InstanceNorm2d(3, eps=1e-05, momentum=0.1, affine=False, track_running_stats=False)"),
        (nn.Upsample(scale_factor=2.0), "Upsample(scale_factor=2.0, mode='nearest')"),
        (nn.UpsamplingBilinear2d(3), "UpsamplingBilinear2d(size=3, mode='bilinear')"),
        (nn.ReflectionPad2d(1), "ReflectionPad2d((1, 1, 1, 1))"),
        (nn.ConstantPad1d(1, 2), "ConstantPad1d(padding=(1, 1), value=2)"),
        (nn.PixelShuffle(2), "PixelShuffle(upscale_factor=2)"),
        (nn.PixelUnshuffle(2), "PixelUnshuffle(downscale_factor=2)"),
        (nn.Threshold(1, 2, True), "Threshold(threshold=1, value=2, inplace=True)"),
        (nn.GroupNorm(2, 4), "GroupNorm(2, 4, eps=1e-05, affine=True)"),
        (nn.Dropout(), "Dropout(p=0.5)"),
        (nn.LeakyReLU(), "LeakyReLU(negative_slope=0.01)"),
        (nn.ELU(), "ELU(alpha=1.0)"),
        (nn.GELU(), "GELU(approximate='none')"),
        (nn.Softplus(), "Softplus(beta=1.0, threshold=20.0)"),
        (nn.Softmax(1), "Softmax(dim=1)"),
        (nn.GLU(), "GLU(dim=-1)"),
        (nn.PReLU(3), "PReLU(num_parameters=3)"),
        (nn.CELU(), "CELU(alpha=1.0)"),
        (nn.Hardtanh(), "Hardtanh(min_val=-1.0, max_val=1.0)"),
        (nn.Softshrink(), "Softshrink(0.5)"),
        (nn.Flatten(), "Flatten(start_dim=1, end_dim=-1)"),
        (nn.Unflatten(1, (2, 3)), "Unflatten(dim=1, unflattened_size=(2, 3))"),
        (nn.Embedding(3, 4, padding_idx=0), "Embedding(3, 4, padding_idx=0)"),
        (nn.ReLU(), "ReLU()"),
        (nn.ConstantPad2d(1, -math.inf), "ConstantPad2d(padding=(1, 1, 1, 1), value=-inf)"),
        (nn.MSELoss(), "MSELoss()"),
    ],
    ids=lambda value: value.split("(")[0] if isinstance(value, str) else "",
)
def test_repr(layer, text):
    assert repr(layer) == text


@pytest.mark.parametrize(
    "layer, shape",
    [
        *[(nn.PixelShuffle(r), (r * r, 1, 1)) for r in (1, 2)],
        *[(nn.PixelUnshuffle(r), (1, r, r)) for r in (1, 2)],
        *[(nn.InstanceNorm1d(3), (3, 5)), (nn.InstanceNorm2d(3), (3, 4, 5)), (nn.GRU(3, 2), (5, 3))],
        *[(nn.RNNCell(3, 2), (3,)), (nn.LSTMCell(3, 2), (3,))],
    ],
)
def test_what_a_layer_makes_of_one_sample_may_be_changed_in_place(layer, shape):
    x = normal(*shape).requires_grad_()
    before, made = x.data.copy(), layer(x)
    for y in made if isinstance(made, tuple) else (made,):
        y.mul_(2)
    assert x.data.tobytes() == before.tobytes()
    (y * y).sum().backward()
    assert x.grad is not None


# layers that do more than call an operation: tested here by themselves, or in a file of their own beside this one
MORE = {
    "BatchNorm1d", "BatchNorm2d", "Dropout", "Dropout2d", "Embedding", "ModuleDict", "ModuleList", "ParameterDict",
    "ParameterList", "Sequential", "GRU", "GRUCell", "LSTM", "LSTMCell", "RNN", "RNNCell",
    "MultiheadAttention", "TransformerEncoder", "TransformerEncoderLayer",
}
PAIRED = {"CosineSimilarity", "PairwiseDistance"}
BASES = {
    "AvgPool", "BatchNorm", "Border", "ConstantBorder", "Convolution", "ConvolutionBack", "InstanceNorm", "Loss",
    "MaxPool", "Overwriting", "Recurrent", "TrackingNorm",
}


def test_every_layer_is_public_and_compared_with_its_operation():
    found, kinds = set(), list(nn.Module.__subclasses__())
    for kind in kinds:
        kinds += kind.__subclasses__()
        if kind.__module__.startswith("minigrad.nn.") and not kind.__name__.startswith("_"):
            found.add(kind.__name__)
    assert found - set(nn.__all__) == BASES
    compared = {type(make()).__name__ for make, *_ in CALLS.values()}
    assert found - compared - set(LOSSES) - MORE - PAIRED == BASES


def test_functional_has_every_operation_of_a_layer():
    from minigrad.nn import functional

    for name in set(functional.__all__) - {"embedding"}:
        assert getattr(functional, name) is getattr(ops, name)
    weight, rows = Tensor(np.eye(3)), Tensor(np.array([2, 0]))
    assert functional.embedding(rows, weight).tolist() == [[0, 0, 1], [1, 0, 0]]  # as torch.nn.functional has it
    assert {"relu", "conv2d", "cross_entropy", "batch_norm", "dropout", "linear"} <= set(functional.__all__)
