"""The reducer tells a pass what has happened, and asks nothing: a backward crosses between the two a few times."""

import sys
from pathlib import Path

import pytest

import minigrad
from minigrad import nn
from minigrad.distributed import DDP, run
from minigrad.distributed.ddp import passes, reducer

FILES = {Path(passes.__file__).name, Path(reducer.__file__).name}
MOST = 10  # to begin 2, for each of four leaves 1, to end 2


def crossings(function):
    """The calls from one of the two files into the other while a function runs in this thread."""
    found = []

    def note(frame, event, argument):
        if event == "call" and frame.f_back is not None:
            ends = {Path(each.f_code.co_filename).name for each in (frame.f_back, frame)}
            if ends == FILES:
                found.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_backward_crosses_between_reducer_and_pass_a_few_times(world_size):
    def body(comm):
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        ddp = DDP(net, comm, bucket_cap_bytes=200, first_bucket_mb=1e-4)
        assert len(ddp.plan.buckets) == 3
        return crossings(ddp(minigrad.ones(3, 4)).square().mean().backward)

    for found in run(body, world_size):
        assert "complete" in found and "finish" in found and len(found) <= MOST, found
