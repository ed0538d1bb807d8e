"""Unequal ranks: what each gets of a batch, and how many batches. Pure, but for `balancer`, `rounds` and `meter`."""

from minigrad.distributed.balance.allocation import allocate, step_s
from minigrad.distributed.balance.balancer import Balancer
from minigrad.distributed.balance.cadence import CadenceConfig, ElChe, clamp_total
from minigrad.distributed.balance.cost import CostModel, Reading, fit_cost, median_cost
from minigrad.distributed.balance.divergence import Divergence, add_sums, add_sums_and_adopt, divergence_of, sums_of
from minigrad.distributed.balance.division import Balance, BalanceConfig, Division, calibration_sizes
from minigrad.distributed.balance.guarded import GuardedCadence
from minigrad.distributed.balance.guards import Guard, GrowthGuard, LevelGuard, NoGuard, TrendGuard, Verdict
from minigrad.distributed.balance.journal import Decision, Journal, replay
from minigrad.distributed.balance.meter import Metered
from minigrad.distributed.balance.rounds import Rounds
from minigrad.distributed.balance.shares import (
    SpeedHint,
    compute_shard_sizes,
    default_min_ratio,
    hint_ratios,
    is_balanced,
    rebalance,
    relative_speeds,
)
from minigrad.distributed.balance.strategy import Strategy, balance_strategy, stateless
from minigrad.foreign import offer_classes as _offer_classes

__all__ = [
    "Balance",
    "BalanceConfig",
    "Balancer",
    "CadenceConfig",
    "CostModel",
    "Decision",
    "Divergence",
    "Division",
    "ElChe",
    "GrowthGuard",
    "Guard",
    "GuardedCadence",
    "Journal",
    "LevelGuard",
    "Metered",
    "NoGuard",
    "Reading",
    "Rounds",
    "SpeedHint",
    "Strategy",
    "TrendGuard",
    "Verdict",
    "add_sums",
    "add_sums_and_adopt",
    "allocate",
    "balance_strategy",
    "calibration_sizes",
    "clamp_total",
    "compute_shard_sizes",
    "default_min_ratio",
    "divergence_of",
    "fit_cost",
    "hint_ratios",
    "is_balanced",
    "median_cost",
    "rebalance",
    "relative_speeds",
    "replay",
    "stateless",
    "step_s",
    "sums_of",
]

_offer_classes(globals())
