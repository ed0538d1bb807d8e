"""The `Checkpoint` of a run whose ranks are not in step: written behind commits, and read by each rank for itself."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from minigrad.backend.random import get_rng_state, set_rng_state
from minigrad.backend.ranks import ranks_here, set_ranks_here
from minigrad.distributed.comm.protocol import Communicator
from minigrad.errors import ArgumentError, CollectiveTimeoutError, RankFailedError
from minigrad.nn.nested import load
from minigrad.train.epoch import EpochMetrics
from minigrad.train.run.accounts import EpochAccounts
from minigrad.train.run.config import WHO, RunConfig
from minigrad.train.run.elsewhere import adopt
from minigrad.train.run.rank import Worker
from minigrad.train.run.same_run import (
    PLAIN, check_engine, check_names, go_on, options_of, states_of_callbacks, told_in
)
from minigrad.train.run.saving import check_folder, checkpoint_of

States = Sequence[Mapping[str, Any]]  # of each rank that has saved, by name


def saved_states(config: RunConfig) -> tuple[int, States] | None:
    """The number of the newest checkpoint that a run is to go on from, and what each rank had; None for the beginning.

    Raises:
        ArgumentError: there are checkpoints, and the run is not to go on from them. StateDictError: see `load`.
    """
    own = checkpoint_of(config)
    path = None if own is None else own.latest()
    if own is None or path is None:
        return None
    check_folder(config, path)
    states = load(path, every_rank=True)
    check_engine(config, told_in(states[0]))
    return int(path.stem.partition("-")[2]), states


def with_seed_of(config: RunConfig, saved: tuple[int, States] | None) -> RunConfig:
    """The same run with the seed of the one that it goes on with, unless it says one.

    By it each rank finds the samples of a place that the coordinator deals: another one would deal others again.
    """
    if saved is None or not config.has_drawn_seed:
        return config
    return config.by_drawn(told_in(saved[1][0])["options"]["seed"])


class ApartSaving:
    """What a rank does with the checkpoint of its run; nothing where there is none.

    Args:
        worker: This rank.
        accounts: The figures of epochs that are not over.
    """

    def __init__(self, worker: Worker, accounts: EpochAccounts) -> None:
        self._worker, self._own, self._accounts = worker, checkpoint_of(worker.config), accounts
        self.history: list[EpochMetrics] = []
        self._objects = {"model": worker.model, **worker.objects(), "ledger": worker.ledger, "accounts": accounts}
        self._objects.update(states_of_callbacks(worker.config))

    # --------------------------------------------------------------------------------------------------- resuming

    def resume(self, saved: tuple[int, States]) -> int:
        """Go on from what ranks have saved, which may be others; without the other ranks.

        Returns:
            The last committed round.
        """
        (number, states), worker = saved, self._worker
        same = len(states) == worker.world_size
        if same:
            check_names(self._objects, states[worker.rank])
            _fill(self._objects, states[worker.rank])
        else:
            adopt(self._objects, states, worker.rank)
        told = states[worker.rank if same else 0][PLAIN]
        set_rng_state(told["streams"])
        go_on(worker, told)
        worker.epoch, worker.step = told["epoch"], told["step"]
        self.history = [EpochMetrics.from_json(text) for text in told["history"]]
        if self._own is not None:
            self._own.number = number
        return int(told["committed"])

    # ---------------------------------------------------------------------------------------------------- writing

    def is_due(self, round: int) -> bool:
        """Whether one is to be written behind the commit of a round; the same on all members."""
        return self._own is not None and self._own.is_due(self._number(round))

    def _number(self, round: int) -> int:
        return round if self._own is not None and self._own.on == "step" else self._worker.epoch

    def at_the_end(self, round: int, state: Mapping[str, Any] | None, comm: Communicator) -> None:
        """The run ends before its end, and all are back at the last commit: write that, where steps count."""
        own = self._own
        if own is not None and own.on == "step" and round > (own.number or 0):
            self.write(round, state, comm)

    def write(self, round: int, state: Mapping[str, Any] | None, comm: Communicator) -> None:
        """Write one behind the commit of a round, as which all that has a state is; all members call it.

        Args:
            state: Of the coordinator there.
            comm: Of the members.
        """
        own, worker, number = self._own, self._worker, self._number(round)
        assert own is not None
        told = {
            "epoch": worker.epoch,
            "step": worker.step,
            "inside": bool(self._accounts.samples),
            "committed": round,
            "coordinator": state,
            "history": [metrics.to_json() for metrics in self.history],
            "streams": get_rng_state(),
            "options": options_of(worker),
        }
        with _among(comm), worker.span("checkpoint"):
            try:
                if comm.rank == 0 and own.number is not None:
                    own.take_over()
                own.save({**self._objects, PLAIN: told}, number)
            except (CollectiveTimeoutError, RankFailedError):
                own.number = number  # another rank has failed, which is seen; the next one is due at one place on all
            except (OSError, ArgumentError) as error:
                if worker.config.on_failure == "stop":
                    raise
                own.number = number  # no rank is to be left behind because of a disk
                warnings.warn(f"{WHO}: expected to write a checkpoint, got {error}", RuntimeWarning, stacklevel=2)

    def close(self) -> None:
        """Wait until what this rank writes is on the disk.

        Raises:
            OSError: it could not be written.
        """
        if self._own is not None:
            self._own.finish()


def _fill(objects: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    for name, thing in objects.items():
        if isinstance(thing, Mapping):
            _fill(thing, state[name])
        else:
            thing.load_state_dict(state[name])


@contextmanager
def _among(comm: Communicator) -> Iterator[None]:
    """These are the ranks inside."""
    before = ranks_here()
    set_ranks_here(comm)
    try:
        yield
    finally:
        set_ranks_here(before)
