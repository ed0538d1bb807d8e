"""What averaging refuses."""

from contextvars import Context

import numpy as np

from minigrad import nn
from minigrad.distributed import ElChe, SoloCommunicator
from minigrad.distributed.average import (
    EASGD,
    Async,
    Cadence,
    DiLoCo,
    EveryK,
    LevelGuard,
    Mean,
    ParameterAverager,
    Policy,
    PostLocalSGD,
    SlowMo,
    StepsMade,
    StreamingDiLoCo,
    average_parameters,
)
from minigrad.distributed.average.buffers import average_buffers
from minigrad.distributed.average.fragments import Placed, Span, cut, due_at
from minigrad.errors import ArgumentError, DtypeError, LayoutError, StateDictError
from minigrad.optim.swa_utils import AveragedModel
from tests.refusals import each

AVERAGED = AveragedModel(nn.Linear(2, 1))
PARAMS = [Placed("head.weight", Span(0, 0, 8), 2), Placed("body.weight", Span(0, 8, 16), 2)]


def averager(**options):
    """One of a rank alone."""
    return ParameterAverager(nn.Linear(2, 1), SoloCommunicator(), **options)


def unfreeze():
    """Train a parameter that was frozen when the averager was made."""
    layer = nn.Linear(2, 1)
    layer.bias.requires_grad = False
    made = ParameterAverager(layer, SoloCommunicator())
    layer.bias.requires_grad = True
    made.step(1)


def replaced():
    """One whose parameter lives elsewhere since."""
    made = averager()
    made.module.weight.data = made.module.weight.data.copy()
    return made


ROWS = [
    # asynchronous
    *each(
        (lambda options: Async(**options), ArgumentError),
        ({"bound": -1}, "Async: expected bound to be an integer >= 0, got -1"),
        ({"bound": 1.5}, "Async: expected bound to be an integer >= 0, got 1.5"),
        ({"bound": 1, "k": 0}, "Async: expected k to be an integer >= 1, got 0"),
    ),
    *each(
        (lambda options: ParameterAverager(nn.Linear(2, 1), SoloCommunicator(), Async(1), **options), ArgumentError),
        ({"average": "gradients"}, 'expected average="parameters" with Async.*, got "gradients": .* take EveryK'),
        ({"outer": DiLoCo()}, r"expected outer=Mean\(\), optimizer_state=.keep. and no .* with Async.*, got DiLoCo"),
        ({"guard": LevelGuard(0.5)}, "expected a policy that a guard can slow down, got Async"),
    ),
    # the averager, and average_parameters
    *each(
        (lambda options: ParameterAverager(nn.Linear(2, 1), SoloCommunicator(), **options), ArgumentError),
        ({"policy": 4}, r"expected a policy, such as Sync\(\), EveryK\(4\) or Cadence\(\), got 4: one of your own"),
        ({"policy": EveryK}, "expected a policy, .* got EveryK, the class"),
        ({"outer": DiLoCo}, "expected an outer optimizer, .* got the class DiLoCo"),
        ({"average": "weights"}, "expected average to be one of 'parameters', 'gradients', got 'weights'"),
        ({"average": "gradients", "outer": DiLoCo()}, r"expected outer=Mean\(\), .*average=.gradients., .* DiLoCo"),
        ({"optimizer": 3}, "expected an optimizer, got int"),
        ({"optimizer_state": "forget"}, "expected optimizer_state to be one of 'keep', 'average', 'reset', got 'for"),
        ({"optimizer_state": "reset"}, "expected optimizer= with optimizer_state='reset', got none"),
        ({"buffers": "mean"}, "expected buffers to be one of 'merge', 'keep', got 'mean'"),
        ({"integer_buffers": "mean"}, "expected integer_buffers to be one of 'compare', 'keep', 'refuse', got 'mean'"),
        ({"guard": LevelGuard(0.5)}, r"expected a policy that a guard can slow down, got Sync\(\): use Cadence"),
        ({"init_sync": 1}, "expected init_sync to be True or False, got 1"),
        ({"outer": Mean(delay=1)}, r"in parts longer than the delay of 1, got 1 steps: write Ev"),
        ({"policy": EveryK(5), "outer": Mean(2)}, r"period that 2 fragments divide, .* 5 steps: write EveryK\(6\)"),
        ({"policy": Cadence(), "outer": Mean(2)}, "expected a policy with a fixed period .* got Cadence"),
    ),
    (lambda: ParameterAverager(3, SoloCommunicator()), ArgumentError, "expected a Module or a wrapper of one, got int"),
    (
        lambda: Context().run(ParameterAverager, nn.Linear(2, 1)),  # a test may have left ranks in this one
        ArgumentError,
        "expected a communicator in this context, got none",
    ),
    (lambda: ParameterAverager(nn.ReLU(), SoloCommunicator()), ArgumentError, "expected a parameter that requires"),
    (lambda: averager().step(-1), ArgumentError, "Averager.step: expected a finite number of samples >= 0, got -1"),
    (lambda: averager(timeline=3), ArgumentError, "ParameterAverager: expected a timeline with event"),
    (lambda: averager().load_state_dict({}), StateDictError, "ParameterAverager: expected what its state_dict"),
    (lambda: averager(average="gradients").finish(), ArgumentError, "finish: expected optimizer="),
    (unfreeze, ArgumentError, "expected the parameters that were trained when it was made, got bias, which"),
    (lambda: replaced().step(1), LayoutError, "expected parameter weight of .* to stay in its place"),
    (lambda: average_parameters(nn.Linear(2, 1), None, 1), ArgumentError, "expected a communicator, got NoneType"),
    (lambda: average_parameters([], SoloCommunicator(), 1), ArgumentError, "expected a Module or a wrapper"),
    (lambda: average_parameters(nn.ReLU(), SoloCommunicator(), 1), ArgumentError, "expected a parameter that"),
    (
        lambda: average_parameters(nn.Linear(2, 1), SoloCommunicator(), float("nan")),
        ArgumentError,
        "average_parameters: expected a finite number of samples >= 0, got nan",
    ),
    (
        lambda: average_parameters(nn.Linear(2, 1), SoloCommunicator(), 1, buffers="mean"),
        ArgumentError,
        "average_parameters: expected buffers to be one of 'merge', 'keep', got 'mean'",
    ),
    # outer
    *each(
        (lambda options: DiLoCo(**options), ArgumentError),
        ({"lr": 0.0}, "DiLoCo: expected lr to be a finite number > 0, got 0.0"),
        ({"momentum": 1.0}, r"DiLoCo: expected momentum to be a number in \[0, 1\), got 1.0"),
        ({"nesterov": 1}, "DiLoCo: expected nesterov to be True or False, got 1"),
        ({"delay": -1}, "DiLoCo: expected delay to be an integer >= 0, got -1"),
        ({"fragments": 0}, "DiLoCo: expected fragments to be an integer >= 1, got 0"),
        ({"fragments": "body"}, "expected fragments to be an integer >= 1, or names for each fragment, got 'body'"),
        ({"fragments": ()}, "or names for each fragment, got ()"),
        ({"fragments": ((), ("body",))}, "expected each of fragments to be the names of parameters or modules, got "),
    ),
    (lambda: SlowMo(momentum=-0.1), ArgumentError, r"SlowMo: expected momentum to be a number in \[0, 1\), got -0.1"),
    (lambda: Mean(delay=0.5), ArgumentError, "Mean: expected delay to be an integer >= 0, got 0.5"),
    (lambda: StreamingDiLoCo(alpha=1.5), ArgumentError, r"expected alpha to be a number in \[0, 1\], got 1.5"),
    (lambda: EASGD(0.0), ArgumentError, r"EASGD: expected alpha to be a number in \(0, 1\], got 0.0"),
    (lambda: EASGD(0.5, beta=2), ArgumentError, r"EASGD: expected beta to be a number in \(0, 1\], got 2"),
    # buffers
    (
        lambda: average_buffers("averaged", nn.BatchNorm1d(2), SoloCommunicator(), 1, np.ones(1), "mean"),
        ArgumentError,
        "averaged: expected integer_buffers to be one of 'compare', 'keep', 'refuse', got 'mean'",
    ),
    (
        lambda: average_buffers("averaged", AVERAGED, SoloCommunicator(), 1, np.ones(1), "refuse"),
        DtypeError,
        'averaged: expected buffers of a float dtype with integer_buffers="refuse", got n_averaged of int64',
    ),
    # policies
    (lambda: EveryK(0), ArgumentError, "EveryK: expected k to be an integer >= 1, got 0"),
    (lambda: EveryK(True), ArgumentError, "EveryK: expected k to be an integer >= 1, got True"),
    (lambda: Cadence(3), ArgumentError, "Cadence: expected a CadenceConfig, got 3"),
    (lambda: Cadence(ElChe.start(2)).start(3), ArgumentError, "Cadence: expected a state of 3 ranks, got one of 2"),
    (lambda: Policy().decide(None, StepsMade(0, 1, 1)), NotImplementedError, "Policy has no decide"),
    (lambda: PostLocalSGD(-1, 4), ArgumentError, "PostLocalSGD: expected switch to be an integer >= 0, got -1"),
    (lambda: PostLocalSGD(10, 0), ArgumentError, "PostLocalSGD: expected k to be an integer >= 1, got 0"),
    (lambda: PostLocalSGD(1, 2).restored(0, "3"), StateDictError, "expected the steps made, an integer >= 0, got '3'"),
    # fragments
    (lambda: due_at(1, 5, 2), ArgumentError, "expected a period that 2 fragments divide, got 5 steps: write 6"),
    *each(
        (lambda fragments: cut(fragments, PARAMS), ArgumentError),
        (5, "fragments: expected at most one for each of 4 elements, got 5"),
        ((("head",),), "fragments: expected one that has parameter body.weight, got none"),
        ((("head", "body"), ("body.weight",)), "expected one that has parameter body.weight, got fragments 0, 1"),
        ((("head", "body"), ("bod",)), "expected names of parameters or modules, got 'bod', which holds none"),
    ),
]
