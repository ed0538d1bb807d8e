"""What a schedule costs on a network. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from minigrad.arguments import as_integer
from minigrad.distributed.algorithms.play import check_schedule
from minigrad.distributed.algorithms.schedule import CollectiveSchedule
from minigrad.distributed.simulate.cluster import Cluster, check_cluster
from minigrad.distributed.simulate.links import Link
from minigrad.errors import ArgumentError


def cost(
    schedule: CollectiveSchedule,
    cluster: Cluster,
    size: int,
    itemsize: int = 4,
    links: Mapping[tuple[int, int], Link] | None = None,
) -> float:
    """Seconds from when all ranks begin a schedule to when the last has what it should.

    A rank sends one message after the other and, at the same time, takes one after the other; each takes
    `Link.message_s`. It enters a round when it has done its part of the one before, whatever others do. Combining what
    arrived takes no time.

    Args:
        size: Elements of the array, >= 0.
        itemsize: Bytes of one, >= 1.
        links: From one rank to another, (source, target), where it is not the cluster's link.

    Raises:
        ArgumentError: a number out of its range, a schedule for another number of ranks, or a link between others.

    Example:
        >>> from minigrad.distributed.algorithms import ring
        >>> cluster = Cluster.of_speeds([1] * 4, link=Link(latency_s=1.0, bandwidth_bytes_s=4.0))
        >>> cost(ring(4), cluster, 8)  # 6 messages of 8 bytes
        18.0
    """
    check_cluster("cost", cluster)
    check_schedule("cost", schedule, cluster.world_size)
    as_integer("cost", "size", size, 0)
    as_integer("cost", "itemsize", itemsize, 1)
    special = _checked({} if links is None else links, cluster.world_size)
    done = [0.0] * cluster.world_size
    for transfers in schedule.rounds:
        out, into = list(done), list(done)
        for source, target, chunk, _ in transfers:
            nbytes = chunk.count(size) * itemsize
            link = special.get((source, target))
            takes_s = cluster.link.message_s(nbytes, source, target) if link is None else link.message_s(nbytes)
            out[source] = into[target] = max(out[source], into[target]) + takes_s
        done = [max(pair) for pair in zip(out, into)]
    begun = bool(size and schedule.rounds)
    return max(done) + (cluster.link.ramp_s if begun else 0.0)


def _checked(links: Mapping[tuple[int, int], Link], world_size: int) -> dict[tuple[int, int], Link]:
    if not isinstance(links, Mapping):
        raise ArgumentError(f"cost: expected links as a dict from (source, target) to a Link, got {links!r:.100}")
    for pair, link in links.items():
        fits = isinstance(pair, tuple) and len(pair) == 2 and all(rank in range(world_size) for rank in pair)
        if not fits or not isinstance(link, Link):
            raise ArgumentError(
                f"cost: expected links as a Link for a (source, target) below {world_size}, got {pair!r}: {link!r:.80}"
            )
    return dict(links)
