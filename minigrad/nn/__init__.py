"""Modules, layers, losses and initial weights; names, arguments and defaults are PyTorch's."""

import importlib as _importlib
import typing

from minigrad.absent import absent as _absent
from minigrad.foreign import offer_classes as _offer_classes
from minigrad.nn import functional as functional, init as init, utils as utils
from minigrad.nn.activation import *
from minigrad.nn.attention import *
from minigrad.nn.cell import *
from minigrad.nn.container import *
from minigrad.nn.conv import *
from minigrad.nn.distance import *
from minigrad.nn.dropout import *
from minigrad.nn.embedding import *
from minigrad.nn.linear import *
from minigrad.nn.loss import *
from minigrad.nn.module import *
from minigrad.nn.norm import *
from minigrad.nn.padding import *
from minigrad.nn.parameter import *
from minigrad.nn.pooling import *
from minigrad.nn.recurrent import *
from minigrad.nn.serialize import *
from minigrad.nn.shape import *
from minigrad.nn.transformer import *
from minigrad.nn.upsampling import *
from minigrad.ops.methods import names_in as _names_in

if not typing.TYPE_CHECKING:  # a type checker takes all that the families list
    __all__ = sorted([*_names_in(globals()), "functional", "init", "utils"])
    _offer_classes(globals())

    def __getattr__(name: str) -> typing.Any:
        if name == "parallel":  # above this room, and loaded at its first use
            return _importlib.import_module("minigrad.nn.parallel")
        raise _absent(__name__, name)
