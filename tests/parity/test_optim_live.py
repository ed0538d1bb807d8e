"""Optimizers, schedules, clipping and their states against the PyTorch that is installed."""

import numpy as np
import pytest

from minigrad.testing import assert_close
from tests.parity import optim_ours
from tests.parity.optim_cases import (
    CLIPS,
    LONG,
    MADE_BY_NAME,
    OPTIMIZERS,
    PLATEAUS,
    SCHEDULES,
    SHAPES,
    STEPS,
    clip,
    draw,
    follow,
    give_gradients,
    make,
    moved,
    plateau,
    run,
    two_groups,
)

pytestmark = pytest.mark.torch
TOLERANCE = {"float64": 1e-12, "float32": 2e-6}
MIXED = ["float32", "float64", "float32"]


@pytest.fixture
def theirs():
    from tests.parity import optim_theirs

    return optim_theirs


def inputs(*dtypes):
    kinds = dtypes * len(SHAPES) if len(dtypes) == 1 else dtypes
    return [[array.astype(kind) for array, kind in zip(arrays, kinds)] for arrays in draw()]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer(theirs, name, dtype):
    case = OPTIMIZERS[name]
    found, expected = run(optim_ours, case, *inputs(dtype)), run(theirs, case, *inputs(dtype))
    assert_close(found, expected, tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("name", ["SGD-groups", "Adam-groups", "AdamW-defaults"])
def test_float32_beside_float64(theirs, name):
    case = OPTIMIZERS[name]
    assert_close(run(optim_ours, case, *inputs(*MIXED)), run(theirs, case, *inputs(*MIXED)), tolerance=2e-6)


@pytest.mark.parametrize("name", [*SCHEDULES, "warmup"])
def test_schedule(theirs, name):
    assert_close(np.array(optim_ours.rates(name)), np.array(theirs.rates(name)), tolerance=1e-14)


@pytest.mark.filterwarnings("ignore")  # of PyTorch, about the order of calls and a loss of precision
@pytest.mark.parametrize("name", MADE_BY_NAME)
def test_scheduler(theirs, name):
    assert_close(moved(optim_ours, name, LONG), moved(theirs, name, LONG), tolerance=1e-12)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("strategy", ["cos", "linear"])
def test_the_schedule_of_swa(theirs, strategy):
    tables = []
    for library in (optim_ours, theirs):
        optimizer = two_groups(library)
        cosine = library.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
        swa = library.optim.swa_utils.SWALR(optimizer, [0.05, 0.3], 7, strategy)
        tables.append(np.concatenate([follow(cosine, optimizer, 12), follow(swa, optimizer, 15)[1:]]))
    assert_close(*tables, tolerance=1e-12)


@pytest.mark.parametrize("use_buffers", [False, True])
@pytest.mark.parametrize("options", [{}, {"multi_avg_fn": 0.9}, {"avg_fn": 0.99}], ids=str)
def test_averaged_models(theirs, options, use_buffers):
    """Five updates from the same values; and the state of each goes into the other."""
    import torch

    import minigrad

    kinds = ((minigrad, optim_ours.optim.swa_utils), (torch, theirs.optim.swa_utils))
    found = []
    for library, utils in kinds:
        rng = np.random.default_rng(4)
        make = {"multi_avg_fn": utils.get_ema_multi_avg_fn, "avg_fn": utils.get_ema_avg_fn}
        model = library.nn.Sequential(library.nn.Linear(2, 3), library.nn.BatchNorm1d(3)).double()
        functions = {name: make[name](decay) for name, decay in options.items()}
        averaged = utils.AveragedModel(model, use_buffers=use_buffers, **functions)
        for _ in range(5):
            for x in [*model.parameters(), *(b for b in model.buffers() if b.ndim)]:
                x.detach().copy_(library.tensor(rng.standard_normal(tuple(x.shape))))
            averaged.update_parameters(model)
        found.append(averaged)
    ours, other = found
    for (name, x), (their_name, y) in zip(sorted(ours.state_dict().items()), sorted(other.state_dict().items())):
        assert name == their_name
        assert_close(x.numpy(), y.numpy(), tolerance=1e-14)
    ours.load_state_dict(other.state_dict())
    other.load_state_dict({name: torch.from_dlpack(x) for name, x in ours.state_dict().items()})


@pytest.mark.parametrize("name", PLATEAUS)
def test_plateau(theirs, name):
    assert_close(plateau(optim_ours, name, LONG), plateau(theirs, name, LONG), tolerance=1e-12)


@pytest.mark.parametrize("dtypes", [["float64"], ["float32"], MIXED], ids=["float64", "float32", "mixed"])
@pytest.mark.parametrize("p, limit", CLIPS)
def test_clip(theirs, p, limit, dtypes):
    found, expected = (clip(library, *inputs(*dtypes), p, limit) for library in (optim_ours, theirs))
    assert found.dtype == expected.dtype
    assert_close(found, expected, tolerance=1e-12 if dtypes == ["float64"] else 1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_moves_to_torch_and_back(theirs, name):
    """Ten steps here, five there, five here again are twenty steps here; the keys of the states are the same."""
    case = OPTIMIZERS[name]
    starts, gradients = inputs("float64")
    ours = [optim_ours.parameter(start) for start in starts]
    others = [theirs.parameter(start) for start in starts]
    straight = [optim_ours.parameter(start) for start in starts]
    optimizer, other = make(optim_ours.optim, case, ours), make(theirs.optim, case, others)
    reference = make(optim_ours.optim, case, straight)

    def steps(library, params, stepper, first, stop):
        for step in range(first, stop):
            give_gradients(library, params, gradients, step)
            stepper.step()

    steps(optim_ours, straight, reference, 0, STEPS)
    steps(optim_ours, ours, optimizer, 0, 10)
    saved = optimizer.state_dict()
    other.load_state_dict(
        {**saved, "state": {i: {k: as_torch(v) for k, v in e.items()} for i, e in saved["state"].items()}}
    )
    copy_values(theirs, ours, others)
    steps(theirs, others, other, 10, 15)
    returned = other.state_dict()
    assert {i: sorted(entry) for i, entry in returned["state"].items()} == {
        i: sorted(entry) for i, entry in reference.state_dict()["state"].items()
    }
    optimizer.load_state_dict(returned)
    for param, other_param in zip(ours, others):
        param.detach().copy_(other_param.detach().numpy())
    steps(optim_ours, ours, optimizer, 15, STEPS)
    for param, expected in zip(ours, straight):
        assert_close(param, expected, tolerance=1e-12)


def as_torch(value):
    import torch

    return value if isinstance(value, int) else torch.from_dlpack(value).clone()


def copy_values(theirs, ours, others):
    import torch

    with torch.no_grad():
        for param, other in zip(ours, others):
            other.copy_(torch.tensor(theirs.read(param)))
