"""All of `minigrad.data`, for `from minigrad.utils.data import DataLoader`."""

import typing

from minigrad.absent import absent as _absent
from minigrad.data import *
from minigrad.data import __all__ as _names
from minigrad.utils.data import distributed as distributed

__all__ = sorted([*_names, "distributed"])

if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> typing.Any:
        raise _absent("minigrad.data", name)
