"""What PyTorch's scripts import from `torch.utils`: `minigrad.data`, under the name that it has there."""

import typing

from minigrad.absent import absent as _absent
from minigrad.utils import data as data

__all__ = ["data"]

if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> typing.Any:
        raise _absent(__name__, name)
