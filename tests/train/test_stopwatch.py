"""Times of passes and of reductions, from timers that are read late."""

import pytest

from minigrad.backend.timer import HostTimer
from minigrad.train.stopwatch import Stopwatch, SyncWatch


class Timers:
    """One timer a device, each on a clock that is set by hand."""

    def __init__(self, number):
        self.clocks = [0.0] * number
        self.made = [HostTimer(lambda rank=rank: self.clocks[rank]) for rank in range(number)]


def test_a_reduction_takes_as_long_as_on_the_last_device_to_come():
    """The other one came 5 s before it, and waited."""
    timers = Timers(2)
    watch = SyncWatch(timers.made)
    assert watch.last_s() == 0.0
    with watch.measure():
        timers.clocks[:] = 7.0, 2.0
    assert watch.last_s() == 2.0
    with watch.measure():
        timers.clocks[:] = 8.0, 6.0
    assert watch.last_s() == 1.0


def test_the_stretches_of_a_pass_are_put_together():
    timers = Timers(2)
    watch = Stopwatch(timers.made)
    watch.begin([3, 0])
    for seconds in (1.0, 2.0):
        watch.switch(0)
        timers.clocks[0] += seconds
        watch.switch(None)
        timers.clocks[0] += 10.0
    first, second = watch.times()
    assert (first.samples, first.seconds, first.batches) == (3, 3.0, 1) and second is None
    assert watch.times() == [None, None]


def test_only_the_last_of_several_passes_is_told():
    timers = Timers(1)
    watch = Stopwatch(timers.made)
    for samples in (2, 4, 0):
        watch.begin([samples])
        watch.switch(0)
        timers.clocks[0] += samples
        watch.switch(None)
    (last,) = watch.times()
    assert (last.samples, last.seconds) == (4, pytest.approx(4.0))
