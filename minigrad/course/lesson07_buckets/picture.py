"""The picture of lesson 7: the time of a step by the number of its buckets, on three links."""

from __future__ import annotations

from minigrad.course.drawing import curves
from minigrad.course.lesson07_buckets.checks import step_s
from minigrad.distributed.simulate import Cluster, Link

_ELEMENTS = [2000] * 12
_COUNTS = (1, 2, 3, 4, 6, 12)
_LINKS = {
    "a message costs much, a byte little": Link(latency_s=2e-3, bandwidth_bytes_s=1e10),
    "both cost": Link(latency_s=6e-4, bandwidth_bytes_s=3e7),
    "a byte costs much, a message little": Link(latency_s=3e-6, bandwidth_bytes_s=2e7),
}


def lines() -> dict[str, list[tuple[float, float]]]:
    """For each link milliseconds of a step by the number of buckets of equal size."""
    found = {}
    for name, link in _LINKS.items():
        cluster = Cluster.of_speeds([1, 1], link=link)
        caps = {count: 8 * sum(_ELEMENTS) // count for count in _COUNTS}
        found[name] = [(float(count), 1e3 * step_s(_ELEMENTS, cap, cluster)) for count, cap in caps.items()]
    return found


def picture() -> str:
    """A line for each link."""
    title = "A step of two ranks by the number of buckets; computing alone takes 16 ms"
    return curves(title, lines(), x="buckets", y="ms")
