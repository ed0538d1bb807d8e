"""Schedulers under PyTorch's names: resuming, one at a time, what they refuse; for their values see tests/parity."""

import math

import numpy as np
import pytest

from minigrad import distributed, nn, randn, tensor
from minigrad.errors import ArgumentError, CallError, DtypeError, ReplicaMismatchError, StateDictError
from minigrad.optim import SGD, Adam, LRScheduler, OneCycle, lr_scheduler
from tests.parity import optim_ours
from tests.parity.optim_cases import MADE_BY_NAME, PLATEAUS, follow, two_groups


def made(name):
    optimizer = two_groups(optim_ours)
    return optimizer, MADE_BY_NAME[name](lr_scheduler, optimizer)


@pytest.mark.parametrize("name", MADE_BY_NAME)
def test_a_scheduler_resumes(name):
    optimizer, scheduler = made(name)
    table = follow(scheduler, optimizer, 30)
    optimizer, scheduler = made(name)
    follow(scheduler, optimizer, 12)
    other, resumed = made(name)
    other.load_state_dict(optimizer.state_dict())
    resumed.load_state_dict(scheduler.state_dict())
    assert resumed.mark() == scheduler.mark() and resumed.last_epoch == 12
    assert np.array_equal(follow(resumed, other, 18), table[12:])


AFTER = {
    "StepLR": lambda o, last: lr_scheduler.StepLR(o, 7, 0.7, last_epoch=last),
    "LambdaLR": lambda o, last: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step), last),
    "CosineAnnealingLR": lambda o, last: lr_scheduler.CosineAnnealingLR(o, 25, last_epoch=last),
    "CyclicLR": lambda o, last: lr_scheduler.CyclicLR(o, 0.01, 0.4, 5, last_epoch=last),
    "OneCycleLR": lambda o, last: lr_scheduler.OneCycleLR(o, 0.7, 400, last_epoch=last),
}


@pytest.mark.parametrize("name", AFTER)
def test_last_epoch_goes_on_after_an_earlier_run(name):
    optimizer, scheduler = made(name)
    follow(scheduler, optimizer, 12)
    other = two_groups(optim_ours)
    other.load_state_dict(optimizer.state_dict())
    resumed = AFTER[name](other, 11)
    assert resumed.get_last_lr() == scheduler.get_last_lr() and resumed.state_dict() == scheduler.state_dict()


def test_last_epoch_needs_the_first_rates():
    with pytest.raises(ArgumentError, match="StepLR: expected an initial_lr in each group with last_epoch=3, got none"):
        lr_scheduler.StepLR(two_groups(optim_ours), 2, last_epoch=3)


class Noam(lr_scheduler._LRScheduler):
    """A schedule of one's own as one writes it with PyTorch: from the base rates."""

    def __init__(self, optimizer, warmup, last_epoch=-1):
        self.warmup = warmup
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        step = max(1, self.last_epoch)
        return [base * min(step**-0.5, step * self.warmup**-1.5) for base in self.base_lrs]


class Shrinking(LRScheduler):
    """The same from the present rates."""

    def get_lr(self):
        if self.last_epoch == 0:
            return [group["lr"] for group in self.optimizer.param_groups]
        return [group["lr"] * 0.5 for group in self.optimizer.param_groups]


def test_a_schedule_of_ones_own_in_the_form_of_pytorch():
    optimizer = two_groups(optim_ours)
    table = follow(Noam(optimizer, 4), optimizer, 8)
    factors = [min(max(1, step) ** -0.5, max(1, step) / 8) for step in range(8)]
    assert np.allclose(table[:, 1], factors, rtol=1e-15) and np.allclose(table[:, 0], table[:, 1] / 2, rtol=1e-15)
    saved, other = optimizer.state_dict(), two_groups(optim_ours)
    other.load_state_dict(saved)
    assert Noam(other, 4, last_epoch=7).get_last_lr() == [group["lr"] for group in optimizer.param_groups]
    optimizer = two_groups(optim_ours)
    shrinking = Shrinking(optimizer)
    assert follow(shrinking, optimizer, 4)[:, 1].tolist() == [1.0, 0.5, 0.25, 0.125]
    shrinking.load_state_dict(shrinking.state_dict())
    assert shrinking.get_last_lr() == [0.03125, 0.0625] == [group["lr"] for group in optimizer.param_groups]
    assert lr_scheduler.StepLR(two_groups(optim_ours), 2).get_lr() == [0.5, 1.0]


def test_any_step_can_be_gone_to():
    optimizer, scheduler = made("StepLR")
    scheduler.step(14)
    assert scheduler.get_last_lr()[1] == 0.7**2
    restarts = lr_scheduler.CosineAnnealingWarmRestarts(two_groups(optim_ours), 4)
    restarts.step(5.5)
    assert restarts.get_last_lr()[1] == pytest.approx((1 + math.cos(math.pi * 1.5 / 4)) / 2)
    assert restarts.last_epoch == 5 and restarts.state_dict()["last_step"] == 5.5


def test_a_second_schedule_that_steps_is_refused_until_the_first_is_gone():
    optimizer = two_groups(optim_ours)
    first, second = lr_scheduler.StepLR(optimizer, 2), lr_scheduler.ExponentialLR(optimizer, 0.5)
    first.step()
    with pytest.raises(ArgumentError, match="ExponentialLR.step: expected one schedule .*, got a StepLR that has"):
        second.step()
    del first
    second.step()
    assert second.get_last_lr() == [0.25, 0.5]


def test_a_plateau_may_follow_a_schedule_but_is_not_undone_by_it():
    optimizer = two_groups(optim_ours)
    ramp = lr_scheduler.LinearLR(optimizer, 0.5, total_iters=2)
    plateau = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    for _ in range(2):
        ramp.step()
        plateau.step(1.0)
    assert plateau.get_last_lr() == [0.05, 0.1]
    with pytest.raises(ArgumentError, match="LinearLR.step: expected one schedule .*, got a ReduceLROnPlateau"):
        ramp.step()


@pytest.mark.parametrize("mode, better, same", [("max", 1.2, 1.05), ("min", 0.8, 0.95)])
def test_what_is_hardly_better_is_not_better(mode, better, same):
    plateau = lr_scheduler.ReduceLROnPlateau(two_groups(optim_ours), mode, patience=0, threshold=0.1)
    for value, rate in ((1.0, 1.0), (better, 1.0), (better * same, 0.1)):
        plateau.step(value)
        assert plateau.get_last_lr()[1] == rate


@pytest.mark.parametrize("name", PLATEAUS)
def test_a_plateau_resumes(name):
    values = np.random.default_rng(5).standard_normal(40).tolist()
    pairs = []
    for _ in range(2):
        optimizer = two_groups(optim_ours)
        pairs.append((optimizer, lr_scheduler.ReduceLROnPlateau(optimizer, **PLATEAUS[name])))
    (optimizer, scheduler), (other, resumed) = pairs
    for value in values[:20]:
        scheduler.step(value)
    other.load_state_dict(optimizer.state_dict())
    resumed.load_state_dict({**scheduler.state_dict(), "mode": "as PyTorch has more keys"})
    for value in values[20:]:
        scheduler.step(value)
        resumed.step(tensor(value, dtype="float64"))
    assert scheduler.get_last_lr() == resumed.get_last_lr() and scheduler.mark() == resumed.mark()


def test_ranks_that_measured_something_else_are_told_so():
    def body(comm):
        model = distributed.DistributedDataParallel(nn.Linear(2, 1), comm)
        optimizer = SGD(model.parameters(), lr=0.1)
        plateau = lr_scheduler.ReduceLROnPlateau(optimizer)
        plateau.step(1.0 + comm.rank)
        model(randn(2, 2)).mean().backward()

    with pytest.raises(ReplicaMismatchError, match="ReduceLROnPlateau: best is 1 on rank 0 and 2 on rank 1"):
        distributed.run(body, 2)


def test_one_cycle_moves_the_first_beta():
    optimizer = Adam([nn.Parameter(np.ones(2))], betas=(0.9, 0.99))
    scheduler = lr_scheduler.OneCycleLR(optimizer, 0.5, 10)
    assert optimizer.param_groups[0]["betas"] == (0.95, 0.99)
    for _ in range(2):
        scheduler.step()
    assert optimizer.param_groups[0]["betas"] == (0.85, 0.99) and scheduler.get_last_lr() == [0.5]
    ours = LRScheduler(Adam([nn.Parameter(np.ones(2))], lr=0.5), OneCycle(10))
    assert [ours.schedule(step) for step in range(11)][9:] == [1 / 250000] * 2
    for _ in range(8):
        scheduler.step()
    with pytest.raises(ArgumentError, match="OneCycleLR: expected at most 10 steps, got step 11"):
        scheduler.step()


def test_the_state_of_pytorch_is_told_how_to_be_read():
    _, scheduler = made("StepLR")
    state = {"step_size": 7, "gamma": 0.7, "base_lrs": [0.5, 1.0], "last_epoch": 14, "_last_lr": [0.245, 0.49]}
    with pytest.raises(StateDictError, match='for that of PyTorch write {"last_step": s\\["last_epoch"\\]'):
        scheduler.load_state_dict(state)
    scheduler.load_state_dict({"last_step": state["last_epoch"], "base_lrs": state["base_lrs"]})
    assert scheduler.get_last_lr() == pytest.approx(state["_last_lr"])
    joined = {"_milestones": [3], "last_epoch": 5, "_last_lr": [0.1], "_schedulers": []}  # of a SequentialLR
    with pytest.raises(StateDictError, match=r'"last_step": s\["last_epoch"\], "base_lrs": scheduler.base_lrs'):
        scheduler.load_state_dict(joined)


class Short(LRScheduler):
    """One rate for two groups."""

    def get_lr(self):
        return [0.1]


REFUSED = [
    (lambda s, o: Short(o), "Short: expected a rate for each of 2 groups, got 1"),
    (lambda s, o: s.LRScheduler(o), "LRScheduler: expected a function from a step to a factor, got None"),
    (lambda s, o: s.StepLR(o, 0), "StepDecay: expected step_size to be an integer >= 1, got 0"),
    (lambda s, o: s.ConstantLR(o, 1.5), r"ConstantLR: expected factor to be a number in \[0, 1\], got 1.5"),
    (lambda s, o: s.LinearLR(o, 0.0), r"LinearLR: expected start_factor to be a number in \(0, 1\], got 0.0"),
    (lambda s, o: s.LinearLR(o, total_iters=0), "LinearLR: expected total_iters to be an integer >= 1, got 0"),
    (lambda s, o: s.PolynomialLR(o, 5, 0.0), "PolynomialDecay: expected power to be a finite number > 0, got 0.0"),
    (lambda s, o: s.LambdaLR(o, 0.1), "LambdaLR: expected a function from a step to a factor, got 0.1"),
    (lambda s, o: s.LambdaLR(o, [len]), "LambdaLR: expected lr_lambda once, or for each of 2 groups, got 1"),
    (lambda s, o: s.MultiplicativeLR(o, lambda step: -1.0).step(), r"expected lr_lambda\(1\) to be .*, got -1"),
    (lambda s, o: s.CosineAnnealingLR(o, 2.5), "CosineAnnealingLR: expected T_max to be an integer >= 1, got 2.5"),
    (lambda s, o: s.CosineAnnealingLR(o, 2, -1), "CosineAnnealingLR: expected eta_min .*, got -1"),
    (lambda s, o: s.CosineAnnealingWarmRestarts(o, 0), "expected T_0 to be an integer >= 1, got 0"),
    (lambda s, o: s.CosineAnnealingWarmRestarts(o, 2).step(-1), "expected last_step to be a .* number >= 0, got -1"),
    (lambda s, o: s.CyclicLR(o, 0.1, 1.0, mode="up"), "expected mode to be one of 'triangular', .*, got 'up'"),
    (lambda s, o: s.CyclicLR(o, 0.1, [1.0]), "CyclicLR: expected max_lr once, or for each of 2 groups, got 1"),
    (lambda s, o: s.CyclicLR(o, 0.1, 1.0, 0), "CyclicLR: expected step_size_up to be an integer >= 1, got 0"),
    (lambda s, o: s.OneCycleLR(o, 0.1), "OneCycleLR: expected total_steps, or epochs and steps_per_epoch, got neither"),
    (lambda s, o: s.OneCycleLR(o, 0.1, 9, pct_start=2), r"expected pct_start to be a number in \[0, 1\], got 2"),
    (lambda s, o: s.OneCycleLR(o, 0.1, 9, max_momentum=1.0), r"expected max_momentum .* in \[0, 1\), got 1.0"),
    (lambda s, o: s.OneCycleLR(SGD(o.params()), 0.1, 9), "momentum or betas to move, got SGD with momentum 0: make it"),
    (lambda s, o: s.SequentialLR(o, [], []), "SequentialLR: expected at least one scheduler, got none"),
    (lambda s, o: s.SequentialLR(o, [s.StepLR(o, 2)], [1]), "got 1 schedulers and 1 milestones"),
    (lambda s, o: s.SequentialLR(o, [o], []), "SequentialLR: expected schedulers, got a SGD"),
    (lambda s, o: s.SequentialLR(SGD(o.params()), [s.StepLR(o, 2)], []), "of one optimizer, got a StepLR of another"),
    (lambda s, o: s.ChainedScheduler([s.LambdaLR(o, abs)]), "that multiply, got a LambdaLR, which says the rate"),
    (lambda s, o: s.ChainedScheduler([s.OneCycleLR(o, 0.1, 9)]), "that multiply, got a OneCycleLR, which says"),
    (lambda s, o: s.ChainedScheduler([s.CosineAnnealingLR(o, 9, 0.1)]), "that multiply, got a Cosine"),
    (lambda s, o: s.ReduceLROnPlateau(o, "least"), "expected mode to be one of 'min', 'max', got 'least'"),
    (lambda s, o: s.ReduceLROnPlateau(o, factor=1.0), r"expected factor to be a number in \(0, 1\), got 1.0"),
    (lambda s, o: s.ReduceLROnPlateau(o, min_lr=[0.1]), "expected min_lr once, or for each of 2 groups, got 1"),
    (lambda s, o: s.ReduceLROnPlateau(o).step(randn(2)), r"ReduceLROnPlateau.step: expected a number, got"),
    (lambda s, o: s.ReduceLROnPlateau(o).step("low"), "ReduceLROnPlateau.step: expected a number, got 'low'"),
]


@pytest.mark.parametrize("make, message", REFUSED)
def test_what_is_out_of_range_is_refused(make, message):
    with pytest.raises(ArgumentError, match=message):
        make(lr_scheduler, two_groups(optim_ours))


@pytest.mark.parametrize("make", [lambda s: s.StepLR([], 2), lambda s: s.OneCycleLR(None, 0.1, 3)])
def test_what_is_no_optimizer_is_refused(make):
    with pytest.raises(DtypeError, match="LR: expected an Optimizer, got (list|NoneType)"):
        make(lr_scheduler)


@pytest.mark.parametrize("state", [{}, {"best": 1.0, "num_bad_epochs": -1, "cooldown_counter": 0, "last_epoch": 0}])
def test_a_state_that_is_none_of_a_plateau_is_refused(state):
    scheduler = lr_scheduler.ReduceLROnPlateau(two_groups(optim_ours))
    with pytest.raises(StateDictError, match="ReduceLROnPlateau.load_state_dict: expected "):
        scheduler.load_state_dict(state)
    assert scheduler.best == math.inf


def test_a_call_that_does_not_fit_shows_the_signature():
    with pytest.raises(CallError, match=r"StepLR: expected StepLR\(optimizer, step_size"):
        lr_scheduler.StepLR(SGD([nn.Parameter(tensor([1.0]))], lr=1.0), step=3)
