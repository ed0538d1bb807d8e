"""The operations, a file for each family: forward and backward of one stand next to each other.

How one gets its names is in methods.py.
"""

import typing

from minigrad.foreign import offer_operations as _offer_operations
from minigrad.ops.facts import tell_lacking as _tell_lacking
from minigrad.ops.families import *
from minigrad.ops.methods import names_in as _names_in

if not typing.TYPE_CHECKING:  # a type checker takes all that the families list
    __all__ = _names_in(globals())
    _offer_operations(globals())
    _tell_lacking()
