"""The streams of the stand-in: late, out of order as far as edges allow, and strict."""

import numpy as np
import pytest

from tests.strict_cupy import StrictError, machine


@pytest.fixture
def cupy(cuda, strict_cupy):
    """The stand-in, on its second device."""
    return strict_cupy


def add_on_a_side_stream(cupy, there, back):
    """1 + 1 on one stream, then times 10 on another, then minus 5 on the first."""
    side, event = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Event(disable_timing=True)
    x = cupy.zeros(2)
    x += 1
    x += 1
    if there:
        event.record()
        side.wait_event(event)
    with side:
        x *= 10
    if back:
        event.record(side)
        cupy.cuda.get_current_stream().wait_event(event)
    x -= 5
    return float(x[0])


def test_with_all_edges_the_order_is_that_of_the_program(cupy):
    for seed in range(30):
        with machine(seed):
            assert add_on_a_side_stream(cupy, True, True) == 15.0


@pytest.mark.parametrize("there, back", [(False, True), (True, False), (False, False)])
def test_a_missing_edge_shows(cupy, there, back):
    found = set()
    for seed in range(30):
        with machine(seed):
            found.add(add_on_a_side_stream(cupy, there, back))
    assert found - {15.0}


def test_nothing_runs_before_somebody_waits(cupy):
    with machine(0) as late:
        x = cupy.ones(3)
        x *= 2
        assert len(late.waiting) == 2 and np.isnan(x.memory).all()
        assert x.tolist() == [2.0, 2.0, 2.0]
        assert not late.waiting


def test_an_event_can_be_recorded_again_and_waits_keep_to_the_record_before(cupy):
    for seed in range(9):
        with machine(seed):
            side, event, x = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Event(), cupy.zeros(1)
            x += 1
            event.record()
            side.wait_event(event)
            with side:
                event.record()
                x *= 3
                assert float(x[0]) == 3.0


def test_time_between_events_raises_before_they_have_happened(cupy):
    with machine(0):
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        begin.record()
        cupy.ones(3)
        end.record()
        with pytest.raises(StrictError, match="cudaErrorNotReady"):
            cupy.cuda.get_elapsed_time(begin, end)
        while not end.done:
            pass
        assert cupy.cuda.get_elapsed_time(begin, end) == 2.0
        untimed = cupy.cuda.Event(disable_timing=True)
        untimed.record()
        with pytest.raises(StrictError, match="with timing"):
            cupy.cuda.get_elapsed_time(begin, untimed)


def test_the_wrong_device_is_refused(cupy):
    side, event = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Event()
    with cupy.cuda.Device(0):
        with pytest.raises(StrictError, match="expected cuda:1 to be current, got cuda:0"), side:
            pass
        with pytest.raises(StrictError, match="expected its device to be current"):
            side.wait_event(event)
        with pytest.raises(StrictError, match="a stream of cuda:1, got one of cuda:0"):
            event.record()
    with pytest.raises(StrictError, match="non_blocking=True"):
        cupy.cuda.Stream()


def test_new_memory_is_filled_late_and_views_follow(cupy):
    with machine(1):
        x = cupy.arange(6.0)
        rows = (x + 1).reshape(2, 3)[1]
        copy = rows.copy()
        x[...] = 0
        assert copy.tolist() == rows.tolist() == [4.0, 5.0, 6.0]
        assert x.astype(np.int64).tolist() == [0] * 6


def test_reading_one_stream_leaves_the_others_alone(cupy):
    with machine(0) as late:
        side = cupy.cuda.Stream(non_blocking=True)
        with side:
            other = cupy.ones(2)
        assert cupy.ones(1).tolist() == [1.0]
        assert len(late.waiting) == 1 and np.isnan(other.memory).all()
