"""Make the page of a collective's schedule: who holds which partial sums, round by round, and what travels."""

from __future__ import annotations

import argparse
from pathlib import Path

from minigrad.distributed.algorithms import CollectiveSchedule, draw, hierarchical
from minigrad.distributed.algorithms.known import FLAT
from minigrad.distributed.inspect.page.schedules import save_page_of_schedule
from minigrad.errors import ArgumentError


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("algorithm", choices=(*FLAT, "hierarchical"), help="how the all_reduce goes")
    parser.add_argument("world_size", type=int, help="the number of ranks")
    parser.add_argument("--ranks-per-node", type=int, help="of hierarchical: ranks that share a node")
    parser.add_argument("--inner", choices=tuple(FLAT), help="of hierarchical: within nodes; by default a ring")
    parser.add_argument("--outer", choices=tuple(FLAT), help="of hierarchical: between nodes; by default a ring")
    parser.add_argument("-o", "--output", type=Path, help="the page; by default ring-4.html, of the ring of 4")
    parser.add_argument("--text", action="store_true", help="print it as text instead")


def carry_out(options: argparse.Namespace) -> int:
    """Write the page, and say where; or print the text.

    Raises:
        ArgumentError: a number out of its range, options that another algorithm has, or more than can be drawn.
        OSError: the file cannot be written.
    """
    schedule = _chosen(options)
    if options.text:
        print(draw(schedule))
        return 0
    output = options.output or Path(f"{options.algorithm}-{options.world_size}.html")
    save_page_of_schedule(schedule, output)
    print(output)
    return 0


def _chosen(options: argparse.Namespace) -> CollectiveSchedule:
    levels = {name: getattr(options, name) for name in ("inner", "outer") if getattr(options, name) is not None}
    nodes = options.ranks_per_node
    if options.algorithm == "hierarchical":
        if nodes is None:
            raise ArgumentError("schedule: expected --ranks-per-node with hierarchical, got none")
        return hierarchical(options.world_size, nodes, **levels)
    if nodes is not None or levels:
        raise ArgumentError(f"schedule: expected options of nodes with hierarchical only, got {options.algorithm}")
    return FLAT[options.algorithm](options.world_size)
