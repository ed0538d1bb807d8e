"""Parameters combined: when (policies), what then (outer optimizers), and whether ranks drift apart (guards)."""

import typing

from minigrad.absent import absent as _absent
from minigrad.distributed.average.asynchronous import Async
from minigrad.distributed.average.averager import ParameterAverager
from minigrad.distributed.average.exchange import DivergenceExchange
from minigrad.distributed.average.mean import average_parameters
from minigrad.distributed.average.outer import EASGD, DiLoCo, Mean, OuterOptimizer, SlowMo, StreamingDiLoCo
from minigrad.distributed.average.policies import Cadence, EveryK, Policy, PostLocalSGD, RoundTime, StepsMade, Sync
from minigrad.distributed.average.report import AverageReport
from minigrad.distributed.balance.divergence import Divergence, add_sums, add_sums_and_adopt, divergence_of, sums_of
from minigrad.distributed.balance.guarded import GuardedCadence
from minigrad.distributed.balance.guards import Guard, GrowthGuard, LevelGuard, NoGuard, TrendGuard, Verdict
from minigrad.foreign import offer_classes as _offer_classes

__all__ = [
    "Async",
    "AverageReport",
    "Cadence",
    "DiLoCo",
    "Divergence",
    "DivergenceExchange",
    "EASGD",
    "EveryK",
    "GrowthGuard",
    "Guard",
    "GuardedCadence",
    "LevelGuard",
    "Mean",
    "NoGuard",
    "OuterOptimizer",
    "ParameterAverager",
    "Policy",
    "PostLocalSGD",
    "RoundTime",
    "SlowMo",
    "StepsMade",
    "StreamingDiLoCo",
    "Sync",
    "TrendGuard",
    "Verdict",
    "add_sums",
    "add_sums_and_adopt",
    "average_parameters",
    "divergence_of",
    "sums_of",
]

_offer_classes(globals())

if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> typing.Any:
        raise _absent(__name__, name)
