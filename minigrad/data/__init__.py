"""Datasets, the order in which their samples are read, and the loader that makes batches of them.

What only a run over several ranks needs is loaded at its first use.
"""

import importlib as _importlib
import typing

from minigrad.absent import absent as _absent
from minigrad.data.bundled import digits, text
from minigrad.data.collate import default_collate
from minigrad.data.dataset import ArrayDataset, ConcatDataset, Dataset, Subset, TensorDataset, random_split
from minigrad.data.loader import DataLoader
from minigrad.data.sampler import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from minigrad.data.shards import FileShards
from minigrad.data.stream import IterableDataset, get_worker_info
from minigrad.data.tokens import Sequences, Text
from minigrad.foreign import offer_classes as _offer_classes

__all__ = [
    "ArrayDataset",
    "Audit",
    "BatchSampler",
    "ChunkPool",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "Dispatch",
    "DistributedSampler",
    "FileShards",
    "IterableDataset",
    "RandomSampler",
    "SampleLedger",
    "Sampler",
    "Sequences",
    "SequentialSampler",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "Text",
    "WeightedRandomSampler",
    "default_collate",
    "digits",
    "get_worker_info",
    "random_split",
    "text",
]

if typing.TYPE_CHECKING:
    from minigrad.data.audit import Audit as Audit
    from minigrad.data.chunks import ChunkPool as ChunkPool
    from minigrad.data.dispatch import Dispatch as Dispatch
    from minigrad.data.ledger import SampleLedger as SampleLedger

_LATER = {  # name -> the file that it is in
    "Audit": "minigrad.data.audit",
    "ChunkPool": "minigrad.data.chunks",
    "Dispatch": "minigrad.data.dispatch",
    "SampleLedger": "minigrad.data.ledger",
}
_offer_classes(globals())

if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> typing.Any:
        if name not in _LATER:
            raise _absent(__name__, name)
        found = globals()[name] = getattr(_importlib.import_module(_LATER[name]), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *_LATER})
