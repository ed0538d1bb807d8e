"""The picture of lesson 6: for each parameter, in order of registration, when its gradient is complete."""

from __future__ import annotations

from typing import Any

from minigrad import nn
from minigrad.course.drawing import timeline
from minigrad.course.lesson06_ready.checks import Reused, batch, made
from minigrad.distributed import Communicator
from minigrad.distributed.simulate import Cluster, run

_SAMPLES = 30
_AFTER = 1 / 6  # of the step is shown after it, where all gradients are complete


def picture() -> str:
    """A row for forward and backward, and one for each parameter."""
    began_s, begin_s, end_s, ready_s = run(_body, Cluster.of_speeds([1.0])).results[0]
    order = sorted(ready_s, key=ready_s.__getitem__)
    after_s = end_s + _AFTER * (end_s - began_s)
    whole = [(began_s, begin_s, "forward", "forward"), (begin_s, end_s, "backward", "begin … end")]
    rows = [("this rank", whole)]
    for name, moment_s in ready_s.items():
        leaf = (moment_s, after_s, "complete", f"leaf, no. {order.index(name) + 1}")
        rows.append((name, [(begin_s, moment_s, "incomplete", ""), leaf]))
    in_ms = [(name, [(1e3 * a, 1e3 * b, kind, label) for a, b, kind, label in bars]) for name, bars in rows]
    return timeline("When each gradient is complete, in order of registration; `cell` is called three times", in_ms)


def _body(comm: Communicator) -> tuple[float, float, float, dict[str, float]]:
    """When forward, backward and the gradient of each parameter began, ended or became complete."""
    module: nn.Module = made(Reused)
    names = {id(param): name for name, param in module.named_parameters()}
    ready_s = dict.fromkeys(names.values(), 0.0)

    def note(leaf: Any) -> None:
        ready_s[names[id(leaf)]] = comm.clock.now_s()

    began_s = comm.clock.now_s()
    loss = module(batch(_SAMPLES)).mean()
    begin_s = comm.clock.now_s()
    loss.backward(on_leaf=note)
    return began_s, begin_s, comm.clock.now_s(), ready_s
