"""Steps of a simulation as lines of text, a character for each stretch of time. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from minigrad.distributed.record.spans import TimeSpan

SIGNS = {"compute": "#", "idle": ".", "exposed": "~", "wire": "="}
_KEY = "# computes   . waits for ranks   ~ waits for the wire   = the wire works"
Stretch = tuple[str, float, float]  # of a kind, from one moment to another


def plot_of(spans: Sequence[TimeSpan], ranks: int, steps: tuple[int, int], width: int) -> str:
    """Two lines for each rank: what it did, and what the wire did for it.

    A character stands for what took most of its time; a space where nothing took any.

    Args:
        spans: Of a trace, of the steps in [first, last).
        width: Characters of a line, beside the rank's name.
    """
    drawn = {rank: list(_stretches(span for span in spans if span.rank == rank)) for rank in range(ranks)}
    moments = [moment for own in drawn.values() for _, *times in own for moment in times]
    begin_s, end_s = min(moments, default=0.0), max(moments, default=0.0)
    which = f"step {steps[0]}" if steps[1] == steps[0] + 1 else f"steps {steps[0]} to {steps[1] - 1}"
    lines = [f"{which}: {end_s - begin_s:.6g} s, a character is {(end_s - begin_s) / width:.3g} s", _KEY]
    head = len(f"rank {ranks - 1}")
    for rank, own in drawn.items():
        for name, kinds in ((f"rank {rank}", ("compute", "idle", "exposed")), ("", ("wire",))):
            cells = _cells([each for each in own if each[0] in kinds], begin_s, end_s, width)
            lines.append(f"{name:{head}} |{cells}|")
    return "\n".join(lines)


def _stretches(spans: Iterable[TimeSpan]) -> Iterable[Stretch]:
    for span in spans:
        if span.kind == "wait":
            come_s = min(span.ended_s, span.began_s + span.fields["idle_s"])
            yield "idle", span.began_s, come_s
            yield "exposed", come_s, span.ended_s
        elif span.kind in SIGNS:
            yield span.kind, span.began_s, span.ended_s


def _cells(stretches: Iterable[Stretch], begin_s: float, end_s: float, width: int) -> str:
    """A character for each of so many stretches of equal length."""
    took = [dict[str, float]() for _ in range(width)]
    each_s = (end_s - begin_s) / width
    for kind, began_s, ended_s in stretches:
        if ended_s <= began_s:
            continue
        first = int((began_s - begin_s) / each_s)
        for cell in range(first, min(width, int((ended_s - begin_s) / each_s) + 1)):
            from_s, to_s = begin_s + cell * each_s, begin_s + (cell + 1) * each_s
            took[cell][kind] = took[cell].get(kind, 0.0) + max(0.0, min(ended_s, to_s) - max(began_s, from_s))
    least_s = 1e-9 * each_s  # of what only touches it
    return "".join(_sign(cell, least_s) for cell in took)


def _sign(took: dict[str, float], least_s: float) -> str:
    most = max(took, key=lambda kind: took[kind], default="")
    return SIGNS[most] if most and took[most] > least_s else " "
