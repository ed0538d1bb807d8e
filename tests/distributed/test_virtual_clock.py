"""What a virtual clock is charged for, and when it passes: calls, backwards, evaluation, code of one's own."""

import numpy as np
import pytest

import minigrad
from minigrad import nn, no_grad, optim
from minigrad.distributed import DDP, Recording, ReduceOp, simulate
from minigrad.distributed.simulate import Cluster, Link

ONE = Cluster.of_speeds([1], per_sample_s=1.0)  # of 3 samples, 1 s is forward and 2 s are backward


def layers(count=4):
    return nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(count)))


def seconds(body, cluster=ONE):
    """The clock of rank 0 where body leaves it, and the trace."""

    def timed(comm):
        body(comm)
        return comm.clock.now_s()

    trace = simulate.run(timed, cluster)
    return pytest.approx(trace.results[0], abs=1e-9), trace


@pytest.mark.parametrize("wrap", [lambda model, comm: model, DDP, lambda model, comm: DDP(model, Recording(comm))])
def test_a_call_costs_the_same_wrapped_or_not_and_the_forward_part_without_recording(wrap):
    def body(comm):
        model, times = wrap(layers(), comm), []
        comm.barrier()
        for recording in (True, False):
            if recording:
                loss = model(minigrad.randn(3, 4)).square().mean()
                times.append(comm.clock.now_s())
                loss.backward()
            else:
                with no_grad():
                    model(minigrad.randn(3, 4))
            comm.barrier()
            times.append(comm.clock.now_s())
        return times

    trace = simulate.run(body, ONE)
    assert trace.results == [pytest.approx([1.0, 3.0, 4.0])]
    assert [step.compute_s for step in trace.ranks[0].steps] == pytest.approx([3.0, 1.0])
    assert [step.samples for step in trace.ranks[0].steps] == [3, 3] and trace.uncharged_backwards == 0


def test_local_steps_by_hand_cost_what_they_cost_in_a_wrapper():
    def body(comm, wrapped):
        minigrad.manual_seed(0)
        model = layers(2)
        called = DDP(model, comm, sync="manual") if wrapped else model
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            for _ in range(3):
                optimizer.zero_grad()
                called(minigrad.randn(3, 4)).square().mean().backward()
                optimizer.step()
            for param in model.parameters():
                comm.all_reduce(param.data, ReduceOp.AVG).wait()
        return [p.detach().tolist() for p in model.parameters()]

    cluster = Cluster.of_speeds([2, 1], per_sample_s=0.1, link=Link(0.01))
    plain, wrapped = (simulate.run(body, cluster, kind) for kind in (False, True))
    assert plain.results == wrapped.results
    assert [sum(plain.slowest_s()), sum(wrapped.slowest_s())] == pytest.approx([1.8, 1.8])


class Outer(nn.Module):
    """A module that calls others, and holds one in a list that the tree does not see."""

    def __init__(self, registered):
        super().__init__()
        self.held = [layers(1)]
        if registered:
            self.inner = self.held[0]

    def forward(self, batch):
        return self.held[0](self.held[0](batch["x"]))


def test_only_the_outermost_call_of_a_module_with_parameters_is_charged():
    batch = {"scale": minigrad.tensor(2.0), "x": minigrad.randn(3, 4)}
    assert seconds(lambda comm: Outer(True)(batch).sum().backward())[0] == 3.0
    assert seconds(lambda comm: Outer(False)(batch).sum().backward())[0] == 6.0  # two calls that are outermost
    assert seconds(lambda comm: nn.Sequential(nn.ReLU(), nn.MSELoss()))[0] == 0.0
    assert seconds(lambda comm: nn.MSELoss()(nn.ReLU()(batch["x"]), batch["x"]))[0] == 0.0


def test_a_wrapper_says_what_its_call_counts():
    def body(comm):
        ddp = DDP(layers(1), comm, batch_dim=1)
        ddp(minigrad.randn(5, 3, 4)).sum().backward()
        with ddp.samples(6), no_grad():
            ddp(minigrad.randn(5, 3, 4))
        with no_grad():
            ddp(minigrad.randn(3, 4)[0])

    assert seconds(body)[0] == 3.0 + 2.0 + 4 / 3


def test_shards_are_charged_once_each():
    """Half a second a call, and one a sample."""

    def body(comm):
        ddp = DDP(layers(1), comm)
        ddp.backward_shards(lambda x: ddp(x).square().mean(), [minigrad.randn(3, 4), minigrad.randn(6, 4)])

    passed, trace = seconds(body, Cluster.of_speeds([1], per_sample_s=1.0, fixed_s=0.5))
    assert passed == 10.0 and trace.uncharged_backwards == 0


def test_backwards_that_nothing_was_charged_for_are_counted():
    def body(comm):
        w = minigrad.ones(3).requires_grad_()
        (w * 2).sum().backward()
        w.sum().backward()
        comm.clock.compute(3)
        (w * 2).sum().backward()
        model = layers(1)
        model(minigrad.randn(3, 4)).sum().backward()
        y = model(minigrad.randn(3, 4))
        y.sum().backward(retain_graph=True)
        y.sum().backward()

    passed, trace = seconds(body)
    assert passed == 9.0 and trace.uncharged_backwards == trace.ranks[0].uncharged_backwards == 2


def test_the_backward_of_each_forward_passes_when_it_runs():
    """Two forwards, then their backwards; what never comes to one passes before the next wait."""

    def body(comm):
        times, models = [], [layers(1), layers(1)]
        losses = [model(minigrad.randn(rows, 4)).sum() for model, rows in zip(models, (3, 6))]
        for loss in losses:
            loss.backward()
            times.append(comm.clock.now_s())
        models[0](minigrad.randn(3, 4))
        comm.barrier()
        return [*times, comm.clock.now_s()]

    assert simulate.run(body, ONE).results == [pytest.approx([5.0, 9.0, 12.0])]


def test_what_never_comes_to_a_backward_is_paid_before_the_forward_after_the_next_one():
    def body(comm):
        model, times = layers(1), []
        model(minigrad.randn(3, 4))
        model(minigrad.randn(3, 4)).sum().backward()
        times.append(comm.clock.now_s())
        with no_grad():
            comm.clock.compute(3)
            times.append(comm.clock.now_s())
        model(minigrad.randn(3, 4)).sum().backward()
        model(minigrad.randn(3, 4))
        model(minigrad.randn(3, 4)).sum().backward()
        times.append(comm.clock.now_s())
        with no_grad():
            model(minigrad.randn(3, 4))
        return [*times, comm.clock.now_s()]

    assert simulate.run(body, ONE).results == [pytest.approx([4.0, 7.0, 14.0, 17.0])]


class Bucketed:
    """Somebody else's wrapper: hooks on leaves start collectives, which are waited for after backward, or at once."""

    def __init__(self, model, comm, of_layers, blocking=False):
        self.works, waiting = [], []

        def hook(leaf):
            waiting.append(leaf)
            if len(waiting) == of_layers:
                self.works.append(comm.all_reduce(np.concatenate([each.grad.data.ravel() for each in waiting])))
                waiting.clear()
                if blocking:
                    self.works.pop().wait()

        for param in model.parameters():
            param.register_post_accumulate_grad_hook(hook)

    def wait(self):
        for work in self.works:
            work.wait()


@pytest.mark.parametrize("wrap", [DDP, lambda model, comm: Bucketed(model, comm, 4, blocking=True)])
def test_a_wait_of_one_backward_leaves_that_of_another_forward_for_later(wrap):
    """Both forwards, then both backwards, each 2 s and a bucket of 0.1 s that nothing hides."""

    def body(comm):
        models = [layers(), layers()]
        wrappers = [wrap(model, comm) for model in models]
        comm.barrier()
        began_s, times = comm.clock.now_s(), []
        called = wrappers if wrap is DDP else models
        for loss in [model(minigrad.randn(3, 4)).square().mean() for model in called]:
            loss.backward()
            times.append(comm.clock.now_s() - began_s)
        return times

    trace = simulate.run(body, Cluster.of_speeds([1, 1], per_sample_s=1.0, link=Link(0.05)))
    assert trace.results == [pytest.approx([4.1, 6.2])] * 2


def test_code_of_ones_own_is_charged_as_told():
    def body(comm):
        comm.clock.advance(0.5)
        loss = layers(1)(minigrad.randn(3, 4)).sum()
        comm.clock.advance(0.25)
        loss.backward()
        comm.barrier()

    passed, trace = seconds(body)
    (step,) = trace.ranks[0].steps
    assert passed == 3.75 and (step.compute_s, step.end_s, step.samples) == (3.75, 3.75, 3)
    with pytest.raises(ValueError, match="VirtualClock.advance: expected seconds to be a finite number >= 0, got -1"):
        simulate.run(lambda comm: comm.clock.advance(-1), ONE)
    minigrad.distributed.SoloCommunicator().clock.advance(3.0)  # there real time passes by itself


@pytest.mark.parametrize(
    "of_layers, blocking, over_s",
    [
        (1, False, 4.7),  # ready at 1.5, 2.0, 2.5, 3.0: over at 2.3, 3.1, 3.9, 4.7
        (2, False, 3.8),  # ready at 2.0, 3.0
        (4, False, 3.8),
        (2, True, 4.6),
    ],
)
def test_collectives_of_anybody_travel_while_backward_runs(of_layers, blocking, over_s):
    """Four layers of equal bytes, 2 s of backward, 0.8 s a collective."""

    def body(comm):
        model = layers()
        wrapper = Bucketed(model, comm, of_layers, blocking)
        model(minigrad.randn(3, 4)).sum().backward()
        assert comm.clock.now_s() == pytest.approx(over_s if blocking else 3.0)
        wrapper.wait()

    passed, trace = seconds(body, Cluster.of_speeds([1, 1], per_sample_s=1.0, link=Link(0.4)))
    (step,) = trace.ranks[0].steps
    assert passed == over_s and (step.exposed_s, step.end_s) == pytest.approx((over_s - 3.0, over_s))
