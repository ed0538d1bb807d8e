"""DataLoader: the batches of a dataset, made ahead in a thread, resumable after any of them."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Generator, Iterator
from typing import Any, cast

from minigrad.arguments import as_integer, check_switch
from minigrad.backend.device import Device, to_device
from minigrad.backend.random import manual_seed, set_noise_key
from minigrad.data.collate import default_collate, map_tensors
from minigrad.data.dataset import Dataset, batch_reader, check_dataset, read_samples
from minigrad.data.order import WORD, Seed
from minigrad.data.prefetch import ahead, in_own_context
from minigrad.data.sampler import (
    BatchSampler,
    DistributedSampler,
    EpochSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    check_keys,
    draw_seed,
    index_batches,
    load_sampler_state,
    noise_key,
    sampler_state,
)
from minigrad.data.stream import IterableDataset, Stream
from minigrad.errors import ArgumentError, StateDictError
from minigrad.tensor import Tensor

PREFETCH = 2  # batches
_Made = tuple[Any, Any]  # a batch, and the state of its stream behind it or None


class DataLoader:
    """The batches of a dataset, one epoch for each iteration.

    Of an `IterableDataset` these are made of its samples as they come, without sampler and shuffle. The batches of an
    epoch do not depend on `prefetch`. Whatever a dataset or collate_fn draws from the context's streams comes from a
    noise stream that belongs to the epoch and the batch, so a resumed epoch draws the same.

    Args:
        dataset: Samples to read, by index or, of an `IterableDataset`, one after the other.
        batch_size: Samples in a batch, > 0; the last batch may have fewer.
        shuffle: Another order in each epoch.
        sampler: The order of samples, instead of shuffle.
        batch_sampler: The indices of each batch, instead of batch_size, shuffle, sampler and drop_last.
        drop_last: Leave out a last batch that is smaller.
        collate_fn: Makes a batch from a list of samples; `default_collate` by default.
        prefetch: Batches made ahead, in one thread; 0 for none. By default 2, or 0 where samples lie in arrays
            (ArrayDataset, or a Subset of one) and reading them is cheaper than a thread.
        device: Where the tensors of a batch go. The copy is made by the consumer's thread, on its stream; by default
            they stay where the dataset made them.
        seed: Of the shuffle, in [0, 2**64), or a generator to draw one from; by default it is drawn from the context's
            noise stream (see `manual_seed`).

    Raises:
        ArgumentError: an argument out of its range, two that exclude each other, or drop_last where no rank has as
            many samples as a batch, and a sampler of mode "drop" where there are fewer samples than ranks.
        DeviceError: the device is unknown.

    Example:
        >>> loader = DataLoader(ArrayDataset(np.zeros((5, 8)), np.arange(5)), batch_size=2, shuffle=True)
        >>> [images.shape for images, labels in loader]
        [(2, 8), (2, 8), (1, 8)]
    """

    def __init__(
        self,
        dataset: Dataset | IterableDataset,
        batch_size: int = 1,
        shuffle: bool = False,
        sampler: Sampler | None = None,
        batch_sampler: Any = None,
        *,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        prefetch: int | None = None,
        device: Device | str | None = None,
        seed: Seed | None = None,
    ) -> None:
        _check_kinds(dataset, batch_sampler, collate_fn)
        check_switch("DataLoader", shuffle=shuffle, drop_last=drop_last)
        _check_exclusive(batch_size, shuffle, sampler, batch_sampler, drop_last, seed)
        self.dataset: Any = dataset
        if isinstance(dataset, IterableDataset):
            _check_stream(batch_size, shuffle, sampler, batch_sampler)
            batch_sampler = Stream(dataset, batch_size, drop_last)
        elif batch_sampler is None:
            as_integer("DataLoader", "batch_size", batch_size, 1)
            order = RandomSampler(dataset, seed=seed) if shuffle else SequentialSampler(dataset)
            batch_sampler = BatchSampler(order if sampler is None else sampler, batch_size, drop_last)
        _check_some_batch(dataset, batch_sampler)
        self.batch_sampler = batch_sampler
        self.collate_fn = collate_fn
        self._read_batch = batch_reader(self.dataset) if collate_fn is None else None
        default = PREFETCH if self._read_batch is None else 0
        self.prefetch = default if prefetch is None else as_integer("DataLoader", "prefetch", prefetch, 0)
        self.device = None if device is None else Device(device)
        self._batches: Generator[_Made, None, None] | None = None  # of the iteration that goes on
        self._progress: _Progress | None = None
        self._loaded: _Progress | None = None

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch; None where batch_sampler does not say."""
        return getattr(self.batch_sampler, "batch_size", None)

    @property
    def drop_last(self) -> bool:
        """Whether a last batch that is smaller is left out."""
        return bool(getattr(self.batch_sampler, "drop_last", False))

    @property
    def sampler(self) -> Any:
        """The order of samples; None where batch_sampler has none."""
        return getattr(self.batch_sampler, "sampler", None)

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[Any]:
        progress = self._start()
        if isinstance(self.batch_sampler, Stream):
            return self._deliver(self._make(iter(()), progress), progress)
        batches = index_batches(self.batch_sampler) if self._read_batch else iter(self.batch_sampler)
        rest = itertools.islice(batches, progress.delivered, None)
        return self._deliver(self._make(rest, progress), progress)

    def _start(self) -> _Progress:
        """A new epoch, or the rest of the one that was loaded. It becomes the one that state_dict speaks of."""
        progress, loaded = _Progress(self.batch_sampler), self._loaded
        if loaded is not None:
            if isinstance(self.batch_sampler, Stream):
                progress.sampler = loaded.sampler
            elif loaded.delivered and loaded.sampler != progress.sampler:
                raise StateDictError(
                    f"DataLoader: expected the epoch of the loaded state, {loaded.sampler}, got {progress.sampler}: "
                    "call set_epoch with the same epoch, or not at all, until the rest of it was read"
                )
            progress.delivered, progress.noise = loaded.delivered, loaded.noise
        self._loaded = None
        if progress.noise is None and self._read_batch is None:
            progress.noise = {"key": noise_key(), "seed": draw_seed()}
        self._progress = progress
        return progress

    def _make(self, batches: Iterator[Any], progress: _Progress) -> Generator[_Made, None, None]:
        """The batches themselves: in this thread or in one of their own, the result is the same."""
        if self._read_batch is not None:
            plain = ((self._read_batch(indices), None) for indices in batches)
            return ahead(plain, self.prefetch) if self.prefetch else plain
        assert progress.noise is not None
        first, seed, stream = progress.delivered, progress.noise["seed"], self.batch_sampler
        is_stream = isinstance(stream, Stream)
        made = self._read_stream(stream, first, seed) if is_stream else self._read_samples(batches, first, seed)
        return ahead(made, self.prefetch) if self.prefetch else in_own_context(made)

    def _read_samples(self, batches: Iterator[Any], first: int, noise_seed: int) -> Iterator[_Made]:
        """Batches from single samples. Runs in a context of its own, whose noise stream starts anew in each batch."""
        collate = default_collate if self.collate_fn is None else self.collate_fn
        manual_seed(noise_seed)
        for number, indices in enumerate(batches, first):
            set_noise_key(number)
            yield collate(read_samples(self.dataset, indices)), None

    def _read_stream(self, stream: Stream, first: int, noise_seed: int) -> Iterator[_Made]:
        """The same of a stream, with its state after each batch; one without state is read from its beginning."""
        collate = default_collate if self.collate_fn is None else self.collate_fn
        manual_seed(noise_seed)
        batches = iter(stream)
        for number in itertools.count(first if stream.is_stateful else 0):
            set_noise_key(number)
            samples = next(batches, None)
            if samples is None:
                if number < first:
                    raise StateDictError(
                        f"DataLoader: expected a stream of the {first} batches at least that the loaded state has left "
                        f"behind, got one of {number}: it has to give the same samples again, or to have state_dict"
                    )
                return
            if number >= first:
                yield collate(samples), stream.state_after(samples)

    def _deliver(self, batches: Generator[_Made, None, None], progress: _Progress) -> Iterator[Any]:
        """Hand batches to the consumer, and count them there: those that were only made ahead do not count."""
        self._batches = batches
        try:
            for batch, state in batches:
                progress.delivered += 1
                progress.sampler = progress.sampler if state is None else state
                yield batch if self.device is None else map_tensors(self._move, batch)
        finally:
            batches.close()
            self._batches = None if self._batches is batches else self._batches
        if self._progress is progress:
            self._progress = None

    def _move(self, tensor: Tensor) -> Tensor:
        return Tensor(to_device(tensor.data, cast(Device, self.device)))

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is: the epoch, and how many of its batches the consumer was given. Plain data.

        Between epochs it is the start of the next one. After a break it is still the interrupted epoch. Of an
        `IterableDataset` it has that one's own state as of the last batch that the consumer was given, if it has any.

        Raises:
            ArgumentError: the sampler has no state_dict.
        """
        progress = self._progress or _Progress(self.batch_sampler)
        sampler = sampler_state(self.batch_sampler) if progress.sampler is None else progress.sampler
        return {"sampler": sampler, "delivered": progress.delivered, "noise": progress.noise}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next iteration the rest of an interrupted epoch: the batches not yet delivered, in the same order.

        One that goes on meanwhile has no more batches.

        An `IterableDataset` with load_state_dict goes on where it was. One without is read from its beginning, and the
        batches that were delivered are left out: that takes as long as reading them, and has to give the same ones.

        Args:
            state: What `state_dict` of a loader with the same settings returned. That of another rank brings the
                order too; what the dataset draws is then drawn anew, for it differs between ranks.

        Raises:
            StateDictError: keys are missing, or the loader that wrote it had other settings.
            ArgumentError: the sampler has no load_state_dict.
        """
        check_keys("DataLoader", state, {"sampler": None, "delivered": 0, "noise": None})
        delivered, noise = state["delivered"], state["noise"]
        try:
            as_integer("DataLoader", "delivered", delivered, 0)
            if noise is not None:
                check_keys("DataLoader", noise, {"key": 0, "seed": 0})
                as_integer("DataLoader", "a noise seed", noise["seed"], 0, WORD)
        except ArgumentError as error:
            raise StateDictError(f"DataLoader: expected a usable state, got {state!r}: {error}") from error
        if self._batches is not None:
            self._batches.close()  # what it makes ahead may move the dataset on
        load_sampler_state(self.batch_sampler, state["sampler"])
        loaded = _Progress(self.batch_sampler)
        loaded.delivered = delivered
        loaded.noise = dict(noise) if noise is not None and noise["key"] == noise_key() else None
        self._progress = self._loaded = loaded


class _Progress:
    """How far an epoch has come: the sampler's state at its start, and the batches that the consumer was given.

    Also the seed of what the dataset draws in it, with the noise key (the rank) of the context that drew it.
    """

    def __init__(self, batch_sampler: Any) -> None:
        self.sampler: Any = None
        with contextlib.suppress(ArgumentError):  # a sampler without state: state_dict() will say so
            self.sampler = sampler_state(batch_sampler)
        self.delivered = 0
        self.noise: dict[str, int] | None = None


def _check_kinds(dataset: Any, batch_sampler: Any, collate_fn: Any) -> None:
    if not isinstance(dataset, IterableDataset):
        hint = ": derive it from IterableDataset" if hasattr(dataset, "__iter__") else ""
        check_dataset("DataLoader", dataset, hint)
    if batch_sampler is not None and not hasattr(batch_sampler, "__iter__"):
        raise ArgumentError(f"DataLoader: expected a batch_sampler to iterate over, got {batch_sampler!r}")
    if collate_fn is not None and not callable(collate_fn):
        raise ArgumentError(f"DataLoader: expected collate_fn as a function, got {collate_fn!r}")


def _check_some_batch(dataset: Any, batch_sampler: Any) -> None:
    """Refuse to drop all there is, on every rank. A rank alone may have no batch, a dataset no sample."""
    if isinstance(batch_sampler, Stream):
        sampler, most = None, getattr(dataset, "longest", _length(dataset))
    elif isinstance(batch_sampler, BatchSampler):
        sampler = batch_sampler.sampler
        most = sampler.longest if isinstance(sampler, EpochSampler) else max(len(dataset), _length(sampler))
    else:
        return
    size = batch_sampler.batch_size
    if isinstance(sampler, DistributedSampler) and most == 0 < sampler.length:
        raise ArgumentError(
            f"DataLoader: expected at least one batch in an epoch, got none: the sampler's mode leaves out all of "
            f"{sampler.length} sample(s), for there are {sampler.world_size} ranks: take fewer, or another mode"
        )
    if batch_sampler.drop_last and 0 < most < size:
        raise ArgumentError(
            f"DataLoader: expected at least one batch in an epoch, got none: drop_last=True leaves out all of {most} "
            f"sample(s), for a batch has {size}: make batches smaller, or keep the last one"
        )


def _length(sampler: Any) -> int:
    return len(sampler) if hasattr(sampler, "__len__") else sys.maxsize


def _check_stream(batch_size: Any, shuffle: bool, sampler: Any, batch_sampler: Any) -> None:
    if batch_size is None:
        raise ArgumentError(
            "DataLoader: expected a batch_size, got None: iterate over an IterableDataset that makes batches itself"
        )
    as_integer("DataLoader", "batch_size", batch_size, 1)
    if shuffle or sampler is not None or batch_sampler is not None:
        given = "shuffle=True" if shuffle else "a sampler" if sampler is not None else "a batch_sampler"
        raise ArgumentError(
            f"DataLoader: expected an IterableDataset without shuffle, sampler and batch_sampler, got it with {given}: "
            "its samples have no index, so their order is its own"
        )


def _check_exclusive(
    batch_size: int, shuffle: bool, sampler: Any, batch_sampler: Any, drop_last: bool, seed: Seed | None
) -> None:
    if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
        raise ArgumentError(
            "DataLoader: expected batch_sampler alone, "
            f"got it with batch_size={batch_size}, shuffle={shuffle}, sampler={sampler!r}, drop_last={drop_last}"
        )
    if sampler is not None and shuffle:
        raise ArgumentError(f"DataLoader: expected a sampler or shuffle=True, got both: sampler={sampler!r}")
    if seed is not None and not shuffle:
        raise ArgumentError(f"DataLoader: expected shuffle=True with a seed, got seed={seed!r} without it")
