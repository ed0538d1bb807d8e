"""A GAN, as its loops are written: two wrappers, of which one's step gives the other gradients too."""

import functools

import numpy as np
import pytest

import minigrad
from minigrad import Tensor, nn, optim
from minigrad.distributed import DDP, SoloCommunicator
from minigrad.errors import AutogradError
from tests.distributed.models import assert_gradients_close, values
from tests.distributed.worlds import run_ranks

TIMEOUT_S = 20.0


def generator():
    """Transposed convolutions, each sample normalised by itself, bilinear upsampling: (N, 3, 1, 1) -> (N, 1, 4, 4)."""
    return nn.Sequential(
        nn.ConvTranspose2d(3, 4, 2, bias=False),
        nn.InstanceNorm2d(4, affine=True),
        nn.LeakyReLU(0.2),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.ConvTranspose2d(4, 1, 3, padding=1),
        nn.Tanh(),
    )


def discriminator():
    """(N, 1, 4, 4) -> (N, 1, 1, 1)."""
    return nn.Sequential(nn.Conv2d(1, 4, 2, 2), nn.LeakyReLU(0.2), nn.Conv2d(4, 1, 2))


def one_by_one(g, d, fakes, images, loss, steps):
    """As PyTorch's tutorial has it: two backwards before a step of the discriminator."""
    steps[1].zero_grad()
    loss(d(images), 1.0).backward()
    loss(d(fakes.detach()), 0.0).backward()
    steps[1].step()
    steps[0].zero_grad()
    loss(d(fakes), 1.0).backward()
    steps[0].step()


def at_once(g, d, fakes, images, loss, steps):
    """Two forwards before one backward, and a discriminator that is not trained by the generator's step."""
    steps[1].zero_grad()
    (loss(d(images), 1.0) + loss(d(fakes.detach()), 0.0)).backward()
    steps[1].step()
    for param in d.parameters():
        param.requires_grad_(False)
    steps[0].zero_grad()
    loss(d(fakes), 1.0).backward()
    steps[0].step()
    for param in d.parameters():
        param.requires_grad_(True)


LOOPS = [one_by_one, at_once]


def loss_fn(scores, label):
    return nn.functional.binary_cross_entropy_with_logits(scores, minigrad.full_like(scores, label))


def train(comm, loop, shards):
    """The values of both after three steps on global batches, whose part of this rank its shard is."""
    minigrad.manual_seed(5)
    g, d = (DDP(make().double(), comm) for make in (generator, discriminator))
    steps = [optim.SGD(ddp.parameters(), lr=0.1, momentum=0.5) for ddp in (g, d)]
    mine = slice(sum(shards[: comm.rank]), sum(shards[: comm.rank + 1]))
    for batch in range(3):
        rng = np.random.default_rng(batch)
        noise, images = (Tensor(rng.standard_normal((6, *shape))[mine]) for shape in ((3, 1, 1), (1, 4, 4)))
        loop(g, d, g(noise), images, loss_fn, steps)
    return {f"{i}.{name}": value for i, ddp in enumerate((g, d)) for name, value in values(ddp.module).items()}


@functools.cache
def alone():
    return train(SoloCommunicator(), one_by_one, [6])


@pytest.mark.parametrize("kind", ["threads", "shm"])
@pytest.mark.parametrize("loop", LOOPS)
def test_uneven_ranks_train_like_one(loop, kind):
    found = run_ranks(kind, lambda comm: train(comm, loop, [4, 2]), 2, TIMEOUT_S)
    for actual in found:
        assert_gradients_close(actual, alone(), 1e-10)
        assert all(actual[name].tobytes() == found[0][name].tobytes() for name in actual)


def test_a_discriminator_without_its_wrapper_is_refused():
    """Its own gradients, which nobody has combined, would be left in its parameters."""

    def loop(g, d, fakes, images, loss, steps):
        loss(d.module(fakes), 1.0).backward()

    with pytest.raises(AutogradError, match="expected a forward through the wrapper before backward"):
        train(SoloCommunicator(), loop, [6])
