"""The operations of networks under the names of `torch.nn.functional`: all of their families, and a few of others."""

import typing

from minigrad import ops as _ops
from minigrad.absent import absent as _absent
from minigrad.foreign import offer_operations as _offer_operations, spoken as _spoken
from minigrad.ops import linear as linear, one_hot as one_hot, pad as pad, pixel_shuffle as pixel_shuffle
from minigrad.ops import pixel_unshuffle as pixel_unshuffle, sigmoid as sigmoid, tanh as tanh
from minigrad.ops.activation import *
from minigrad.ops.attention import *
from minigrad.ops.convolve import *
from minigrad.ops.distance import *
from minigrad.ops.entropy import *
from minigrad.ops.gated import *
from minigrad.ops.interpolate import *
from minigrad.ops.layer_norms import *
from minigrad.ops.likelihood import *
from minigrad.ops.losses import *
from minigrad.ops.methods import names_in as _names_in
from minigrad.ops.multihead import *
from minigrad.ops.noise import *
from minigrad.ops.norms import *
from minigrad.ops.piecewise import *
from minigrad.ops.pooling import *
from minigrad.tensor import Tensor as _Tensor


@_spoken
def embedding(input: _Tensor, weight: _Tensor, padding_idx: int | None = None) -> _Tensor:
    """`ops.embedding` with its arguments in the order of `torch.nn.functional`: the integers first."""
    return _ops.embedding(weight, input, padding_idx)


if not typing.TYPE_CHECKING:
    __all__ = _names_in(globals())
    _offer_operations(globals())

    def __getattr__(name: str) -> typing.Any:
        if name == "relu_":
            return _Tensor.relu_
        raise _absent(__name__, name)
