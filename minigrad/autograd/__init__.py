"""What `torch.autograd` has: gradients that go into no `.grad`, operations of one's own, recording on and off.

The tape itself is tape.py, which every operation is made with. What stands above tensors is loaded at its first use.
"""

import importlib as _importlib
import typing

from minigrad.absent import absent as _absent
from minigrad.recording import (
    enable_grad as enable_grad,
    inference_mode as inference_mode,
    no_grad as no_grad,
    set_grad_enabled as set_grad_enabled,
)

if typing.TYPE_CHECKING:
    from minigrad.autograd.function import Function as Function
    from minigrad.autograd.gradients import backward as backward, grad as grad
    from minigrad.autograd.recompute import checkpoint as checkpoint

    gradcheck: typing.Any

_LATER = {  # name -> the file that it is in
    "Function": "minigrad.autograd.function",
    "backward": "minigrad.autograd.gradients",
    "checkpoint": "minigrad.autograd.recompute",
    "grad": "minigrad.autograd.gradients",
    "gradcheck": "minigrad.testing",
}
__all__ = sorted(["enable_grad", "inference_mode", "no_grad", "set_grad_enabled", *_LATER])

if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> typing.Any:
        if name in ("function", "profiler"):
            return _importlib.import_module(f"minigrad.autograd.{name}")
        if name not in _LATER:
            raise _absent(__name__, name)
        found = globals()[name] = getattr(_importlib.import_module(_LATER[name]), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *_LATER})
