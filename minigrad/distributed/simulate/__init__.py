"""A virtual cluster in one process: true numbers, modelled time."""

from minigrad.distributed.simulate.clock import VirtualClock
from minigrad.distributed.simulate.cluster import Cluster, RankCost, Slowdown
from minigrad.distributed.simulate.devices import SimulatedDevices
from minigrad.distributed.simulate.links import Link, SyncReading
from minigrad.distributed.simulate.pricing import cost
from minigrad.distributed.simulate.simulation import Forecast, forecast, run
from minigrad.distributed.simulate.trace import RankTrace, Step, Trace
from minigrad.distributed.simulate.wire import VirtualCommunicator

__all__ = [
    "Cluster",
    "Forecast",
    "Link",
    "RankCost",
    "RankTrace",
    "SimulatedDevices",
    "Slowdown",
    "Step",
    "SyncReading",
    "Trace",
    "VirtualClock",
    "VirtualCommunicator",
    "cost",
    "forecast",
    "run",
]
