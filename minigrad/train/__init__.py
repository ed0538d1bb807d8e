"""Training: `Graph` trains itself, `Trainer` sets it up for any devices, `DistributedTrainer` is a rank's loop."""

import typing

from minigrad.absent import absent as _absent, tell_lacking as _tell_lacking
from minigrad.absent_seeds import SEEDS as _SEEDS
from minigrad.foreign import offer_classes as _offer_classes
from minigrad.train import metrics as metrics
from minigrad.train.checkpoint import Checkpoint
from minigrad.train.config import DistributedTrainConfig
from minigrad.train.epoch import EpochMeter, EpochMetrics, RankMetrics
from minigrad.train.fleet import DistributedState
from minigrad.train.graph import FlowBuilder, Graph
from minigrad.train.loop import DistributedTrainer
from minigrad.train.metrics import Accuracy, Mean, Metric, MetricCollection, Scalars, Sum, record_scalar
from minigrad.train.run.builder import DdpBuilder
from minigrad.train.run.config import RunConfig
from minigrad.train.run.handle import Run, TrainedState
from minigrad.train.run.rank import Worker
from minigrad.train.single import SingleDeviceTrainer
from minigrad.train.trainer import HasGraph, Trainer

DistributedCudaTrainer = DistributedTrainer

__all__ = [
    "Accuracy",
    "Checkpoint",
    "DdpBuilder",
    "DistributedCudaTrainer",
    "DistributedState",
    "DistributedTrainConfig",
    "DistributedTrainer",
    "EpochMeter",
    "EpochMetrics",
    "FlowBuilder",
    "Graph",
    "HasGraph",
    "Mean",
    "Metric",
    "MetricCollection",
    "RankMetrics",
    "Run",
    "RunConfig",
    "Scalars",
    "SingleDeviceTrainer",
    "Sum",
    "TrainedState",
    "Trainer",
    "Worker",
    "metrics",
    "record_scalar",
]

_offer_classes(globals())
for _kind in (DdpBuilder, DistributedTrainer, Run, Worker):
    _tell_lacking(_kind.__name__, _kind, _SEEDS[_kind.__name__])

if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> typing.Any:
        raise _absent(__name__, name)
