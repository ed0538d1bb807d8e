"""GradScaler against the PyTorch that is installed: the scale, the steps that count, and the parameters after each."""

import math

import numpy as np
import pytest

from minigrad import Tensor, nn, optim

pytestmark = pytest.mark.torch

OPTIMIZERS = {
    "momentum": lambda library, params: library.SGD(params, lr=0.1, momentum=0.9),
    "adam": lambda library, params: library.Adam(params, lr=0.01),
}


def rows(seed):
    """Gradients for thirty steps of two parameters, with infinities and NaN planted in a fifth of them."""
    rng = np.random.default_rng(seed)
    for _ in range(30):
        row = [rng.standard_normal(size).astype(np.float32) for size in (3, 7)]
        if rng.random() < 0.2:
            row[rng.integers(2)][1] = rng.choice([math.inf, -math.inf, math.nan])
        yield row, bool(rng.random() < 0.5)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_sequence_with_overflows(name, seed):
    import torch

    options = {"init_scale": 1024.0, "growth_factor": 4.0, "backoff_factor": 0.25, "growth_interval": 3}
    mine = [nn.Parameter(np.ones(size, np.float32)) for size in (3, 7)]
    other = [torch.nn.Parameter(torch.ones(size)) for size in (3, 7)]
    my_optimizer, other_optimizer = OPTIMIZERS[name](optim, mine), OPTIMIZERS[name](torch.optim, other)
    my_scaler, other_scaler = optim.GradScaler(**options), torch.amp.GradScaler("cpu", **options)
    other_scaler.scale(torch.ones(1))  # sets it up
    for row, unscales in rows(seed):
        for param, twin, grad in zip(mine, other, row):
            param.grad = Tensor(grad * np.float32(my_scaler.get_scale()))
            twin.grad = torch.from_numpy(grad * np.float32(other_scaler.get_scale()))
        for scaler, optimizer in ((my_scaler, my_optimizer), (other_scaler, other_optimizer)):
            if unscales:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        assert my_scaler.state_dict() == other_scaler.state_dict()
        for param, twin in zip(mine, other):
            np.testing.assert_allclose(param.data, twin.detach().numpy(), rtol=1e-5, atol=1e-6)
    assert my_scaler.get_scale() != 1024.0


def test_state_goes_from_one_to_the_other():
    import torch

    theirs = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=7)
    theirs.scale(torch.ones(1))
    mine = optim.GradScaler()
    mine.load_state_dict(theirs.state_dict())
    assert mine.state_dict() == theirs.state_dict()
    theirs.load_state_dict(optim.GradScaler(32.0).state_dict())
    assert theirs.state_dict() == optim.GradScaler(32.0).state_dict()
