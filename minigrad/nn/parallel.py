"""For `from minigrad.nn.parallel import DistributedDataParallel`: a name of distributed, where PyTorch has it.

The file stands above distributed; nothing imports it but who asks for `nn.parallel`.
"""

from minigrad.distributed.ddp.parallel import DistributedDataParallel as DistributedDataParallel

__all__ = ["DistributedDataParallel"]
