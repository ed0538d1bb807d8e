"""Averaged models: the formulas, what they hold, wrappers, statistics of batch norms, the schedule of SWA."""

import numpy as np
import pytest

from minigrad import Tensor, distributed, nn, ones, optim, randn, zeros
from minigrad.data import DataLoader, TensorDataset
from minigrad.errors import ArgumentError, ShapeError
from minigrad.optim import swa_utils
from minigrad.optim.swa_utils import SWALR, AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn, update_bn
from minigrad.testing import assert_close
from tests.parity import optim_ours
from tests.parity.optim_cases import two_groups


def net():
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).double()


def drawn(rng, model):
    """Give each parameter and each buffer of floats new values, and return them by name."""
    for x in model.state_dict().values():
        if x.dtype.kind == "f":
            x.copy_(Tensor(rng.standard_normal(x.shape)))
        else:
            x.add_(1)
    return {name: x.numpy().copy() for name, x in model.state_dict().items()}


FORMULAS = {
    "mean": ({}, lambda average, x, count: average + (x - average) / (count + 1)),
    "ema": ({"multi_avg_fn": get_ema_multi_avg_fn(0.9)}, lambda average, x, count: 0.9 * average + 0.1 * x),
    "ema of one": ({"avg_fn": get_ema_avg_fn(0.9)}, lambda average, x, count: 0.9 * average + 0.1 * x),
    "mean of one": ({"avg_fn": swa_utils.get_swa_avg_fn()}, lambda a, x, count: a + (x - a) / (count + 1)),
    "own": ({"avg_fn": lambda average, x, count: average * 0 + count}, lambda a, x, count: np.full_like(x, count)),
}


@pytest.mark.parametrize("use_buffers", [False, True])
@pytest.mark.parametrize("kind", FORMULAS)
def test_an_average_follows_its_formula(rng, kind, use_buffers):
    options, formula = FORMULAS[kind]
    model = net()
    averaged, expected = AveragedModel(model, use_buffers=use_buffers, **options), {}
    for count in range(4):
        for name, value in drawn(rng, model).items():
            copied = count == 0 or (not use_buffers and "running" in name) or "num_batches" in name
            expected[name] = value if copied else formula(expected[name], value, count)
        averaged.update_parameters(model)
    state = averaged.state_dict()
    assert state.pop("n_averaged").item() == 4
    assert state.keys() == {f"module.{name}" for name in expected}
    for name, value in expected.items():
        assert_close(state[f"module.{name}"], value, tolerance=1e-14)


def test_the_model_and_its_average_share_nothing(rng):
    model = net()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    averaged = AveragedModel(model)
    averaged.update_parameters(model)
    before = averaged(ones(4, 2, dtype="float64")).detach().numpy().copy()
    model(ones(4, 2, dtype="float64")).sum().backward()
    optimizer.step()
    assert np.array_equal(averaged(ones(4, 2, dtype="float64")).detach().numpy(), before)
    assert all(param.grad is None for param in averaged.parameters())


def test_half_precision_is_averaged_in_float32():
    model = nn.Linear(1, 1, bias=False)
    model.weight.detach().copy_(ones(1, 1))
    model.bfloat16()
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    averaged.update_parameters(model)
    model.weight.detach().copy_(zeros(1, 1).bfloat16())
    averaged.update_parameters(model)
    assert averaged.module.weight.item() == 0.5 and averaged.module.weight.dtype == model.weight.dtype


def test_a_wrapped_model_is_averaged_as_its_module(rng):
    def body(comm):
        model = distributed.DistributedDataParallel(nn.Linear(2, 1), comm)
        averaged = AveragedModel(model)
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(randn(2, 2)).mean().backward()
            optimizer.step()
            averaged.update_parameters(model)
        assert type(averaged.module) is nn.Linear
        return {name: x.numpy().copy() for name, x in averaged.state_dict().items()}

    first, second = distributed.run(body, 2)
    assert sorted(first) == ["module.bias", "module.weight", "n_averaged"]
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_a_state_goes_into_another_one(rng):
    model = net()
    averaged, other = AveragedModel(model), AveragedModel(net())
    for _ in range(2):
        drawn(rng, model)
        averaged.update_parameters(model)
    other.load_state_dict(averaged.state_dict())
    drawn(rng, model)
    for each in (averaged, other):
        each.update_parameters(model)
    for name, x in averaged.state_dict().items():
        assert np.array_equal(x.numpy(), other.state_dict()[name].numpy())


def test_update_bn_is_the_mean_over_batches(rng):
    model, x = net(), Tensor(rng.standard_normal((12, 2)))
    drawn(rng, model)
    model.eval()
    model[1].momentum = 0.3
    update_bn(DataLoader(TensorDataset(x, x), 4), model)
    hidden = model[0](x).detach().numpy().reshape(3, 4, 3)
    assert_close(model[1].running_mean, hidden.mean(axis=(0, 1)), tolerance=1e-12)
    assert_close(model[1].running_var, hidden.var(axis=1, ddof=1).mean(axis=0), tolerance=1e-12)
    assert model[1].momentum == 0.3 and not any(module.training for module in model.modules())
    update_bn([x], nn.Linear(2, 1))  # no batch norm: nothing to do


def test_swa_goes_on_from_the_rates_of_another_schedule():
    optimizer = two_groups(optim_ours)
    cosine, swa = optim.lr_scheduler.CosineAnnealingLR(optimizer, 10), SWALR(optimizer, 0.05, 4, "linear")
    for _ in range(5):
        cosine.step()
    start = cosine.get_last_lr()
    rates = []
    for _ in range(6):
        swa.step()
        rates.append(swa.get_last_lr())
    expected = [[rate + (0.05 - rate) * min(1, i / 4) for rate in start] for i in range(1, 7)]
    assert_close(np.array(rates), np.array(expected), tolerance=1e-15)
    with pytest.raises(ArgumentError, match="CosineAnnealingLR.step: expected one schedule .*, got a SWALR"):
        cosine.step()


REFUSED = [
    (lambda: AveragedModel(3), ArgumentError, "AveragedModel: expected a Module, got int"),
    (lambda: AveragedModel(net(), avg_fn=max, multi_avg_fn=max), ArgumentError, "avg_fn or multi_avg_fn, got both"),
    (lambda: AveragedModel(net(), avg_fn=0.9), ArgumentError, "expected avg_fn as a function, got 0.9"),
    (lambda: AveragedModel(net()).update_parameters(nn.Linear(2, 1)), ArgumentError, "a model of 6 parameters, got 2"),
    (lambda: AveragedModel(nn.Linear(2, 1)).update_parameters(nn.Linear(3, 1)), ShapeError, r"got \(1, 3\) for"),
    (lambda: get_ema_multi_avg_fn(1.1), ArgumentError, r"expected decay to be a number in \[0, 1\], got 1.1"),
    (lambda: SWALR(two_groups(optim_ours), -0.1), ArgumentError, "SWALR: expected swa_lr .*, got -0.1"),
    (lambda: SWALR(two_groups(optim_ours), 0.1, -1), ArgumentError, "anneal_epochs to be an integer >= 0, got -1"),
]


@pytest.mark.parametrize("call, error, message", REFUSED)
def test_what_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    "options", [{}, {"avg_fn": get_ema_avg_fn(0.9)}, {"device": "cuda:1"}], ids=["plain", "avg_fn", "device"]
)
def test_an_average_lives_on_a_gpu_or_beside_it(strict_cupy, rng, options):
    model = net()
    host = AveragedModel(model, **{key: value for key, value in options.items() if key != "device"})
    device = AveragedModel(net().to("cuda:1") if "device" not in options else net(), **options)
    twin = net() if "device" in options else net().to("cuda:1")
    for _ in range(3):
        drawn(rng, model)
        twin.load_state_dict(model.state_dict())
        host.update_parameters(model)
        device.update_parameters(twin)
    for name, x in device.state_dict().items():
        assert name == "n_averaged" or str(x.device) == "cuda:1"
        assert np.array_equal(x.cpu().numpy(), host.state_dict()[name].numpy())
