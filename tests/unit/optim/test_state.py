"""What an optimizer saves and loads: PyTorch's form, the same bits after a resume, precise errors."""

import copy
import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from minigrad import Tensor
from minigrad.backend.device import Device, to_device
from minigrad.backend.dtypes import as_dtype
from minigrad.errors import ArgumentError, StateDictError
from minigrad.nn import Parameter
from minigrad.optim import SGD, Adam, AdamW
from tests.foreign import ForeignTensor
from tests.unit.optim.models import OPTIMIZERS, draw_gradients, draw_parameters, same, values


def trained(rng, make, options, steps=3):
    """Parameters and their optimizer after some steps; the second parameter had no gradient in the first."""
    params = draw_parameters(rng)
    optimizer = make(params, **options)
    for step in range(steps):
        draw_gradients(rng, params)
        if step == 0:
            params[1].grad = None
        optimizer.step()
    return params, optimizer


def through_files(state_dict, folder):
    """A state_dict as it comes back from safetensors and JSON."""
    arrays, plain = {}, {}
    for index, entry in state_dict["state"].items():
        for name, value in entry.items():
            (arrays if isinstance(value, Tensor) else plain)[f"{index}/{name}"] = value
    save_file({key: value.numpy() for key, value in arrays.items()}, folder / "state")
    text = json.dumps({"plain": plain, "param_groups": state_dict["param_groups"]})
    found = json.loads(text)
    state = {}
    for key, value in [*load_file(folder / "state").items(), *found["plain"].items()]:
        index, name = key.split("/")
        state.setdefault(int(index), {})[name] = value
    return {"state": state, "param_groups": found["param_groups"]}


@pytest.mark.parametrize("make, options", OPTIMIZERS)
def test_resuming_gives_the_same_bits(rng, tmp_path, make, options):
    params, optimizer = trained(rng, make, options)
    optimizer.param_groups[0]["lr"] = 0.05
    twins = [Parameter(param.data.copy()) for param in params]
    resumed = make(twins, **{**options, "lr": 1.0})
    resumed.load_state_dict(through_files(optimizer.state_dict(), tmp_path))
    assert resumed.param_groups[0]["lr"] == 0.05
    for _ in range(3):
        draw_gradients(rng, params)
        for param, twin in zip(params, twins):
            twin.grad = param.grad
        optimizer.step()
        resumed.step()
    assert same(values(params), values(twins))


def test_the_form_is_pytorchs(rng):
    _, optimizer = trained(rng, Adam, {"lr": 0.1})
    saved = optimizer.state_dict()
    assert sorted(saved) == ["param_groups", "state"]
    assert {index: entry["step"] for index, entry in saved["state"].items()} == {0: 3, 1: 2, 2: 3, 3: 3}
    assert sorted(saved["state"][0]) == ["exp_avg", "exp_avg_sq", "step"]
    assert saved["state"][3]["exp_avg"].shape == (2, 1, 5)
    assert saved["param_groups"] == [{**Adam(draw_parameters(rng), lr=0.1).defaults, "params": [0, 1, 2, 3]}]


def test_only_what_was_updated_has_state(rng):
    params = draw_parameters(rng)
    optimizer = SGD(params, momentum=0.9)
    assert optimizer.state_dict()["state"] == {}
    params[2].grad = Tensor(np.ones(()))
    optimizer.step()
    [(index, entry)] = optimizer.state_dict()["state"].items()
    assert index == 2 and entry["momentum_buffer"].item() == 1.0


def test_state_can_be_read_by_parameter_and_changed_in_place(rng):
    params, optimizer = trained(rng, Adam, {})
    assert list(optimizer.state) == params
    average = optimizer.state[params[0]]["exp_avg"]
    average.zero_()
    assert not optimizer.state_dict()["state"][0]["exp_avg"].numpy().any()
    with pytest.raises(ArgumentError, match=r"got another exp_avg: write state\[param\]\['exp_avg'\].copy_"):
        optimizer.state[params[0]]["exp_avg"] = average
    with pytest.raises(ArgumentError, match=r"Optimizer.state: expected a parameter that was updated, .* slots\(\)"):
        Adam(draw_parameters(rng)).state[params[0]]


def test_sgd_without_momentum_has_no_state(rng):
    _, optimizer = trained(rng, SGD, {"lr": 0.1})
    assert optimizer.state_dict()["state"] == {}


def test_loading_copies_and_replaces_all(rng):
    """State that the loaded dict lacks goes back to zero, and the dict keeps its own memory."""
    _, optimizer = trained(rng, Adam, {})
    saved = copy.deepcopy(optimizer.state_dict())
    del saved["state"][1]
    optimizer.load_state_dict(saved)
    assert 1 not in optimizer.state_dict()["state"]
    draw_gradients(rng, optimizer.params())
    optimizer.step()
    state = optimizer.state_dict()["state"]
    assert [state[i]["step"] for i in range(4)] == [4, 1, 4, 4]
    assert not np.array_equal(state[0]["exp_avg"].numpy(), saved["state"][0]["exp_avg"].numpy())


def test_groups_of_pytorch_are_taken(rng):
    """Choices of its implementation have no meaning here; its indexes may be any; its step is a float array."""
    _, optimizer = trained(rng, AdamW, {})
    saved = copy.deepcopy(optimizer.state_dict())
    only_theirs = {"foreach": None, "fused": True, "capturable": False, "param_names": ["a"] * 4, "max_lr": 0.1}
    saved["param_groups"][0].update(only_theirs, params=[7, 5, 3, 1])
    saved["state"] = {7 - 2 * i: entry for i, entry in saved["state"].items()}
    saved["state"][7]["step"] = np.array(12.0, np.float32)
    optimizer.load_state_dict(saved)
    assert optimizer.state_dict()["state"][0]["step"] == 12
    del saved["param_groups"][0]["amsgrad"]  # as before PyTorch, or this package, had it
    optimizer.load_state_dict(saved)
    saved["param_groups"][0].update(lr=ForeignTensor(0.25), betas=[ForeignTensor(0.5), 0.75])
    optimizer.load_state_dict(saved)
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["betas"]) == (0.25, (0.5, 0.75))
    assert not set(only_theirs) & set(optimizer.param_groups[0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_state_of_16_bits_as_pytorch_has_it_is_widened(rng, dtype):
    params = draw_parameters(rng, as_dtype(dtype), [(3,)])
    optimizer = SGD(params, momentum=0.9)
    narrow = np.array([1.0, -2.0, 3.0], as_dtype(dtype))
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": {0: {"momentum_buffer": ForeignTensor(narrow)}}, "param_groups": groups})
    buffer = optimizer.state[params[0]]["momentum_buffer"]
    assert buffer.dtype == np.float32 and buffer.tolist() == [1.0, -2.0, 3.0]


def test_state_lives_where_its_parameters_do(strict_cupy, rng):
    gpu = Device("cuda:1")
    params, optimizer = trained(rng, Adam, {})
    twins = [Parameter(to_device(param.data, gpu)) for param in params]
    moved = Adam(twins)
    moved.load_state_dict(optimizer.state_dict())
    entry = moved.state_dict()["state"][3]
    assert entry["exp_avg"].device == gpu
    host = to_device(entry["exp_avg"].data, Device("cpu"))
    assert np.array_equal(host, optimizer.state_dict()["state"][3]["exp_avg"].numpy())


def spoil(saved, kind):
    state, group = saved["state"], saved["param_groups"][0]
    if kind == "no groups":
        del saved["param_groups"]
    elif kind == "groups":
        saved["param_groups"] = [group, group]
    elif kind == "count":
        group["params"].pop()
    elif kind == "no params":
        del group["params"]
    elif kind == "missing option":
        del group["eps"]
    elif kind == "unknown option":
        group["momentum"] = 0.5
    elif kind == "state":
        group["amsgrad"] = True
    elif kind == "lr":
        group["lr"] = float("nan")
    elif kind == "index":
        state[9] = state[0]
    elif kind == "list":
        saved["state"] = [state[i] for i in range(4)]
    elif kind == "entry":
        state[2] = np.zeros(3)
    elif kind == "missing slot":
        del state[2]["exp_avg"]
    elif kind == "unknown slot":
        state[2]["max_exp_avg_sq"] = state[2]["exp_avg"]
    elif kind == "shape":
        state[0]["exp_avg"] = np.zeros(12)
    elif kind == "dtype":
        state[0]["exp_avg"] = np.zeros((3, 4), np.float32)
    elif kind == "type":
        state[0]["exp_avg"] = [0.0]
    elif kind == "step":
        state[0]["step"] = 1.5


FAULTS = {
    "no groups": r"expected a dict with state and param_groups, got keys \['state'\]",
    "groups": r"expected groups of \[4\] parameters, got groups of \[4, 4\]",
    "count": r"expected groups of \[4\] parameters, got groups of \[3\]",
    "no params": 'expected param_groups to be dicts with "params"',
    "missing option": r"expected groups with options lr, .*, got missing \['eps'\] and unknown \[\]",
    "unknown option": r"got missing \[\] and unknown \['momentum'\]",
    "state": "no more state than exp_avg, exp_avg_sq, got .* max_exp_avg_sq: make the optimizer with the options",
    "lr": r"expected options in range, got others: Adam: expected lr to be a finite number >= 0, got nan",
    "index": r"expected state of the parameters in param_groups, got state of \[9\]",
    "list": "expected a dict of state by parameter, got list",
    "entry": r"expected a dict as state of parameter 2 of shape \(\), got ndarray",
    "missing slot": r"expected a dict with exp_avg, exp_avg_sq, step .* \(\), got keys \['exp_avg_sq', 'step'\]",
    "unknown slot": "got .*max_exp_avg_sq",
    "shape": r"expected exp_avg of float64 \(3, 4\) in the state of .*, got float64 \(12,\)",
    "dtype": r"expected exp_avg of float64 \(3, 4\) in the state of .*, got float32 \(3, 4\)",
    "type": r"expected exp_avg of float64 \(3, 4\) in the state of .*, got list",
    "step": r"expected step to be a whole number >= 0 in the state of .*, got 1.5",
}


@pytest.mark.parametrize("kind", FAULTS)
def test_what_does_not_fit_is_named_and_changes_nothing(rng, kind):
    params, optimizer = trained(rng, Adam, {})
    _, other = trained(rng, Adam, {"lr": 0.5})
    saved = copy.deepcopy(other.state_dict())
    spoil(saved, kind)
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(StateDictError, match=rf"^Adam\.load_state_dict: .*{FAULTS[kind]}"):
        optimizer.load_state_dict(saved)
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    for index, entry in before["state"].items():
        assert all(np.array_equal(np.asarray(entry[name]), np.asarray(after["state"][index][name])) for name in entry)


@pytest.mark.parametrize("state_dict", [None, 3, {}, []])
def test_what_is_no_state_is_refused(rng, state_dict):
    with pytest.raises(StateDictError, match="Adam.load_state_dict: expected a dict with state and param_groups"):
        Adam(draw_parameters(rng)).load_state_dict(state_dict)


def test_a_whole_checkpoint_is_told_what_of_it_to_load(rng):
    optimizer = Adam(draw_parameters(rng))
    with pytest.raises(StateDictError, match="got keys .'epoch', 'optimizer_state_dict'.: load what is under 'op"):
        optimizer.load_state_dict({"epoch": 3, "optimizer_state_dict": optimizer.state_dict()})
