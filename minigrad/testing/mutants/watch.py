"""What the tools see of a program: its losses and fingerprints, the twin, its statistics and its timeline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from minigrad.distributed import DistributedDataParallel, Timeline, Twin, simulate
from minigrad.distributed.record.fingerprint import module_fingerprints
from minigrad.errors import ArgumentError
from minigrad.nn.module import Module
from minigrad.optim.optimizer import Optimizer
from minigrad.recording import no_grad
from minigrad.tensor import Tensor

RANKS_S = 5.0  # how long ranks wait for each other, in real time


@dataclass
class RankSeen:
    """What one rank left.

    Attributes:
        losses: Of each step.
        prints: After each step that leaves the ranks alike, its number, from 1, and the fingerprint of each parameter
            and buffer.
        said: What the program printed: what was refused, which samples it got.
        twin: What the twin found first; "" where nothing, or where there was none.
        stats: Of its wrapper, at the end: passes, calls, bytes, and seconds of the virtual clock.
    """

    losses: list[float] = field(default_factory=list)
    prints: list[tuple[int, dict[str, int]]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    twin: str = ""
    stats: dict[str, Any] = field(default_factory=dict)


class Onlooker:
    """Sees one rank of a program, which tells it of each step.

    Args:
        seed: Of all that the program draws.
        twin: Whether a `Twin` makes each step once more.
    """

    def __init__(self, seed: int, timeline: Timeline | None, twin: bool) -> None:
        self.seed, self.timeline, self.seen = seed, timeline, RankSeen()
        self._twins, self._module = twin, Module()
        self._twin: Twin | None = None
        self._ddp: DistributedDataParallel | None = None

    def begin(
        self,
        ddp: Any,
        optimizer: Optimizer | None = None,
        loss_fn: Callable[[Any, Any], Tensor] | None = None,
        **options: Any,
    ) -> None:
        """Training begins; without a loss_fn there is no twin.

        Args:
            ddp: The wrapper, or another object whose `module` is trained.
            options: Of the twin.
        """
        self._module, self._ddp = ddp.module, ddp if isinstance(ddp, DistributedDataParallel) else None
        if self._twins and loss_fn is not None:
            self._twin = Twin(ddp, optimizer, loss_fn, raises=False, **options)

    def accumulate(self, batch: Any) -> None:
        """A batch has been through backward under `no_sync`."""
        if self._twin is not None:
            self._twin.accumulate(batch)

    def step(self, batch: Any, loss: Tensor | float, *, alike: bool = True) -> None:
        """A step is over.

        Args:
            alike: Whether the ranks hold the same parameters and buffers now.
        """
        seen = self.seen
        seen.losses.append(loss.item() if isinstance(loss, Tensor) else loss)
        if alike:
            seen.prints.append((len(seen.losses), prints_of(self._module)))
        if self._twin is not None:
            report = self._twin.step(batch)
            if report is not None and not report.agrees:
                seen.twin = seen.twin or str(report)
        if self._ddp is not None:
            seen.stats = {name: value for name, value in asdict(self._ddp.stats()).items() if name != "ranks"}

    def say(self, text: str) -> None:
        """The program prints something."""
        self.seen.said.append(text)

    def refused(self, what: Callable[[], Any], *, named: bool = True) -> None:
        """Do what has to be an error, and print which one it is.

        Args:
            named: Or print only that it is one, where a rank may hear of another one's first.
        """
        try:
            what()
        except Exception as error:
            self.say(f"{type(error).__name__}: {error}" if named else "it was refused")
        else:
            self.say("nothing was refused")


def prints_of(module: Module) -> dict[str, int]:
    """The fingerprints of a module by name."""
    with no_grad():
        names, values = module_fingerprints(module)
    return dict(zip(names, map(int, values.tolist())))


class Program(NamedTuple):
    """A small training script.

    Attributes:
        name: Of it.
        train: train(comm, watch), what a rank does.
        says: What it does, in words.
        speeds: Of the ranks.
        twins: Whether a twin can follow it.
        refuses: It makes a mistake on purpose, and what it prints is all that counts.
    """

    name: str
    train: Callable[[Any, Onlooker], None]
    says: str
    speeds: tuple[float, ...] = (1.0, 1.0, 1.0)
    twins: bool = True
    refuses: bool = False

    def cluster(self, world_size: int | None = None) -> simulate.Cluster:
        """The virtual cluster that it runs on; by default of as many ranks as it has speeds."""
        size = len(self.speeds) if world_size is None else world_size
        speeds = [self.speeds[rank % len(self.speeds)] for rank in range(size)]
        return simulate.Cluster.of_speeds(speeds, link=simulate.Link(2e-4, 1e6))


class RunSeen(NamedTuple):
    """What was seen of a run.

    Attributes:
        program: Its name.
        ranks: What each left.
        timeline: Of all ranks, in virtual time; empty where the twin was asked, which takes time too.
        error: What the run ended by; "" where it did not.
    """

    program: str
    ranks: tuple[RankSeen, ...]
    timeline: Timeline
    error: str


def observe(program: Program, *, seed: int = 0, world_size: int | None = None, twin: bool = False) -> RunSeen:
    """Run a program and look.

    Args:
        twin: Ask the twin, in place of the timeline.

    Raises:
        ArgumentError: no twin can follow the program.
    """
    if twin and not program.twins:
        raise ArgumentError(f"observe: expected a program that a twin can follow, got {program.name!r}")
    cluster, timeline = program.cluster(world_size), Timeline()
    watches = [Onlooker(seed, None if twin else timeline, twin) for _ in cluster.ranks]
    error = ""
    try:
        with np.errstate(all="ignore"):  # of what overflows on purpose
            simulate.run(lambda comm: program.train(comm, watches[comm.rank]), cluster, timeout_s=RANKS_S)
    except Exception as caught:
        error = f"{type(caught).__name__}: {caught}"
    return RunSeen(program.name, tuple(watch.seen for watch in watches), timeline, error)
