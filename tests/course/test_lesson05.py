"""Lesson 5's own solutions and pictures against figures computed by hand."""

import math

import numpy as np
import pytest

from minigrad import Tensor
from minigrad.course.joint import JointNet, batches_of, expect_gradients, gradient_of, joined, train
from minigrad.course.lesson import WrongError
from minigrad.course.lesson05_naive.checks import backward
from minigrad.course.lesson05_naive.picture import parts_s
from minigrad.course.lesson05_naive.solution import get_ddp_naive, latency_bill_s


def test_the_parts_of_a_step_are_those_of_the_formulas():
    parts, nbytes = parts_s(16), 4 * 2 * (128 * 128 + 128)
    assert math.isclose(parts["computing"], 8e-3, rel_tol=1e-9)
    assert math.isclose(parts["messages"], 5 * 30 * 50e-6, rel_tol=1e-9)
    assert math.isclose(parts["bytes"], 30 / 16 * (nbytes + 8) / 1e9, rel_tol=1e-9)
    assert np.allclose(latency_bill_s(4, nbytes, 50e-6, 1e9, 16), (parts["messages"], parts["bytes"]), rtol=1e-9)


def test_the_gradient_that_a_wrapper_is_compared_with_is_that_of_differences():
    model, batch = JointNet(0), joined(batches_of([2, 3], [7]))
    found, weight = gradient_of(model, batch)["first.weight"], model.first.weight.data
    for i, j in [(0, 0), (3, 2)]:
        losses = []
        for step in (1e-6, -2e-6):
            weight[i, j] += step
            losses.append(((model(Tensor(batch.inputs)).data - batch.targets) ** 2).sum() / 5)
        weight[i, j] += 1e-6
        assert math.isclose((losses[0] - losses[1]) / 2e-6, found[i, j], rel_tol=1e-5)


def test_a_gradient_that_is_a_little_off_is_noticed():
    one = train(get_ddp_naive, [[[3], [1]]], backward)
    expect_gradients(one)
    one.gradients[0][1]["last.bias"][0] += 1e-8
    with pytest.raises(WrongError, match="'last.bias' on rank 1"):
        expect_gradients(one)
