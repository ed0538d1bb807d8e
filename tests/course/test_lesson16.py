"""Lesson 16: its problem, its time and its outer step beside minigrad's own."""

import numpy as np
import pytest

from minigrad import manual_seed, nn, optim
from minigrad.course.lesson16_slow_links import checks
from minigrad.course.lesson16_slow_links.picture import STEP_S, slow_link, train
from minigrad.course.lesson16_slow_links.solution import local_steps, outer_step, train_locally
from minigrad.distributed import CadenceConfig, run, simulate
from minigrad.distributed.average import DiLoCo, EveryK, Mean, ParameterAverager
from minigrad.nn import functional
from minigrad.tensor import Tensor


@pytest.mark.parametrize("every", [1, 5])
def test_what_the_check_trains_is_what_ranks_of_a_simulation_train(every):
    problem = checks.Problem()
    trace = simulate.run(train, slow_link((1, 1, 1, 1)), problem, EveryK(every), Mean(), 0.5)
    end_s, loss = trace.results[0][-1]
    steps = round(sum(step.samples for step in trace.ranks[0].steps) / checks.BATCH)
    assert steps >= 10
    assert loss == pytest.approx(problem.losses_after([(every, steps)])[0], abs=1e-12)
    meetings = steps // every + 1  # with that of `finish`, where nothing may be left
    assert end_s == pytest.approx(STEP_S * (steps + 4 * meetings), rel=0.08)  # reports travel too


def test_steps_in_time():
    assert checks.steps_in_time(1, 4.0) == 256 // 5
    assert checks.steps_in_time(128, 4.0) == 256 - 2 * 4
    assert checks.steps_in_time(1, 0.02) == 250 and checks.steps_in_time(16, 16.0) == 128


def test_the_outer_step_is_that_of_minigrad():
    drawn, theirs = np.random.default_rng(0), DiLoCo(lr=0.7, momentum=0.9)
    values, velocity = drawn.standard_normal(6), np.zeros(6)
    state = theirs.start(values)
    for _ in range(4):
        average = drawn.standard_normal(6)
        values, velocity = outer_step(values, average, velocity, 0.7, 0.9)
        state, wanted = theirs.combine(state, average, average)
        np.testing.assert_allclose(values, wanted, rtol=0, atol=1e-14)


def test_the_training_is_that_of_a_parameter_averager():
    def body(comm):
        drawn = np.random.default_rng(comm.rank)
        size = 3 + comm.rank
        points = drawn.standard_normal((6, size, 5))
        batches = [(Tensor(each[:, :3].copy()), Tensor(each[:, 3:].copy())) for each in points]
        manual_seed(0)
        ours, theirs = nn.Linear(3, 2).to("float64"), nn.Linear(3, 2).to("float64")
        theirs.load_state_dict(ours.state_dict())
        inner = optim.SGD(ours.parameters(), lr=0.1, momentum=0.9)
        train_locally(comm, ours, inner, batches, functional.mse_loss, 3, 0.7, 0.9)
        averager = ParameterAverager(theirs, comm, EveryK(3), DiLoCo(), init_sync=False)
        optimizer = optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
        for x, y in batches:
            optimizer.zero_grad()
            functional.mse_loss(theirs(x), y).backward()
            optimizer.step()
            averager.step(len(x))
        return max(float((a - b).abs().max().item()) for a, b in zip(ours.parameters(), theirs.parameters()))

    assert max(run(body, 2, timeout_s=20.0)) < 1e-12


def test_the_number_of_steps_is_that_at_which_el_che_is_content():
    target = CadenceConfig().overhead_target
    for meeting_steps in (0.25, 4.0, 10.0):
        steps = local_steps(1.0, meeting_steps, 128)
        assert meeting_steps / steps <= target < meeting_steps / (steps - 1)
