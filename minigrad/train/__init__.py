"""Training loops: `Trainer` sets a graph up for one device or many, `DistributedTrainer` is one rank's loop."""

from minigrad.train.loop import DistributedTrainConfig, DistributedTrainer, SingleDeviceTrainer
from minigrad.train.trainer import HasGraph, Trainer

DistributedCudaTrainer = DistributedTrainer

__all__ = [
    "DistributedCudaTrainer",
    "DistributedTrainConfig",
    "DistributedTrainer",
    "HasGraph",
    "SingleDeviceTrainer",
    "Trainer",
]
