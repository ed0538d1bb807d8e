"""Lesson 9's own solutions against figures computed by hand."""

import math

import numpy as np
import pytest

from minigrad import Tensor, nn
from minigrad.course.joint import batches_of, expect_gradients, train
from minigrad.course.lesson import WrongError
from minigrad.course.lesson09_accumulation.picture import bars_of, step_of
from minigrad.course.lesson09_accumulation.solution import accumulated_step, get_ddp_accumulating
from minigrad.distributed import run
from minigrad.optim import SGD


def test_four_exchanges_cost_four_times_as_much_as_one():
    call_s, calls = 14 * 50e-6, 5
    nbytes = 8 + 4 * 2 * (16 * 16 + 16)
    exchange_s = calls * call_s + 14 / 8 * nbytes / 1e9
    for uses_no_sync, exchanges in ((True, 1), (False, 4)):
        trace = step_of(uses_no_sync)
        assert math.isclose(sum(trace.step_times_s()), 16e-3 + exchanges * exchange_s, rel_tol=1e-9)
        bars = bars_of(trace)
        assert len(bars) == 4 + calls * exchanges
        assert math.isclose(max(bar[1] for bar in bars), 1e3 * (16e-3 + exchanges * exchange_s), rel_tol=1e-9)


def test_a_step_on_micro_batches_is_that_of_the_mean_over_all_samples():
    values = [[[1.0, 2.0, 6.0], [5.0]], [[4.0]]]  # of each rank its micro-batches: gradients, whose mean is 3.6

    def body(comm):
        ddp = get_ddp_accumulating(nn.Linear(1, 1, bias=False), comm)
        ddp.module.weight.data[...] = 0.0
        pairs = [(Tensor(np.array(part)[:, None]), Tensor(np.zeros(len(part)))) for part in values[comm.rank]]
        ddp.module.to("float64")
        optimizer = SGD(ddp.module.parameters(), lr=1.0)
        norm = accumulated_step(ddp, optimizer, lambda outputs, _: outputs.mean(), pairs, 1.8)
        return norm, ddp.module.weight.item()

    for norm, weight in run(body, 2, timeout_s=20):
        assert math.isclose(norm, 3.6, rel_tol=1e-12)
        assert math.isclose(weight, -1.8, rel_tol=1e-6)  # clipped, where 1e-6 is added to the norm


def test_a_wrapper_that_is_right_but_once_is_noticed():
    def backward(ddp, batches):
        for batch in batches:
            batch.loss(ddp).backward()
        ddp.finish()

    one = train(get_ddp_accumulating, [[[2], [3]], [[1], [4]]], backward)
    expect_gradients(one)
    one.gradients[1][0]["first.weight"][0, 0] *= 1.001
    with pytest.raises(WrongError, match="step 1"):
        expect_gradients(one)
    assert [len(batch) for batch in batches_of([2, 0], [1])] == [2, 0]
