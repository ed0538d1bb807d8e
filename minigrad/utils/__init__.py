"""What PyTorch's scripts import from `torch.utils`: checkpointing, and `minigrad.data` under its name there."""

import typing

from minigrad.absent import absent as _absent
from minigrad.utils import checkpoint as checkpoint, data as data

__all__ = ["checkpoint", "data"]

if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> typing.Any:
        raise _absent(__name__, name)
