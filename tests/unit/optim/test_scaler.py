"""GradScaler: the scale, which steps count, and in which order it may be called."""

import copy
import math

import numpy as np
import pytest

import minigrad
from minigrad import Tensor, nn, ops, optim
from minigrad.errors import ArgumentError, AutogradError, DtypeError, StateDictError
from minigrad.testing import assert_close

INF, NAN = math.inf, math.nan


def weights(*sizes, dtype=np.float32):
    return [nn.Parameter(np.ones(size, dtype)) for size in sizes]


def give(params, value, scaler):
    """The gradient that backward of a scaled loss would leave, in every parameter."""
    for param in params:
        param.grad = Tensor(np.full(param.shape, value * scaler.get_scale(), param.dtype))


def attempt(optimizer, scaler, value):
    """One step with a gradient of this value everywhere; whether it counted."""
    params = optimizer.params()
    before = [param.data.copy() for param in params]
    give(params, value, scaler)
    scaler.step(optimizer)
    scaler.update()
    return any(not np.array_equal(old, param.data) for old, param in zip(before, params))


def test_scale_shrinks_at_an_overflow_and_grows_after_good_steps():
    scaler = optim.GradScaler(1024.0, growth_interval=3)
    optimizer = optim.SGD(weights(5), lr=0.1)
    history = []
    for value in (1.0, 1.0, INF, 1.0, 1.0, 1.0, 1.0, -INF, NAN, 1.0):
        counted = attempt(optimizer, scaler, value)
        history.append((counted, scaler.get_scale(), scaler.state_dict()["_growth_tracker"]))
    assert history == [
        (True, 1024.0, 1),
        (True, 1024.0, 2),
        (False, 512.0, 0),
        (True, 512.0, 1),
        (True, 512.0, 2),
        (True, 1024.0, 0),
        (True, 1024.0, 1),
        (False, 512.0, 0),
        (False, 256.0, 0),
        (True, 256.0, 1),
    ]


def test_the_defaults():
    assert optim.GradScaler().state_dict() == {
        "scale": 65536.0,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 2000,
        "_growth_tracker": 0,
    }


OPTIMIZERS = {
    "momentum": lambda params: optim.SGD(params, lr=0.1, momentum=0.9, dampening=0.5),
    "adam": lambda params: optim.Adam(params, lr=0.01, weight_decay=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("skipped", [(), (0,), (0, 1, 3), (2,)])
def test_a_skipped_step_leaves_no_trace(name, skipped):
    """Parameters, state and counts are those of a run without it."""
    scaled, plain = (OPTIMIZERS[name](weights(3, 4)) for _ in range(2))
    scaler = optim.GradScaler(8.0)
    for i in range(5):
        assert attempt(scaled, scaler, INF if i in skipped else 0.5 + i) == (i not in skipped)
        if i not in skipped:
            for param in plain.params():
                param.grad = Tensor(np.full(param.shape, 0.5 + i, np.float32))
            plain.step()
    for got, expected in zip(scaled.params(), plain.params()):
        assert np.array_equal(got.data, expected.data)
    states = [optimizer.state_dict()["state"] for optimizer in (scaled, plain)]
    assert states[0].keys() == states[1].keys()
    for index, entry in states[1].items():
        for key, value in entry.items():
            assert_close(states[0][index][key], value, tolerance=0, what=key)


def test_one_bad_element_anywhere_skips_all_groups():
    first, second, third = weights(3, 4, 5)
    optimizer = optim.SGD([{"params": [first, third]}, {"params": [second], "lr": 0.5}], lr=0.1)
    scaler = optim.GradScaler()
    give([first, second, third], 1.0, scaler)
    second.grad_array[2] = NAN
    scaler.step(optimizer)
    assert all((param.data == 1.0).all() for param in (first, second, third))


def test_what_lies_beside_the_gradients_does_not_count():
    """A parameter without gradient, in whose place of the flat buffer an old infinity lies."""
    first, second, third = weights(3, 4, 5)
    optimizer = optim.SGD([first, second, third], lr=0.1)
    scaler = optim.GradScaler()
    assert not attempt(optimizer, scaler, INF)
    optimizer.zero_grad()
    give([first, third], 1.0, scaler)
    scaler.step(optimizer)
    scaler.update()
    assert (first.data < 1.0).all() and (third.data < 1.0).all() and (second.data == 1.0).all()


def test_each_optimizer_decides_for_itself_and_the_scale_for_all():
    good, bad = weights(3, 3)
    optimizers = [optim.SGD([param], lr=0.1) for param in (good, bad)]
    scaler = optim.GradScaler(16.0)
    give([good], 1.0, scaler)
    give([bad], INF, scaler)
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    assert (good.data < 1.0).all() and (bad.data == 1.0).all() and scaler.get_scale() == 8.0


def test_clipping_sees_true_gradients():
    [param] = weights(4)
    optimizer = optim.SGD([param], lr=1.0)
    scaler = optim.GradScaler(1024.0)
    give([param], 3.0, scaler)
    scaler.unscale_(optimizer)
    assert_close(optim.clip_grad_norm_([param], 2.0), np.float32(6.0))
    scaler.step(optimizer)
    assert_close(param, np.zeros(4, np.float32), tolerance=1e-6)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_clipping_an_overflow_is_skipped_too():
    [param] = weights(4)
    optimizer = optim.SGD([param], lr=1.0)
    scaler = optim.GradScaler(4.0)
    give([param], 1.0, scaler)
    param.grad_array[1] = INF
    scaler.unscale_(optimizer)
    optim.clip_grad_norm_([param], 2.0)
    scaler.step(optimizer)
    scaler.update()
    assert (param.data == 1.0).all() and scaler.get_scale() == 2.0


def test_scaling_a_loss():
    x = Tensor(np.ones(3, np.float32), requires_grad=True)
    scaler = optim.GradScaler(256.0)
    half, double = x.half().sum(), x.double().sum()
    scaled = scaler.scale([x.sum(), half, double])
    assert [loss.dtype.name for loss in scaled] == ["float32", "float32", "float64"]
    assert [loss.item() for loss in scaled] == [768.0] * 3
    scaled[0].backward()
    assert x.grad.tolist() == [256.0] * 3
    big = Tensor(np.float16(2.0))
    assert optim.GradScaler().scale(big).item() == 131072.0  # more than float16 holds


def test_gradients_of_several_backwards_add_up():
    [param] = weights(2)
    optimizer, scaler = optim.SGD([param], lr=1.0), optim.GradScaler()
    for value in (0.25, 0.5):
        scaler.scale((param * value).sum()).backward()
    scaler.step(optimizer)
    assert param.tolist() == [0.25, 0.25]


def test_a_new_scale():
    scaler = optim.GradScaler()
    scaler.update(32.0)
    assert scaler.get_scale() == 32.0


def test_not_enabled_it_does_nothing():
    [param] = weights(2)
    optimizer, scaler = optim.SGD([param], lr=1.0), optim.GradScaler(enabled=False)
    loss = param.sum()
    assert scaler.scale(loss) is loss and scaler.get_scale() == 1.0 and not scaler.is_enabled()
    loss.backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert param.tolist() == [0.0, 0.0] and scaler.state_dict() == {}
    scaler.load_state_dict({})


def test_no_gradients_is_no_step_and_no_error():
    optimizer, scaler = optim.SGD(weights(2), lr=1.0), optim.GradScaler()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.state_dict()["_growth_tracker"] == 0


def test_state_goes_on():
    optimizer, scaler = optim.SGD(weights(2), lr=0.1), optim.GradScaler(64.0, growth_interval=3)
    attempt(optimizer, scaler, 1.0)
    attempt(optimizer, scaler, 1.0)
    twin = optim.GradScaler()
    twin.load_state_dict(copy.deepcopy(scaler.state_dict()))
    assert twin.state_dict() == scaler.state_dict()
    attempt(optimizer, twin, 1.0)
    assert twin.get_scale() == 128.0


def test_a_wrong_state_changes_nothing():
    scaler = optim.GradScaler(64.0)
    good = scaler.state_dict()
    with pytest.raises(StateDictError, match="expected scale"):
        scaler.load_state_dict({"scale": 3.0})
    with pytest.raises(StateDictError, match="got list"):
        scaler.load_state_dict([])
    for key, value in (("scale", -1.0), ("growth_factor", 1.0), ("_growth_tracker", -1), ("growth_interval", 0)):
        with pytest.raises(ArgumentError, match=key):
            scaler.load_state_dict({**good, key: value})
    assert scaler.state_dict() == good


@pytest.mark.parametrize(
    "options",
    [{"init_scale": 0.0}, {"init_scale": INF}, {"growth_factor": 1.0}, {"backoff_factor": 1.0}, {"backoff_factor": 0.0},
     {"growth_interval": 0}, {"growth_interval": 1.5}, {"enabled": 1}],
)
def test_options_out_of_range(options):
    with pytest.raises(ArgumentError, match="GradScaler"):
        optim.GradScaler(**options)


def test_calls_out_of_order():
    [param] = weights(2)
    optimizer, scaler = optim.SGD([param], lr=0.1), optim.GradScaler()
    with pytest.raises(AutogradError, match="update: expected a step"):
        scaler.update()
    give([param], 1.0, scaler)
    scaler.unscale_(optimizer)
    with pytest.raises(AutogradError, match="unscale_: expected one call"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(AutogradError, match="expected update.. after step.., got another step"):
        scaler.step(optimizer)
    with pytest.raises(AutogradError, match="got another unscale_"):
        scaler.unscale_(optimizer)
    scaler.update()
    assert attempt(optimizer, scaler, 1.0)


def test_wrong_arguments():
    scaler = optim.GradScaler()
    with pytest.raises(DtypeError, match="expected an Optimizer, got list"):
        scaler.step([])
    with pytest.raises(DtypeError, match="expected tensors, got float"):
        scaler.scale(1.0)
    half = weights(3, dtype=np.float16)
    optimizer = optim.SGD(half, lr=0.1)
    half[0].grad = Tensor(np.ones(3, np.float16))
    with pytest.raises(DtypeError, match="got float16"):
        scaler.step(optimizer)


def test_it_does_not_keep_optimizers_alive():
    import weakref

    optimizer, scaler = optim.SGD(weights(2), lr=0.1), optim.GradScaler()
    attempt(optimizer, scaler, 1.0)
    watched = weakref.ref(optimizer)
    del optimizer
    assert watched() is None


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
def test_training_finds_a_scale_that_float16_takes():
    """A loss whose scaled gradients overflow at first: steps are skipped until they do not."""
    minigrad.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer, scaler = optim.SGD(model.parameters(), lr=0.05), optim.GradScaler(2.0**24)
    rng = np.random.default_rng(0)
    x = Tensor(rng.standard_normal((32, 4)).astype(np.float32))
    y = Tensor(x.data.sum(1, keepdims=True))
    scales, losses = [], []
    for _ in range(150):
        optimizer.zero_grad()
        with minigrad.autocast("float16"):
            loss = ops.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        losses.append(loss.item())
    assert 1.0 < scales[-1] < 2.0**24 and losses[-1] < 0.2 * losses[0]
    assert scales == sorted(scales, reverse=True)
