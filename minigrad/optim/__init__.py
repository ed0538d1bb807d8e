"""Optimizers on flat arrays, learning-rate schedules as functions of the step, gradient clipping."""

import typing

from minigrad.absent import absent as _absent
from minigrad.foreign import offer_classes as _offer_classes
from minigrad.nn.clip import clip_grad_norm_ as clip_grad_norm_, clip_grad_value_ as clip_grad_value_
from minigrad.ops.methods import names_in as _names_in
from minigrad.optim import lr_scheduler as lr_scheduler, swa_utils as swa_utils
from minigrad.optim.adagrad import *
from minigrad.optim.adam import *
from minigrad.optim.lamb import *
from minigrad.optim.muon import *
from minigrad.optim.optimizer import *
from minigrad.optim.rmsprop import *
from minigrad.optim.scaler import *
from minigrad.optim.schedule import *
from minigrad.optim.scheduler import *
from minigrad.optim.sgd import *

if not typing.TYPE_CHECKING:  # a type checker takes all that the families list
    __all__ = sorted([*_names_in(globals()), "lr_scheduler", "swa_utils"])
    _offer_classes({**vars(lr_scheduler), **vars(swa_utils), **globals()})

    def __getattr__(name: str) -> typing.Any:
        raise _absent(__name__, name)
