"""What averaging refuses."""

import numpy as np

from minigrad import nn
from minigrad.distributed import SoloCommunicator
from minigrad.distributed.average import (
    EASGD,
    Async,
    DiLoCo,
    LevelGuard,
    Mean,
    ParameterAverager,
    PostLocalSGD,
    SlowMo,
    StreamingDiLoCo,
)
from minigrad.distributed.average.buffers import average_buffers
from minigrad.distributed.average.fragments import Placed, Span, cut, due_at
from minigrad.errors import ArgumentError, DtypeError, StateDictError
from minigrad.optim.swa_utils import AveragedModel
from tests.refusals import each

AVERAGED = AveragedModel(nn.Linear(2, 1))
PARAMS = [Placed("head.weight", Span(0, 0, 8), 2), Placed("body.weight", Span(0, 8, 16), 2)]

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
