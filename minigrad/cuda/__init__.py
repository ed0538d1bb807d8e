"""Facts about the GPUs of this machine under the names of `torch.cuda`; the work is done in `backend`.

Without a GPU the counts are zero. Nothing here changes which device is current: see `set_device`.
"""

import typing

from minigrad.absent import absent as _absent
from minigrad.backend.random import manual_seed as manual_seed
from minigrad.cuda import amp as amp
from minigrad.cuda.facts import *
from minigrad.ops.methods import names_in as _names_in

if not typing.TYPE_CHECKING:  # a type checker takes all that the file lists
    __all__ = sorted([*_names_in(globals()), "amp"])

    def __getattr__(name: str) -> typing.Any:
        raise _absent(__name__, name)
