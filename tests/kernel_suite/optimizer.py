"""The updates of SGD and Adam against those of minigrad.optim, and what decides about a step."""

import numpy as np
import pytest

from minigrad.backend.device import device_of, to_host
from minigrad.backend.fused.optimizer import (
    FACTOR,
    GOOD_STEPS,
    LOSS_SCALE,
    SKIP,
    SKIPPED_STEPS,
    adam_,
    move_clock,
    new_control,
    settle_step,
    sgd_,
)
from minigrad.optim.adam import adam_update
from minigrad.optim.sgd import sgd_update
from tests.kernel_suite.values import DTYPES, SIZES, draw, error_in_ulps

SGD = {
    "plain": dict(lr=0.1),
    "decay": dict(lr=0.1, weight_decay=0.1, maximize=True),
    "momentum": dict(lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.01),
    "nesterov": dict(lr=0.03, momentum=0.8, nesterov=True),
}
ADAM = {
    "adam": dict(lr=0.01),
    "decay": dict(lr=0.01, weight_decay=0.1, betas=(0.8, 0.95), eps=1e-6),
    "adamw": dict(lr=0.01, weight_decay=0.1, decoupled_weight_decay=True, maximize=True),
}
STEPS = 3


def state_dtype(dtype):
    return np.promote_types(dtype, np.float32)


def reference(update, param, grads, state, options, factor=1.0, keep_wide=False):
    """All steps in the dtype of the state; the parameter is rounded after each, or only in the result."""
    wide = param.astype(state_dtype(param.dtype))
    for step, grad in enumerate(grads, start=1):
        update(wide, grad.astype(wide.dtype) * wide.dtype.type(factor), *state, step=step, **options)
        if not keep_wide:
            wide = wide.astype(param.dtype).astype(wide.dtype)
    return wide.astype(param.dtype), wide


def check_updates(on, kernel, update, slots, options, dtype, shift=0, master=False, control=None, factor=1.0):
    for size in SIZES:
        param, *grads = (draw((size, i), size + shift, dtype)[shift:] for i in range(STEPS + 1))
        state = [np.zeros(size, state_dtype(param.dtype)) for _ in range(slots)]
        device_param, device_state = on(param), [on(s) for s in state]
        device_master = on(param.astype(np.float32)) if master else None
        if shift:
            device_param = on(np.concatenate([np.zeros(shift, param.dtype), param]))[shift:]
        for step, grad in enumerate(grads, start=1):
            args = (device_param, on(grad), *device_state)
            kernel(*args, step=step, master=device_master, control=control, **options)
        expected, wide = reference(update, param, grads, state, options, factor, keep_wide=master)
        for got, want in zip(device_state, state):
            assert error_in_ulps(got, want, "f64" if dtype == "f64" else "f32") <= 1
        assert error_in_ulps(device_param, expected, dtype) <= 1
        if master:
            assert error_in_ulps(device_master, wide, "f32") <= 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", SGD.values(), ids=SGD)
def test_sgd(on, dtype, options):
    check_updates(on, sgd_, sgd_update, 1 if "momentum" in options else 0, options, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", ADAM.values(), ids=ADAM)
def test_adam(on, dtype, options):
    check_updates(on, adam_, adam_update, 2, options, dtype)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_amsgrad(on, dtype):
    check_updates(on, adam_, adam_update, 3, ADAM["decay"], dtype)


def test_parameters_that_are_not_aligned(on):
    check_updates(on, sgd_, sgd_update, 1, SGD["momentum"], "f32", shift=1)
    check_updates(on, adam_, adam_update, 2, ADAM["adam"], "bf16", shift=3)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_narrow_parameters_with_wide_masters(on, dtype):
    check_updates(on, sgd_, sgd_update, 1, SGD["nesterov"], dtype, master=True)
    check_updates(on, adam_, adam_update, 2, ADAM["adamw"], dtype, master=True)


def test_a_master_keeps_what_the_parameter_rounds_away(on):
    """A step of 2^-12 leaves a bfloat16 of 1 as it is; sixteen of them do not."""
    one = np.ones(40, DTYPES["bf16"])
    param, master, grad = on(one), on(one.astype(np.float32)), on(one)
    for step in range(1, 17):
        sgd_(param, grad, step=step, lr=2.0**-12, master=master)
    assert (to_host(param).astype(np.float32) == 1 - 2.0**-8).all()
    bare = on(one)
    for step in range(1, 17):
        sgd_(bare, grad, step=step, lr=2.0**-12)
    assert (to_host(bare) == 1).all()


@pytest.mark.parametrize("kernel, slots, options", [(sgd_, 1, SGD["momentum"]), (adam_, 2, ADAM["adamw"])])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_master_starts_from_a_parameter_that_is_no_copy_of_it(on, kernel, slots, options, dtype):
    """A new master of zeros, and a parameter that somebody has changed in places."""
    start, changed = draw(0, 100, dtype), draw(1, 100, dtype)
    grad = on(draw(2, 100, dtype))
    param, master, wide = on(start), on(np.zeros(100, np.float32)), on(start.astype(np.float32))
    states = [[on(np.zeros(100, np.float32)) for _ in range(slots)] for _ in range(2)]
    for step in (1, 2):
        kernel(param, grad, *states[0], step=step, master=master, **options)
        kernel(wide, grad.astype(np.float32), *states[1], step=step, **options)
        assert np.array_equal(to_host(master), to_host(wide))
        assert np.array_equal(to_host(param).astype(np.float32), to_host(wide).astype(param.dtype).astype(np.float32))
        param[3:7], wide[3:7] = on(changed)[3:7], on(changed.astype(np.float32))[3:7]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_gradients_are_multiplied_by_the_factor(on, dtype):
    control = on(np.array([4.0, 0.0, 0.0, 0.0, 0.25]))
    check_updates(on, sgd_, sgd_update, 1, SGD["momentum"], dtype, control=control, factor=0.25)
    check_updates(on, adam_, adam_update, 2, ADAM["decay"], dtype, control=control, factor=0.25)


@pytest.mark.parametrize("kernel, slots, options", [(sgd_, 1, SGD["momentum"]), (adam_, 2, ADAM["adamw"])])
def test_a_clock_takes_the_place_of_step_and_rate(on, kernel, slots, options):
    """And what was skipped is taken off its number, too."""
    start, grads = draw(0, 100), [on(draw(step, 100)) for step in (1, 2, 3)]
    control = on(np.array([1.0, 0.0, 0.0, 2.0, 1.0]))
    plain, clocked, skipped = ([on(start), *(on(np.zeros(100, np.float32)) for _ in range(slots))] for _ in range(3))
    clock = on(np.array([0.0, 0.0]))
    for step, grad in enumerate(grads, start=1):
        move_clock(clock, 1)
        clock[1] = rate = 0.1 / step
        kernel(plain[0], grad, *plain[1:], step=step, **{**options, "lr": rate})
        kernel(clocked[0], grad, *clocked[1:], step=77, clock=clock, **{**options, "lr": 5.0})
        later = on(np.array([step + 2.0, rate]))
        kernel(skipped[0], grad, *skipped[1:], step=77, clock=later, control=control, **{**options, "lr": 5.0})
    for clocks in (clocked, skipped):
        assert all(error_in_ulps(got, to_host(want), "f32") <= 1 for got, want in zip(clocks, plain))


@pytest.mark.parametrize("kernel, slots, options", [(sgd_, 1, SGD["momentum"]), (adam_, 2, ADAM["adamw"])])
def test_a_skipped_step_changes_nothing_and_does_not_count(on, kernel, slots, options):
    control, nonfinite = new_control(device_of(on(np.zeros(1)))), on(np.ones(1, np.uint32))
    skipped, plain = ([on(draw(0, 100)), *(on(np.zeros(100, np.float32)) for _ in range(slots))] for _ in range(2))
    grads = [on(draw(step, 100)) for step in range(1, 4)]
    settle_step(control, nonfinite)
    kernel(skipped[0], on(np.full(100, np.nan, np.float32)), *skipped[1:], step=1, control=control, **options)
    assert np.array_equal(to_host(skipped[0]), draw(0, 100)) and not to_host(skipped[1]).any()
    for step, grad in enumerate(grads, start=1):
        settle_step(control, nonfinite)
        control[FACTOR] = 1.0  # the loss scale went down to 0.5
        kernel(skipped[0], grad, *skipped[1:], step=step + 1, control=control, **options)
        kernel(plain[0], grad, *plain[1:], step=step, **options)
    for one, other in zip(skipped, plain):
        assert error_in_ulps(one, to_host(other), "f32") <= 1


def test_the_loss_scale_grows_and_shrinks(on):
    control, nonfinite = new_control(device_of(on(np.zeros(1))), 1024.0), on(np.zeros(1, np.uint32))
    seen = []
    for bad in (0, 0, 0, 1, 0, 0, 1, 1, 0):
        nonfinite[...] = bad
        settle_step(control, nonfinite, growth_interval=2)
        values = to_host(control)
        seen.append((values[LOSS_SCALE], values[GOOD_STEPS], values[SKIP], values[SKIPPED_STEPS], values[FACTOR]))
        assert to_host(nonfinite)[0] == 0
    assert seen == [
        (1024.0, 1, 0, 0, 1 / 1024),
        (2048.0, 0, 0, 0, 1 / 1024),
        (2048.0, 1, 0, 0, 1 / 2048),
        (1024.0, 0, 1, 1, 1 / 2048),
        (1024.0, 1, 0, 1, 1 / 1024),
        (2048.0, 0, 0, 1, 1 / 1024),
        (1024.0, 0, 1, 2, 1 / 2048),
        (512.0, 0, 1, 3, 1 / 1024),
        (512.0, 1, 0, 3, 1 / 512),
    ]


@pytest.mark.parametrize("max_norm, expected", [(1.0, 0.2 / 4), (5.0, 1 / 4), (7.0, 1 / 4), (np.inf, 1 / 4)])
def test_clipping_is_by_the_norm_without_the_loss_scale(on, max_norm, expected):
    control, nonfinite = new_control(device_of(on(np.zeros(1))), 4.0), on(np.zeros(1, np.uint32))
    settle_step(control, nonfinite, on(np.array([400.0])), max_norm=max_norm)  # a norm of 20, scaled by 4
    np.testing.assert_allclose(to_host(control)[FACTOR], expected, rtol=1e-6)
