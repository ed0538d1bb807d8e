"""Which rank this context is, of how many: what `distributed.run` and `init` say, for whoever asks later.

It hangs on the context, not on the process: ranks may be threads.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

_here: ContextVar[Any] = ContextVar("minigrad_ranks", default=None)
ranks_here, set_ranks_here = _here.get, _here.set  # a communicator, which has rank and world_size, or None
