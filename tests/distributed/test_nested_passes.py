"""A pass within a pass: what begins, or ends, a pass of a wrapper while one is under way is an error on all ranks."""

import numpy as np
import pytest

import minigrad
from minigrad import Tensor, nn, optim
from minigrad.distributed import DDP, Ddp, average_gradients, run
from minigrad.errors import AutogradError, RankFailedError
from tests.distributed.models import Mlp, assert_gradients_close, data, gradients, mean_loss
from tests.distributed.worlds import run_ranks
from tests.train.graphs import graph_on, make_batch

TIMEOUT_S = 10.0
INPUTS, TARGETS = data(8, 0)


def loss_of(ddp, rank, factor=1.0):
    part = [slice(0, 2), slice(2, 8)][rank]
    return mean_loss(ddp(Tensor(INPUTS[part])), TARGETS[part]) * factor


def alone(factor):
    model = Mlp(0)
    (mean_loss(model(Tensor(INPUTS)), TARGETS) * factor).backward()
    return gradients(model)


def once(act):
    """A hook on leaves that acts at the first of them."""
    left = [act]
    return lambda leaf: left.pop()() if left else None


def a_backward(ddp, comm):
    return loss_of(ddp, comm.rank, 2.0).backward


def a_backward_of_the_bare_module(ddp, comm):
    return loss_of(ddp.module, comm.rank).backward


def a_local_backward(ddp, comm):
    inner = loss_of(ddp, comm.rank)

    def act():
        with ddp.no_sync():
            inner.backward()

    return act


def shards(ddp, comm):
    return lambda: ddp.backward_shards(lambda x: ddp(x).sum(), [Tensor(INPUTS)])


def the_end_of_join(ddp, comm):
    def act():
        with ddp.join():
            pass

    return act


def sums(state, bucket, comm):
    return bucket.all_reduce(comm)


PASSES = {
    "backward": a_backward,
    "backward of the bare module": a_backward_of_the_bare_module,
    "backward without sync": a_local_backward,
    "backward_shards": shards,
    "join": the_end_of_join,
    "flush": lambda ddp, comm: ddp.flush,
    "sync_gradients": lambda ddp, comm: ddp.sync_gradients,
    "overlapped_sync_gradients": lambda ddp, comm: ddp.overlapped_sync_gradients,
}
REFUSED = r"expected one pass at a time, got {}\(\) inside backward\(\) of the same wrapper"


def caught(act):
    def again():
        with pytest.raises(AutogradError):
            act()

    return again


@pytest.mark.parametrize("how", ["raises", "is caught", "on one rank"])
@pytest.mark.parametrize("what", PASSES)
def test_a_pass_nested_in_a_backward_is_named_on_all_ranks(what, how):
    def body(comm):
        ddp = DDP(Mlp(0), comm, bucket_cap_bytes=64)
        outer, inner = loss_of(ddp, comm.rank), PASSES[what](ddp, comm)
        act = inner if how == "raises" else caught(inner)
        on_leaf = once(act) if how != "on one rank" or comm.rank == 1 else None
        with pytest.raises((AutogradError, RankFailedError), match=REFUSED.format(what.split()[0])):
            outer.backward(on_leaf=on_leaf)
        return True

    assert run(body, 2, timeout_s=TIMEOUT_S) == [True, True]


@pytest.mark.parametrize("what", ["unwrap", "broadcast_parameters", "register_comm_hook", "nonfinite_gradients"])
def test_a_wrapper_stays_as_it_is_until_its_backward_is_over(what):
    """Who catches that has a backward that is right."""

    def body(comm):
        ddp = DDP(Mlp(0), comm, track_nonfinite=True)
        arguments = (None, sums) if what == "register_comm_hook" else ()

        def act():
            with pytest.raises(AutogradError, match=REFUSED.format(what)):
                getattr(ddp, what)(*arguments)

        loss_of(ddp, comm.rank).backward(on_leaf=once(act))
        return gradients(ddp.module)

    for actual in run(body, 2, timeout_s=TIMEOUT_S):
        assert_gradients_close(actual, alone(1.0))


def a_step(ddp):
    return optim.SGD(ddp.parameters(), lr=0.1).step


def clipping(ddp):
    return lambda: optim.clip_grad_norm_(ddp.parameters(), 1.0)


def unscaling(ddp):
    scaler, optimizer = optim.GradScaler(2.0), optim.SGD(ddp.parameters(), lr=0.1)
    return lambda: scaler.unscale_(optimizer)


USES = [(a_step, "loss of a shard"), (a_step, "local backward")]
USES += [(use, "backward") for use in (a_step, clipping, unscaling)]


@pytest.mark.parametrize("use, where", USES)
def test_gradients_are_used_when_the_backward_is_over(use, where):
    """A step of a hook took each rank's own gradient, and parted the replicas."""

    def body(comm):
        ddp, acts = DDP(Mlp(0), comm), []

        def act():
            with pytest.raises(AutogradError, match="expected a whole gradient, got a part, of a backward that is un"):
                acts[0]()

        def loss_fn(x):
            act()
            return ddp(x).sum()

        acts.append(use(ddp))
        if where == "loss of a shard":
            ddp.backward_shards(loss_fn, [Tensor(INPUTS)])
            return alone(1.0)
        ddp.reducer.syncing = where == "backward"
        loss_of(ddp, comm.rank).backward(on_leaf=lambda leaf: act())
        ddp.reducer.syncing = True
        ddp.flush()
        return gradients(ddp.module)

    for actual in run(body, 2, timeout_s=TIMEOUT_S):
        assert_gradients_close(actual, alone(1.0))


CHANGES = {
    "set": lambda ddp: setattr(ddp.module.w2, "grad", Tensor(np.ones(ddp.module.w2.shape))),
    "None": lambda ddp: setattr(ddp.module.w2, "grad", None),
    "in place": lambda ddp: ddp.module.w2.grad.mul_(2.0),
    "zero_grad": lambda ddp: ddp.zero_grad(),
    "zeros": lambda ddp: ddp.zero_grad(set_to_none=False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_gradient_that_is_sent_stays_as_it_is(change):
    """What came depended on whether its bucket had gone out; the replicas got different gradients."""

    def body(comm):
        ddp = DDP(Mlp(0), comm, bucket_cap_bytes=64)
        with pytest.raises((AutogradError, RankFailedError), match="got that of w2, which is sent to other ranks"):
            loss_of(ddp, comm.rank).backward(on_leaf=lambda leaf: leaf is ddp.module.w1 and CHANGES[change](ddp))
        return True

    assert run(body, 2, timeout_s=TIMEOUT_S) == [True, True]


@pytest.mark.parametrize("how", ["on_leaf", "hook"])
def test_a_gradient_may_change_before_it_is_sent(how):
    def body(comm):
        ddp = DDP(Mlp(0), comm, bucket_cap_bytes=64)
        ddp.reducer.in_order = True  # each bucket goes out as soon as it is complete

        def halve(leaf):
            leaf.grad *= 0.5

        if how == "hook":
            for param in ddp.module.parameters():
                param.register_post_accumulate_grad_hook(halve)
        loss_of(ddp, comm.rank).backward(on_leaf=halve if how == "on_leaf" else None)
        return gradients(ddp.module)

    for actual in run(body, 2, timeout_s=TIMEOUT_S):
        assert_gradients_close(actual, alone(0.5))


@pytest.mark.parametrize("kind", ["threads", "shm", "nccl"])
def test_where_all_nest_before_a_bucket_is_sent_they_may_go_on(kind):
    def body(comm):
        ddp = DDP(Mlp(0), comm)
        for make in (a_backward, shards):
            ddp.zero_grad()
            with pytest.raises(AutogradError, match="expected one pass at a time"):
                loss_of(ddp, comm.rank).backward(on_leaf=once(make(ddp, comm)))
        ddp.zero_grad()
        loss_of(ddp, comm.rank).backward()
        return gradients(ddp.module)

    for actual in run_ranks(kind, body, 2, TIMEOUT_S):
        assert_gradients_close(actual, alone(1.0))


@pytest.mark.parametrize("where", ["hook on a leaf", "comm hook", "loss of a shard", "local backward"])
def test_whatever_is_outside(where):
    """A flush within it; a local backward is refused it too, since its gradients are not complete."""

    def body(comm):
        ddp = DDP(Mlp(0), comm)

        def hook(state, bucket, comm):
            ddp.flush()
            return bucket.all_reduce(comm)

        def loss_fn(x):
            ddp.flush()
            return ddp(x).sum()

        with pytest.raises((AutogradError, RankFailedError), match=r"got flush\(\) inside backward\w*\(\) of the same"):
            if where == "loss of a shard":
                ddp.backward_shards(loss_fn, [Tensor(INPUTS)])
            elif where == "comm hook":
                ddp.register_comm_hook(None, hook)
                loss_of(ddp, comm.rank).backward()
            elif where == "hook on a leaf":
                ddp.module.w1.register_post_accumulate_grad_hook(lambda leaf: ddp.flush())
                loss_of(ddp, comm.rank).backward()
            else:
                with ddp.no_sync():
                    loss_of(ddp, comm.rank).backward(on_leaf=once(ddp.flush))
        return True

    assert run(body, 2, timeout_s=TIMEOUT_S) == [True, True]


def test_local_backwards_within_each_other_add_up():
    def body(comm):
        ddp = DDP(Mlp(0), comm)
        with ddp.no_sync():
            inner = loss_of(ddp, comm.rank, 2.0)
            loss_of(ddp, comm.rank).backward(on_leaf=once(inner.backward))
        ddp.flush()
        return gradients(ddp.module)

    for actual in run(body, 2, timeout_s=TIMEOUT_S):
        assert_gradients_close(actual, alone(3.0))


def test_a_forward_within_a_backward_takes_nothing_from_it():
    def body(comm):
        ddp = DDP(Mlp(0), comm)
        outer, kept = loss_of(ddp, comm.rank), []
        outer.backward(on_leaf=once(lambda: kept.append(loss_of(ddp, comm.rank, 2.0))))
        first = gradients(ddp.module)
        kept[0].backward()
        return first, gradients(ddp.module)

    for first, both in run(body, 2, timeout_s=TIMEOUT_S):
        assert_gradients_close(first, alone(1.0))
        assert_gradients_close(both, alone(3.0))


@pytest.mark.parametrize("place", ["hook", "comm hook"])
@pytest.mark.parametrize("kind", ["threads", "shm"])
def test_a_pass_of_another_wrapper_is_right_whatever_the_time(kind, place):
    """The buckets of the outer one that are ready go out before, on all ranks alike."""

    def body(comm):
        outer, inner = (DDP(Mlp(0), comm, bucket_cap_bytes=64) for _ in range(2))
        for _ in range(5):
            outer.zero_grad()
            inner.zero_grad()
            loss, other = loss_of(outer, comm.rank), loss_of(inner, comm.rank, 2.0)
            act = once(other.backward)
            if place == "hook":
                loss.backward(on_leaf=lambda leaf: act(leaf) if leaf is outer.module.w1 else None)
            else:
                act_of_hook(outer, act)
                loss.backward()
        return gradients(outer.module), gradients(inner.module)

    def act_of_hook(outer, act):
        outer.acts = act
        if outer.reducer.hook is None:
            outer.register_comm_hook(None, lambda state, bucket, comm: [outer.acts(None), bucket.all_reduce(comm)][1])

    for first, second in run_ranks(kind, body, 2, TIMEOUT_S):
        assert_gradients_close(first, alone(1.0))
        assert_gradients_close(second, alone(2.0))


def test_replicas_are_combined_when_their_backwards_are_over():
    replicas = [nn.Linear(3, 1), nn.Linear(3, 1)]
    ddp = Ddp.wrap(replicas, ["cpu", "cpu"])
    x = minigrad.ones(2, 3)
    calls = [ddp.all_reduce_gradients, ddp.sum_gradients, lambda: ddp.weighted_all_reduce_gradients([1, 1])]
    calls += [ddp.sync_params, lambda: average_gradients(replicas[0].parameters(), minigrad.distributed.init(), 2)]
    for call in calls:
        for model in replicas:
            model.zero_grad()
        replicas[1](x).sum().backward()
        with pytest.raises(AutogradError, match="expected no backward under way, got one that reaches (weight|bias)"):
            replicas[0](x).sum().backward(on_leaf=once(call))
    replicas[0].zero_grad()
    replicas[0](x).sum().backward(on_leaf=once(lambda: nn.Linear(3, 1)(x).sum().backward()))
    ddp.all_reduce_gradients()
    assert np.array_equal(replicas[0].weight.grad.numpy(), [[2.0, 2.0, 2.0]])


@pytest.mark.parametrize("devices", [1, 2])
def test_a_graph_steps_when_its_backward_is_over(devices):
    graph, batch = graph_on(devices), make_batch(4)
    before = [param.data.copy() for param in graph.parameters()]
    remove = next(graph.parameters()).register_post_accumulate_grad_hook(once(graph.step))
    with pytest.raises(AutogradError, match="expected no backward under way"):
        graph.backward_batch(batch)
    remove()
    assert all(np.array_equal(param.data, old) for param, old in zip(graph.parameters(), before))
