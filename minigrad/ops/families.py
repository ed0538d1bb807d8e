"""All operations as their families have them: the rooms of the library take them from here.

`minigrad.ops` has the same ones in the form in which users call them, which takes other spellings of keywords too and
is a call longer.
"""

from minigrad.ops import facts as _facts, hooks as _hooks, inplace as _inplace  # these have methods, not operations
from minigrad.ops import likeness as _likeness, underscore as _underscore
from minigrad.ops.activation import *
from minigrad.ops.aliases import *
from minigrad.ops.arithmetic import *
from minigrad.ops.arrange import *
from minigrad.ops.attention import *
from minigrad.ops.compare import *
from minigrad.ops.convert import *
from minigrad.ops.convolve import *
from minigrad.ops.counting import *
from minigrad.ops.diagonal import *
from minigrad.ops.distance import *
from minigrad.ops.einsum import *
from minigrad.ops.elementwise import *
from minigrad.ops.entropy import *
from minigrad.ops.extremum import *
from minigrad.ops.functions import *
from minigrad.ops.gated import *
from minigrad.ops.index import *
from minigrad.ops.interpolate import *
from minigrad.ops.inverse import *
from minigrad.ops.join import *
from minigrad.ops.layer_norms import *
from minigrad.ops.likelihood import *
from minigrad.ops.linalg import *
from minigrad.ops.lookup import *
from minigrad.ops.losses import *
from minigrad.ops.mask import *
from minigrad.ops.multihead import *
from minigrad.ops.noise import *
from minigrad.ops.norms import *
from minigrad.ops.pairs import *
from minigrad.ops.piecewise import *
from minigrad.ops.pooling import *
from minigrad.ops.products import *
from minigrad.ops.recurrent import *
from minigrad.ops.reduce import *
from minigrad.ops.running import *
from minigrad.ops.scatter import *
from minigrad.ops.shape import *
from minigrad.ops.sorting import *
