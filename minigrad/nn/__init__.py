"""Modules, layers, losses and initial weights; names, arguments and defaults are PyTorch's."""

from minigrad.nn import functional, init
from minigrad.nn.activation import (
    ELU,
    GELU,
    LeakyReLU,
    LogSoftmax,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Tanh,
)
from minigrad.nn.container import ModuleDict, ModuleList, Sequential
from minigrad.nn.conv import Conv2d
from minigrad.nn.dropout import Dropout, Dropout2d
from minigrad.nn.embedding import Embedding
from minigrad.nn.linear import Linear
from minigrad.nn.loss import BCEWithLogitsLoss, CrossEntropyLoss, L1Loss, MSELoss, NLLLoss
from minigrad.nn.module import Module
from minigrad.nn.norm import BatchNorm1d, BatchNorm2d, GroupNorm, LayerNorm
from minigrad.nn.parameter import Buffer, Parameter
from minigrad.nn.pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d
from minigrad.nn.serialize import load_file, load_metadata, save_file
from minigrad.nn.shape import Flatten, Identity, Unflatten

__all__ = [
    "AdaptiveAvgPool2d",
    "AvgPool2d",
    "BCEWithLogitsLoss",
    "BatchNorm1d",
    "BatchNorm2d",
    "Buffer",
    "Conv2d",
    "CrossEntropyLoss",
    "Dropout",
    "Dropout2d",
    "ELU",
    "Embedding",
    "Flatten",
    "GELU",
    "GroupNorm",
    "Identity",
    "L1Loss",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LogSoftmax",
    "MSELoss",
    "MaxPool2d",
    "Module",
    "ModuleDict",
    "ModuleList",
    "NLLLoss",
    "Parameter",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Tanh",
    "Unflatten",
    "functional",
    "init",
    "load_file",
    "load_metadata",
    "save_file",
]
