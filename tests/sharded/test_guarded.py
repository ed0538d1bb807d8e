"""What a sharded optimizer leaves behind: after a gradient of NaN, a refusal, or the end of its wrapper."""

import numpy as np
import pytest

from minigrad import Tensor, manual_seed, nn, save
from minigrad.distributed import DDP, ShardedOptimizer, average_gradients, run
from minigrad.errors import ArgumentError, AutogradError, RankFailedError
from minigrad.optim import SGD, Adam, GradScaler, clip_grad_norm_, lr_scheduler


def small_net():
    manual_seed(0)
    return nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 1))


def wrapped(comm):
    ddp = DDP(small_net(), comm, bucket_cap_bytes=100)
    return ddp, ShardedOptimizer(SGD(ddp.parameters(), lr=0.1), ddp)


def loss_of(module, factor=1.0):
    return module(Tensor(np.ones((2, 5), np.float32))).mean() * factor


def test_steps_go_on_after_one_was_clipped_by_nan():
    """What was multiplied by NaN is the padding too, which no backward writes."""

    def body(comm, sharded):
        ddp, optimizer = wrapped(comm) if sharded else (DDP(small_net(), comm), None)
        found = []
        for factor in (float("nan"), 1.0):
            ddp.zero_grad()
            loss_of(ddp, factor).backward()
            norm = optimizer.clip_grad_norm_(0.1) if sharded else clip_grad_norm_(ddp.parameters(), 0.1)
            found.append(norm.item())
        return found

    for plain, ours in zip(run(body, 2, False), run(body, 2, True)):
        np.testing.assert_allclose(ours, plain, rtol=1e-6)
        assert np.isfinite(ours[1])


@pytest.mark.parametrize(
    "use", [lambda optimizer: optimizer.clip_grad_norm_(1.0), lambda optimizer: GradScaler().unscale_(optimizer)]
)
def test_gradients_that_are_not_combined_are_neither_clipped_nor_unscaled(use):
    """A run of them is all that would be scaled, before all of them are added up."""

    def body(comm):
        ddp, optimizer = wrapped(comm)
        with ddp.no_sync():
            loss_of(ddp).backward()
        with pytest.raises(AutogradError, match="expected combined gradients"):
            use(optimizer)
        loss_of(ddp).backward()
        use(optimizer)

    run(body, 2)


def alone(net, comm):
    return net


@pytest.mark.parametrize("wrap", [alone, DDP])
def test_an_unwrapped_module_is_trained_by_a_plain_optimizer(wrap):
    def body(comm):
        ddp, optimizer = wrapped(comm)
        loss_of(ddp).backward()
        optimizer.step()
        model = wrap(ddp.unwrap(), comm)
        plain = SGD(model.parameters(), lr=0.1)
        for use in (plain.step, loss_of(model).backward, lambda: plain.params()[0].grad):
            with pytest.raises(AutogradError, match="has its own run alone"):
                use()
        plain.zero_grad()
        loss_of(model).backward()
        plain.step()
        assert len(plain.params()[0].listeners) == (0 if wrap is alone else 1)  # a wrapper's, at most
        return [x.grad.numpy().tobytes() for x in model.parameters()]

    first, second = run(body, 2)
    assert first == second


def test_what_was_divided_stays_so_for_the_next_wrapper():
    def body(comm):
        ddp, _ = wrapped(comm)
        loss_of(ddp).backward()
        ddp = DDP(ddp.unwrap(), comm)
        ShardedOptimizer(SGD(ddp.parameters(), lr=0.1), ddp)
        with pytest.raises(AutogradError, match="call zero_grad"):
            loss_of(ddp).backward()
        with pytest.raises(AutogradError, match="has its own run alone"):
            ddp.module[0].weight.grad
        ddp.zero_grad()
        loss_of(ddp).backward()

    run(body, 2)


def test_what_was_refused_has_left_the_wrapper_as_it_was():
    def body(comm):
        ddp, head = DDP(small_net(), comm), nn.Linear(2, 1)
        with pytest.raises(ArgumentError, match="which no other rank trains"):
            ShardedOptimizer(SGD([*head.parameters(), *ddp.parameters()], lr=0.1), ddp)
        for options in ({"shares": 0.5}, {"caps": 7}, {"ownership": 7}):
            with pytest.raises(ArgumentError, match=f"ShardedOptimizer: expected {[*options][0]} "):
                ShardedOptimizer(SGD(ddp.parameters(), lr=0.1), ddp, **options)
        loss_of(ddp).backward()
        assert ddp.module[0].weight.grad is not None  # whole

    run(body, 2)


@pytest.mark.parametrize("before", [False, True], ids=["head after", "head before"])
@pytest.mark.parametrize("together", [False, True], ids=["apart", "in one layout"])
def test_a_plain_optimizer_of_others_too_takes_no_part_for_a_gradient(before, together):
    def body(comm):
        net, head = small_net(), nn.Linear(2, 1)
        rest = [*head.parameters(), net[2].bias] if before else [net[2].bias, *head.parameters()]
        plain = SGD(rest, lr=0.1) if together else None
        ddp = DDP(net, comm)
        ShardedOptimizer(SGD([x for x in net.parameters() if x is not net[2].bias], lr=0.1), ddp)
        loss_of(ddp).backward()
        with pytest.raises(AutogradError, match="SGD.step: expected a whole gradient"):
            (plain or SGD(rest, lr=0.1)).step()

    run(body, 2)


def test_what_was_kept_of_a_gradient_is_no_part_of_the_combined_one():
    def body(comm):
        ddp, _ = wrapped(comm)
        bias = ddp.module[0].bias
        with ddp.no_sync():
            loss_of(ddp).backward()
            kept = bias.grad
            once = kept.numpy().copy()
        loss_of(ddp, comm.rank + 1.0).backward()
        np.testing.assert_allclose(kept.numpy(), once * (comm.rank + 2.0), rtol=1e-6)  # this rank's, and all of it

    run(body, 2)


def test_what_ranks_have_divided_is_not_averaged():
    def body(comm):
        ddp, _ = wrapped(comm)
        loss_of(ddp).backward()
        with pytest.raises(AutogradError, match="has its own run alone"):
            average_gradients(ddp.parameters(), comm, 2)

    run(body, 2)


def test_the_state_inside_is_no_whole_one():
    def body(comm):
        ddp = DDP(small_net(), comm, bucket_cap_bytes=100)
        inner = Adam(ddp.parameters())
        optimizer = ShardedOptimizer(inner, ddp)
        loss_of(ddp).backward()
        optimizer.step()
        saved = optimizer.state_dict()
        for use in (inner.state_dict, lambda: inner.state, lambda: inner.load_state_dict(saved)):
            with pytest.raises(ArgumentError, match="ask the ShardedOptimizer"):
                use()

    run(body, 2)


def test_schedules_of_both_do_not_move_the_same_rates():
    def body(comm):
        ddp = DDP(small_net(), comm)
        inner = SGD(ddp.parameters(), lr=0.1)
        first = lr_scheduler.StepLR(inner, 1)
        second = lr_scheduler.StepLR(ShardedOptimizer(inner, ddp), 1)
        first.step()
        with pytest.raises(ArgumentError, match="expected one schedule"):
            second.step()

    run(body, 2)


def test_a_rank_that_may_not_save_says_so_before_the_others_put_the_state_together(tmp_path):
    def body(comm):
        ddp = DDP(small_net(), comm)
        optimizer = ShardedOptimizer(Adam(ddp.parameters()), ddp)
        loss_of(ddp).backward()
        optimizer.step()
        ddp.zero_grad()
        if comm.rank:
            with ddp.no_sync():
                loss_of(ddp).backward()
        with pytest.raises((AutogradError, RankFailedError), match="expected gradients that are combined and used"):
            save({"model": ddp, "optimizer": optimizer}, tmp_path / "run")

    run(body, 2)
