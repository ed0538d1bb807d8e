"""Which parameters a step changes, and what the constructor and the options may be."""

import math

import numpy as np
import pytest

from minigrad import Tensor, no_grad, ops, optim
from minigrad.backend.device import Device, to_device
from minigrad.backend.dtypes import as_dtype
from minigrad.errors import ArgumentError, AutogradError, DtypeError, LayoutError
from minigrad.nn import Parameter
from minigrad.nn.flat import flatten
from minigrad.optim import (
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    AdamW,
    GradScaler,
    LRScheduler,
    Optimizer,
    RMSprop,
    StepDecay,
    adam_update,
    sgd_update,
)
from minigrad.testing import assert_close
from tests.strict_cupy import no_sync
from tests.unit.optim.models import OPTIMIZERS, draw_gradients, draw_parameters, same, values

every_optimizer = pytest.mark.parametrize("make, options", OPTIMIZERS)


def loss_of(weight, bias, x):
    return (ops.linear(x, weight, bias) ** 2.0).matmul(Tensor(np.ones(len(bias)))).matmul(Tensor(np.ones(len(x))))


# ------------------------------------------------------------------------------------------ what a step changes


@every_optimizer
def test_a_step_changes_exactly_what_has_a_gradient(rng, make, options):
    params = draw_parameters(rng)
    optimizer = make(params, **options)
    draw_gradients(rng, params)
    params[1].grad = None
    before = values(params)
    optimizer.step()
    changed = [not np.array_equal(a, b) for a, b in zip(before, values(params))]
    assert changed == [True, False, True, True]


@every_optimizer
def test_without_gradients_nothing_changes_and_no_step_is_counted(rng, make, options):
    params = draw_parameters(rng)
    twins = [Parameter(param.data.copy()) for param in params]
    optimizer, twin = make(params, **options), make(twins, **options)
    before = values(params)
    optimizer.step()
    assert same(before, values(params))
    for param, other in zip(params, twins):
        param.grad = other.grad = Tensor(np.asarray(rng.standard_normal(param.shape)))
    optimizer.step()
    twin.step()
    assert same(values(params), values(twins))


@every_optimizer
def test_parameters_of_no_optimizer_stay(rng, make, options):
    """Also where the optimizer's parameters have a stranger between them, with a gradient."""
    params = draw_parameters(rng)
    flatten(params)
    optimizer = make([params[0], params[2]], **options)
    draw_gradients(rng, params)
    before = values(params)
    optimizer.step()
    changed = [not np.array_equal(a, b) for a, b in zip(before, values(params))]
    assert changed == [True, False, True, False]


@every_optimizer
def test_the_layout_does_not_matter(rng, make, options):
    """One optimizer for all gives the bits of an optimizer for each, also when gradients come and go."""
    params = draw_parameters(rng)
    twins = [Parameter(param.data.copy()) for param in params]
    together, apart = make(params, **options), [make([twin], **options) for twin in twins]
    for step in range(6):
        draw_gradients(rng, params)
        if step in (0, 2, 3):
            params[step].grad = None
        for param, twin in zip(params, twins):
            twin.grad = param.grad
        together.step()
        for optimizer in apart:
            optimizer.step()
        assert same(values(params), values(twins))


@every_optimizer
@pytest.mark.parametrize("block", [1, 7, 16])
def test_blocks_do_not_matter(rng, monkeypatch, make, options, block):
    params = draw_parameters(rng)
    twins = [Parameter(param.data.copy()) for param in params]
    whole, blocked = make(params, **options), make(twins, **options)
    for _ in range(3):
        draw_gradients(rng, params)
        for param, twin in zip(params, twins):
            twin.grad = param.grad
        whole.step()
        with monkeypatch.context() as patch:
            patch.setattr("minigrad.optim.optimizer.BLOCK", block)
            blocked.step()
    assert same(values(params), values(twins))


@every_optimizer
def test_gradients_are_only_read(rng, make, options):
    params = draw_parameters(rng)
    optimizer = make(params, maximize=True, **options)
    draw_gradients(rng, params)
    before = values([param.grad for param in params])
    optimizer.step()
    assert same(before, values([param.grad for param in params]))


@every_optimizer
def test_frozen_parameters_may_be_given(rng, make, options):
    params = draw_parameters(rng)
    params[0].requires_grad_(False)
    optimizer = make(params, **options)
    draw_gradients(rng, params[1:])
    before = values(params)
    optimizer.step()
    assert np.array_equal(before[0], values(params)[0])
    assert not np.array_equal(before[1], values(params)[1])


def test_all_parameters_of_one_dtype_are_one_run(rng):
    params = draw_parameters(rng)
    [[part]] = Adam(params).parts
    assert part.all_runs == [(0, part.buffer.count)]


def test_each_dtype_has_its_own_state(rng):
    params = draw_parameters(rng, "float32", [(3,), (2,)]) + draw_parameters(rng, "float64", [(3,)])
    optimizer = Adam(params, lr=0.1)
    draw_gradients(rng, params)
    optimizer.step()
    state = optimizer.state_dict()["state"]
    assert [state[i]["exp_avg"].dtype.name for i in range(3)] == ["float32", "float32", "float64"]
    assert [param.dtype.name for param in params] == ["float32", "float32", "float64"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@every_optimizer
def test_narrow_floats_are_updated_in_float32(rng, make, options, dtype):
    """The result is that of float32, rounded, so that averages do not stand still: 0.999 is 1 in bfloat16."""
    narrow = as_dtype(dtype)
    params = draw_parameters(rng, narrow, [(40,)])
    start, gradient = params[0].data.astype("float32"), rng.standard_normal(40).astype(narrow)
    twin = Parameter(start.copy())
    optimizer, wide = make(params, **options), make([twin], **options)
    params[0].grad, twin.grad = Tensor(gradient), Tensor(gradient.astype("float32"))
    optimizer.step()
    wide.step()
    assert params[0].dtype == narrow
    assert np.array_equal(params[0].data, twin.data.astype(narrow))


@every_optimizer
def test_a_graph_notices_that_a_step_changed_what_it_saved(rng, make, options):
    weight, bias = draw_parameters(rng, shapes=[(2, 3), (2,)])
    optimizer = make([weight, bias], **options)
    x = Tensor(rng.standard_normal((5, 3)), requires_grad=True)
    loss = loss_of(weight, bias, x)
    draw_gradients(rng, [weight, bias])
    optimizer.step()
    with pytest.raises(AutogradError, match="linear saved, got data changed in place"):
        loss.backward()


def test_training_by_backward_overwrites_what_old_gradients_left(rng):
    """Twenty steps on flat gradients are twenty steps of the formula on gradients of fresh parameters."""
    weight, bias = draw_parameters(rng, shapes=[(2, 3), (2,)])
    x = Tensor(rng.standard_normal((5, 3)))
    plain = values([weight, bias])
    optimizer = SGD([weight, bias], lr=0.01)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = loss_of(weight, bias, x)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        fresh = [Parameter(value.copy()) for value in plain]
        loss_of(*fresh, x).backward()
        plain = [value - 0.01 * param.grad.numpy() for value, param in zip(plain, fresh)]
    for param, expected in zip([weight, bias], plain):
        assert_close(param, expected)
    assert losses == sorted(losses, reverse=True)


def test_closure_is_called_with_recording_on(rng):
    weight, bias = draw_parameters(rng, shapes=[(2, 3), (2,)])
    optimizer = SGD([weight, bias], lr=0.01)

    def closure():
        optimizer.zero_grad()
        loss = loss_of(weight, bias, Tensor(np.ones((1, 3))))
        loss.backward()
        return loss

    before = values([weight])
    with no_grad():
        assert optimizer.step(closure).shape == ()
    assert not same(before, values([weight]))
    assert optimizer.step() is None


def test_zero_grad_forgets_or_fills_with_zeros(rng):
    params = draw_parameters(rng)
    optimizer = SGD(params)
    draw_gradients(rng, params)
    params[0].grad = None
    optimizer.zero_grad(set_to_none=False)
    assert params[0].grad is None
    assert all(not param.grad.numpy().any() for param in params[1:])
    optimizer.zero_grad()
    assert all(param.grad is None for param in params)


# ------------------------------------------------------------------------------------------------- bare tensors


@every_optimizer
def test_bare_tensors_are_trained_in_their_own_memory(rng, make, options):
    """With the bits of Parameters, also where gradients come and go, and their states are each other's."""
    params = draw_parameters(rng)
    tensors = [Tensor(param.data.copy(), requires_grad=True) for param in params]
    memory = [x.data for x in tensors]
    first, second = make(params, **options), make([{"params": tensors[:2]}, {"params": tensors[2:]}], **options)
    for step in range(4):
        draw_gradients(rng, params)
        for param, x in zip(params, tensors):
            x.grad = param.grad
        if step == 2:
            params[1].grad = tensors[1].grad = None
        first.step()
        second.step()
        assert same(values(params), values(tensors))
    assert all(x.data is array for x, array in zip(tensors, memory))
    saved = second.state_dict()
    make(tensors, **options).load_state_dict(first.state_dict())
    assert first.state_dict()["state"].keys() == saved["state"].keys()


def test_a_bare_tensor_is_trained_by_backward_with_closure_schedule_and_scaler():
    """The gradient of a sum is a view of one number, which nobody may write to."""
    x = Tensor(np.arange(3.0), requires_grad=True)
    optimizer = SGD([x], lr=0.5)
    schedule, scaler = LRScheduler(optimizer, StepDecay(1, 0.5)), GradScaler(init_scale=8.0)
    scaler.scale(x.sum()).backward()
    scaler.unscale_(optimizer)
    assert x.grad.tolist() == [1.0, 1.0, 1.0]
    scaler.step(optimizer)
    scaler.update()
    schedule.step()

    def closure():
        optimizer.zero_grad()
        loss = x.sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 1.5
    assert x.tolist() == [-0.75, 0.25, 1.25]


def test_a_bare_tensor_on_a_gpu_is_trained_there(strict_cupy, rng):
    start, gpu = rng.standard_normal((3, 4)).astype(np.float32), Device("cuda:1")
    host, device = Tensor(start.copy(), True), Tensor(to_device(start.copy(), gpu), True)
    for x in (host, device):
        optimizer, scaler = Adam([x], lr=0.1), GradScaler(init_scale=8.0)
        for _ in range(3):
            with x.device.current():
                scaler.scale((x * x).sum()).backward()
            scaler.unscale_(optimizer)
            optim.clip_grad_norm_([x], 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert_close(host, to_device(device.data, Device("cpu")), tolerance=1e-6)


def test_a_bare_tensor_that_can_not_be_changed_in_place_is_refused(rng):
    turned = Tensor(rng.standard_normal((3, 4)).T, requires_grad=True)
    with pytest.raises(LayoutError, match=r"in a row, got float64 \(4, 3\) on cpu: write .contiguous\(\)"):
        SGD([turned])
    x = Tensor(np.ones(3), requires_grad=True)
    optimizer = SGD([x])
    x.data = np.ones(4)
    x.grad = Tensor(np.ones(4))
    with pytest.raises(LayoutError, match="expected a tensor of 3 float64 on cpu in a row, got float64"):
        optimizer.step()


# ------------------------------------------------------------------------------------------------------ groups


def test_groups_differ_in_their_options(rng):
    first, second = draw_parameters(rng, shapes=[(3,), (3,)])
    optimizer = SGD([{"params": [first]}, {"params": [second], "lr": 0.5}], lr=0.1)
    before, gradient = values([first, second]), Tensor(np.ones(3))
    first.grad = second.grad = gradient
    optimizer.param_groups[0]["lr"] = 0.25
    optimizer.step()
    assert_close(first, before[0] - 0.25)
    assert_close(second, before[1] - 0.5)


def test_a_group_may_come_later(rng):
    first, second, third = draw_parameters(rng, shapes=[(3,), (3,), (3,)])
    optimizer = Adam([first], lr=0.1)
    draw_gradients(rng, [first, second, third])
    optimizer.step()
    optimizer.add_param_group({"params": [second, third], "lr": 0.2})
    assert [len(group["params"]) for group in SGD([{"params": Parameter(np.ones(2))}]).param_groups] == [1]
    twin = Parameter(second.data.copy())
    twin.grad = second.grad
    optimizer.step()
    alone = Adam([twin], lr=0.2)
    alone.step()
    assert np.array_equal(second.data, twin.data)
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 2]


def test_a_group_that_is_refused_leaves_no_trace(rng):
    first, second = draw_parameters(rng, shapes=[(3,), (3,)])
    optimizer = Adam([first])
    with pytest.raises(ArgumentError, match=r"expected lr to be a finite number >= 0, got -1"):
        optimizer.add_param_group({"params": [second], "lr": -1})
    assert second.flat is None and optimizer.params() == [first]
    optimizer.add_param_group({"params": [second]})


def test_generators_are_taken(rng):
    assert len(Adam(param for param in draw_parameters(rng)).params()) == 4


# ------------------------------------------------------------------------------------------------- wrong input


@pytest.mark.parametrize("make", [SGD, Adam, AdamW])
@pytest.mark.parametrize("option", ["lr", "weight_decay"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -0.1, "0.1", None, True])
def test_rates_must_be_finite_and_not_negative(rng, make, option, value):
    message = f"^{make.__name__}: expected {option} to be a finite number >= 0, got {value!r}"
    with pytest.raises(ArgumentError, match=message):
        make(draw_parameters(rng), **{option: value})


@pytest.mark.parametrize(
    "make, options, message",
    [
        (SGD, {"momentum": -0.1}, r"expected momentum to be a finite number >= 0, got -0.1"),
        (SGD, {"dampening": math.nan}, r"expected dampening to be a finite number, got nan"),
        (SGD, {"nesterov": True}, "expected momentum > 0 and dampening 0 with nesterov, got momentum 0.0"),
        (SGD, {"nesterov": True, "momentum": 0.9, "dampening": 0.1}, "expected .*, got momentum 0.9 and dampening 0.1"),
        (SGD, {"maximize": 1}, "expected maximize to be True or False, got 1"),
        (SGD, {"lr": Tensor(np.ones(()))}, "expected lr .*: write .item\\(\\), which reads its number"),
        (SGD, {"differentiable": True}, "expected no differentiable, got True: there are no gradients of gradients"),
        (AdamW, {"capturable": True}, "expected no capturable, got True: a step is not captured"),
        (Adam, {"fused": 3}, "expected no fused, got 3: a step always is one kernel"),
        (Adam, {"amsgrad": 1}, "expected amsgrad to be True or False, got 1"),
        (RMSprop, {"alpha": 1.1}, r"expected alpha to be a number in \[0, 1\], got 1.1"),
        (RMSprop, {"centered": None}, "expected centered to be True or False, got None"),
        (RMSprop, {"momentum": -0.1}, "expected momentum to be a finite number >= 0, got -0.1"),
        (Adagrad, {"lr_decay": -1}, "expected lr_decay to be a finite number >= 0, got -1"),
        (Adagrad, {"initial_accumulator_value": -1}, "expected initial_accumulator_value .*, got -1"),
        (Adadelta, {"rho": -1}, r"expected rho to be a number in \[0, 1\], got -1"),
        (Adadelta, {"eps": 0}, "expected eps to be a finite number > 0, got 0"),
        (Adam, {"betas": (0.9, 1.0)}, r"expected betas\[1\] to be a number in \[0, 1\), got 1.0"),
        (Adam, {"betas": (-0.1, 0.9)}, r"expected betas\[0\] to be a number in \[0, 1\), got -0.1"),
        (Adam, {"betas": 0.9}, "expected betas to be two numbers, got 0.9"),
        (Adam, {"eps": 0.0}, r"expected eps to be a finite number > 0, got 0.0"),
        (Adam, {"decoupled_weight_decay": None}, "expected decoupled_weight_decay to be True or False, got None"),
    ],
)
def test_options_must_be_in_range(rng, make, options, message):
    with pytest.raises(ArgumentError, match=f"^{make.__name__}: {message}"):
        make(draw_parameters(rng), **options)


def wrong_parameters(rng):
    weight = Parameter(rng.standard_normal((2, 3)))
    integer = Parameter(np.ones(3, np.int64), requires_grad=False)
    return {
        "empty": ([], ArgumentError, "expected at least one parameter, got none"),
        "empty group": ([{"params": []}], ArgumentError, "expected at least one parameter, got none"),
        "one": (weight, ArgumentError, "an iterable of Parameters or groups, got Parameter: put it into a list"),
        "number": (3, ArgumentError, "expected an iterable of Parameters or groups, got int"),
        "set": ({weight}, ArgumentError, "got set: a set has no order"),
        "twice": ([weight, weight], ArgumentError, r"each parameter once, got Parameter of float64 \(2, 3\) twice"),
        "in two groups": ([{"params": [weight]}, {"params": [weight]}], ArgumentError, "expected each parameter once"),
        "unknown option": ([{"params": [weight], "rate": 1.0}], ArgumentError, "expected options lr, .*, got rate"),
        "no params": ([{"lr": 1.0}], ArgumentError, 'expected a group to be a dict with "params"'),
        "mixed": ([{"params": [weight]}, weight], ArgumentError, 'expected a group to be a dict with "params"'),
        "array": ([np.ones(3)], DtypeError, "expected Parameters or leaf tensors, got a ndarray"),
        "named": ([("weight", weight)], DtypeError, "expected Parameters or leaf tensors, got a tuple"),
        "output": ([weight * 2.0], DtypeError, r"got the output of an operation of float64 \(2, 3\): train what"),
        "integer": ([integer], DtypeError, r"expected Parameters of a float dtype, got Parameter of int64 \(3,\)"),
    }


@pytest.mark.parametrize("make", [SGD, Adam, AdamW])
@pytest.mark.parametrize("kind", wrong_parameters(np.random.default_rng(0)))
def test_what_is_no_list_of_parameters_is_refused(rng, make, kind):
    params, error, message = wrong_parameters(rng)[kind]
    with pytest.raises(error, match=f"^{make.__name__}: .*{message}"):
        make(params)


@pytest.mark.parametrize("lr", [math.nan, -1.0])
def test_a_rate_changed_to_nonsense_is_refused_before_anything_changes(rng, lr):
    first, second = draw_parameters(rng, shapes=[(3,), (3,)])
    optimizer = SGD([{"params": [first]}, {"params": [second]}])
    draw_gradients(rng, [first, second])
    optimizer.param_groups[1]["lr"] = lr
    before = values([first, second])
    with pytest.raises(ArgumentError, match="SGD: expected lr"):
        optimizer.step()
    assert same(before, values([first, second]))


def test_momentum_that_came_later_is_refused(rng):
    params = draw_parameters(rng)
    optimizer = SGD(params)
    draw_gradients(rng, params)
    optimizer.param_groups[0]["momentum"] = 0.9
    with pytest.raises(ArgumentError, match="got options that need momentum_buffer: make a new optimizer"):
        optimizer.step()


def test_replaced_data_is_refused(rng):
    params = draw_parameters(rng)
    optimizer = SGD(params)
    params[0].data = params[0].data.copy()
    with pytest.raises(LayoutError, match=r"float64 \(3, 4\) to stay in its place"):
        optimizer.step()


@pytest.mark.parametrize("make", dict.fromkeys(make for make, _ in OPTIMIZERS))
def test_choices_between_equal_steps_are_taken(rng, make):
    optimizer = make(draw_parameters(rng), lr=0.1, fused=True, foreach=False, differentiable=False, capturable=False)
    assert not {"fused", "foreach"} & set(optimizer.param_groups[0])


def test_adamw_stays_decoupled(rng):
    with pytest.raises(ArgumentError, match="expected decoupled_weight_decay to be True, got False: use Adam"):
        AdamW([{"params": draw_parameters(rng), "decoupled_weight_decay": False}])


# -------------------------------------------------------------------------------------------------- the formulas


def test_the_formulas_work_on_plain_arrays():
    param, grad = np.ones(3), np.full(3, 2.0)
    sgd_update(param, grad, step=1, lr=0.25)
    assert_close(param, np.full(3, 0.5))
    average, square = np.zeros(3), np.zeros(3)
    adam_update(param, grad, average, square, step=1, lr=0.25, eps=1e-12)
    assert_close(param, np.full(3, 0.25), tolerance=1e-11)
    assert_close(average, np.full(3, 0.2))
    assert_close(square, np.full(3, 0.004))


@every_optimizer
def test_the_gpu_gets_the_same_bits_without_waiting(strict_cupy, rng, make, options):
    gpu = Device("cuda:1")
    params = draw_parameters(rng)
    twins = [Parameter(to_device(param.data, gpu)) for param in params]
    host, device = make(params, **options), make(twins, **options)
    for step in range(3):
        draw_gradients(rng, params)
        for param, twin in zip(params, twins):
            twin.grad = Tensor(to_device(param.grad.data, gpu))
        if step == 1:
            params[2].grad = twins[2].grad = None
        host.step()
        with no_sync():
            device.step()
    assert same(values(params), [to_device(twin.data, Device("cpu")) for twin in twins])


def test_a_gradient_without_elements_is_stepped_alone_on_a_gpu(strict_cupy):
    nothing, rest = (Parameter(to_device(np.ones(shape, np.float32), Device("cuda:1"))) for shape in [(0, 3), (2,)])
    optimizer = SGD([nothing, rest], lr=0.1)
    nothing.grad = Tensor(to_device(np.zeros((0, 3), np.float32), Device("cuda:1")))
    optimizer.step()
    assert to_device(rest.data, Device("cpu")).tolist() == [1.0, 1.0]


def test_a_subclass_needs_a_formula(rng):
    params = draw_parameters(rng)
    optimizer = Optimizer(params, {"lr": 0.1})
    draw_gradients(rng, params)
    with pytest.raises(NotImplementedError, match="Optimizer has no update"):
        optimizer.step()


def test_repr_shows_the_groups(rng):
    first, second = draw_parameters(rng, shapes=[(3,), (3,)])
    text = repr(Adam([{"params": [first]}, {"params": [second], "lr": 0.5}]))
    assert text.startswith("Adam(\n  1 parameters: lr=0.001, betas=(0.9, 0.999)")
    assert "\n  1 parameters: lr=0.5," in text


# ------------------------------------------------------------------------------------------------- master weights


@pytest.mark.parametrize("make", [SGD, Adam, AdamW])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_master_weights_are_what_float32_parameters_would_be(rng, make, dtype):
    narrow = Parameter(rng.standard_normal(70).astype(as_dtype(dtype)))
    wide = Parameter(narrow.data.astype(np.float32))
    optimizer, twin = make([narrow], lr=1e-4, master_weights=True), make([wide], lr=1e-4)
    for _ in range(20):
        gradient = rng.standard_normal(70).astype(narrow.dtype)
        narrow.grad, wide.grad = Tensor(gradient), Tensor(gradient.astype(np.float32))
        optimizer.step()
        twin.step()
    masters = optimizer.state_dict()["state"][0]["master_weights"]
    assert masters.dtype == np.float32 and np.array_equal(masters.data, wide.data)
    assert np.array_equal(narrow.data, wide.data.astype(narrow.dtype))


def test_a_parameter_that_was_changed_from_outside_is_copied_again():
    weight = Parameter(np.ones(3, np.float16))
    optimizer = SGD([weight], lr=2.0**-12, master_weights=True)
    for value, expected in ((1.0, 1.0 - 2.0**-12), (None, 1.0 - 2.0**-11), (8.0, 8.0 - 2.0**-12)):
        with no_grad():
            if value is not None:
                weight[0] = value
        weight.grad = Tensor(np.ones(3, np.float16))
        optimizer.step()
        assert optimizer.state_dict()["state"][0]["master_weights"].data[0] == expected


def test_masters_are_saved_loaded_and_made_anew_where_they_are_missing(rng):
    def made():
        weight = Parameter(np.ones(3, np.float16))
        return weight, Adam([weight], lr=1e-4, master_weights=True)

    (weight, optimizer), (other, second), (third, last) = made(), made(), made()
    weight.grad = Tensor(np.ones(3, np.float16))
    optimizer.step()
    state = optimizer.state_dict()
    second.load_state_dict(state)
    del state["state"][0]["master_weights"]
    last.load_state_dict(state)
    for param in (weight, other, third):
        param.grad = Tensor(np.ones(3, np.float16))
    for one in (optimizer, second, last):
        one.step()
    saved = [one.state_dict()["state"][0]["master_weights"].data for one in (optimizer, second, last)]
    assert np.array_equal(saved[0], saved[1])
    np.testing.assert_allclose(saved[2], 1 - 1e-4, rtol=1e-6)  # rounded in between


def test_wide_parameters_have_no_masters(rng):
    weight = Parameter(np.ones(3, np.float32))
    optimizer = SGD([weight], lr=0.5, momentum=0.9, master_weights=True)
    weight.grad = Tensor(np.ones(3, np.float32))
    optimizer.step()
    assert set(optimizer.state_dict()["state"][0]) == {"momentum_buffer"}
    with pytest.raises(ArgumentError, match="master_weights"):
        SGD([weight], master_weights=1)
