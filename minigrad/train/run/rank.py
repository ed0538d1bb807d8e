"""What a rank of a run owns: replica, updates, samples, figures, and the way from samples to gradients.

Both engines build on it: that of ranks in step, and that of ranks which a coordinator directs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from minigrad.backend.random import manual_seed
from minigrad.data.chunks import ChunkPool
from minigrad.data.ledger import SampleLedger
from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.ddp.parallel import DistributedDataParallel
from minigrad.distributed.record.listening import spans_of
from minigrad.distributed.record.timeline import Timeline
from minigrad.errors import ArgumentError
from minigrad.nn.module import Module
from minigrad.train.epoch import EpochMeter
from minigrad.train.run.alike import options_of, weights_of
from minigrad.train.run.config import WHO, RunConfig
from minigrad.train.run.gradients import Gradients
from minigrad.train.run.samples import SampleReader
from minigrad.train.run.updates import Updates


class Worker:
    """One rank of a run; callbacks are given it.

    Attributes:
        config: What the run was told.
        comm, rank, world_size, device: Which rank this is.
        model: Its replica.
        updates: What steps it.
        meter, ledger, reader: Figures of the epoch, account of samples, and what reads these.
        epoch: Epochs that are over.
        step: Steps that this rank has made.
        rounds: Times that batches were dealt, and steps made of them.
        leads: Whether it is the lowest rank that lives, which prints and writes.
        timeline: That of the run where it is a `Timeline`, which has the spans of steps; else None.
        span: span(kind) is around what is one on this rank's track.
        end_step: Called behind each step of the optimizer, where nothing else says so to the timeline.
    """

    def __init__(self, config: RunConfig, comm: Communicator) -> None:
        self.config, self.comm = config, comm
        self.rank, self.world_size, self.device = comm.rank, comm.world_size, comm.device
        manual_seed(config.seed)  # type: ignore[arg-type]  # the configuration has one
        self.model = config.make_model(comm.device)
        if not isinstance(self.model, Module):
            raise ArgumentError(
                f"{WHO}: expected make_model(device) to make a Module, got {type(self.model).__name__}"
            )
        self.updates = Updates(config, self.model, comm.world_size)
        self.meter = EpochMeter(comm)
        self.ledger = SampleLedger(len(config.dataset), rank=comm.rank, world_size=comm.world_size)
        self._gradients = Gradients(config, self.model, self.updates, self.meter, self.device)
        self.reader = SampleReader(config.dataset, comm.device)
        self.epoch = self.step = self.rounds = 0
        self.leads = comm.rank == 0
        self._wants_stop = False
        self.timeline = config.timeline if isinstance(config.timeline, Timeline) else None
        self.span = spans_of(self.timeline, comm)
        self.end_step: Callable[[], None] | None = None

    def pool(self) -> ChunkPool:
        """The samples of the first epoch."""
        return self.pool_of(self.config)

    @staticmethod
    def pool_of(config: RunConfig) -> ChunkPool:
        """Those of a run."""
        return ChunkPool(len(config.dataset), config.batch_size, seed=config.seed or 0, shuffle=config.shuffle)

    def alike(self, is_new: bool) -> dict[str, str]:
        """What has to be alike on all ranks, by name; the replica too, where it is new and nobody will send it."""
        return {**options_of(self.config), **(weights_of(self.model) if is_new else {})}

    # ----------------------------------------------------------------------------------------------- for callbacks

    @property
    def optimizer(self) -> Any:
        """The optimizer of this rank."""
        return self.updates.optimizer

    @property
    def lr(self) -> float:
        """The learning rate, of the first group; setting it sets that of all groups, see `Updates.set_rate`."""
        return self.updates.rate

    @lr.setter
    def lr(self, rate: float) -> None:
        self.updates.set_rate(rate)

    def scale_lr(self, factor: float) -> None:
        """Multiply the rates of all groups from now on; see `Updates.scale_rate`."""
        self.updates.scale_rate(factor)

    def stop(self) -> None:
        """Let the run end as soon as all ranks can; any rank may ask."""
        self._wants_stop = True

    @property
    def wants_stop(self) -> bool:
        """Whether a callback on this rank has asked for the end."""
        return self._wants_stop

    # ---------------------------------------------------------------------------------------------------- training

    def gradients(self, batches: Iterable[Any], ddp: DistributedDataParallel | None = None) -> tuple[Any, float]:
        """Forward and backward of batches, as `Gradients.of` does them: Σ n·loss, and Σ n."""
        return self._gradients.of(batches, ddp)

    @property
    def says_samples(self) -> bool:
        """Whether the training function has said what its loss is a mean over."""
        return self._gradients.says_samples

    def backward(self, batches: Iterable[Any]) -> float:
        """Forward and backward on batches, indices of samples; what the losses were means over, together."""
        return self.gradients(map(self.read, batches))[1]

    def read(self, indices: Any) -> Any:
        """The batch of these samples."""
        with self.span("data"):
            return self.reader.read(indices)

    def apply(self) -> None:
        """Step by the gradients that are there, and forget them."""
        with self.span("optimizer"):
            self.updates.step()
        self.step += 1
        if self.end_step is not None:
            self.end_step()

    def drop_gradients(self) -> None:
        """Forget them."""
        self.updates.skip()

    def objects(self) -> dict[str, Any]:
        """What steps change beside the model and random streams, by name."""
        return self.updates.everything()

    def everything(self) -> dict[str, Any]:
        """What has a state on this rank and is not the engine's, by name."""
        return {"model": self.model, **self.objects(), "ledger": self.ledger, "meter": self.meter}
