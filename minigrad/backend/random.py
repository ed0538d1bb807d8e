"""Random numbers: two streams of Philox 4x64-10, one the same on all ranks and one of each rank's own.

`manual_seed(s)` makes the *init* stream from the key (s, 0), for weights, and the *noise* stream from the key
(s, 1 + rank), for dropout and everything else that ranks must draw differently. Philox is counter-based
(Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11), so a kernel can draw the same bits.
A logical shard, part of a batch that any rank may compute, has a noise stream of its own from the key
(s, 2**63 + shard). The streams hang on the context, not on the process: ranks may be threads.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

import numpy as np

from minigrad.arguments import as_integer, check_choice
from minigrad.backend.capturing import refuse_in_capture
from minigrad.errors import ArgumentError, StateDictError

_SEED_LIMIT = 2**64
_ANEW, _OUTSIDE = "random streams that begin anew in each step", "call it outside of the captured step"
_FIRST_SHARD_STREAM = 2**63


class Generator(np.random.Generator):
    """A source of random numbers of its own, as every `rng=` takes it: `Generator().manual_seed(0)`.

    NumPy's generator on Philox, begun at random; the numbers are not those that PyTorch draws.

    Args:
        device: "cpu" only: what is random is drawn on the host, the same for every device.

    Raises:
        ArgumentError: another device.
    """

    def __init__(self, device: Any = "cpu") -> None:
        if str(device) != "cpu":
            raise ArgumentError(f"Generator: expected device cpu, where random numbers are drawn, got {device!s:.100}")
        super().__init__(np.random.Philox(secrets.randbits(127)))

    def manual_seed(self, seed: int) -> Generator:
        """Begin again from a seed in [0, 2**64); returns the generator.

        Raises:
            ArgumentError: the seed is no integer in range.
        """
        refuse_in_capture("Generator.manual_seed", _ANEW, _OUTSIDE)
        seed = as_integer("Generator.manual_seed", "seed", seed, 0, _SEED_LIMIT)
        self.bit_generator.state = _philox(seed, 0).bit_generator.state
        return self

    def state_dict(self) -> dict[str, Any]:
        """Where it is, as plain data, so that `minigrad.save` takes it as it is."""
        return _plain(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned.

        Raises:
            StateDictError: it is something else; nothing was changed then.
        """
        refuse_in_capture("Generator.load_state_dict", _ANEW, _OUTSIDE)
        tried: Any = np.random.Philox(0)
        try:
            tried.state = state
        except (LookupError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise StateDictError(f"Generator: expected what state_dict returned, got {state!r:.200}") from error
        self.bit_generator.state = tried.state


class Streams:
    """The init and the noise stream of one context, and those of the shards that it has computed.

    Attributes:
        repeats: Whether these give once more what was given before.
    """

    __slots__ = ("seed", "noise_key", "init", "noise", "shards", "repeats")

    def __init__(self, seed: int, noise_key: int) -> None:
        self.seed, self.noise_key, self.repeats = seed, noise_key, False
        self.init = _philox(seed, 0)
        self.noise = _philox(seed, 1 + noise_key)
        self.shards: dict[int, np.random.Generator] = {}

    def of_shard(self, shard: int) -> np.random.Generator:
        """The noise stream of a logical shard, where its last draw left it."""
        if shard not in self.shards:
            self.shards[shard] = _philox(self.seed, _FIRST_SHARD_STREAM + shard)
        return self.shards[shard]

    def position(self) -> tuple[Any, Any]:
        """Where both streams are, to be given to `at`."""
        return self.init.bit_generator.state, self.noise.bit_generator.state

    def at(self, position: tuple[Any, Any]) -> Streams:
        """Streams apart from these that begin at a position."""
        twin = copy.copy(self)
        twin.repeats = True
        twin.init, twin.noise = _philox(0, 0), _philox(0, 0)
        twin.init.bit_generator.state, twin.noise.bit_generator.state = position
        return twin


_streams: ContextVar[Streams] = ContextVar("minigrad_random_streams")
_drawn: ContextVar[int | None] = ContextVar("minigrad_drawn_seed", default=None)  # where nobody has chosen one


def _philox(seed: int, stream: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=np.array([seed, stream], np.uint64)))


def _current() -> Streams:
    streams = _streams.get(None)
    if streams is None:
        streams = Streams(secrets.randbits(63), 0)
        _streams.set(streams)
        _drawn.set(streams.seed)
    return streams


def current_streams() -> Streams:
    """The streams of this context."""
    return _current()


def replay_from(position: tuple[Any, Any]) -> None:
    """Let the streams of this context, and of no other, be at a position."""
    _streams.set(_current().at(position))


def manual_seed(seed: int) -> None:
    """Start both streams of this context again from a seed.

    Args:
        seed: 0 <= seed < 2**64. The noise stream also depends on the rank, the init stream does not.

    Raises:
        ArgumentError: the seed is no integer in range.
    """
    refuse_in_capture("manual_seed", _ANEW, _OUTSIDE)
    seed = as_integer("manual_seed", "seed", seed, 0, _SEED_LIMIT)
    streams = _streams.get(None)
    _streams.set(Streams(seed, streams.noise_key if streams is not None else 0))


def initial_seed() -> int:
    """The seed of both streams of this context."""
    return _current().seed


def is_seed_chosen() -> bool:
    """Whether the seed of this context is one that somebody has chosen; else it was drawn."""
    return _current().seed != _drawn.get()


def set_noise_key(noise_key: int) -> None:
    """Give this context a noise stream of its own: a rank's number, or a logical shard's.

    The init stream goes on where it was, but no longer shares its position with the context it came from.
    """
    old = _current()
    fresh = Streams(old.seed, noise_key)
    fresh.init.bit_generator.state = old.init.bit_generator.state
    _streams.set(fresh)


@contextmanager
def shard_noise(shard: int) -> Iterator[None]:
    """Draw noise from the stream of a logical shard inside the block: the same numbers on whichever rank it runs.

    The next block of this shard goes on where this one ends; `manual_seed` and `set_noise_key` start all over.

    Args:
        shard: 0 <= shard < 2**63.
    """
    inside = copy.copy(_current())
    inside.noise = inside.of_shard(shard)
    token = _streams.set(inside)
    try:
        yield
    finally:
        _streams.reset(token)


def shards_have_drawn(shards: Iterable[int]) -> bool:
    """Whether any of these logical shards has drawn noise in this context."""
    streams = _current().shards
    states: list[Any] = [streams[shard].bit_generator.state for shard in shards if shard in streams]
    return any(state["state"]["counter"].any() for state in states)


def current_seed() -> int:
    """The seed of this context's streams."""
    return _current().seed


def init_generator() -> np.random.Generator:
    """The stream for initial weights: the same on all ranks."""
    return _current().init


def noise_generator() -> np.random.Generator:
    """The stream for dropout, shuffles and samples: each rank's own."""
    return _current().noise


def get_rng_state() -> dict[str, Any]:
    """All streams as plain data, for a checkpoint: JSON takes it."""
    streams = _current()
    return {
        "seed": streams.seed,
        "noise_key": streams.noise_key,
        "init": _plain(streams.init),
        "noise": _plain(streams.noise),
        "shards": {str(shard): _plain(stream) for shard, stream in streams.shards.items()},
    }


def _plain(generator: np.random.Generator) -> dict[str, Any]:
    """The state of a generator, its arrays as lists."""
    state: Any = generator.bit_generator.state
    words = {name: values.tolist() for name, values in state["state"].items()}
    return {**state, "state": words, "buffer": state["buffer"].tolist()}


def set_rng_state(state: dict[str, Any], noise_key: Literal["own", "theirs"] = "own") -> None:
    """Put all streams back to what `get_rng_state` returned.

    A rank's own state restores exactly. The state of another rank brings the seed, the init stream, the shards' streams
    and how far the noise stream had come; the numbers of the noise stream stay this rank's own.

    Args:
        noise_key: "theirs" takes the other rank's noise along, to replay what it drew.

    Raises:
        ArgumentError: the state is something else, or another noise_key.
    """
    refuse_in_capture("set_rng_state", _ANEW, _OUTSIDE)
    check_choice("set_rng_state", ("own", "theirs"), noise_key=noise_key)
    own = _current().noise_key
    try:
        moves = state["noise_key"] != own and noise_key == "own"
        streams = Streams(state["seed"], own if moves else state["noise_key"])
        streams.init.bit_generator.state = state["init"]
        streams.noise.bit_generator.state = _moved(streams.noise, state["noise"]) if moves else state["noise"]
        for shard, held in state["shards"].items():
            streams.of_shard(int(shard)).bit_generator.state = held
    except (LookupError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise ArgumentError(f"set_rng_state: expected what get_rng_state returned, got {state!r:.200}") from error
    _streams.set(streams)


def _moved(generator: np.random.Generator, theirs: dict[str, Any]) -> dict[str, Any]:
    """The state of a generator that is as far as another; the few numbers which that one drew ahead are left out."""
    mine: Any = generator.bit_generator.state
    words = {**mine["state"], "counter": theirs["state"]["counter"]}
    return {**mine, "state": words}
