"""Which samples count in a backward: those of the forwards that it reaches, and of no other."""

import numpy as np
import pytest

import minigrad
from minigrad.distributed import DDP, run
from minigrad.errors import AutogradError, RankFailedError
from minigrad.stamp import mark_changed
from tests.distributed.models import Mlp, assert_gradients_close, data, gradients, mean_loss

TIMEOUT_S = 10.0
INPUTS, TARGETS = data(8, 0)
PARTS = (slice(0, 2), slice(2, 8))
OTHERS = (50, 3)  # samples of what must not count, of each rank


def loss_of(model, rank):
    return mean_loss(model(minigrad.Tensor(INPUTS[PARTS[rank]])), TARGETS[PARTS[rank]])


def other_loss_of(model, rank):
    return mean_loss(model(minigrad.Tensor(np.ones((OTHERS[rank], 3)))), np.ones((OTHERS[rank], 2)))


def an_evaluation_that_records(ddp, rank):
    ddp(minigrad.ones(OTHERS[rank], 3, dtype="float64"))


def a_forward_that_raises(ddp, rank):
    with pytest.raises(minigrad.errors.ShapeError):
        ddp(minigrad.ones(OTHERS[rank], 4, dtype="float64"))


def a_local_backward_that_raises(ddp, rank):
    with ddp.no_sync():
        loss = other_loss_of(ddp, rank)
        mark_changed(ddp.module.w2)
        with pytest.raises(AutogradError):
            loss.backward()
    ddp.zero_grad()


def gradients_that_are_dropped(ddp, rank):
    with ddp.no_sync():
        other_loss_of(ddp, rank).backward()
    ddp.zero_grad()


def a_forward_whose_backward_comes_later(ddp, rank):
    ddp.kept = other_loss_of(ddp, rank)


@pytest.mark.parametrize(
    "before",
    [
        an_evaluation_that_records,
        a_forward_that_raises,
        a_local_backward_that_raises,
        gradients_that_are_dropped,
        a_forward_whose_backward_comes_later,
    ],
)
def test_only_what_backward_reaches_counts(before):
    def body(comm):
        ddp = DDP(Mlp(0), comm)
        before(ddp, comm.rank)
        loss_of(ddp, comm.rank).backward()
        return gradients(ddp.module)

    alone = Mlp(0)
    mean_loss(alone(minigrad.Tensor(INPUTS)), TARGETS).backward()
    for actual in run(body, 2, timeout_s=TIMEOUT_S):
        assert_gradients_close(actual, gradients(alone))


def test_forwards_and_their_backwards_in_any_order():
    def body(comm):
        ddp = DDP(Mlp(0), comm)
        first, second, third = (make(ddp, comm.rank) for make in (other_loss_of, loss_of, other_loss_of))
        first.backward()
        ddp.zero_grad()
        second.backward()
        found = gradients(ddp.module)
        third.backward()
        return found

    alone = Mlp(0)
    mean_loss(alone(minigrad.Tensor(INPUTS)), TARGETS).backward()
    for actual in run(body, 2, timeout_s=TIMEOUT_S):
        assert_gradients_close(actual, gradients(alone))


def test_forwards_of_one_loss_add_up():
    """A rank's loss is the mean over both of its forwards, as long as they are weighted by their lengths."""

    def body(comm):
        ddp = DDP(Mlp(0), comm)
        part = range(8)[PARTS[comm.rank]]
        cuts = np.array_split(np.array(part), 2)
        losses = [mean_loss(ddp(minigrad.Tensor(INPUTS[cut])), TARGETS[cut]) * (len(cut) / len(part)) for cut in cuts]
        (losses[0] + losses[1]).backward()
        return gradients(ddp.module)

    alone = Mlp(0)
    mean_loss(alone(minigrad.Tensor(INPUTS)), TARGETS).backward()
    for actual in run(body, 2, timeout_s=TIMEOUT_S):
        assert_gradients_close(actual, gradients(alone))


def test_a_forward_around_the_wrapper_is_an_error_in_any_step():
    def body(comm):
        ddp = DDP(Mlp(0), comm)
        loss_of(ddp, comm.rank).backward()
        ddp.zero_grad()
        with pytest.raises((AutogradError, RankFailedError), match="call the wrapper, not its module"):
            loss_of(ddp.module, comm.rank).backward()
        return True

    assert run(body, 2, timeout_s=TIMEOUT_S) == [True, True]
