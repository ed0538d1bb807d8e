"""The operations, a file for each family: forward and backward of one stand next to each other.

How one gets its names is in methods.py.
"""

import typing

from minigrad.ops import inplace as _inplace  # has methods only
from minigrad.ops.activation import *
from minigrad.ops.arithmetic import *
from minigrad.ops.compare import *
from minigrad.ops.convert import *
from minigrad.ops.convolve import *
from minigrad.ops.elementwise import *
from minigrad.ops.entropy import *
from minigrad.ops.extremum import *
from minigrad.ops.index import *
from minigrad.ops.join import *
from minigrad.ops.linalg import *
from minigrad.ops.losses import *
from minigrad.ops.mask import *
from minigrad.ops.methods import names_in as _names_in
from minigrad.ops.noise import *
from minigrad.ops.normalize import *
from minigrad.ops.pooling import *
from minigrad.ops.reduce import *
from minigrad.ops.scatter import *
from minigrad.ops.shape import *
from minigrad.ops.sorting import *

if not typing.TYPE_CHECKING:  # a type checker takes all that the families list
    __all__ = _names_in(globals())
