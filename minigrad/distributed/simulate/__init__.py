"""A virtual cluster in one process: true numbers, modelled time."""

from minigrad.distributed.simulate.clock import VirtualClock
from minigrad.distributed.simulate.cluster import Cluster, RankCost, Slowdown
from minigrad.distributed.simulate.devices import SimulatedDevices
from minigrad.distributed.simulate.failures import FailureTimes
from minigrad.distributed.simulate.goodput import Course, Goodput, LocalSteps, Restart, Shrink, Strategy, goodput
from minigrad.distributed.simulate.links import Link, SyncReading
from minigrad.distributed.simulate.pricing import cost
from minigrad.distributed.simulate.rehearsal import LossPoint, Rehearsal
from minigrad.distributed.simulate.simulation import Forecast, forecast, run
from minigrad.distributed.simulate.trace import RankTrace, Step, Trace
from minigrad.distributed.simulate.wire import VirtualCommunicator

__all__ = [
    "Cluster",
    "Course",
    "FailureTimes",
    "Forecast",
    "Goodput",
    "Link",
    "LocalSteps",
    "LossPoint",
    "RankCost",
    "RankTrace",
    "Rehearsal",
    "Restart",
    "Shrink",
    "SimulatedDevices",
    "Slowdown",
    "Step",
    "Strategy",
    "SyncReading",
    "Trace",
    "VirtualClock",
    "VirtualCommunicator",
    "cost",
    "forecast",
    "goodput",
    "run",
]
