"""FileShards: the rows of many files, dealt to ranks and read a pool at a time."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from minigrad.arguments import as_integer, check_choice, check_switch
from minigrad.backend.dtypes import Array
from minigrad.backend.ranks import ranks_here
from minigrad.data.dealing import DEALS, Blocks, blocks_of, files_by_rank, pool_order, rank_counts, runs_at
from minigrad.data.order import WORD, check_sharding, permutation
from minigrad.data.rows import ROW, check_alike, describe
from minigrad.data.sampler import check_keys
from minigrad.data.stream import IterableDataset
from minigrad.errors import ArgumentError, StateDictError

_POOL_BLOCKS = 8  # of a shuffle in each pool
_Path = str | os.PathLike[str]


class FileShards(IterableDataset):
    """The rows of safetensors or .npy files as samples, of which a rank reads its part and never more than a pool.

    A sample is a row, along the first axis, of each array of a file: a dict by key, a tuple where keys are named, the
    row alone where one is, or of a .npy file. Nothing is read at construction but the heads of the files. They come in
    the order of their paths, however they are given, so that all ranks agree.

    Ranks have parts that share no row. With deal="rows" these are equal to one row, runs of rows which follow each
    other: the k-th batches of all ranks are no stretch of one order, as they are with a `DistributedSampler`. How many
    samples each rank has is known beforehand, in `samples_of_ranks`; where these differ, the ranks have to loop
    `with ddp.join():`, see `IterableDataset`.

    With shuffle blocks of consecutive rows, an eighth of a pool each, come in another order in each epoch, and the rows
    of each pool are mixed. Epochs are counted as samplers count them: each new iteration is the next one.

    Args:
        paths: The files, of equal keys, dtypes and shapes of rows.
        keys: Which arrays, and in which order; a text for one alone. By default all, as a dict.
        rank, world_size: Which part, of how many; by default those of this context, or the only one where it has none.
        deal: "rows": each rank takes its part of all rows, in an epoch of its own order. "files": each takes whole
            files, the same ones in each epoch, so divided that the numbers of rows are about equal.
        mode: "exact": each row once. "drop": all ranks read as many as the one with the fewest, what is left over is
            left out. "pad": as many as the one with the most, where ranks with fewer have some of their rows twice,
            with deal="rows" the last rank the first rows of the epoch.
        shuffle: Another order in each epoch; else the files' own.
        seed: Of the shuffle, in [0, 2**64), the same on all ranks.
        pool_samples: Rows that are read at once and held, > 0. A larger pool is mixed better.

    Attributes:
        epoch: The number of the next iteration.
        samples_of_ranks: How many samples each rank has in an epoch.

    Raises:
        ArgumentError: an argument out of its range, no path, one twice, fewer files than ranks where files are dealt, a
            mode that leaves out all, or a file that is damaged, is empty or has other keys; it is named.
        DtypeError, ShapeError: a file with another dtype, or rows of another shape; file and key are named.
        FileNotFoundError: there is no file.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     for i in range(3):
        ...         nn.save_file({"x": np.full((4, 2), i)}, f"{folder}/{i}.safetensors")
        ...     shards = FileShards(Path(folder).glob("*.safetensors"), keys="x", rank=1, world_size=2)
        ...     batches = [batch.tolist() for batch in DataLoader(shards, batch_size=4)]
        >>> shards.samples_of_ranks, batches
        ([6, 6], [[[1, 1], [1, 1], [2, 2], [2, 2]], [[2, 2], [2, 2]]])
    """

    def __init__(
        self,
        paths: Iterable[_Path],
        keys: str | Iterable[str] | None = None,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        deal: str = "rows",
        mode: str = "exact",
        shuffle: bool = False,
        seed: int = 0,
        pool_samples: int = 4096,
    ) -> None:
        who = "FileShards"
        rank, world_size = _place(rank, world_size)
        check_choice(who, DEALS, deal=deal)
        check_sharding(who, rank, world_size, mode, None)
        check_switch(who, shuffle=shuffle)
        self.rank, self.world_size, self.deal, self.mode, self.shuffle = int(rank), int(world_size), deal, mode, shuffle
        self.seed = as_integer(who, "seed", seed, 0, WORD)
        self.pool_samples = as_integer(who, "pool_samples", pool_samples, 1)
        self.files = [describe(path) for path in _sorted_paths(paths)]
        check_alike(self.files)
        self.keys = _keys(keys, list(self.files[0].kinds))
        self._is_bare = self.files[0].is_npy or isinstance(keys, str)
        self._is_named = not self._is_bare and keys is None
        self._lengths = [file.rows for file in self.files]
        if deal == "files" and len(self.files) < world_size:
            raise ArgumentError(
                f'{who}: expected a file for each of {world_size} ranks with deal="files", got {len(self.files)}: '
                'write deal="rows"'
            )
        self.samples_of_ranks = rank_counts(self._lengths, world_size, deal, mode)
        if not any(self.samples_of_ranks):
            raise ArgumentError(
                f"{who}: expected at least one sample in an epoch, got none: mode={mode!r} leaves out all of "
                f"{sum(self._lengths)}, for there are {world_size} ranks: take fewer, or another mode"
            )
        self._fixed = self._settings()
        self.epoch = 0
        self._at: list[int] | None = None  # epoch and samples given, of the iteration that goes on
        self._loaded: list[int] | None = None  # the same, of the state that was loaded and not gone on from yet

    def __len__(self) -> int:
        return self.samples_of_ranks[self.rank]

    @property
    def longest(self) -> int:
        """The samples of an epoch, on the rank that has the most of them."""
        return max(self.samples_of_ranks)

    def __iter__(self) -> Iterator[Any]:
        at, self._loaded = self._loaded or [self.epoch, 0], None
        if at[1] and at[0] != self.epoch:
            raise StateDictError(
                f"FileShards: expected epoch {at[0]}, that of the loaded state, got {self.epoch}: call set_epoch with "
                "the same epoch, or not at all, until the rest of it was read"
            )
        self._at, at[0] = at, self.epoch
        self.epoch += 1
        blocks, before = self._blocks(at[0]), sum(self.samples_of_ranks[: self.rank])
        start = 0 if self.deal == "files" else before
        try:
            while at[1] < len(self):
                first = at[1] - at[1] % self.pool_samples
                pool = self._read(runs_at(blocks, start + first, min(self.pool_samples, len(self) - first)))
                if self.shuffle:
                    order = pool_order(len(pool[0]), self.seed, at[0], before + first)
                    pool = [array[order] for array in pool]
                for sample in zip(*(array[at[1] - first :] for array in pool)):
                    at[1] += 1
                    yield sample[0] if self._is_bare else dict(zip(self.keys, sample)) if self._is_named else sample
        finally:
            if self._at is at:
                self._at = None

    def _blocks(self, epoch: int) -> Blocks:
        """What this rank takes its stretch of, or with deal="files" all of, in one epoch."""
        files = list(range(len(self.files)))
        if self.deal == "files":
            files = files_by_rank(self._lengths, self.world_size)[self.rank]
        if not self.shuffle:
            return blocks_of(self._lengths, files)
        blocks = blocks_of(self._lengths, files, max(1, self.pool_samples // _POOL_BLOCKS))
        return blocks[permutation(len(blocks), self.seed, epoch)]

    def _read(self, runs: list[tuple[int, int, int]]) -> list[Array]:
        parts = [self.files[file].read(self.keys, start, stop) for file, start, stop in runs]
        return parts[0] if len(parts) == 1 else [np.concatenate(arrays) for arrays in zip(*parts)]

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration that of an epoch, >= 0; those after it count on from there.

        Raises:
            ArgumentError: no integer in [0, 2**64).
        """
        self.epoch = as_integer("FileShards.set_epoch", "epoch", epoch, 0, WORD)

    def state_dict(self) -> dict[str, Any]:
        """Epoch and place of the iteration that goes on, or the beginning of the next one, and all settings.

        It is plain data. That of rank 0, which has the most samples, serves all ranks that have had as many, or all of
        theirs. The `DataLoader` has one that leaves out what was only made ahead.
        """
        epoch, position = self._at or self._loaded or [self.epoch, 0]
        return {"epoch": epoch, "position": position, "seed": self.seed, **self._fixed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next iteration the rest of an interrupted epoch: take over epoch, place and seed.

        Raises:
            StateDictError: it was saved over other files, ranks or settings, so its order can't be had here.
        """
        own = self.state_dict()
        check_keys("FileShards", state, own)
        for key, value in self._fixed.items():
            if state[key] != value:
                hint = ": it was saved over other files" if key in ("files", "rows", "checksum") else ""
                raise StateDictError(f"FileShards: expected a state with {key} {value!r}, got {state[key]!r}{hint}")
        try:
            ends = {"epoch": WORD, "position": self.longest + 1, "seed": WORD}
            epoch, position, seed = (as_integer("FileShards", key, state[key], 0, end) for key, end in ends.items())
        except ArgumentError as error:
            raise StateDictError(f"FileShards: expected a usable state, got {state!r}: {error}") from error
        self.epoch, self.seed, self._loaded, self._at = epoch, seed, [epoch, position], None

    def _settings(self) -> dict[str, Any]:
        """What the order depends on beside epoch and seed; files count by their names and lengths."""
        names = [(os.path.basename(file.path), file.rows) for file in self.files]
        found = {"files": len(names), "rows": sum(self._lengths), "checksum": zlib.crc32(repr(names).encode())}
        options = ("world_size", "deal", "mode", "shuffle", "pool_samples")
        return {**found, **{name: getattr(self, name) for name in options}}


def _place(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Rank and world size as given, else this context's, else the only one."""
    here = ranks_here()
    if (rank is None) != (world_size is None) and here is None:
        missing = "rank" if rank is None else "world_size"
        raise ArgumentError(f"FileShards: expected rank and world_size, or neither, got no {missing}")
    rank = rank if rank is not None else 0 if here is None else here.rank
    return rank, world_size if world_size is not None else 1 if here is None else here.world_size


def _sorted_paths(paths: Any) -> list[str]:
    if isinstance(paths, (str, bytes, os.PathLike)) or not isinstance(paths, Iterable):
        raise ArgumentError(
            f"FileShards: expected a list of paths, got {paths!r:.100}: write Path(folder).glob('*.safetensors')"
        )
    given = list(paths)
    for path in given:
        if not isinstance(path, (str, os.PathLike)):
            raise ArgumentError(f"FileShards: expected a list of paths, got {path!r:.100} in it")
    found = sorted(os.fspath(path) for path in given)
    if not found:
        raise ArgumentError("FileShards: expected at least one path, got none: does the pattern fit the files?")
    seen = set[str]()
    for path in found:
        if os.path.abspath(path) in seen:
            raise ArgumentError(f"FileShards: expected each file once, got {path} twice")
        seen.add(os.path.abspath(path))
    return found


def _keys(keys: Any, known: list[str]) -> list[str]:
    """The arrays that are read, in order."""
    if keys is None:
        return known
    wanted = [keys] if isinstance(keys, str) else list(keys) if isinstance(keys, Iterable) else [keys]
    if known == [ROW]:
        raise ArgumentError(f"FileShards: expected no keys, for a .npy file has one array, got {keys!r}")
    if not wanted or any(key not in known for key in wanted) or len(set(wanted)) < len(wanted):
        raise ArgumentError(f"FileShards: expected keys among {known}, each once, got {keys!r:.100}")
    return wanted
