"""Samplers: in which order, and by which rank, the samples of a dataset are read.

Every sampler here counts epochs by itself: each new iteration is the next epoch, so a forgotten `set_epoch` can't
repeat an order, and calling `set_epoch(e)` in epoch e changes nothing. `order(epoch)` is a pure function.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Sequence, Sized
from typing import Any, Protocol

import numpy as np

from minigrad.arguments import as_integer, check_switch
from minigrad.backend.device import to_host
from minigrad.backend.random import get_rng_state, noise_generator
from minigrad.backend.ranks import ranks_here
from minigrad.data.dataset import as_indices
from minigrad.data.order import (
    WORD,
    Indices,
    Seed,
    Shares,
    Weights,
    as_seed,
    check_sharding,
    choices,
    longest_shard,
    permutation,
    permutations,
    shard,
)
from minigrad.errors import ArgumentError, StateDictError
from minigrad.foreign import FORMS
from minigrad.tensor import Tensor


class Sampler(Protocol):
    """Anything that gives the indices of an epoch, one by one.

    To stop and resume in mid-epoch it also needs `state_dict()` and `load_state_dict(state)`, plain data that decide
    the order of the next iteration.
    """

    def __iter__(self) -> Iterator[int]: ...

    def __len__(self) -> int: ...


class EpochSampler:
    """Base of the samplers here: the order of an epoch is a function of its number and of fixed settings.

    A derived class gives `order(epoch)`, and adds to `settings()` what it depends on.

    Attributes:
        epoch: The number of the next iteration.
    """

    seed: int = 0  # of use only where settings() has one

    def __init__(self, source: int | Sized) -> None:
        who = type(self).__name__
        self.length = as_integer(who, "a length", len(source) if isinstance(source, Sized) else source, 0)
        self.epoch = 0

    def order(self, epoch: int) -> Indices:
        """The indices of one epoch, in order."""
        return self.drawn(self.seed, epoch)

    def drawn(self, seed: int, epoch: int) -> Indices:
        """The indices of one epoch that a seed gives: what `DistributedSampler` divides among ranks."""
        raise NotImplementedError(f"{type(self).__name__} has no order")

    def settings(self) -> dict[str, Any]:
        """What the order depends on beside the epoch, as plain data."""
        return {"length": self.length}

    @property
    def longest(self) -> int:
        """The samples of an epoch, on the rank that has the most of them."""
        return self.length

    def next_order(self) -> Indices:
        """What an iteration gives, as one array; like an iteration it goes on to the next epoch."""
        order = self.order(self.epoch)
        self.epoch += 1
        return order

    def __iter__(self) -> Iterator[int]:
        return iter(self.next_order().tolist())

    def __len__(self) -> int:
        return self.longest

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration that of an epoch, >= 0; those after it count on from there.

        Raises:
            ArgumentError: no integer in [0, 2**64).
        """
        self.epoch = as_integer(f"{type(self).__name__}.set_epoch", "epoch", epoch, 0, WORD)

    def state_dict(self) -> dict[str, Any]:
        """What decides the order of the next iteration, as plain data. It is the same on all ranks."""
        return {"epoch": self.epoch, **self.settings()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another sampler was: take over its epoch and its seed.

        Raises:
            StateDictError: the other one had different settings, so its order can't be had here.
        """
        who, own = type(self).__name__, self.state_dict()
        check_keys(who, state, own)
        for key, value in own.items():
            if key not in ("epoch", "seed") and state[key] != value:
                raise StateDictError(f"{who}: expected a state with {key} {value!r}, got {state[key]!r}")
        try:
            self.set_epoch(state["epoch"])
            if "seed" in own:
                self.seed = as_integer(who, "seed", state["seed"], 0, WORD)
        except ArgumentError as error:
            raise StateDictError(f"{who}: expected a usable state, got {state!r}: {error}") from error


class SequentialSampler(EpochSampler):
    """All samples in their own order.

    Args:
        source: A dataset, or its length.

    Example:
        >>> list(SequentialSampler(3))
        [0, 1, 2]
    """

    def drawn(self, seed: int, epoch: int) -> Indices:
        """The same in every epoch."""
        return np.arange(self.length)


class RandomSampler(EpochSampler):
    """All samples in an order that is another one in each epoch.

    Args:
        source: A dataset, or its length.
        replacement: Draw each sample from all of them, instead of one shuffle after the other.
        num_samples: Samples of an epoch, >= 1; by default as many as there are.
        seed: In [0, 2**64), or a generator to draw one from; the same seed and epoch give the same order. By default
            it is drawn, once, from the noise stream of the context (see `manual_seed`), which is each rank's own.

    Raises:
        ArgumentError: a negative length, a seed or a number out of range, or samples to draw where there are none.
    """

    def __init__(
        self,
        source: int | Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        *,
        seed: Seed | None = None,
    ) -> None:
        super().__init__(source)
        check_switch("RandomSampler", replacement=replacement)
        self.replacement = replacement
        self.num_samples = None if num_samples is None else as_integer("RandomSampler", "num_samples", num_samples, 1)
        if self.num_samples and not self.length:
            raise ArgumentError(f"RandomSampler: expected samples to draw {num_samples} of, got a dataset without any")
        self.seed = _seed("RandomSampler", seed)

    @property
    def longest(self) -> int:
        """The samples of an epoch."""
        return self.length if self.num_samples is None else self.num_samples

    def drawn(self, seed: int, epoch: int) -> Indices:
        """The shuffle of one epoch."""
        if self.num_samples is None and not self.replacement:
            return permutation(self.length, seed, epoch)
        if self.replacement and self.length:
            return choices(np.ones(self.length), self.longest, seed, epoch)
        return permutations(max(self.length, 1), self.longest, seed, epoch)

    def settings(self) -> dict[str, Any]:
        """Length and seed, and the rest where it is not the default."""
        more = {"replacement": True} if self.replacement else {}
        count = {} if self.num_samples is None else {"num_samples": self.num_samples}
        return {**super().settings(), "seed": self.seed, **more, **count}


class SubsetRandomSampler(EpochSampler):
    """Some samples, in an order that is another one in each epoch.

    Args:
        indices: Which ones, integers >= 0.
        seed: See `RandomSampler`.

    Raises:
        DtypeError: indices that are no integers. ArgumentError: a seed out of range.
    """

    def __init__(self, indices: Sequence[int] | Indices, *, seed: Seed | None = None) -> None:
        self.indices = as_indices("SubsetRandomSampler", indices)
        super().__init__(len(self.indices))
        self.seed = _seed("SubsetRandomSampler", seed)

    def drawn(self, seed: int, epoch: int) -> Indices:
        """The shuffle of one epoch."""
        return self.indices[permutation(self.length, seed, epoch)]

    def settings(self) -> dict[str, Any]:
        """Length and seed, and a checksum of the indices."""
        return {**super().settings(), "seed": self.seed, "indices": zlib.crc32(self.indices.tobytes())}


class WeightedRandomSampler(EpochSampler):
    """Samples drawn with probabilities in proportion to their weights, others in each epoch.

    Ranks that share an epoch wrap it: `DistributedSampler(WeightedRandomSampler(...), rank=..., world_size=...)`.

    Args:
        weights: One for each sample of the dataset, finite and >= 0, not all 0.
        num_samples: Samples of an epoch, >= 1.
        replacement: Draw each sample from all of them; else a sample comes once at most.
        seed: See `RandomSampler`.

    Raises:
        ArgumentError: a number, a weight or a seed out of range, or without replacement fewer weights > 0 than samples.

    Example:
        >>> list(WeightedRandomSampler([0.0, 1.0, 0.0], 4))
        [1, 1, 1, 1]
    """

    def __init__(
        self, weights: Any, num_samples: int, replacement: bool = True, *, seed: Seed | None = None
    ) -> None:
        who = "WeightedRandomSampler"
        self.weights = _weights(who, weights)
        super().__init__(len(self.weights))
        self.num_samples = as_integer(who, "num_samples", num_samples, 1)
        check_switch(who, replacement=replacement)
        self.replacement = replacement
        positive = np.count_nonzero(self.weights)
        if not replacement and positive < num_samples:
            raise ArgumentError(
                f"{who}: expected at least {num_samples} weights > 0 without replacement, got {positive}"
            )
        self.seed = _seed(who, seed)

    @property
    def longest(self) -> int:
        """The samples of an epoch."""
        return self.num_samples

    def drawn(self, seed: int, epoch: int) -> Indices:
        """The draws of one epoch."""
        return choices(self.weights, self.num_samples, seed, epoch, replacement=self.replacement)

    def settings(self) -> dict[str, Any]:
        """All arguments, with a checksum for the weights."""
        own = {"num_samples": self.num_samples, "replacement": self.replacement, "seed": self.seed}
        return {**super().settings(), **own, "weights": zlib.crc32(self.weights.tobytes())}


def _weights(who: str, weights: Any) -> Weights:
    try:
        found = np.array(to_host(weights.data) if isinstance(weights, Tensor) else weights, np.float64)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{who}: expected weights as numbers in a row, got {weights!r:.100}") from error
    if found.ndim != 1 or not np.isfinite(found).all() or (found < 0).any() or not found.any():
        raise ArgumentError(f"{who}: expected finite weights >= 0 in a row, not all 0, got {weights!r:.100}")
    return found


def _seed(who: str, seed: Any) -> int:
    return draw_seed() if seed is None else as_seed(who, seed)


class DistributedSampler(EpochSampler):
    """One rank's part of a global order that all ranks share.

    Ranks take turns, so the k-th batches of all ranks together are the k-th stretch of the global order: with batches
    of B / world_size each, the same global batches of B as on one rank.

    All ranks are in the same epoch as long as each iterates as often as the others. A rank that iterates alone, to peek
    or to debug, must put the epoch back with `set_epoch`.

    Args:
        source: A dataset, or its length. Or a sampler of those above: what it draws, by the seed given here, which is
            the same on all ranks, is divided.
        rank, world_size: Which part, of how many; by default those of this context, see `distributed.init` and `run`.
        shuffle: Another order in each epoch; else the samples' own order. A sampler says that itself.
        seed: In [0, 2**64), the same on all ranks.
        mode: What happens when the length does not divide by world_size. "pad": up to world_size - 1 samples come
            twice, all ranks get equally many. "drop": the last few are left out, all get equally many. "exact": each
            sample once, lengths differ by at most one: right for evaluation; in training the ranks may then
            have different numbers of batches.
        shares: Uneven parts: the fraction of each epoch for each rank, >= 0, of sum 1; needs mode="exact". Lengths
            are rounded by largest remainder, the parts stay spread evenly over the global order.

    Raises:
        ArgumentError: an argument out of its range, shares with another mode, or this context has no ranks.

    Example:
        >>> list(DistributedSampler(5, rank=1, world_size=2, shuffle=False, mode="exact"))
        [1, 3]
    """

    def __init__(
        self,
        source: int | Sized,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        mode: str = "pad",
        shares: Shares | None = None,
    ) -> None:
        super().__init__(source)
        rank, world_size = _place(rank, world_size)
        check_sharding("DistributedSampler", rank, world_size, mode, shares)
        check_switch("DistributedSampler", shuffle=shuffle)
        self.source = source if isinstance(source, EpochSampler) else None
        if isinstance(source, DistributedSampler) or (self.source is not None and not shuffle):
            got = "another one of these" if shuffle else "shuffle=False with a sampler, which says the order"
            raise ArgumentError(f"DistributedSampler: expected a dataset or a sampler of a whole epoch, got {got}")
        self.rank, self.world_size, self.shuffle, self.mode = int(rank), int(world_size), shuffle, mode
        self.shares = None if shares is None else [float(share) for share in shares]
        self.seed = as_integer("DistributedSampler", "seed", seed, 0, WORD)
        self._places = shard(self.length, self.rank, self.world_size, mode, self.shares)

    def order(self, epoch: int) -> Indices:
        """This rank's indices in one epoch."""
        if self.source is not None:
            return self.source.drawn(self.seed, epoch)[self._places]
        return permutation(self.length, self.seed, epoch)[self._places] if self.shuffle else self._places

    def settings(self) -> dict[str, Any]:
        """All arguments but the rank, so that the state of one rank serves all."""
        names = ("world_size", "shuffle", "mode", "shares", "seed")
        drawn = {} if self.source is None else {"source": {**self.source.settings(), "seed": None}}  # ours counts
        return {**super().settings(), **{name: getattr(self, name) for name in names}, **drawn}

    @property
    def longest(self) -> int:
        """The longest part of any rank."""
        return longest_shard(self.length, self.world_size, self.mode, self.shares)

    def __len__(self) -> int:
        return len(self._places)


def _place(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Rank and world size as given, else this context's."""
    here = ranks_here()
    if here is not None:
        rank, world_size = here.rank if rank is None else rank, here.world_size if world_size is None else world_size
    if rank is None or world_size is None:
        missing = "rank" if rank is None else "world_size"
        raise ArgumentError(f"DistributedSampler: expected {FORMS['DistributedSampler']}, got no {missing}")
    return rank, world_size


class BatchSampler:
    """Groups the indices of a sampler into lists of batch_size.

    Args:
        sampler: Where the indices come from.
        batch_size: > 0.
        drop_last: Leave out a last list that is shorter.

    Raises:
        ArgumentError: a batch_size that is no positive integer.

    Example:
        >>> list(BatchSampler(SequentialSampler(5), 2))
        [[0, 1], [2, 3], [4]]
    """

    def __init__(self, sampler: Sampler, batch_size: int, drop_last: bool = False) -> None:
        if not hasattr(sampler, "__iter__"):
            raise ArgumentError(f"BatchSampler: expected a sampler to iterate over, got {sampler!r}")
        self.sampler = sampler
        self.batch_size = as_integer("BatchSampler", "batch_size", batch_size, 1)
        check_switch("BatchSampler", drop_last=drop_last)
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[int]]:
        return self._batches(iter(self.sampler))

    def _batches(self, indices: Iterator[int]) -> Iterator[list[int]]:
        while batch := list(itertools.islice(indices, self.batch_size)):
            if self.drop_last and len(batch) < self.batch_size:
                return
            yield batch

    def __len__(self) -> int:
        full, rest = divmod(len(self.sampler), self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    def state_dict(self) -> dict[str, Any]:
        """What decides the next iteration, as plain data.

        Raises:
            ArgumentError: the sampler has no state_dict.
        """
        return {"batch_size": self.batch_size, "drop_last": self.drop_last, "sampler": sampler_state(self.sampler)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another one was.

        Raises:
            StateDictError: it had another batch_size, drop_last or sampler.
        """
        own = self.state_dict()
        check_keys("BatchSampler", state, own)
        for key in ("batch_size", "drop_last"):
            if state[key] != own[key]:
                raise StateDictError(f"BatchSampler: expected a state with {key} {own[key]!r}, got {state[key]!r}")
        load_sampler_state(self.sampler, state["sampler"])


def index_batches(batch_sampler: Any) -> Iterator[Sequence[int] | Indices]:
    """One epoch of a batch sampler; slices of one array where the samplers are those above, which spares the lists."""
    sampler: Any = getattr(batch_sampler, "sampler", None)
    if type(batch_sampler) is not BatchSampler or type(sampler) not in _OWN:
        return iter(batch_sampler)
    order, size = sampler.next_order(), batch_sampler.batch_size
    return (order[i : i + size] for i in range(0, len(batch_sampler) * size, size))


_OWN = (SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler)


def draw_seed() -> int:
    """A seed from the noise stream of the context."""
    return int(noise_generator().bit_generator.random_raw())


def noise_key() -> int:
    """Whose noise stream the context has: a rank's number."""
    return int(get_rng_state()["noise_key"])


def sampler_state(sampler: Any) -> Any:
    """The state of a sampler.

    Raises:
        ArgumentError: it has no state_dict, so nobody can say what it gives after a resume.
    """
    if not (hasattr(sampler, "state_dict") and hasattr(sampler, "load_state_dict")):
        raise ArgumentError(
            f"state_dict: expected a sampler with state_dict and load_state_dict, got {type(sampler).__name__}"
        )
    return sampler.state_dict()


def load_sampler_state(sampler: Any, state: Any) -> None:
    """Put back what `sampler_state` returned.

    Raises:
        ArgumentError: the sampler has no load_state_dict.
        StateDictError: the state does not fit the sampler.
    """
    sampler_state(sampler)
    sampler.load_state_dict(state)


def check_keys(who: str, state: Any, expected: dict[str, Any]) -> None:
    """Refuse a state that is no dict with the expected keys.

    Raises:
        StateDictError: keys are missing or unknown; both are listed.
    """
    if not isinstance(state, dict) or state.keys() != expected.keys():
        got = sorted(map(str, state)) if isinstance(state, dict) else type(state).__name__
        raise StateDictError(f"{who}: expected a state with the keys {sorted(expected)}, got {got}")
