"""One model under six policies: when ranks combine, and what they combine, behind a slow link.

    python examples/10_policies.py
    python examples/10_policies.py --bandwidth 2e5          a link that is slower still, in bytes a second

Three ranks of speeds 3:2:1 learn the handwritten digits on a virtual cluster: the numbers are true, the time is
modelled. Under each policy they compute as many batches in all. It prints the loss on the test set after as many
batches, as many bytes that ranks handed in (of those of a reduction a ring of 3 sends 4/3), and as many seconds, the
best with a star: what is best by one of them is not by another.

- gradients of each step: data-parallel training, which waits for the link, and for the slowest rank, in every step;
- parameters of every 8th: local SGD, an eighth of the bytes;
- El Che: each rank makes as many steps as it has time for, so rarely that the link takes a tenth of the time;
- DiLoCo: every 16th step, and the way that the ranks have gone is the gradient of an outer optimizer with momentum;
- streaming DiLoCo: the same in four parts at steps of their own, each sent 2 steps before it is needed;
- asynchronous: nobody waits; what others have come to is added as a difference when it is there.

It exits with 1 where a promise is broken: gradients of each step are not those of one device on all samples, replicas
end with different bits, other bytes were sent than counted by hand, or a policy learns nothing, or gains no time.
"""

from __future__ import annotations

import argparse
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import minigrad
from minigrad import nn, optim
from minigrad.data import ArrayDataset, digits
from minigrad.distributed import CadenceConfig, Communicator, Wrapper, simulate
from minigrad.distributed.average import Async, Cadence, DiLoCo, EveryK, ParameterAverager, StreamingDiLoCo, Sync
from minigrad.distributed.simulate import Cluster, Link, Trace

SPEEDS = [3, 2, 1]
BATCH = 8
INPUTS, HIDDEN, CLASSES = 64, 32, 10
LINE, NUMBERS = 64, [INPUTS * HIDDEN, HIDDEN, HIDDEN * CLASSES, CLASSES]  # each parameter begins on a cache line
MODEL_BYTES = sum(-(-8 * count // LINE) * LINE for count in NUMBERS)  # float64
ALLOWED_DIFFERENCE = 1e-10
LEARNT = 0.8  # loss at the end, at most
GRADIENTS = "gradients of each step"


@dataclass(frozen=True)
class Way:
    """One policy.

    Attributes:
        options: Of the averager.
        sent: The bytes that all ranks send, by hand: of so many steps of each and so many combinations, the one at the
            end of the training not among them.
        in_step: Whether all ranks make as many steps; else each makes as many as its speed allows.
    """

    options: dict[str, Any]
    sent: Callable[[list[int], int], int]
    in_step: bool = True


STREAMING = StreamingDiLoCo(lr=0.7, fragments=4, delay=2)
COUNTED, SUMS = 16, 32  # beside the model in each combination: its samples; how far a rank is from the mean
RANKS = len(SPEEDS)
WAYS = {
    GRADIENTS: Way(
        {"policy": Sync(), "average": "gradients"},
        lambda steps, _: RANKS * (steps[0] * (MODEL_BYTES + COUNTED) + COUNTED),  # at the end nothing is left to send
    ),
    "parameters of every 8th": Way(
        {"policy": EveryK(8)}, lambda steps, _: RANKS * (steps[0] // 8 + 1) * (MODEL_BYTES + COUNTED + SUMS)
    ),
    "El Che": Way(  # which tells how long each round took, too: see `TIMES`
        {"policy": Cadence(CadenceConfig(anchor=2, overhead_target=0.1))},
        lambda _, combinations: RANKS * combinations * (MODEL_BYTES + COUNTED + SUMS),
        in_step=False,
    ),
    "DiLoCo, every 16th": Way(
        {"policy": EveryK(16), "outer": DiLoCo(lr=0.7)},
        lambda steps, _: RANKS * (steps[0] // 16 + 1) * (MODEL_BYTES + COUNTED + SUMS),
    ),
    "streaming DiLoCo": Way(
        {"policy": EveryK(16), "outer": STREAMING},
        lambda steps, _: RANKS * (steps[0] // 16 + 1) * (MODEL_BYTES + 4 * (COUNTED + SUMS)),
    ),
    "asynchronous, every 8th": Way(  # each to each, with a line of 64 bytes about it
        {"policy": Async(bound=3, k=8)},
        lambda steps, _: (RANKS - 1) * sum(own // 8 + 1 for own in steps) * (MODEL_BYTES + 64),
        in_step=False,
    ),
}
TIMES = 64  # bytes of a rank's words about its time in a round, at most: text, whose length differs


@dataclass
class Track:
    """What one rank saw.

    Attributes:
        steps: After each step, and after the end: seconds on its clock, and the bytes that it had sent.
        values: After each combination: seconds, and its parameters then.
    """

    steps: list[tuple[float, int]] = field(default_factory=list)
    values: list[tuple[float, list[Any]]] = field(default_factory=list)


class Sent(Wrapper):
    """Counts what this rank sends, or hands in for all."""

    nbytes = 0

    def around(self, call: Any, arrays: Any, make: Callable[[], Any]) -> Any:
        """See `Wrapper`."""
        self.nbytes += call.nbytes if call.kind != "recv" else 0
        return make()


def make() -> tuple[nn.Module, optim.Optimizer]:
    """The model and its optimizer, the same on all ranks."""
    minigrad.manual_seed(0)
    layers = nn.Flatten(), nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES)
    model = nn.Sequential(*layers).to("float64")
    return model, optim.SGD(model.parameters(), lr=0.2)


def batch_of(rank: int, step: int, data: ArrayDataset) -> list[Any]:
    """Images and labels of a rank's step."""
    rows = np.random.default_rng([rank, step]).choice(len(data), BATCH, replace=False)
    return [array[rows] for array in data.arrays]


def values_of(model: nn.Module) -> list[Any]:
    """A copy of the parameters."""
    return [param.detach().numpy().copy() for param in model.parameters()]


def loss_of(model: nn.Module, images: Any, labels: Any) -> minigrad.Tensor:
    """The mean over these samples."""
    return nn.functional.cross_entropy(model(minigrad.Tensor(images)), minigrad.Tensor(labels))


def steps_of(way: Way, steps: int) -> list[int]:
    """Those of each rank, which are as many in all under each policy."""
    return [steps if way.in_step else RANKS * steps * speed // sum(SPEEDS) for speed in SPEEDS]


def train(comm: Communicator, data: ArrayDataset, way: Way, steps: int) -> Track:
    """What a rank does."""
    model, optimizer = make()
    sent, track = Sent(comm), Track()
    averager = ParameterAverager(model, sent, optimizer=optimizer, **way.options)
    before, began_s = sent.nbytes, comm.clock.now_s()  # after all have begun with one model

    def note(report: Any) -> None:
        now_s = comm.clock.now_s() - began_s
        track.steps.append((now_s, sent.nbytes - before))
        if report is not None:
            track.values.append((now_s, values_of(model)))

    for step in range(steps_of(way, steps)[comm.rank]):
        optimizer.zero_grad()
        loss_of(model, *batch_of(comm.rank, step, data)).backward()
        if way is WAYS[GRADIENTS]:
            report = averager.step(BATCH)
            optimizer.step()
        else:
            optimizer.step()
            report = averager.step(BATCH)
        note(report)
    note(averager.finish())
    return track


def on_one_device(data: ArrayDataset, steps: int) -> list[Any]:
    """The parameters after as many steps on the batches of all ranks together."""
    model, optimizer = make()
    for step in range(steps):
        batches = [batch_of(rank, step, data) for rank in range(RANKS)]
        optimizer.zero_grad()
        loss_of(model, *map(np.concatenate, zip(*batches))).backward()
        optimizer.step()
    return values_of(model)


@dataclass(frozen=True)
class Point:
    """The model of rank 0 after a combination.

    Attributes:
        batches, nbytes: What all ranks had computed by then, and sent.
        seconds: Of virtual time.
        loss: On the test set.
    """

    batches: int
    nbytes: int
    seconds: float
    loss: float


def points_of(tracks: Sequence[Track]) -> list[Point]:
    """How the loss went, from the first values on."""
    model, _ = make()
    test = digits("test", dtype="float64").arrays
    found = []
    ends_s = [track.steps[-1][0] for track in tracks]
    for seconds, values in [(0.0, values_of(model)), *tracks[0].values[:-1], (max(ends_s), tracks[0].values[-1][1])]:
        batches = nbytes = 0
        for track in tracks:
            made = bisect_right(track.steps, (seconds, sys.maxsize))
            batches += min(made, len(track.steps) - 1)  # the last is the end, no batch
            nbytes += track.steps[made - 1][1] if made else 0
        with minigrad.no_grad():
            for param, value in zip(model.parameters(), values):
                param.copy_(minigrad.Tensor(value))
            found.append(Point(batches, nbytes, seconds, loss_of(model, *test).item()))
    return found


def show(found: dict[str, list[Point]]) -> None:
    """The table: the loss when so much of each was used up; of a policy that has ended before, its last."""
    last, least = found[GRADIENTS][-1], min(points[-1].nbytes for points in found.values())
    amounts = {
        "batches": [last.batches / 4, last.batches / 2, last.batches],
        "kB": [least / 2e3, least / 1e3, 4 * least / 1e3],
        "s": [last.seconds / 16, last.seconds / 8, last.seconds / 4],
    }
    losses = [
        [
            [p for p in points if (p.batches, p.nbytes / 1e3, p.seconds)[i] <= amount][-1].loss
            for i, name in enumerate(amounts)
            for amount in amounts[name]
        ]
        for points in found.values()
    ]
    best = [min(column) for column in zip(*losses)]
    print(f"{'loss after':24}" + "".join(f"{name:>23} " for name in amounts) + f"{'in all':>17}")
    heads = [f"{amount:7.2f} " if name == "s" else f"{amount:7.0f} " for name in amounts for amount in amounts[name]]
    print(f"{'':24}{''.join(heads)}{'kB':>9}{'s':>8}")
    for (way, points), row in zip(found.items(), losses):
        cells = "".join(f"{loss:7.3f}{'*' if loss == least else ' '}" for loss, least in zip(row, best))
        print(f"{way:24}{cells}{points[-1].nbytes / 1e3:9.0f}{points[-1].seconds:8.2f}")


def broken(way: str, trace: Trace, end: Point, first: Point, steps: int) -> Iterator[str]:
    """The promises that one policy breaks.

    Args:
        end, first: How it ended, and how the gradients of each step did.
    """
    ends = [b"".join(value.tobytes() for value in track.values[-1][1]) for track in trace.results]
    if len(set(ends)) > 1:
        yield "replicas differ at the end"
    combinations = max(told["number"] for told in trace.decisions)
    least = WAYS[way].sent(steps_of(WAYS[way], steps), combinations)
    words = RANKS * combinations * TIMES if way == "El Che" else 0
    if not least <= end.nbytes <= least + words:
        yield f"{end.nbytes:,} bytes were sent, {least:,} by hand"
    if not end.loss < LEARNT:
        yield f"ends with a loss of {end.loss:.3f}, expected less than {LEARNT}"
    if way != GRADIENTS and not end.seconds < 0.7 * first.seconds:
        yield f"takes {end.seconds:.2f} s, and gains nothing"


def main() -> int:
    """Read the command line, simulate, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=192, help="of each rank on average, a multiple of 48")
    parser.add_argument("--bandwidth", type=float, default=1e6, help="of the link, bytes a second")
    parser.add_argument("--smoke", action="store_true", help="96 steps")
    options = parser.parse_args()
    steps = 96 if options.smoke else options.steps
    if steps < 48 or steps % 48:
        parser.error(f"expected --steps as a multiple of 48, got {steps}")

    link = Link(latency_s=1e-3, bandwidth_bytes_s=options.bandwidth)
    cluster = Cluster.of_speeds(SPEEDS, per_sample_s=1e-3, fixed_s=1e-3, jitter_fraction=0.05, link=link)
    data = digits("train", dtype="float64")
    traces = {name: simulate.run(train, cluster, data, way, steps) for name, way in WAYS.items()}
    found = {name: points_of(trace.results) for name, trace in traces.items()}
    show(found)
    first = found[GRADIENTS][-1]
    wrong = [
        f"{name}: {text}"
        for name, trace in traces.items()
        for text in broken(name, trace, found[name][-1], first, steps)
    ]
    ours, theirs = traces[GRADIENTS].results[0].values[-1][1], on_one_device(data, steps)
    off = max(float(np.abs(a - b).max()) for a, b in zip(ours, theirs))
    print(f"{GRADIENTS}: largest difference of a parameter to one device's: {off:.1e}")
    if not off <= ALLOWED_DIFFERENCE:
        wrong.append(f"{GRADIENTS}: not those of one device")
    for text in wrong:
        print(f"BROKEN: {text}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
