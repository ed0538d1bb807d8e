"""See a step: two ranks learn the handwritten digits, one of them is slow in backward, and the record of it says so.

    python examples/12_timeline.py
    python examples/12_timeline.py --late-ms 0              nobody is late
    python examples/12_timeline.py --cluster                two ranks of a virtual cluster, in modelled time

Data-parallel training makes every step as long on all ranks, whoever is slow: the others wait in the all-reduce. So the
time of a step says nothing about who it was. A timeline notes what each rank did itself, and when; it costs one option
of the wrapper. The script prints how long a step took on either rank, who was late, in which phase and by how much,
where the time of a step went, and what would have helped: the recorded steps are replayed under other choices. Where a
rank was late it trains once more, with shards as fast ranks and slow ones should have, and prints what was foretold and
what came. It leaves three files of the first run in a folder:

    run.html             a page that shows each step; open it in a browser
    run.perfetto.json    for ui.perfetto.dev
    run.json             the timeline itself, for Timeline.from_json

It says so where something is not as it should be: the steps of the two ranks are not as long, another rank or another
phase is named, or by another time, other shards do not help as was foretold, or a file does not have both ranks. Then
it exits with 1; not for times of threads, which the machine wakes up when it likes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import minigrad
from minigrad import distributed, nn, optim
from minigrad.data import digits
from minigrad.distributed import Communicator, DistributedDataParallel, Timeline, explain, explain_ranks, simulate
from minigrad.distributed.inspect import LateReport

RANKS, BATCH, LATE = 2, 64, 1  # the rank that is slow
EQUAL = (BATCH // RANKS,) * RANKS
BACKWARD_MS = 20.0  # of a shard of equal size, on every rank
ALLOWED = 0.25  # of a step, as a fraction: threads are woken up when the machine likes
HIDDEN, BUCKET_BYTES = 256, 128 * 1024


class Slow(nn.Module):
    """Passes on what it gets; its backward takes so many seconds for each sample."""

    def __init__(self, wait: Callable[[float], None], per_sample_s: float) -> None:
        super().__init__()
        self._wait, self._per_sample_s = wait, per_sample_s

    def forward(self, x: minigrad.Tensor) -> minigrad.Tensor:
        """See `Module`."""
        if x.requires_grad:
            x.register_hook(lambda grad: self._wait(self._per_sample_s * grad.shape[0]))
        return x


def train(
    comm: Communicator, timeline: Timeline, late_ms: float, steps: int, sizes: Sequence[int], sleeps: bool = True
) -> None:
    """What a rank does.

    Args:
        late_ms: How much longer backward of a shard of equal size takes on one of them.
        sizes: Of each rank's shard of a batch.
        sleeps: Or else modelled time passes.
    """
    minigrad.manual_seed(0)
    backward_ms = BACKWARD_MS + (late_ms if comm.rank == LATE else 0.0)
    slow = Slow(time.sleep if sleeps else comm.clock.advance, backward_ms / 1e3 / EQUAL[0])
    first, second = nn.Linear(64, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
    model = nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, slow, nn.ReLU(), nn.Linear(HIDDEN, 10))
    ddp = DistributedDataParallel(model.to(comm.device), comm, bucket_cap_bytes=BUCKET_BYTES, timeline=timeline)
    optimizer = optim.SGD(ddp.parameters(), lr=0.1)
    arrays, begin = digits("train").arrays, sum(sizes[: comm.rank])
    for step in range(steps):
        with timeline.span("data"):
            mine = slice(step * BATCH + begin, step * BATCH + begin + sizes[comm.rank])
            images, labels = (minigrad.Tensor(array[mine]) for array in arrays)
        loss = nn.functional.cross_entropy(ddp(images), labels)
        loss.backward()
        with timeline.span("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        timeline.event("loss", value=loss.item())


def record(late_ms: float, steps: int, is_cluster: bool, sizes: Sequence[int] = EQUAL) -> Timeline:
    """The timeline of a training."""
    timeline = Timeline()
    if is_cluster:
        ranks, link = (simulate.RankCost(per_sample_s=1e-4),) * RANKS, simulate.Link(1e-4, 1e9)
        simulate.run(train, simulate.Cluster(ranks, link), timeline, late_ms, steps, sizes, False)
    else:
        distributed.run(train, RANKS, timeline, late_ms, steps, sizes)
    return timeline


def step_ms(timeline: Timeline) -> list[float]:
    """How long a step took on each rank, on average: from one pass over all gradients to the next."""
    ends = [[span.ended_s for span in timeline.spans if (span.rank, span.kind) == (r, "pass")] for r in range(RANKS)]
    return [1e3 * (own[-1] - own[0]) / (len(own) - 1) for own in ends]


def broken(report: LateReport, late_ms: float, steps_ms: list[float]) -> Iterator[str]:
    """The promises that what was found breaks."""
    if max(steps_ms) - min(steps_ms) > ALLOWED * max(steps_ms):
        yield f"the steps are not as long on both ranks: {steps_ms} ms"
    if not late_ms:
        return
    if not report.late or (report.late[0].rank, report.late[0].phase) != (LATE, "backward"):
        yield f"expected rank {LATE} to be late in backward above all, got {report.late}"
    elif abs(1e3 * report.late[0].by_s - late_ms) > ALLOWED * max(steps_ms):
        yield f"expected rank {LATE} to be late by {late_ms} ms, got {1e3 * report.late[0].by_s:.1f} ms"


def write(timeline: Timeline, folder: Path) -> Iterator[str]:
    """Write the files; what is wrong with them."""
    folder.mkdir(parents=True, exist_ok=True)
    timeline.save(folder / "run.html")
    timeline.save(folder / "run.json")
    timeline.to_perfetto(folder / "run.perfetto.json")
    events = json.loads((folder / "run.perfetto.json").read_text())["traceEvents"]
    if {event["pid"] for event in events} != set(range(RANKS)):
        yield "the Perfetto file does not have the ranks"
    if Timeline.from_json((folder / "run.json").read_text()) != timeline:
        yield "the timeline does not come back"
    page = (folder / "run.html").read_text()
    if any(f"rank {rank}" not in page for rank in range(RANKS)):
        yield "the page does not have the ranks"


def try_shares(timeline: Timeline, late_ms: float, is_cluster: bool) -> Iterator[str]:
    """Train once more, each rank on as much as it has time for; what is broken of what a replay foretold."""
    before = explain(timeline)
    speeds = [1.0 / rank.compute_s for rank in before.ranks]
    sizes = distributed.compute_shard_sizes(BATCH, [speed / sum(speeds) for speed in speeds])
    foretold_s = median(distributed.replay(timeline, shares=[size / BATCH for size in sizes]).replayed_s)
    after = explain(record(late_ms, before.steps, is_cluster, sizes))
    told = f"shards of {sizes}: a median step of {1e3 * foretold_s:.1f} ms was foretold"
    print(f"{told}, {1e3 * after.step_s:.1f} ms it was; it had been {1e3 * before.step_s:.1f} ms\n")
    if abs(foretold_s - after.step_s) > (0.01 if is_cluster else ALLOWED) * before.step_s:
        yield f"{told}, got {1e3 * after.step_s:.1f} ms"


def show(folder: Path, late_ms: float, steps: int, is_cluster: bool) -> int:
    """Train, and say what is seen; how many promises are broken."""
    timeline = record(late_ms, steps, is_cluster)
    steps_ms, report = step_ms(timeline), explain_ranks(timeline)
    print("on average a step took", ", ".join(f"{ms:.1f} ms on rank {rank}" for rank, ms in enumerate(steps_ms)), "\n")
    print(report, "\n")
    print(explain(timeline), "\n")
    wrong, in_time = [*write(timeline, folder)], [*broken(report, late_ms, steps_ms)]
    if late_ms:
        in_time += try_shares(timeline, late_ms, is_cluster)
    print("written:", *(str(folder / name) for name in ("run.html", "run.perfetto.json", "run.json")))
    for text in (*wrong, *in_time):
        print(f"BROKEN: {text}")
    return len(wrong) + (len(in_time) if is_cluster else 0)


def main() -> int:
    """Read the command line, and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--late-ms", type=float, default=40.0, help="what backward takes longer on one rank")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--cluster", action="store_true", help="ranks of a virtual cluster in the place of threads")
    parser.add_argument("--out", metavar="DIR", help="where the files go; ./timeline by default")
    parser.add_argument("--smoke", action="store_true", help="8 steps, and the files go nowhere")
    options = parser.parse_args()
    steps = 8 if options.smoke else options.steps
    if not (options.late_ms >= 0.0 and 3 <= steps <= 20):
        parser.error(f"expected --late-ms >= 0 and 3 <= --steps <= 20, got {options.late_ms} and {steps}")
    with TemporaryDirectory() as nowhere:
        folder = Path(options.out or (nowhere if options.smoke else "timeline"))
        return int(show(folder, options.late_ms, steps, options.cluster) > 0)


if __name__ == "__main__":
    sys.exit(main())
