"""Datasets, the order in which their samples are read, and the loader that makes batches of them."""

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
    "BatchSampler",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "DistributedSampler",
    "FileShards",
    "IterableDataset",
    "RandomSampler",
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

_offer_classes(globals())

if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> typing.Any:
        raise _absent(__name__, name)
