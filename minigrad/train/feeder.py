"""What gives each replica its part of the work: a batch cut into shards, shards from a loader each, or whole batches.

Of what devices do in a pass it takes the time, forward and backward, by marks on the tape where one replica's part
begins; nothing ever waits for a reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial, reduce
from itertools import islice, zip_longest
from typing import Any

from minigrad.backend.device import Device
from minigrad.backend.flags import raise_all_found
from minigrad.data.collate import map_tensors
from minigrad.distributed.balance.cadence import ElChe
from minigrad.distributed.replicas.devices import DeviceGroup
from minigrad.distributed.replicas.notes import ReplicaNotes
from minigrad.errors import ArgumentError
from minigrad.graph.module import GraphModule
from minigrad.graph.wired import fields_of
from minigrad.ops.creation import full_like
from minigrad.recording import is_grad_enabled
from minigrad.tensor import Tensor, tensors_in
from minigrad.train.batches import ShardedBatch, Round, check_loss, count_samples, gather, on, scatter, sizes_of
from minigrad.train.stopwatch import Stopwatch, boundary

LossFn = Callable[[Any, Any], Tensor]
Divide = Callable[[int], tuple[int, ...]]
ByBatches = Callable[[], bool]
Weigh = Callable[[int, int], float]


class Feeder:
    """The replicas at work on batches.

    Args:
        replicas: One a device.
        group: The devices.
        divide: The samples of each device, of so many in a batch.
        by_batches: Says whether each device runs whole batches in training, as El Che wants it.
        notes: Get what devices compute in each pass.

    Attributes:
        last_el_che_counts: Batches of each device in the last round.
        watch: The times of each device's passes that recorded gradients, and their samples.
        rest: To be called when a backward is over: nobody works then.
    """

    def __init__(
        self,
        replicas: Sequence[GraphModule],
        group: DeviceGroup,
        divide: Divide,
        by_batches: ByBatches,
        notes: ReplicaNotes | None = None,
    ) -> None:
        self._replicas, self._group, self._divide, self._by_batches = replicas, group, divide, by_batches
        self._devices, self._names = group.devices, replicas[0].input_names
        self.last_el_che_counts: tuple[int, ...] = ()
        self.watch = Stopwatch([group.timer(rank) for rank in range(len(replicas))], notes)
        self._marks = [partial(boundary, passed=partial(self.work_on, rank)) for rank in range(len(replicas))]
        self.rest = partial(self.work_on, None)
        self._move = [partial(on, device) for device in self._devices]
        self._move_over = [partial(_over, device) for device in self._devices]
        self._dealt: tuple[int, ...] = ()  # the shards of the batch that `backward_batch` works on
        self._turn: int | None = None  # the replica that runs a whole batch
        self._working: int | None = None  # the replica whose backward is under way
        parts = zip(*([part for part in replica.modules() if isinstance(part, GraphModule)] for replica in replicas))
        self._tagging = [same for same in parts if same[0].has_tags]

    def work_on(self, rank: int | None, kind: str = "backward") -> None:
        """From now on the backward of this replica runs, or of none; kind may be "compute", of forward too."""
        if rank == self._working:
            return
        if self._working is not None:
            self._group.clocks[self._working].progress(1.0)
        self.watch.switch(rank, kind)
        self._working = rank

    # ------------------------------------------------------------------------------------------------ running

    def forward(self, inputs: Sequence[Any]) -> Any:
        """The output for a batch, of which each replica computes its part; one that came in shards is cut like them.

        Raises:
            ArgumentError: whole batches are run, and this is no call from a loss on the first device.
            ShapeError: on several devices, inputs or outputs that do not have one sample a row.
        """
        if self._turn == 0:
            return self._replicas[0].run(inputs)
        self._check_parts()
        if len(self._replicas) == 1:
            return self._run_parts([[map_tensors(self._move[0], x) for x in inputs]], (self._count(inputs),))
        samples, dealt = self._count(inputs), sizes_of(inputs) or self._dealt
        fits = len(dealt) == len(self._replicas) and sum(dealt) == samples
        sizes = dealt if fits else self._divide(samples)
        return self._run_parts(scatter(inputs, sizes, self._devices), sizes)

    def _check_parts(self) -> None:
        if self._turn is not None:
            raise ArgumentError(
                "Graph: expected loss_fn(model, batch) to call the model that it is given, a replica on another "
                "device, got a call of this graph"
            )
        if self._by_batches() and is_grad_enabled():
            raise ArgumentError(
                "Graph: expected epoch() and backward_batch() for training with El Che, which runs whole "
                "batches on each device, got a forward: set_loss_fn and set_data_loader, or set el_che=False; "
                "evaluate under no_grad()"
            )

    def forward_shards(self, batch: ShardedBatch) -> Any:
        """The output for a batch that came in shards."""
        self._check_parts()
        shards = [batch.shard(rank, device) for rank, device in enumerate(self._devices)]
        parts = [
            [map_tensors(move, x) for x in self._inputs_of(shard)] if size else []
            for move, shard, size in zip(self._move, shards, batch.sizes)
        ]
        return self._run_parts(parts, batch.sizes)

    def _inputs_of(self, batch: Any) -> list[Any]:
        return fields_of("Graph.forward_batch", self._names, batch)

    def _run_parts(self, parts: Sequence[list[Any]], sizes: Sequence[int]) -> Any:
        """The outputs of the replicas that have a part, as one output on the first device."""
        recording = is_grad_enabled()
        if recording:
            self.watch.begin(sizes)
        if len(parts) == 1:
            return self._run(0, parts[0], sizes[0], recording)
        active = {rank: sizes[rank] for rank, part in enumerate(parts) if part}
        try:
            outputs = [self._run(rank, parts[rank], size, recording) for rank, size in active.items()]
        finally:
            self._show_tags(active)
        return gather("Graph", outputs, list(active.values()), self._devices[0])

    def _run(self, rank: int, inputs: Sequence[Any], samples: int, recording: bool) -> Any:
        """One replica's forward, with a mark on the tape where its backward will begin."""
        replica = self._replicas[rank]
        with self._devices[rank].current():
            if not recording:
                return replica.run(inputs)
            self.watch.switch(rank, "forward")
            try:
                self._group.clocks[rank].compute(samples)
                output = replica.run(inputs)
            finally:
                self.watch.switch(None)
        if not self._tagging:
            return map_tensors(self._marks[rank], output)
        mark = cache(self._marks[rank])  # one for one tensor, so that an output which is tagged too stays one
        for same in self._tagging:
            same[rank].map_tagged(lambda value: map_tensors(mark, value))
        return map_tensors(mark, output)

    def _show_tags(self, active: Mapping[int, int]) -> None:
        """Let the tags of the whole, and of its sub-graphs, be what these replicas computed on so many samples each."""
        sizes, device = list(active.values()), self._devices[0]

        def join(values: list[Any]) -> Any:
            return values[0] if len(values) == 1 else gather("Graph.tagged", values, sizes, device)

        for same in self._tagging:
            same[0].show_tags_of([same[rank] for rank in active], join)

    # ----------------------------------------------------------------------------------------------- backward

    def backward_batch(self, models: Sequence[Any], batch: Any, loss_fn: LossFn, weigh: Weigh) -> Tensor:
        """Forward, loss and backward of a batch; see `Graph.backward_batch`.

        Args:
            models: What loss_fn is given: the graph itself, or the replica that runs a whole batch.
            batch: That of a loader, in shards, or a round.
            loss_fn: The mean loss over a batch.
            weigh: weigh(samples, total) is what a mean over some samples weighs, of a batch or round of `total`.
        """
        try:
            if isinstance(batch, Round):
                return self._run_round(models, batch, loss_fn, weigh)
            return self._run_batch(models[0], batch, loss_fn, weigh)
        finally:
            self._dealt = ()

    def _run_batch(self, graph: Any, batch: Any, loss_fn: LossFn, weigh: Weigh) -> Tensor:
        if isinstance(batch, ShardedBatch):
            samples, self._dealt = sum(batch.sizes), batch.sizes
        else:
            batch = map_tensors(self._move[0], batch)
            samples = self._count(self._inputs_of(batch))
        with self._devices[0].current():
            return _backward(loss_fn(graph, batch), samples, samples, weigh)

    def _run_round(self, models: Sequence[Any], one: Round, loss_fn: LossFn, weigh: Weigh) -> Tensor:
        """Whole batches on each device, in turns so that devices work side by side; the mean loss over all samples.

        Two GPUs wait for each other at a copy between them: batches go to theirs before the first turn, and losses
        stay where they are until after the last.
        """
        sizes = [[self._count_shard(batch) for batch in each] for each in one.batches]
        total = sum(map(sum, sizes))
        if not total:
            raise ArgumentError("Graph.backward_batch: expected batches with samples, got none")
        self.watch.begin([sum(each) for each in sizes], one.counts)
        self.last_el_che_counts = one.counts
        there = [[map_tensors(over, batch) for batch in each] for over, each in zip(self._move_over, one.batches)]
        losses: dict[int, Tensor] = {}  # the part that each device has in the mean
        for rank, number in one.turns():
            samples = sizes[rank][number]
            if samples:
                with self._in_turn(rank, samples):
                    here = map_tensors(self._move[rank], there[rank][number])
                    with self._devices[rank].current():
                        loss = _backward(loss_fn(models[rank], here), samples, total, weigh)
                with self._devices[rank].current():
                    part = loss * (samples / total)
                    losses[rank] = losses[rank] + part if rank in losses else part
        with self._devices[0].current():
            first, *others = map(self._move[0], losses.values())
            return reduce(Tensor.__add__, others, first)

    @contextmanager
    def _in_turn(self, rank: int, samples: int) -> Iterator[None]:
        """In the block one replica runs a whole batch, and what is tagged is what it computes."""
        self.work_on(rank, "compute")
        self._turn = rank
        self._show_tags({rank: samples})
        try:
            self._group.clocks[rank].compute(samples)
            yield
        finally:
            self._turn = None
            self.work_on(None)

    # ------------------------------------------------------------------------------------------------ loaders

    def shards(self, loaders: Sequence[Any]) -> Iterator[ShardedBatch]:
        """One shard from each loader, until all have ended."""
        for shards in zip_longest(*loaders):
            sizes = [0 if shard is None else self._count_shard(shard) for shard in shards]
            if any(sizes):
                yield ShardedBatch(shards, sizes, self._devices[0])

    def _count(self, inputs: Sequence[Any]) -> int:
        """The samples in a batch."""
        if len(self._replicas) > 1:
            return count_samples("Graph", dict(zip(self._names, inputs)))
        return next((x.shape[0] for x in tensors_in(list(inputs)) if x.ndim), 1)

    def _count_shard(self, shard: Any) -> int:
        """The samples in a batch of one device."""
        return count_samples("Graph", dict(zip(self._names, self._inputs_of(shard))))


def rounds(cadence: Callable[[], ElChe | None], loaders: Sequence[Any]) -> Iterator[Round]:
    """As many whole batches for each device as El Che says, as it is then, until all loaders have ended.

    Raises:
        ArgumentError: El Che was turned off before that.
    """
    readers = [iter(loader) for loader in loaders]
    while True:
        el_che = cadence()
        if el_che is None:
            raise ArgumentError("Graph.epoch: expected El Che on until the epoch is over, got it turned off")
        if len(readers) == 1:
            batches = list(islice(readers[0], el_che.total_batches))
            sources, counts = [iter(batches)] * el_che.world_size, el_che.clamp_total(len(batches))
        else:
            sources, counts = readers, el_che.batch_counts
        one = Round(tuple(tuple(islice(source, count)) for source, count in zip(sources, counts)))
        if not any(one.counts):
            return
        yield one


def checked_at_the_end(batches: Iterator[Any]) -> Iterator[Any]:
    """Batches, after the last of which it is told what a GPU found out of range; IndexRangeError."""
    yield from batches
    raise_all_found()


def _backward(loss: Any, samples: int, total: int, weigh: Weigh) -> Tensor:
    """Backward of a mean over some samples, weighted so that all since the last step make one mean."""
    check_loss("Graph.backward_batch", loss)
    if not samples:
        raise ArgumentError("Graph.backward_batch: expected a batch with samples, got one of 0")
    detached: Tensor = loss.detach()
    loss.backward(full_like(detached, weigh(samples, total)))
    return detached


def _over(device: Device, x: Tensor) -> Tensor:
    """A tensor there where it lies on another GPU; from the host it comes when it is its turn."""
    return x if x.device.type == "cpu" else on(device, x)
