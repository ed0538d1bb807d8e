"""Collectives through which gradients flow."""

import typing

from minigrad.absent import absent as _absent
from minigrad.distributed.nn.functional import all_gather

__all__ = ["all_gather"]

if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> typing.Any:
        raise _absent(__name__, name)
