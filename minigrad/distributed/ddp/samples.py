"""The ledger of samples on ranks: who combines tells it so, and the entries of all ranks are put together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from minigrad.backend.capturing import each_replay
from minigrad.data.ledger import SampleLedger
from minigrad.distributed.comm.differences import gather_alike
from minigrad.distributed.comm.protocol import Communicator, check_is_communicator
from minigrad.distributed.ddp.parallel import DistributedDataParallel
from minigrad.distributed.ddp.reducer import Reducer
from minigrad.errors import ArgumentError


@runtime_checkable
class KeepsLedger(Protocol):
    """What combines, and tells a ledger of it itself, as a `ParameterAverager` does."""

    comm: Communicator

    def keep(self, ledger: SampleLedger) -> None:
        """Tell it so from now on."""


def keep_ledger(combiner: Any, ledger: SampleLedger) -> None:
    """Write into a ledger, from now on, what was dealt, whenever it has been combined: at the end of each pass of DDP.

    Of a `ParameterAverager` that is each combination; where it has several fragments, that of the last one. Samples of
    steps that were made after it was sent come with the next. A rank that has left a `join` takes part with nothing;
    what the last one in it accumulated and never stepped by is missing. In a loop of one's own, as one with
    `average_gradients`, call `ledger.combined(n)` after each reduction. A ledger that was kept before is told no more.

    Args:
        combiner: This rank's `DistributedDataParallel` or `ParameterAverager`.
        ledger: This rank's; see `minigrad.data.SampleLedger`.

    Raises:
        ArgumentError: it is neither of them, or no ledger, or one of another rank.

    Example:
        >>> from minigrad import data, distributed, nn, optim, randn
        >>> def train(comm):
        ...     ddp, ledger = distributed.DDP(nn.Linear(3, 1), comm), data.SampleLedger(10)
        ...     keep_ledger(ddp, ledger)
        ...     sampler = data.DistributedSampler(10, mode="exact")
        ...     loader = data.DataLoader(data.ArrayDataset(np.ones((10, 3), np.float32)), 2, sampler=sampler)
        ...     with ddp.join():
        ...         for (x,) in ledger.wrap(loader):
        ...             ddp(x).mean().backward()
        ...     merge_ledger(comm, ledger)
        ...     return str(ledger.audit())
        >>> distributed.run(train, 2)
        ['epoch 0 of 10 samples: each once', 'epoch 0 of 10 samples: each once']
    """
    if not isinstance(ledger, SampleLedger):
        raise ArgumentError(f"keep_ledger: expected a SampleLedger, got {ledger!r:.100}")
    if not isinstance(combiner, (DistributedDataParallel, KeepsLedger)):
        raise ArgumentError(
            f"keep_ledger: expected a DistributedDataParallel or a ParameterAverager, got {combiner!r:.100}: call "
            "ledger.combined(n) after each reduction"
        )
    _check_rank("keep_ledger", combiner.comm, ledger)
    if isinstance(combiner, KeepsLedger):
        combiner.keep(ledger)
        return
    before = combiner.reducer.after_pass
    if isinstance(before, _Kept):
        before = before.before
    combiner.reducer.after_pass = _Kept(combiner.reducer, before, ledger)


@dataclass(frozen=True)
class _Kept:
    """What is called after each pass of DDP: what was called before there was a ledger, and that one."""

    reducer: Reducer
    before: Callable[[list[int]], None] | None
    ledger: SampleLedger

    def __call__(self, active_ranks: list[int]) -> None:
        if self.before is not None:
            self.before(active_ranks)
        if active_ranks:  # else a captured step is launched again
            samples = self.reducer.own.samples
            self.ledger.combined(samples)
            each_replay(lambda: self.ledger.combined(samples))


def merge_ledger(comm: Communicator, ledger: SampleLedger) -> None:
    """Put the entries of all ranks together: afterwards each has all of them, to audit or to save.

    All ranks call it, before a checkpoint as a rule. It sends what was written since the last time.

    Raises:
        ReplicaMismatchError: ledgers of other data sets, or with other numbers of combinations; on all ranks.
        ArgumentError: no ledger, or one of another rank.
    """
    if not isinstance(ledger, SampleLedger):
        raise ArgumentError(f"merge_ledger: expected a SampleLedger, got {ledger!r:.100}")
    check_is_communicator("merge_ledger", comm)
    _check_rank("merge_ledger", comm, ledger)
    facts = {"length": ledger.length, "combinations": ledger.step, "those skipped": ledger.state_dict()["skipped"]}
    ledger.merge(gather_alike("merge_ledger", "ledgers", comm, facts, ledger.told()))


def _check_rank(who: str, comm: Communicator, ledger: SampleLedger) -> None:
    if (ledger.rank, ledger.world_size) != (comm.rank, comm.world_size):
        raise ArgumentError(
            f"{who}: expected the ledger of rank {comm.rank} of {comm.world_size}, got that of rank {ledger.rank} of "
            f"{ledger.world_size}"
        )
