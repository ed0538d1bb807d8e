"""A backward that raises, and is caught: all ranks alike go on, else all fail, and the error says how to go on."""

import numpy as np
import pytest

from minigrad import Tensor, nn, optim
from minigrad.distributed import DDP, Recording, SoloCommunicator, SyncBatchNorm
from minigrad.distributed.comm.rendezvous import Rendezvous, free_port
from minigrad.distributed.comm.shm.communicator import ShmCommunicator
from minigrad.distributed.comm.threads import ThreadWorld
from minigrad.errors import (
    ArgumentError,
    AutogradError,
    RankFailedError,
    ReplicaMismatchError,
    ShapeError,
    UnreducedGradientError,
)
from minigrad.stamp import mark_changed
from tests.distributed.models import Mlp, assert_gradients_close, data, gradients, mean_loss
from tests.distributed.worlds import run_ranks

TIMEOUT_S = 10.0
INPUTS, TARGETS = data(8, 0)
REFUSALS = (AutogradError, ArgumentError, ShapeError, UnreducedGradientError, ReplicaMismatchError)
HOW_TO_GO_ON = r"every later call raises too; to go on, make a new communicator, unwrap\(\) the wrapper, wrap again"
WORLDS = [("solo", 1), ("threads", 1), ("threads", 2), ("threads", 3), ("shm", 1), ("shm", 2), ("nccl", 2)]


def loss_of(model, comm):
    """The mean loss over this rank's part of the samples, of unequal size."""
    first = 2 if comm.world_size > 1 else 8
    part = slice(0, first) if comm.rank == 0 else slice(first, 8)
    part = part if comm.rank < 2 else slice(8, 8)
    output = model(Tensor(INPUTS[part]))
    return mean_loss(output, TARGETS[part]) if comm.rank < 2 else output.sum()


def right(comm, ddp):
    """The next step: its gradients are those of one device."""
    ddp.zero_grad()
    loss_of(ddp, comm).backward()
    alone = Mlp(0)
    mean_loss(alone(Tensor(INPUTS)), TARGETS).backward()
    assert_gradients_close(gradients(ddp.module), gradients(alone))
    comm.barrier()
    return True


def a_changed_leaf(ddp, comm):
    loss = loss_of(ddp, comm)
    mark_changed(ddp.module.w2)
    loss.backward()


def a_forward_around_the_wrapper(ddp, comm):
    loss_of(ddp.module, comm).backward()


def a_parameter_without_gradient(ddp, comm):
    (ddp(Tensor(INPUTS)).detach().sum() + ddp.module.w2.sum()).backward()


def a_hook_on_a_leaf(ddp, comm):
    loss_of(ddp, comm).backward(on_leaf=int)


def gradients_set_by_hand(ddp, comm):
    ddp.module.w1.grad = Tensor(np.ones(ddp.module.w1.shape))
    ddp.flush()


def at_different_places(ddp, comm):
    (a_forward_around_the_wrapper if comm.rank == 0 else a_changed_leaf)(ddp, comm)


def a_loss_of_a_shard(ddp, comm):
    """Three shards in all are refused before."""
    ddp.backward_shards(lambda x: ddp(x).sum().backward(), [Tensor(INPUTS)])


FAILURES = [
    a_changed_leaf,
    a_forward_around_the_wrapper,
    a_parameter_without_gradient,
    a_hook_on_a_leaf,
    gradients_set_by_hand,
    at_different_places,
    a_loss_of_a_shard,
]


@pytest.mark.parametrize("kind, size", WORLDS)
def test_where_all_fail_alike_the_next_step_is_right(kind, size):
    def body(comm):
        ddp = DDP(Mlp(0), comm)
        for fail in (*FAILURES, *FAILURES):
            ddp.zero_grad()
            with pytest.raises(REFUSALS):
                fail(ddp, comm)
            right(comm, ddp)
        return True

    assert run_ranks(kind, body, size, TIMEOUT_S) == [True] * size


def test_a_failed_backward_says_nothing_of_samples():
    """The samples of a backward that failed count no more, those accumulated before do."""

    def body(comm):
        ddp = DDP(Mlp(0), comm)
        with ddp.no_sync():
            loss_of(ddp, comm).backward()
        before = gradients(ddp.module)
        other = ddp(Tensor(np.ones(([50, 3][comm.rank], 3)))).sum()
        mark_changed(ddp.module.w2)
        with pytest.raises(AutogradError):
            other.backward()
        ddp.flush()
        return before, gradients(ddp.module)

    (first, found), (second, _) = run_ranks("threads", body, 2, TIMEOUT_S)
    assert_gradients_close(found, {name: 0.25 * first[name] + 0.75 * second[name] for name in first})


# -------------------------------------------------------------------------------------------- others wait, or have sent


def new_communicators(kind):
    """A function of a communicator that gives this rank another one, in another world of the same ranks."""
    if kind == "threads":
        worlds = [ThreadWorld(2, timeout_s=TIMEOUT_S).communicators()]
        return lambda comm: worlds[0][comm.rank]
    port = free_port()

    def new(comm):
        meeting = Rendezvous(comm.rank, 2, "127.0.0.1", port, b"test", TIMEOUT_S)
        return ShmCommunicator(comm.rank, 2, meeting.all_gather, timeout_s=TIMEOUT_S)

    return new


def one_rank_before_any_bucket(ddp, comm):
    (a_changed_leaf if comm.rank == 1 else lambda ddp, comm: loss_of(ddp, comm).backward())(ddp, comm)


def all_after_the_first_bucket(ddp, comm):
    def raises(leaf):
        if leaf is ddp.module.w1:
            raise ZeroDivisionError("too late")

    ddp.reducer.in_order = True  # each bucket goes out as soon as it is complete
    loss_of(ddp, comm).backward(on_leaf=raises)


def one_rank_refuses_while_another_flushes(ddp, comm):
    gradients_set_by_hand(ddp, comm) if comm.rank == 1 else ddp.flush()


@pytest.mark.parametrize(
    "fail", [one_rank_before_any_bucket, all_after_the_first_bucket, one_rank_refuses_while_another_flushes]
)
@pytest.mark.parametrize("kind", ["threads", "shm"])
def test_where_others_wait_all_fail_and_go_on_with_a_new_communicator(kind, fail):
    new = new_communicators(kind)

    def body(comm):
        ddp = DDP(Mlp(0), comm, bucket_cap_bytes=64)
        ddp.zero_grad()
        with pytest.raises((AutogradError, RankFailedError, ZeroDivisionError)):
            fail(ddp, comm)
        for call in (comm.barrier, ddp.flush, comm.barrier):
            with pytest.raises(RankFailedError, match=rf"aborted: .* raised .*{HOW_TO_GO_ON}"):
                ddp.zero_grad()
                call()
        module, other = ddp.unwrap(), new(comm)
        return right(other, DDP(module, other))

    assert run_ranks(kind, body, 2, TIMEOUT_S) == [True, True]


def test_synchronised_batch_norms_go_on_with_the_next_wrapper():
    new = new_communicators("threads")

    def body(comm):
        module = nn.Sequential(nn.Linear(3, 4, dtype="float64"), SyncBatchNorm(4, comm, dtype="float64"))
        ddp, inputs = DDP(module, Recording(comm)), Tensor(INPUTS[comm.rank :: 2])
        with pytest.raises((ZeroDivisionError, RankFailedError)):
            ddp(inputs).square().mean().backward(on_leaf=lambda leaf: comm.rank and 1 / 0)
        ddp = DDP(ddp.unwrap(), new(comm))
        ddp.zero_grad()
        (ddp(inputs) * inputs[:, :1]).mean().backward()
        return module.state_dict(), gradients(module)

    (state, found), (_, other) = run_ranks("threads", body, 2, TIMEOUT_S)
    alone = nn.Sequential(nn.Linear(3, 4, dtype="float64"), nn.BatchNorm1d(4, dtype="float64"))
    alone.load_state_dict(state)
    (alone(Tensor(INPUTS)) * Tensor(INPUTS[:, :1])).mean().backward()
    for each in (found, other):
        assert_gradients_close(each, gradients(alone))


def test_alone_nothing_is_lost_even_after_a_bucket():
    """With one rank nobody waits, but a bucket was weighted already: its gradients are dropped, and all is well."""
    comm = SoloCommunicator()
    ddp = DDP(Mlp(0), comm, bucket_cap_bytes=64)
    optimizer = optim.SGD(ddp.parameters(), lr=0.1)
    with pytest.raises(ZeroDivisionError):
        all_after_the_first_bucket(ddp, comm)
    optimizer.zero_grad()
    assert right(comm, ddp)


def test_a_caught_error_of_join_leaves_the_ranks_at_one():
    def body(comm):
        ddp = DDP(Mlp(0), comm)
        with pytest.raises(RankFailedError, match="ran out on ranks"):
            with ddp.join(throw_on_early_termination=True):
                for _ in range(1 + comm.rank):
                    ddp.zero_grad()
                    loss_of(ddp, comm).backward()
        return right(comm, ddp)

    assert run_ranks("threads", body, 2, TIMEOUT_S) == [True, True]
