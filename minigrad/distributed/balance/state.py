"""Configurations and states of balance as plain data, for JSON, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Protocol, TypeVar

from minigrad.distributed.balance.shares import SpeedHint
from minigrad.errors import ArgumentError, StateDictError

T = TypeVar("T")
S = TypeVar("S", bound="State")


class State(Protocol):
    """What a state machine is in."""

    @property
    def config(self) -> Any:
        """Its options."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""


def config_of(who: str, config: T | None, kind: type[T]) -> T:
    """A configuration; the default one for None.

    Raises:
        ArgumentError: it is of another kind.
    """
    if config is None:
        return kind()
    if not isinstance(config, kind):
        raise ArgumentError(f"{who}: expected a {kind.__name__}, got {config!r}")
    return config


def config_data(config: Any) -> dict[str, Any]:
    """The options of a configuration by name; a mapping among them as pairs, since keys of JSON are strings."""
    hint = config.speed_hint
    return {**vars(config), "speed_hint": sorted(map(list, hint.items())) if isinstance(hint, Mapping) else hint}


def config_from(kind: type[T], data: Mapping[str, Any]) -> T:
    """The configuration whose options `config_data` told."""
    return kind(**{**data, "speed_hint": _hint_from(data["speed_hint"])})


def _hint_from(data: Any) -> SpeedHint | None:
    if data is None:
        return None
    return dict(data) if not data or isinstance(data[0], Sequence) else (data[0], data[1])


def state_data(state: Any) -> dict[str, Any]:
    """The fields of a state, which has a configuration, as plain data."""
    return {**asdict(state), "config": config_data(state.config)}


def resumed(who: str, present: S, loaded: S) -> S:
    """The state that was loaded, where it fits the one that a run has.

    Raises:
        StateDictError: it is that of another number of ranks, or of other options.
    """
    if loaded.world_size != present.world_size:
        raise StateDictError(
            f"{who}: expected the state of {present.world_size} ranks, got that of {loaded.world_size}: start anew"
        )
    wanted, got = config_data(present.config), config_data(loaded.config)
    for name in wanted:
        if wanted[name] != got[name]:
            raise StateDictError(f"{who}: expected a state with {name} {wanted[name]!r}, got {got[name]!r}")
    return loaded


@contextmanager
def reading_state(who: str) -> Iterator[None]:
    """Around the reading of data into a state: what does not fit becomes a StateDictError."""
    try:
        yield
    except StateDictError:  # says itself what does not fit
        raise
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise StateDictError(f"{who}: expected what its state_dict() returned, got other data: {error!r}") from error
