"""For `from minigrad.autograd.profiler import emit_nvtx`: a name of cuda, where PyTorch has it.

The file stands beside cuda; nothing imports it but who asks for `autograd.profiler`.
"""

from minigrad.cuda.nvtx import emit_nvtx as emit_nvtx

__all__ = ["emit_nvtx"]
