"""Optimizers that take each parameter whole: LAMB against its formula, Muon and its iteration, what they refuse."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minigrad
from minigrad import Tensor, nn, optim
from minigrad.backend.device import Device, to_device
from minigrad.errors import ArgumentError, LayoutError, ShapeError
from minigrad.nn.flat import FlatBuffer
from minigrad.optim import LAMB, Muon
from minigrad.optim.muon import newton_schulz
from minigrad.testing import assert_close
from tests.unit.optim.models import draw_gradients, draw_parameters, same, values

MATRICES = [(3, 4), (5, 2), (4, 4), (0, 3)]


# -------------------------------------------------------------------------------------------------------- LAMB


def lamb(param, gradients, lr, beta1, beta2, eps, decay):
    """Algorithm 2 of the paper, number by number."""
    m = v = np.zeros_like(param)
    for t, g in enumerate(gradients, 1):
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2
        change = m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + eps) + decay * param
        norms = np.linalg.norm(param), np.linalg.norm(change)
        param = param - lr * (norms[0] / norms[1] if all(norms) else 1.0) * change
    return param


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-12), ("float32", 2e-6)])
def test_lamb_is_its_formula(rng, decay, dtype, tolerance):
    """Also of a parameter that begins at zero, and of a gradient that is zero: there is no ratio."""
    starts = [rng.standard_normal((3, 4)), np.array(2.5), np.zeros(3), rng.standard_normal(2)]
    gradients = rng.standard_normal((6, 3, 4)), rng.standard_normal(6), rng.standard_normal((6, 3)), np.zeros((6, 2))
    params = [nn.Parameter(start.astype(dtype)) for start in starts]
    optimizer = LAMB(params, 0.05, (0.8, 0.95), 1e-4, decay)
    for step in range(6):
        for param, drawn in zip(params, gradients):
            param.grad = Tensor(drawn[step].astype(dtype))
        optimizer.step()
    for param, start, drawn in zip(params, starts, gradients):
        expected = lamb(start, drawn, 0.05, 0.8, 0.95, 1e-4, decay)
        assert_close(param.detach().numpy().astype("float64"), expected, tolerance=tolerance)


def test_lamb_changes_a_parameter_by_a_fraction_of_its_norm(rng):
    for scale in (1e-3, 1.0, 1e20):  # whose squares float32 does not hold
        param = nn.Parameter((scale * rng.standard_normal((6, 5))).astype("float32"))
        before = param.data.copy()
        param.grad = Tensor(rng.standard_normal((6, 5)).astype("float32"))
        LAMB([param], lr=0.25, weight_decay=0.0).step()
        moved, length = (np.linalg.norm(x.astype("float64")) for x in (param.data - before, before))
        assert math.isclose(moved, 0.25 * length, rel_tol=1e-5)


@pytest.mark.parametrize("make", [LAMB, Muon])
@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_what_is_no_number_is_not_lost_in_a_norm(rng, make, wrong):
    """Nor are the other elements changed as if there were none."""
    param, drawn = nn.Parameter(rng.standard_normal((3, 4))), rng.standard_normal((3, 4))
    drawn[1, 2] = wrong
    param.grad = Tensor(drawn)
    with np.errstate(invalid="ignore"):
        make([param], lr=0.1).step()
    assert np.isnan(param.detach().numpy()).all()


def test_a_gradient_whose_squares_float32_does_not_hold_still_counts(rng):
    start, drawn = rng.standard_normal((3, 4)).astype("float32"), rng.standard_normal((3, 4)).astype("float32")
    small, large = nn.Parameter(start.copy()), nn.Parameter(start.copy())
    for param, scale in ((small, 1.0), (large, 2.0**80)):
        param.grad = Tensor(drawn * np.float32(scale))
        Muon([param], lr=0.1).step()
    assert small.tolist() == large.tolist() != start.tolist()


@pytest.mark.parametrize("make", [LAMB, Muon])
def test_going_up_is_going_down_the_other_way(rng, make):
    start, gradients = rng.standard_normal((3, 4)), rng.standard_normal((2, 3, 4))
    up, down = nn.Parameter(start.copy()), nn.Parameter(start.copy())
    climber, other = make([up], lr=0.1, maximize=True), make([down], lr=0.1)
    for drawn in gradients:
        up.grad, down.grad = Tensor(drawn), Tensor(-drawn)
        climber.step()
        other.step()
    assert up.tolist() == down.tolist() != start.tolist()


# -------------------------------------------------------------------------------------------------------- Muon


@given(st.integers(0, 7), st.integers(0, 7), st.integers(0, 2**32 - 1), st.floats(1e-3, 1e3))
def test_the_iteration_depends_on_singular_vectors_and_values_alone(rows, columns, seed, scale):
    """It turns with its argument, has its shape, and is the same of a multiple."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, columns))
    left, right = (np.linalg.qr(rng.standard_normal((n, n)))[0] for n in (rows, columns))
    y = newton_schulz(x)
    assert y.shape == x.shape
    assert_close(newton_schulz(scale * left @ x @ right), left @ y @ right, tolerance=1e-9)
    assert_close(newton_schulz(x.T), y.T, tolerance=1e-12)


def test_singular_values_become_about_one(rng):
    values = np.linalg.svd(newton_schulz(rng.standard_normal((20, 60))), compute_uv=False)
    assert 0.65 < values.min() and values.max() < 1.25
    exact = newton_schulz(rng.standard_normal((20, 60)), (1.5, -0.5, 0.0), 60)  # Newton and Schulz's own coefficients
    assert_close(exact @ exact.T, np.eye(20), tolerance=1e-12)
    assert not newton_schulz(np.zeros((3, 2))).any() and np.isnan(newton_schulz(np.full((2, 2), np.nan))).all()


def test_the_layout_of_matrices_does_not_matter(rng):
    """Also where gradients come and go; gradients are only read."""
    params = draw_parameters(rng, shapes=MATRICES)
    twins = [nn.Parameter(param.data.copy()) for param in params]
    together, apart = Muon(params, lr=0.1, maximize=True), [Muon([twin], lr=0.1, maximize=True) for twin in twins]
    for step in range(4):
        draw_gradients(rng, params)
        if step:
            params[step - 1].grad = None
        given = values([param.grad for param in params if param.grad is not None])
        for param, twin in zip(params, twins):
            twin.grad = param.grad
        together.step()
        for optimizer in apart:
            optimizer.step()
        assert same(given, values([param.grad for param in params if param.grad is not None]))
    assert same(values(params), values(twins))


def test_a_muon_that_goes_on_from_its_state_has_the_same_bits(rng):
    params = draw_parameters(rng, "float32", MATRICES)
    twins = [nn.Parameter(param.data.copy()) for param in params]
    optimizer, resumed = Muon(params, lr=0.1), Muon(twins)
    for step in range(5):
        draw_gradients(rng, params)
        optimizer.step()
        if step == 2:
            resumed.load_state_dict(optimizer.state_dict())
            for param, twin in zip(params, twins):
                twin.data[...] = param.data
        elif step > 2:
            for param, twin in zip(params, twins):
                twin.grad = param.grad
            resumed.step()
    assert same(values(params), values(twins))
    assert sorted(optimizer.state_dict()["state"][0]) == ["momentum_buffer"]


@pytest.mark.parametrize("make", [Muon, LAMB])
def test_matrices_of_16_bits_are_updated_in_float32_and_their_copies_with_them(rng, make):
    start, gradients = rng.standard_normal((3, 4)), rng.standard_normal((5, 3, 4))
    narrow, wide = nn.Parameter(start.astype(minigrad.bfloat16)), None
    wide = nn.Parameter(narrow.data.astype("float32"))
    optimizer, other = make([narrow], lr=1e-3, master_weights=True), make([wide], lr=1e-3)
    for gradient in gradients:
        narrow.grad = Tensor(gradient.astype(minigrad.bfloat16))
        wide.grad = Tensor(narrow.grad.data.astype("float32"))
        optimizer.step()
        other.step()
    assert np.array_equal(narrow.data, wide.data.astype(minigrad.bfloat16))
    assert np.array_equal(optimizer.state[narrow]["master_weights"].numpy(), wide.data)


@pytest.mark.parametrize("make", [Muon, LAMB])
def test_on_a_gpu_they_do_what_they_do_here(strict_cupy, rng, make):
    """With a scaler that skips a step; parameters of the library and a bare tensor."""
    gpu, found = Device("cuda:1"), []
    start, gradients = rng.standard_normal((2, 3, 4)).astype("float32"), rng.standard_normal((3, 2, 3, 4))
    gradients[1, 0, 0, 0] = np.inf
    for device in (gpu, Device("cpu")):
        first = nn.Parameter(to_device(start[0].copy(), device))
        second = Tensor(to_device(start[1].copy(), device), True)
        optimizer, scaler = make([first, second], lr=0.1), optim.GradScaler(1.0)
        for pair in gradients.astype("float32"):
            for x, gradient in zip((first, second), pair):
                x.grad = Tensor(to_device(gradient, device))
            scaler.step(optimizer)
            scaler.update()
        found.append([to_device(x.data, Device("cpu")) for x in (first, second)])
    for ours, expected in zip(*found):
        assert_close(ours, expected, tolerance=1e-5)


# ------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    "make, options, message",
    [
        (Muon, {"lr": -1}, "expected lr to be a finite number >= 0, got -1"),
        (Muon, {"momentum": math.nan}, "expected momentum to be a finite number >= 0, got nan"),
        (Muon, {"weight_decay": "a"}, "expected weight_decay to be a finite number >= 0, got 'a'"),
        (Muon, {"nesterov": 1}, "expected nesterov to be True or False, got 1"),
        (Muon, {"eps": 0}, "expected eps to be a finite number > 0, got 0"),
        (Muon, {"ns_steps": 100}, r"expected ns_steps to be an integer in \[0, 100\), got 100"),
        (Muon, {"ns_coefficients": (1, 2)}, r"expected ns_coefficients to be three numbers, got \(1, 2\)"),
        (Muon, {"ns_coefficients": (1, 2, None)}, r"expected ns_coefficients\[2\] to be a finite number, got None"),
        (Muon, {"adjust_lr_fn": "none"}, "expected adjust_lr_fn to be one of 'original', 'match_rms_adamw', got"),
        (Muon, {"differentiable": True}, "expected no differentiable, got True: there are no gradients of gradients"),
        (LAMB, {"betas": (0.9, 1.0)}, r"expected betas\[1\] to be a number in \[0, 1\), got 1.0"),
        (LAMB, {"eps": 0.0}, "expected eps to be a finite number > 0, got 0.0"),
        (LAMB, {"weight_decay": -1}, "expected weight_decay to be a finite number >= 0, got -1"),
        (LAMB, {"amsgrad": True}, "amsgrad"),
    ],
)
def test_options_must_be_in_range(rng, make, options, message):
    with pytest.raises(ArgumentError, match=f"^{make.__name__}: .*{message}"):
        make(draw_parameters(rng, shapes=[(2, 2)]), **options)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 1)])
def test_muon_takes_matrices_alone(rng, shape):
    matrix, other = draw_parameters(rng, shapes=[(2, 2), shape])
    message = rf"^Muon: expected matrices, got one of shape \({str(shape)[1:-1]}\): give what has another .* AdamW"
    with pytest.raises(ShapeError, match=message):
        Muon([matrix, other])
    optimizer = Muon([matrix])
    with pytest.raises(ShapeError, match=message):
        optimizer.add_param_group({"params": [other]})
    assert other.flat is None and optimizer.params() == [matrix]


@pytest.mark.parametrize("make", [Muon, LAMB])
def test_a_parameter_of_which_only_a_part_is_here_is_refused(rng, monkeypatch, make):
    """As where ranks share one: at construction, and in a step before anything changes."""
    whole, cut = draw_parameters(rng, shapes=[(3, 4), (3, 4)])
    cut.name, span = "decoder.weight", FlatBuffer.span
    optimizer = make([whole, cut])
    draw_gradients(rng, [whole, cut])
    before = values([whole, cut])

    def half(buffer, param):
        start, stop = span(buffer, param)
        return (start, stop - 6) if param is cut else (start, stop)

    monkeypatch.setattr(FlatBuffer, "span", half)
    message = rf"^{make.__name__}: expected whole parameters, got 6 of the 12 elements of decoder.weight of shape \(3"
    with pytest.raises(LayoutError, match=message):
        make([whole, cut])
    with pytest.raises(LayoutError, match=message + ".*: leave it in one piece, or give it to .* such as AdamW"):
        optimizer.step()
    assert same(before, values([whole, cut]))
