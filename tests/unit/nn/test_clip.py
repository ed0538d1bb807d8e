"""Clipping by norm and by value."""

import math

import numpy as np
import pytest

from minigrad import Tensor, distributed, optim
from minigrad.backend.device import Device, to_device
from minigrad.backend.dtypes import as_dtype
from minigrad.errors import ArgumentError, DtypeError, NonFiniteError
from minigrad.nn import Parameter
from minigrad.nn.flat import flatten
from minigrad.optim import clip_grad_norm_, clip_grad_value_
from minigrad.nn.clip import clip_replicas_grad_norm_
from minigrad.testing import assert_close
from tests.strict_cupy import no_sync
from tests.unit.optim.models import draw_gradients, draw_parameters, same, values

RNG = np.random.default_rng(0)


def gradients(params):
    return values([param.grad for param in params])


@pytest.mark.parametrize("flat", [False, True])
def test_a_norm_over_the_limit_is_brought_to_it(rng, flat):
    params = draw_parameters(rng)
    if flat:
        flatten(params)
    draw_gradients(rng, params)
    before = np.concatenate([grad.ravel() for grad in gradients(params)])
    norm = clip_grad_norm_(params, 0.5)
    assert_close(norm, np.linalg.norm(before))
    after = np.concatenate([grad.ravel() for grad in gradients(params)])
    assert_close(after, before * (0.5 / (np.linalg.norm(before) + 1e-6)))


def test_a_norm_under_the_limit_changes_no_bit(rng):
    params = draw_parameters(rng)
    draw_gradients(rng, params)
    before = gradients(params)
    clip_grad_norm_(params, 1e3)
    clip_grad_norm_(params, math.inf)
    assert same(before, gradients(params))


def test_old_values_of_parameters_without_gradient_do_not_count(rng):
    params = draw_parameters(rng)
    [buffer] = flatten(params)
    draw_gradients(rng, params)
    params[1].grad = None
    stale = params[1].grad_view.copy()
    kept = [params[i] for i in (0, 2, 3)]
    expected = np.linalg.norm(np.concatenate([grad.ravel() for grad in gradients(kept)]))
    assert_close(clip_grad_norm_(params, 0.5), expected)
    clip_grad_value_(params, 0.01)
    assert np.array_equal(params[1].grad_view, stale)
    assert np.count_nonzero(buffer.grad) == sum(param.numel() for param in params)


def test_other_parameters_of_the_layout_stay(rng):
    params = draw_parameters(rng)
    flatten(params)
    draw_gradients(rng, params)
    before = gradients(params)
    clip_grad_norm_([params[0], params[2]], 0.1)
    changed = [not np.array_equal(a, b) for a, b in zip(before, gradients(params))]
    assert changed == [True, False, True, False]


def test_one_tensor_and_repeated_ones(rng):
    [weight] = draw_parameters(rng, shapes=[(3,)])
    weight.grad = Tensor(np.array([3.0, 0.0, 4.0]))
    assert clip_grad_norm_(weight, 100.0).item() == 5.0
    assert clip_grad_norm_([weight, weight], 100.0).item() == 5.0
    assert clip_grad_norm_(iter([weight]), 100.0).item() == 5.0


def test_plain_leaves_are_clipped(rng):
    x = Tensor(rng.standard_normal((3, 2)), requires_grad=True)
    x.grad = Tensor(np.full((2, 3), 2.0).T)
    clip_grad_norm_(x, 1.0, norm_type=1.0)
    assert_close(x.grad, np.full((3, 2), 1 / 6), tolerance=1e-6)


def test_without_gradients_the_norm_is_0(rng):
    assert clip_grad_norm_(draw_parameters(rng), 1.0).item() == 0.0


NOTHING_TO_DO = {
    "clip_grad_norm_": lambda params: clip_grad_norm_(params, 1.0),
    "clip_grad_value_": lambda params: clip_grad_value_(params, 1.0),
    "clip_replicas_grad_norm_": lambda params: clip_replicas_grad_norm_([draw_parameters(RNG), params], 1.0),
    "average_gradients": lambda params: distributed.average_gradients(params, distributed.SoloCommunicator(), 1),
    "SGD": lambda params: optim.SGD(params, lr=0.1),
    "AdamW": lambda params: optim.AdamW([{"params": params}]),
}


@pytest.mark.parametrize("who, call", NOTHING_TO_DO.items(), ids=NOTHING_TO_DO)
def test_an_iterator_that_is_used_up_is_no_parameters(who, call):
    params = iter(draw_parameters(RNG))
    assert list(params)
    for nothing in (params, []):
        with pytest.raises(ArgumentError, match=f"^{who}: expected at least one parameter, got none: an iterator"):
            call(nothing)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_gradients_are_summed_in_float32(dtype):
    """The square of 300 is beyond float16, and 10,000 of them are beyond the steps of bfloat16."""
    weight = Parameter(np.zeros(10_000, as_dtype(dtype)))
    weight.grad = Tensor(np.full(10_000, 300.0).astype(as_dtype(dtype)))
    norm = clip_grad_norm_([weight], 100.0)
    assert norm.dtype == np.float32
    assert norm.item() == pytest.approx(30_000, rel=1e-5)
    assert weight.grad.dtype == as_dtype(dtype)
    assert weight.grad.numpy().astype("float32") == pytest.approx(1.0, rel=1e-2)


def test_the_norm_spans_dtypes(rng):
    narrow, wide = Parameter(np.zeros(2, np.float32)), Parameter(np.zeros(2))
    narrow.grad, wide.grad = Tensor(np.array([3.0, 0.0], np.float32)), Tensor(np.array([0.0, 4.0]))
    norm = clip_grad_norm_([narrow, wide], 2.5)
    assert norm.item() == 5.0 and norm.dtype == np.float64
    assert narrow.grad.dtype == np.float32 and narrow.grad.tolist() == pytest.approx([1.5, 0.0])
    assert wide.grad.tolist() == pytest.approx([0.0, 2.0])


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
def test_a_norm_that_is_not_finite_can_be_an_error(rng, value, p):
    params = draw_parameters(rng)
    draw_gradients(rng, params)
    params[0].grad.numpy()[1, 2] = value
    before = gradients(params)
    with pytest.raises(NonFiniteError, match=f"clip_grad_norm_: expected a finite norm of the gradients, got {value}"):
        clip_grad_norm_(params, 1.0, p, error_if_nonfinite=True)
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(before, gradients(params)))


def test_a_step_with_nan_leaves_nothing_to_the_next():
    """Neither between parameters, where the layout has gaps."""
    params = [Parameter(np.ones(3)), Parameter(np.ones((2, 2)))]
    flatten(params)
    for bad in (math.nan, 1.0):
        for param in params:
            param.grad = Tensor(np.full(param.shape, bad))
        norm = clip_grad_norm_(params, 1.0).item()
    assert norm == math.sqrt(7.0)


def test_nan_spreads_to_all_gradients(rng):
    params = draw_parameters(rng)
    draw_gradients(rng, params)
    params[0].grad.numpy()[1, 2] = math.nan
    assert math.isnan(clip_grad_norm_(params, 1.0).item())
    assert all(np.isnan(grad).all() for grad in gradients(params))


def test_values_are_brought_into_the_range(rng):
    params = draw_parameters(rng)
    draw_gradients(rng, params)
    before = gradients(params)
    clip_grad_value_(params, 0.5)
    assert same([np.clip(grad, -0.5, 0.5) for grad in before], gradients(params))


@pytest.mark.parametrize("value", [-1.0, math.nan, "1", None, True])
def test_limits_must_be_in_range(rng, value):
    params = draw_parameters(rng)
    with pytest.raises(ArgumentError, match=f"clip_grad_norm_: expected max_norm .*, got {value!r}"):
        clip_grad_norm_(params, value)
    with pytest.raises(ArgumentError, match=f"clip_grad_norm_: expected norm_type .*, got {value!r}"):
        clip_grad_norm_(params, 1.0, norm_type=value)
    with pytest.raises(ArgumentError, match=f"clip_grad_value_: expected clip_value .*, got {value!r}"):
        clip_grad_value_(params, value)


def test_a_norm_of_order_0_is_refused(rng):
    with pytest.raises(ArgumentError, match=r"expected norm_type to be a number > 0, got 0"):
        clip_grad_norm_(draw_parameters(rng), 1.0, norm_type=0)


@pytest.mark.parametrize("clip", [clip_grad_norm_, clip_grad_value_])
def test_what_is_no_tensor_is_refused(clip):
    with pytest.raises(DtypeError, match=f"{clip.__name__}: expected float tensors, got ndarray"):
        clip([np.ones(3)], 1.0)
    with pytest.raises(DtypeError, match=f"{clip.__name__}: expected tensors, got int"):
        clip(3, 1.0)
    with pytest.raises(DtypeError, match=f"{clip.__name__}: expected float tensors, got one of int64"):
        clip([Tensor(np.ones(3, np.int64))], 1.0)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
def test_the_gpu_gets_the_same_without_waiting(strict_cupy, rng, p):
    gpu = Device("cuda:1")
    params = draw_parameters(rng)
    draw_gradients(rng, params)
    twins = [Parameter(to_device(param.data, gpu)) for param in params]
    for param, twin in zip(params, twins):
        twin.grad = Tensor(to_device(param.grad.data, gpu))
    flatten(params), flatten(twins)
    with no_sync():
        norm = clip_grad_norm_(twins, 0.5, p)
        clip_grad_value_(twins, 0.01)
    assert_close(norm, clip_grad_norm_(params, 0.5, p))
    clip_grad_value_(params, 0.01)
    for param, twin in zip(params, twins):
        assert_close(twin.grad, param.grad)


def test_gradients_on_two_devices_have_one_norm(strict_cupy):
    places = [Device("cpu"), Device("cuda:0"), Device("cuda:1")]
    params = []
    for place, value in zip(places, (2.0, 3.0, 6.0)):
        params.append(Parameter(to_device(np.zeros(1), place)))
        params[-1].grad = Tensor(to_device(np.array([value]), place))
    norm = clip_grad_norm_(params, 3.5)
    assert norm.item() == 7.0 and norm.device == places[0]
    for param, expected in zip(params, (1.0, 1.5, 3.0)):
        assert to_device(param.grad.data, places[0]) == pytest.approx(expected)
        assert param.grad.device == param.device
