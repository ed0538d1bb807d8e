"""Mixed precision on GPUs under the names of `torch.cuda.amp`, for `minigrad.autocast` and `optim.GradScaler`."""

from __future__ import annotations

import typing

from minigrad.absent import absent as _absent
from minigrad.backend.dtypes import DtypeLike
from minigrad.ops import precision
from minigrad.optim import GradScaler as GradScaler

__all__ = ["GradScaler", "autocast"]


def autocast(enabled: bool = True, dtype: DtypeLike = "float16", cache_enabled: bool = True) -> precision.autocast:
    """`minigrad.autocast("cuda", dtype, enabled)`.

    Raises:
        ArgumentError: a dtype other than float16 and bfloat16, or a switch that is no bool.
    """
    return precision.autocast("cuda", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> typing.Any:
        raise _absent(__name__, name)
