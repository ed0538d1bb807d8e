"""What `torch.nn.utils` has: clipping of gradients, parameters as one vector, sequences filled up."""

import typing

from minigrad.absent import absent as _absent
from minigrad.nn.clip import *
from minigrad.nn.utils import rnn as rnn
from minigrad.nn.utils.convert_parameters import *
from minigrad.ops.methods import names_in as _names_in

if not typing.TYPE_CHECKING:  # a type checker takes all that the families list
    __all__ = sorted([*_names_in(globals()), "rnn"])

    def __getattr__(name: str) -> typing.Any:
        raise _absent(__name__, name)
