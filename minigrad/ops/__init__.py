"""The operations, a file for each family: forward and backward of one stand next to each other.

How one gets its names is in methods.py.
"""

import typing

from minigrad.absent import OF_TENSORS as _OF_TENSORS, tell_lacking as _tell_lacking
from minigrad.foreign import offer_operations as _offer_operations
from minigrad.ops.families import *
from minigrad.ops.methods import names_in as _names_in
from minigrad.tensor import Tensor as _Tensor

if not typing.TYPE_CHECKING:  # a type checker takes all that the families list
    __all__ = _names_in(globals())
    _offer_operations(globals())
    _tell_lacking("Tensor", _Tensor, _OF_TENSORS)
