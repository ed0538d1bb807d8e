"""Muon gives what PyTorch's gave with its iteration in float64, and what it gives with that in bfloat16."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from minigrad import optim
from minigrad.testing import assert_close
from tests.foreign import ForeignTensor
from tests.parity import optim_ours
from tests.parity.optim_cases import HALF, MATRICES, MUON, STEPS, draw, make, run, steps

FIXTURE = Path(__file__).with_name("fixtures") / "muon.safetensors"
TOLERANCE = {"float64": 1e-12, "float32": 2e-5}
ROUNDED = 0.05  # of what changes between two steps that are shown: bfloat16 has 8 bits


@pytest.fixture(scope="module")
def recorded():
    return load_file(FIXTURE)


def inputs(dtype="float64"):
    return [[array.astype(dtype) for array in arrays] for arrays in draw(MATRICES)]


def test_every_case_is_recorded_and_no_other(recorded):
    assert {f"optimizer/{name}" for name in MUON} == {name for name in recorded if name.startswith("optimizer/")}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", MUON)
def test_muon(recorded, name, dtype):
    found = run(optim_ours, MUON[name], *inputs(dtype))
    assert found.dtype == dtype
    assert_close(found.astype("float64"), recorded[f"optimizer/{name}"], tolerance=TOLERANCE[dtype])


def test_a_state_of_pytorch_is_loaded_as_it_is(recorded):
    """Half of the steps there, half here, are all of them there."""
    kept = {name.removeprefix("border/"): array for name, array in recorded.items() if name.startswith("border/")}
    state = {i: {"momentum_buffer": ForeignTensor(kept[f"state/{i}/momentum_buffer"])} for i in range(len(MATRICES))}
    with safe_open(FIXTURE, framework="np") as file:
        groups = json.loads(file.metadata()["border"])
    params = [optim_ours.parameter(kept[f"half/{i}"]) for i in range(len(MATRICES))]
    optimizer = make(optim, MUON["groups"], params)
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    steps(optim_ours, params, optimizer, inputs()[1], HALF, STEPS)
    for i, param in enumerate(params):
        assert_close(param, kept[f"end/{i}"], tolerance=1e-12)


# ------------------------------------------------------------------------------------- the PyTorch that is installed


@pytest.mark.torch
@pytest.mark.parametrize("name", MUON)
def test_muon_as_it_is_there(name):
    """To the rounding of bfloat16, and to 1e-12 without it."""
    from tests.parity import optim_theirs

    found, expected = (run(library, MUON[name], *inputs()) for library in (optim_ours, optim_theirs))
    changed = np.abs(np.diff(found, axis=0, prepend=np.concatenate([x.ravel() for x in inputs()[0]])[None])).max()
    assert np.abs(found - expected).max() < ROUNDED * changed
    with optim_theirs.exactly():
        assert_close(found, run(optim_theirs, MUON[name], *inputs()), tolerance=1e-12)


@pytest.mark.torch
def test_a_state_of_ours_is_loaded_there():
    """Ten steps here and ten there are twenty here."""
    import torch

    from tests.parity import optim_theirs

    starts, gradients = inputs()
    ours, straight = ([optim_ours.parameter(start) for start in starts] for _ in range(2))
    optimizer, reference = (make(optim, MUON["groups"], params) for params in (ours, straight))
    steps(optim_ours, straight, reference, gradients, 0, STEPS)
    steps(optim_ours, ours, optimizer, gradients, 0, HALF)
    others = [optim_theirs.parameter(optim_ours.read(param)) for param in ours]
    other = make(optim_theirs.optim, MUON["groups"], others)
    saved = optimizer.state_dict()
    tensors = {i: {k: torch.from_dlpack(x).clone() for k, x in entry.items()} for i, entry in saved["state"].items()}
    other.load_state_dict({**saved, "state": tensors})
    with optim_theirs.exactly():
        steps(optim_theirs, others, other, gradients, HALF, STEPS)
    for param, expected in zip(others, straight):
        assert_close(param.detach().numpy(), expected, tolerance=1e-12)
    assert other.state_dict()["state"][0].keys() == reference.state_dict()["state"][0].keys()
