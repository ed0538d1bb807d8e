"""What scripts ask and set in `torch.backends`: there is no cuDNN here and no MPS, and nothing that hangs on them."""

import typing

from minigrad.absent import absent as _absent
from minigrad.backends import cudnn as cudnn, mps as mps

__all__ = ["cudnn", "mps"]

if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> typing.Any:
        raise _absent(__name__, name)
