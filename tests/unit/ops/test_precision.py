"""autocast: which operations run in half precision, and what comes back through them."""

import threading

import numpy as np
import pytest

import minigrad
import minigrad.nn.functional as F
from minigrad import Tensor, linalg, nn, ops, optim
from minigrad.errors import ArgumentError, DtypeError
from minigrad.ops.precision import PRECISION, autocast
from minigrad.testing import assert_close
from tests.cases import CASES
from tests.cases.models import MODELS, batch

LOW = ["bfloat16", "float16"]


def vector(*shape):
    return Tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32), requires_grad=True)


EYE = Tensor(3 * np.eye(4, dtype=np.float32))
X, W, B = vector(4, 6), vector(6, 6), vector(6)
LABELS = Tensor(np.arange(4))
IMAGES = vector(2, 3, 5, 5)
CALLS = {
    "matmul": lambda: X @ W,
    "linear": lambda: ops.linear(X, W, B),
    "conv2d": lambda: ops.conv2d(IMAGES, vector(4, 3, 3, 3), vector(4)),
    "conv1d": lambda: ops.conv1d(IMAGES[0], vector(4, 5, 3)),
    "conv_transpose1d": lambda: ops.conv_transpose1d(IMAGES[0], vector(5, 4, 3)),
    "conv_transpose2d": lambda: ops.conv_transpose2d(IMAGES, vector(3, 4, 3, 3), vector(4)),
    "prelu": lambda: X.prelu(W[:, 0]),
    "mm": lambda: X.mm(W),
    "bmm": lambda: X.reshape(2, 2, 6).bmm(X.reshape(2, 6, 2)),
    "mv": lambda: X.mv(B),
    "dot": lambda: X[0].dot(B),
    "addmm": lambda: low(X).addmm(X, W),
    "baddbmm": lambda: low(X).sum().baddbmm(X.reshape(2, 2, 6), X.reshape(2, 6, 2)),
    "einsum": lambda: ops.einsum("ij,ij->i", X, X),
    "tensordot": lambda: ops.tensordot(X, W, 1),
    "cdist": lambda: ops.cdist(low(X), W),
    "exp": lambda: low(X).exp(),
    "expm1": lambda: low(X).expm1(),
    "log": lambda: low(X).log(),
    "log1p": lambda: low(X).log1p(),
    "pow": lambda: low(X) ** 2,
    "reciprocal": lambda: low(X).reciprocal(),
    "rsqrt": lambda: low(X).rsqrt(),
    "softplus": lambda: ops.softplus(low(X)),
    "sum": lambda: low(X).sum(),
    "mean": lambda: low(X).mean(dim=1),
    "prod": lambda: low(X).prod(),
    "cumsum": lambda: low(X).cumsum(0),
    "corrcoef": lambda: ops.corrcoef(low(X)),
    "cov": lambda: ops.cov(low(X)),
    "cumprod": lambda: low(X).cumprod(0),
    "nanmean": lambda: low(X).nanmean(),
    "nansum": lambda: low(X).nansum(),
    "det": lambda: (low(X[:, :4]) + EYE).det(),
    "inverse": lambda: (low(X[:, :4]) + EYE).inverse(),
    "solve": lambda: linalg.solve(low(X[:, :4]) + EYE, X),
    "log2": lambda: low(X).abs().log2(),
    "log10": lambda: low(X).abs().log10(),
    **{name: lambda name=name: getattr(ops, name)(low(X).tanh()) for name in ("asin", "acos", "tan", "sinh", "cosh")},
    "var": lambda: low(X).var(),
    "std": lambda: low(X).std(),
    "norm": lambda: low(X).norm(),
    "logsumexp": lambda: low(X).logsumexp(1),
    "softmax": lambda: ops.softmax(low(X), 1),
    "log_softmax": lambda: ops.log_softmax(low(X), 1),
    "batch_norm": lambda: ops.batch_norm(low(X), None, None, B, B, training=True),
    "instance_norm": lambda: ops.instance_norm(low(X)[None], None, None, B[:4]),
    "group_norm": lambda: ops.group_norm(low(X), 2, B, B),
    "layer_norm": lambda: ops.layer_norm(low(X), 6, B, B),
    "rms_norm": lambda: ops.rms_norm(low(X), 6, B),
    "cross_entropy": lambda: ops.cross_entropy(low(X), LABELS),
    "nll_loss": lambda: ops.nll_loss(low(X), LABELS),
    "binary_cross_entropy_with_logits": lambda: ops.binary_cross_entropy_with_logits(low(X), X),
    "mse_loss": lambda: ops.mse_loss(low(X), X),
    "l1_loss": lambda: ops.l1_loss(low(X), target=X),
    "smooth_l1_loss": lambda: ops.smooth_l1_loss(low(X), X),
    "huber_loss": lambda: ops.huber_loss(low(X), X),
    "scaled_dot_product_attention": lambda: ops.scaled_dot_product_attention(X, X, X, is_causal=True),
    **{name: lambda name=name, g=g: getattr(ops, name)(X[:, None], None, vector(2 * g, 6), vector(2 * g, 2))[0]
       for name, g in (("rnn", 1), ("gru", 3), ("lstm", 4))},
    "kl_div": lambda: ops.kl_div(low(X), ops.softmax(X, 1)),
    "binary_cross_entropy": lambda: ops.binary_cross_entropy(low(X).sigmoid(), X.sigmoid().detach()),
    "sigmoid_focal_loss": lambda: ops.sigmoid_focal_loss(low(X), X.sigmoid()),
    "poisson_nll_loss": lambda: ops.poisson_nll_loss(low(X), X),
    "gaussian_nll_loss": lambda: ops.gaussian_nll_loss(low(X), X, 1.0),
    "normalize": lambda: ops.normalize(low(X)),
    "cosine_similarity": lambda: ops.cosine_similarity(low(X), X),
    "pairwise_distance": lambda: ops.pairwise_distance(low(X), X),
    "cosine_embedding_loss": lambda: ops.cosine_embedding_loss(low(X), -X, LABELS - 1),
    "hinge_embedding_loss": lambda: ops.hinge_embedding_loss(low(X), LABELS[:, None]),
    "margin_ranking_loss": lambda: ops.margin_ranking_loss(low(X), X + 1, LABELS[:, None]),
    "triplet_margin_loss": lambda: ops.triplet_margin_loss(low(X), X, -X),
}


def low(x):
    """As a product under autocast leaves it."""
    return x.to(LOW[0])


def test_the_table_is_of_operations_and_each_is_tried():
    assert PRECISION.keys() == CALLS.keys()
    assert [name for name in PRECISION if not hasattr(ops, name) and not hasattr(linalg, name)] == []


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("name", CALLS)
def test_an_operation_runs_as_the_table_says(name):
    with autocast(LOW[0]):
        out = CALLS[name]()
    assert out.dtype.name == ("bfloat16" if PRECISION[name] == "low" else "float32")
    out.backward(minigrad.ones_like(out))
    assert X.grad.dtype == np.float32 if X.grad is not None else name.startswith("conv")
    X.grad = None


COMPOSED = {"multi_head_attention_forward"}  # of operations that the table has
OTHERS = [case for case in CASES if case.op.rstrip("_") not in {*PRECISION, *COMPOSED}]


@pytest.mark.parametrize("case", OTHERS[::7], ids=lambda case: case.id)
def test_other_operations_are_untouched(case):
    from tests.cases.evaluate import evaluate

    expected, expected_grads = evaluate(case, np.asarray, "float32")
    with autocast():
        got, grads = evaluate(case, np.asarray, "float32")
    assert got.dtype == expected.dtype and np.array_equal(got, expected, equal_nan=got.dtype.kind == "f")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", LOW)
def test_no_operation_leaves_half_precision(dtype):
    for case in (case for case in CASES if case.differentiable):
        drawn = [np.asarray(value) for value in case.draw()]
        given = [Tensor(value).to(dtype) if value.dtype.kind == "f" else Tensor(value) for value in drawn]
        floats = [x.requires_grad_() for x in given if x.dtype.name == dtype]
        out = case.ours(*given)
        out.backward(minigrad.ones_like(out))
        assert {x.dtype.name for x in (out, *(x.grad for x in floats if x.grad is not None))} == {dtype}, case.id


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
def test_a_border_of_nothing_leaves_half_precision(dtype, mode):
    x = vector(2, 4).to(dtype).detach().requires_grad_()
    F.pad(x, (0, 0), mode).sum().backward()
    assert x.grad.dtype.name == dtype and x.grad.tolist() == [[1] * 4] * 2


@pytest.mark.parametrize("dtype", LOW)
def test_a_product_is_that_of_rounded_operands(dtype):
    with autocast(dtype):
        got = ops.linear(X, W, B)
    assert np.array_equal(got.data, ops.linear(X.to(dtype), W.to(dtype), B.to(dtype)).data)


def test_double_precision_stays():
    x = Tensor(np.ones((2, 2)))
    with autocast():
        assert (x @ x).dtype == np.float64 and x.sum().dtype == np.float64


def test_float_dtypes_meet_in_the_wider_one():
    half, other = X.to("float16"), X.to("bfloat16")
    with autocast():
        assert (X + half).dtype == (half * other).dtype == np.float32
        assert minigrad.cat([half, half]).dtype == np.float16
        assert minigrad.cat([half, X]).dtype == np.float32


def test_blocks_nest_and_can_be_switched_off():
    def name():
        return (X @ W).dtype.name

    with autocast("bfloat16"):
        assert name() == "bfloat16" and minigrad.is_autocast_enabled()
        with autocast("float16"):
            assert name() == "float16"
            with autocast(enabled=False):
                assert name() == "float32" and not minigrad.is_autocast_enabled()
                with pytest.raises(DtypeError):
                    X + X.half()
            assert name() == "float16"
        assert name() == "bfloat16"
    assert name() == "float32" and not minigrad.is_autocast_enabled()
    assert autocast("float16")(name)() == "float16"


def test_a_block_ends_with_an_error():
    with pytest.raises(ZeroDivisionError), autocast():
        raise ZeroDivisionError
    assert (X @ W).dtype == np.float32


def test_a_block_is_that_of_one_context():
    names = []
    with autocast():
        thread = threading.Thread(target=lambda: names.append((X @ W).dtype.name))
        thread.start()
        thread.join()
    assert names == ["float32"]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_other_dtypes_are_refused(dtype):
    with pytest.raises(ArgumentError, match=f"bfloat16 or float16, got {dtype}"), autocast(dtype):
        pass
    with pytest.raises(ArgumentError, match="enabled"), autocast(enabled=1):
        pass


# ----------------------------------------------------------------------------------------------- converted parameters


def conversions(run):
    """What run returns, and how many arrays were converted to bfloat16 meanwhile."""
    count = 0

    class Watched(np.ndarray):
        def astype(self, dtype, *args, **options):
            nonlocal count
            count += np.dtype(dtype).name == "bfloat16"
            return super().astype(dtype, *args, **options).view(np.ndarray)

    weight = nn.Parameter(np.ones((2, 2), np.float32))
    weight.data = weight.data.view(Watched)
    run(weight)
    return count


def test_a_parameter_is_converted_once_a_block():
    x = Tensor(np.ones((1, 2), np.float32)).bfloat16()

    def twice(weight):
        with autocast():
            ops.linear(ops.linear(x, weight), weight)
            with minigrad.no_grad():
                ops.linear(x, weight)

    def in_two_blocks(weight):
        for _ in range(2):
            with autocast():
                ops.linear(x, weight)

    assert conversions(twice) == 1
    assert conversions(in_two_blocks) == 2


def test_a_changed_parameter_is_converted_again():
    weight = nn.Parameter(np.ones((1, 1), np.float32))
    x = minigrad.ones(1, 1)
    with autocast():
        first = ops.linear(x, weight).item()
        with minigrad.no_grad():
            weight.fill_(3.0)
        assert (first, ops.linear(x, weight).item()) == (1.0, 3.0)


def test_two_graphs_of_one_block_are_independent():
    """Each backward frees its own; forwards without gradients before do not hide the parameter."""
    weight = nn.Parameter(np.ones((1, 2), np.float32))
    with autocast():
        with minigrad.no_grad():
            ops.linear(minigrad.ones(1, 2), weight)
        losses = [ops.linear(minigrad.full((1, 2), value), weight).sum() for value in (1.0, 2.0)]
        losses[0].backward()
    losses[1].backward()
    assert weight.grad.tolist() == [[3.0, 3.0]]


def test_a_weight_used_twice_gets_both_gradients():
    weight = nn.Parameter(np.eye(2, dtype=np.float32))
    x = minigrad.ones(1, 2)
    with autocast():
        ops.linear(ops.linear(x, weight), weight).sum().backward()
    expected = nn.Parameter(np.eye(2, dtype=np.float32))
    ops.linear(ops.linear(x, expected), expected).sum().backward()
    assert_close(weight.grad, expected.grad)


def test_the_running_statistics_of_a_half_model_move():
    layer = nn.BatchNorm1d(3).to(dtype="float16")
    with autocast("float16"):
        layer(minigrad.full((4, 3), 2.0) + Tensor(np.arange(12, dtype=np.float32).reshape(4, 3)))
    assert layer.running_mean.dtype == np.float16 and (layer.running_mean.numpy() > 0).all()


def test_the_gradient_of_a_bias_does_not_stagnate():
    """Half precision stops to count at 2048 (float16) or 256 (bfloat16)."""
    for dtype in LOW:
        bias = nn.Parameter(np.zeros(1, np.float32))
        with autocast(dtype):
            out = ops.linear(minigrad.ones(5000, 1), Tensor(np.ones((1, 1), np.float32)), bias)
        out.float().sum().backward()
        assert abs(bias.grad.item() - 5000) < 32


# ------------------------------------------------------------------------------------------------------------ training


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("name", MODELS)
def test_training_converges(name, dtype):
    minigrad.manual_seed(0)
    model = MODELS[name][0]()
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    scaler = optim.GradScaler(enabled=dtype == "float16")
    x, labels = batch(name, dtype="float32")
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        with autocast(dtype):
            loss = ops.cross_entropy(model(x), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[0] > 1.0 and losses[-1] < 0.1
    assert {str(p.grad.dtype) for p in model.parameters()} == {"float32"}
