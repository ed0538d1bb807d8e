"""Optimizers of which each rank does a part: ZeRO on the flat layout."""

from minigrad.distributed.sharded.gradients import extents_of as extents_of
from minigrad.distributed.sharded.optimizer import ShardedOptimizer as ShardedOptimizer
from minigrad.distributed.sharded.owners import Extent as Extent
from minigrad.distributed.sharded.owners import own_whole as own_whole
from minigrad.distributed.sharded.owners import owners_of as owners_of
from minigrad.distributed.sharded.runs import Ownership as Ownership
from minigrad.distributed.sharded.runs import own_by_shares as own_by_shares
from minigrad.distributed.sharded.runs import own_evenly as own_evenly

__all__ = [
    *("Extent", "Ownership", "ShardedOptimizer", "extents_of"),
    *("own_by_shares", "own_evenly", "own_whole", "owners_of"),
]
