"""The virtual cluster beside 64 public runs on a real one: what part of the time the ranks computed.

    python -m tests.benchmarks.measured

local_steps_4xL40S.csv has DiLoCo and local SGD on four machines with one L40S each, 30.8 M float32 parameters, over TCP
that was shaped to 50 Mbit/s - 5 Gbit/s: sums and medians over the steps after warming up, from the telemetry that the
study "diloco-measured" publishes (Apache-2.0). The study's DDP runs are not among them: it imputes their split.

A run is simulated with its own computing time and number of synchronisations; how long these take, the link says. The
error is that of the utilisation, |predicted / measured - 1|. `fitted` is a link for each bandwidth from 6 of its rows,
`one fit` has the numbers that come nearest to these rows of all links; both are judged on the other 10 of each link.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from minigrad.distributed import simulate
from minigrad.distributed.simulate import Cluster, Link, RankCost, SyncReading

ROWS = Path(__file__).with_name("local_steps_4xL40S.csv")
ITEM_BYTES, SENT = 4, 60  # of a float32; the elements that a simulated run really adds up
FITTED_REPEATS, FITTED_STEPS = (0, 1), (1, 32)


@dataclass(frozen=True)
class Row:
    """One run.

    Attributes:
        bandwidth_bytes_s: The nominal one.
        steps: Steps of computing in the window that was measured, local_steps of them before each synchronisation.
        compute_s, wall_s: Of the whole window.
        utilisation: compute_s / wall_s, as it is published.
    """

    algorithm: str
    local_steps: int
    bandwidth_bytes_s: float
    repeat: int
    world_size: int
    nbytes: int
    steps: int
    synchronisations: int
    compute_s: float
    wall_s: float
    utilisation: float

    @property
    def is_fitted(self) -> bool:
        """Whether links are fitted to this row; else they are judged by it."""
        return self.repeat in FITTED_REPEATS and self.local_steps in FITTED_STEPS

    def reading(self) -> SyncReading:
        """What one of its synchronisations took: all that was not computing."""
        seconds = (self.wall_s - self.compute_s) / self.synchronisations
        return SyncReading(seconds, self.nbytes, self.bandwidth_bytes_s, self.world_size, self.local_steps)


def read_rows(path=ROWS):
    """All runs of the file."""
    with open(path, newline="") as file:
        return [
            Row(
                line["algorithm"],
                int(line["local_steps"]),
                int(line["bandwidth_bit_s"]) / 8,
                int(line["repeat"]),
                int(line["world_size"]),
                int(line["parameters"]) * ITEM_BYTES,
                int(line["steps"]),
                int(line["syncs"]),
                float(line["compute_ms_sum"]) / 1e3,
                float(line["wall_ms_sum"]) / 1e3,
                float(line["utilisation"]),
            )
            for line in csv.DictReader(file)
        ]


def predicted(row, link):
    """The utilisation of a run on the virtual cluster, with this link.

    The ranks really add up SENT elements instead of millions, over a link that is as much slower.
    """
    sent = np.zeros(SENT, np.float32)
    slower = replace(link, bandwidth_bytes_s=link.bandwidth_bytes_s * sent.nbytes / row.nbytes)
    cluster = Cluster((RankCost(row.compute_s / row.steps, 0.0),) * row.world_size, slower)

    def work(comm):
        for step in range(1, row.steps + 1):
            comm.clock.compute(1)
            if step % row.local_steps == 0:
                comm.all_reduce(sent.copy()).wait()

    work_s = simulate.run(work, cluster).ranks[0].steps
    return sum(step.compute_s for step in work_s) / math.fsum(step.end_s - step.begin_s for step in work_s)


def errors(rows, link_of):
    """The error of each row, with the link that link_of(row) gives."""
    return [abs(predicted(row, link_of(row)) / row.utilisation - 1.0) for row in rows]


def nominal(row):
    """The link as it is sold: nothing fitted."""
    return Link(bandwidth_bytes_s=row.bandwidth_bytes_s)


def fitted(rows):
    """For each bandwidth a link that is fitted to rows of it."""
    bandwidths = sorted({row.bandwidth_bytes_s for row in rows})
    of = {each: [row.reading() for row in rows if row.bandwidth_bytes_s == each] for each in bandwidths}
    return {each: Link.fit(readings) for each, readings in of.items()}


def fitted_once(rows):
    """For each bandwidth a link, with one set of numbers that is fitted to all rows."""
    readings = [row.reading() for row in rows]
    return {each: Link.fit(readings, bandwidth_bytes_s=each) for each in sorted({r.bandwidth_bytes_s for r in rows})}


def compare(rows):
    """The errors of each link in turn, and what was fitted.

    Returns:
        {bandwidth: {"nominal": errors of all its rows, "fitted": and "one fit": of those that are judged}}, and the
        links of both fits by bandwidth.
    """
    fitting, links = [row for row in rows if row.is_fitted], {}
    links["fitted"], links["one fit"] = fitted(fitting), fitted_once(fitting)
    found = {}
    for bandwidth in sorted({row.bandwidth_bytes_s for row in rows}):
        here = [row for row in rows if row.bandwidth_bytes_s == bandwidth]
        judged = [row for row in here if not row.is_fitted]
        found[bandwidth] = {"nominal": errors(here, nominal)}
        for name, of in links.items():
            found[bandwidth][name] = errors(judged, lambda row: of[row.bandwidth_bytes_s])
    return found, links


def table(found, links):
    """The comparison as lines of Markdown."""
    names = {"nominal": "as sold, all 64 runs", "fitted": "a fit for each link", "one fit": "one fit for all"}
    head = ["Link", *names.values(), "efficiency", "skew, ms a step"]
    lines = [f"| {' | '.join(head)} |", "| --- |" + " ---: |" * (len(head) - 1)]
    for bandwidth, kinds in found.items():
        link = links["fitted"][bandwidth]
        cells = [_cell(kinds[name]) for name in names]
        cells += [f"{link.efficiency:.2f}", f"{link.skew_s_per_step * 1e3:.1f}"]
        lines.append(f"| {bandwidth * 8 / 1e6:,.0f} Mbit/s | {' | '.join(cells)} |")
    link = next(iter(links["one fit"].values()))
    cells = [_cell([error for kinds in found.values() for error in kinds[name]]) for name in names]
    lines.append(f"| all four | {' | '.join(cells)} | {link.efficiency:.2f} | {link.skew_s_per_step * 1e3:.1f} |")
    return lines


def _cell(found):
    return f"{100 * sum(found) / len(found):.1f} % (at worst {100 * max(found):.1f})"


if __name__ == "__main__":
    print("Error of the utilisation on average:\n")
    print("\n".join(table(*compare(read_rows()))))
