"""Lesson 10: what a sum of the ring costs, as the lessons count it, and our wrapper beside DDP."""

import numpy as np
import pytest

import minigrad
from minigrad import Tensor, nn
from minigrad.course.counting import Counting
from minigrad.course.lesson10_unused.solution import get_ddp_unused
from minigrad.distributed import DDP, run


@pytest.mark.parametrize(
    ("kind", "elements", "expected"), [("all_reduce", 4, 48), ("all_gather", 1, 24), ("all_to_all", 4, 24)]
)
def test_bytes_that_a_ring_sends(kind, elements, expected):
    def body(comm):
        counting = Counting(comm)
        source, output = np.zeros(elements), np.zeros(4 if kind == "all_gather" else elements)
        getattr(counting, kind)(*([source] if kind == "all_reduce" else [output, source])).wait()
        return counting.wire_bytes

    assert run(body, 4, timeout_s=5.0) == [expected] * 4  # float64: of 4 elements 2·3/4·32, 3·8, 3/4·32 bytes


def test_our_wrapper_gives_what_ddp_gives_where_each_rank_uses_another_branch():
    def gradients(comm, wrap):
        minigrad.manual_seed(0)
        model = nn.ModuleList([nn.Linear(3, 1), nn.Linear(3, 1), nn.Linear(3, 1)]).to("float64")
        model.forward = lambda x: model[comm.rank % 2](x).tanh()
        ddp = wrap(model, comm, find_unused_parameters=True)
        x = np.random.default_rng(comm.rank).standard_normal((2 + comm.rank, 3))
        ddp(Tensor(x)).mean().backward()
        getattr(ddp, "finish", lambda: None)()
        return [None if p.grad is None else p.grad.data.copy() for p in model.parameters()]

    for rank in range(3):
        ours, theirs = (run(gradients, 3, wrap, timeout_s=5.0)[rank] for wrap in (get_ddp_unused, DDP))
        for mine, its in zip(ours, theirs):
            assert (mine is None) == (its is None)
            assert mine is None or np.allclose(mine, its, rtol=1e-12, atol=1e-15)
        assert [gradient is None for gradient in ours] == [False] * 4 + [True] * 2
