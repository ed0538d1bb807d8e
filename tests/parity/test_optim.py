"""Optimizers, schedules and clipping give what PyTorch gave over 20 steps, one parameter skipping some of them."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from minigrad.testing import assert_close
from tests.foreign import ForeignTensor
from tests.parity import optim_ours
from tests.parity.optim_cases import (
    BORDER,
    CLIPS,
    HALF,
    MADE_BY_NAME,
    OPTIMIZERS,
    PLATEAUS,
    SCHEDULES,
    SHAPES,
    SHORT,
    STEPS,
    clip,
    make,
    moved,
    plateau,
    run,
    steps,
)

TOLERANCE = {"float64": 1e-12, "float32": 2e-5}


@pytest.fixture(scope="module")
def recorded():
    return load_file(Path(__file__).with_name("fixtures") / "optim.safetensors")


def border_groups():
    """The param_groups of PyTorch's states."""
    with safe_open(Path(__file__).with_name("fixtures") / "optim.safetensors", framework="np") as file:
        return json.loads(file.metadata()["border"])


def inputs(recorded, dtype="float64"):
    indexes = range(len(SHAPES))
    starts = [recorded[f"start/{i}"].astype(dtype) for i in indexes]
    return starts, [recorded[f"gradient/{i}"].astype(dtype) for i in indexes]


def test_every_case_is_recorded_and_no_other(recorded):
    names = {f"optimizer/{name}" for name in OPTIMIZERS}
    names |= {f"scheduler/{name}" for name in MADE_BY_NAME} | {f"plateau/{name}" for name in PLATEAUS}
    names |= {f"schedule/{name}" for name in [*SCHEDULES, "warmup"]} | {f"clip/{p}-{limit}" for p, limit in CLIPS}
    assert names == {name for name in recorded if name.split("/")[0] not in ("start", "gradient", "border")}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer(recorded, name, dtype):
    found = run(optim_ours, OPTIMIZERS[name], *inputs(recorded, dtype))
    assert found.dtype == dtype
    assert_close(found.astype("float64"), recorded[f"optimizer/{name}"], tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("name", BORDER)
def test_a_state_of_pytorch_is_loaded_as_it_is(recorded, name):
    """Half of the steps there, half here, are all of them there."""
    kept = {key.removeprefix(f"border/{name}/"): x for key, x in recorded.items() if key.startswith(f"border/{name}/")}
    state = {}
    for key, array in kept.items():
        kind, index, *slot = key.split("/")
        if kind == "state":
            state.setdefault(int(index), {})[slot[0]] = ForeignTensor(array)
    params = [optim_ours.parameter(kept[f"half/{i}"]) for i in range(len(SHAPES))]
    optimizer = make(optim_ours.optim, OPTIMIZERS[name], params)
    optimizer.load_state_dict({"state": state, "param_groups": border_groups()[name]})
    steps(optim_ours, params, optimizer, inputs(recorded)[1], HALF, STEPS)
    for i, param in enumerate(params):
        assert_close(param, kept[f"end/{i}"], tolerance=1e-12)


@pytest.mark.parametrize("name", [*SCHEDULES, "warmup"])
def test_schedule(recorded, name):
    assert_close(np.array(optim_ours.rates(name)), recorded[f"schedule/{name}"], tolerance=1e-14)


@pytest.mark.parametrize("name", MADE_BY_NAME)
def test_scheduler(recorded, name):
    assert_close(moved(optim_ours, name, SHORT), recorded[f"scheduler/{name}"], tolerance=1e-13)


@pytest.mark.parametrize("name", PLATEAUS)
def test_plateau(recorded, name):
    assert_close(plateau(optim_ours, name), recorded[f"plateau/{name}"], tolerance=1e-13)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("p, limit", CLIPS)
def test_clip(recorded, p, limit, dtype):
    found = clip(optim_ours, *inputs(recorded, dtype), p, limit)
    assert found.dtype == dtype
    assert_close(found.astype("float64"), recorded[f"clip/{p}-{limit}"], tolerance=TOLERANCE[dtype])
