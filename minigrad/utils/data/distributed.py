"""For `from minigrad.utils.data.distributed import DistributedSampler`."""

from minigrad.data.sampler import DistributedSampler as DistributedSampler

__all__ = ["DistributedSampler"]
