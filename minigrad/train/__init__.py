"""Training: `Graph` trains itself, `Trainer` sets it up for any devices, `DistributedTrainer` is a rank's loop."""

from minigrad.train.fleet import DistributedState
from minigrad.train.graph import FlowBuilder, Graph
from minigrad.train.loop import DistributedTrainConfig, DistributedTrainer, SingleDeviceTrainer
from minigrad.train.trainer import HasGraph, Trainer

DistributedCudaTrainer = DistributedTrainer

__all__ = [
    "DistributedCudaTrainer",
    "DistributedState",
    "DistributedTrainConfig",
    "DistributedTrainer",
    "FlowBuilder",
    "Graph",
    "HasGraph",
    "SingleDeviceTrainer",
    "Trainer",
]
