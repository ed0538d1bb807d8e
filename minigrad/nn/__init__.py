"""Modules, layers, losses and initial weights; names, arguments and defaults are PyTorch's."""

from minigrad.nn.module import Module
from minigrad.nn.parameter import Buffer, Parameter

__all__ = [
    "Buffer",
    "Module",
    "Parameter",
]
