"""Optimizers on flat arrays, learning-rate schedules as functions of the step, gradient clipping."""

from minigrad.optim.adam import Adam, AdamW, adam_update
from minigrad.optim.clip import clip_grad_norm_, clip_grad_value_
from minigrad.optim.optimizer import Optimizer
from minigrad.optim.scaler import GradScaler
from minigrad.optim.schedule import (
    Constant,
    CosineAnnealing,
    ExponentialDecay,
    LinearRamp,
    LRScheduler,
    MultiStepDecay,
    Piecewise,
    Schedule,
    StepDecay,
    warmup,
)
from minigrad.optim.sgd import SGD, sgd_update

__all__ = [
    "Adam",
    "AdamW",
    "Constant",
    "CosineAnnealing",
    "ExponentialDecay",
    "GradScaler",
    "LRScheduler",
    "LinearRamp",
    "MultiStepDecay",
    "Optimizer",
    "Piecewise",
    "SGD",
    "Schedule",
    "StepDecay",
    "adam_update",
    "clip_grad_norm_",
    "clip_grad_value_",
    "sgd_update",
    "warmup",
]
