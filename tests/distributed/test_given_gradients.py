"""Gradients that no forward made, set by hand above all: combined where somebody says what they weigh, else refused."""

import numpy as np
import pytest

import minigrad
from minigrad import Tensor, nn
from minigrad.distributed import DDP, run
from minigrad.errors import AutogradError, RankFailedError
from tests.distributed.models import Mlp
from tests.distributed.worlds import run_ranks

TIMEOUT_S = 10.0
SYNCS = ["sync_gradients", "overlapped_sync_gradients", "flush"]


def wrap(comm, **options):
    return DDP(nn.Linear(3, 1, bias=False), comm, sync="manual", **options)


def give(ddp, value):
    weight = ddp.module.weight
    weight.grad = Tensor(np.full(weight.shape, value, np.float32))


def given(ddp):
    return ddp.module.weight.grad.tolist()[0]


def backward(ddp, samples, value=1.0):
    """A gradient of `value` for each weight."""
    (ddp(minigrad.ones(samples, 3)).mean() * value).backward()


def refused(call):
    with pytest.raises((AutogradError, RankFailedError), match=r"such as set by hand, of weight: .*samples\(n\)"):
        call()
    return True


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("kind", ["threads", "shm"])
def test_gradients_set_by_hand_are_an_error_on_all_ranks(kind, sync):
    def body(comm):
        ddp = wrap(comm)
        give(ddp, comm.rank)
        return refused(getattr(ddp, sync))

    assert run_ranks(kind, body, 2, TIMEOUT_S) == [True, True]


@pytest.mark.parametrize("sync", SYNCS)
def test_samples_say_what_they_weigh(sync):
    def body(comm):
        ddp = wrap(comm)
        give(ddp, comm.rank)
        with ddp.samples([1, 3][comm.rank]):
            getattr(ddp, sync)()
        return given(ddp)

    assert run(body, 2, timeout_s=TIMEOUT_S) == [[0.75] * 3] * 2


def on_one_rank_beside_samples(ddp, rank):
    backward(ddp, 2) if rank == 0 else give(ddp, 5.0)


def over_a_combined_one(ddp, rank):
    backward(ddp, 2)
    ddp.sync_gradients()
    give(ddp, rank)


def after_zero_grad(ddp, rank):
    backward(ddp, 2)
    ddp.sync_gradients()
    ddp.zero_grad()
    give(ddp, rank)


def after_a_forward_that_had_no_backward(ddp, rank):
    ddp(minigrad.ones(2 + rank, 3))
    give(ddp, rank)


def of_a_backward_that_failed(ddp, rank):
    def raises(leaf):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ddp(minigrad.ones(2, 3)).sum().backward(on_leaf=raises)


@pytest.mark.parametrize(
    "make",
    [
        on_one_rank_beside_samples,
        over_a_combined_one,
        after_zero_grad,
        after_a_forward_that_had_no_backward,
        of_a_backward_that_failed,
    ],
)
@pytest.mark.parametrize("sync", ["sync_gradients", "flush"])
def test_gradients_that_no_counted_forward_made_are_refused(make, sync):
    def body(comm):
        ddp = wrap(comm)
        make(ddp, comm.rank)
        return refused(getattr(ddp, sync))

    assert run(body, 2, timeout_s=TIMEOUT_S) == [True, True]


def test_gradients_from_before_the_wrapper_are_refused():
    def body(comm):
        module = nn.Linear(3, 1, bias=False)
        (module(minigrad.ones(2, 3)).mean() * comm.rank).backward()
        return refused(DDP(module, comm).flush)

    assert run(body, 2, timeout_s=TIMEOUT_S) == [True, True]


def test_combined_gradients_stay_whatever_is_done_to_them_in_place():
    def body(comm):
        ddp = wrap(comm)
        backward(ddp, 2, comm.rank)
        for _ in range(2):
            ddp.sync_gradients()
        first = given(ddp)
        ddp.module.weight.grad *= 2
        ddp.module.weight.grad.data[...] *= 2
        ddp.flush()
        return first, given(ddp)

    assert run(body, 2, timeout_s=TIMEOUT_S) == [([0.5] * 3, [2.0] * 3)] * 2


def test_a_counted_gradient_may_be_replaced_and_weighs_what_its_forward_counted():
    def body(comm):
        ddp = wrap(comm)
        backward(ddp, [1, 3][comm.rank], comm.rank)
        weight = ddp.module.weight
        weight.grad = weight.grad + 1.0
        weight.grad += 1.0
        ddp.sync_gradients()
        return given(ddp)

    assert run(body, 2, timeout_s=TIMEOUT_S) == [[2.75] * 3] * 2


def test_no_samples_and_no_gradients_are_no_error():
    def body(comm):
        ddp = wrap(comm)
        if comm.rank == 0:
            backward(ddp, 2)
        ddp.flush()
        return given(ddp)

    assert run(body, 2, timeout_s=TIMEOUT_S) == [[1.0] * 3] * 2


@pytest.mark.parametrize("how", ["by hand", "backward"])
def test_gradients_that_weigh_nothing_on_any_rank_are_zero(how):
    def body(comm):
        ddp = wrap(comm)
        backward(ddp, 2)
        ddp.sync_gradients()
        ddp.zero_grad()
        with ddp.samples(0):
            give(ddp, comm.rank) if how == "by hand" else backward(ddp, 2, comm.rank + 1)
            ddp.sync_gradients()
        return given(ddp)

    assert run(body, 2, timeout_s=TIMEOUT_S) == [[0.0] * 3] * 2


def test_the_sum_takes_gradients_set_by_hand_and_adds_none_twice():
    """With reduce='sum' nothing has to say what they weigh."""

    def body(comm):
        ddp = wrap(comm, reduce="sum")
        give(ddp, comm.rank + 1)
        ddp.sync_gradients()
        first = given(ddp)
        with pytest.raises(AutogradError, match="call zero_grad"):
            ddp.sync_gradients()
        give(ddp, comm.rank)
        ddp.sync_gradients()
        return first, given(ddp)

    assert run(body, 2, timeout_s=TIMEOUT_S) == [([3.0] * 3, [1.0] * 3)] * 2


def test_a_gradient_set_by_hand_does_not_stay_behind_where_its_parameter_is_frozen():
    def body(comm):
        ddp = DDP(Mlp(0), comm)
        ddp.module.w1.grad = Tensor(np.full(ddp.module.w1.shape, float(comm.rank)))
        ddp.module.w1.requires_grad_(False)
        with pytest.raises((AutogradError, RankFailedError), match="accumulated ones of w1"):
            ddp(minigrad.ones(2, 3, dtype="float64")).sum().backward()
        return True

    assert run(body, 2, timeout_s=TIMEOUT_S) == [True, True]
