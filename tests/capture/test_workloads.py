"""Whole models of the benchmarks under capture: the losses of others, in one launch beside the copies of a batch."""

import pytest

import minigrad
from minigrad import nn, optim
from tests.benchmarks.workloads import TRAININGS, train_step
from tests.strict_cupy import counted

SAMPLES = 2


def losses(cuda, name, captured):
    training = TRAININGS[name]
    minigrad.manual_seed(0)
    model = training.build(nn).to(cuda)
    x, labels = (minigrad.tensor(array, device=cuda) for array in training.batch(SAMPLES))
    optimizer = training.optimizer(optim, model.parameters())

    def step(x, labels):
        return train_step(model, optimizer, nn.functional.cross_entropy, x, labels)

    if captured:
        step = minigrad.capture(step, x, labels, warmup=1)
    else:
        step(x, labels), step(x, labels)
    found = step(x, labels).item()
    with counted() as work:
        loss = step(x, labels)
    return (found, loss.item()), dict(work.pieces)


@pytest.mark.parametrize("name", ["a", "digits"])
def test_a_workload_is_one_launch_with_the_losses_of_others(cuda, name):
    expected, _ = losses(cuda, name, False)
    found, pieces = losses(cuda, name, True)
    assert found == expected and pieces == {"graph": 1, "setitem": 2}


def test_an_index_out_of_range_is_told_after_a_replay(cuda):
    def step(tokens):
        return nn.functional.one_hot(tokens, 3)

    run = minigrad.capture(step, minigrad.tensor([0, 2], device=cuda), warmup=1)
    minigrad.raise_all_found()
    out = run(minigrad.tensor([0, 3], device=cuda))
    with pytest.raises(minigrad.errors.IndexRangeError, match=r"expected .* in \[0, 3\), got 3"):
        out.tolist()
