"""Parameters combined: when (policies), what then (outer optimizers), and whether ranks drift apart (guards)."""

from minigrad.distributed.average.divergence import Divergence, add_sums, add_sums_and_adopt, divergence_of, sums_of
from minigrad.distributed.average.exchange import DivergenceExchange
from minigrad.distributed.average.guarded import GuardedCadence
from minigrad.distributed.average.guards import Guard, GrowthGuard, LevelGuard, NoGuard, TrendGuard, Verdict
from minigrad.distributed.average.outer import EASGD, DiLoCo, Mean, OuterOptimizer, SlowMo, StreamingDiLoCo
from minigrad.distributed.average.policies import PostLocalSGD

__all__ = [
    "DiLoCo",
    "Divergence",
    "DivergenceExchange",
    "EASGD",
    "GrowthGuard",
    "Guard",
    "GuardedCadence",
    "LevelGuard",
    "Mean",
    "NoGuard",
    "OuterOptimizer",
    "PostLocalSGD",
    "SlowMo",
    "StreamingDiLoCo",
    "TrendGuard",
    "Verdict",
    "add_sums",
    "add_sums_and_adopt",
    "divergence_of",
    "sums_of",
]
