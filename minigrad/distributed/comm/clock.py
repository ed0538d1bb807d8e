"""What time is where nothing is simulated."""

from __future__ import annotations

import time


class HostClock:
    """The clock of this machine, which never goes back."""

    now_s = staticmethod(time.perf_counter)

    def compute(self, samples: float) -> None:
        """Nothing to do: real time passes by itself."""

    def progress(self, fraction: float) -> None:
        """Nothing to do: real time passes by itself."""

    def advance(self, seconds: float) -> None:
        """Nothing to do: real time passes by itself."""
