"""Checks of lesson 6: what DDP saw, on models that one can't guess."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from minigrad import nn
from minigrad.backend.random import manual_seed
from minigrad.course.lesson import Student, expect
from minigrad.distributed import DDP, Communicator, SoloCommunicator
from minigrad.distributed.simulate import Cluster, run
from minigrad.tensor import Tensor

_WAITED_S = 0.25  # between forward and backward, on the virtual clock


class Branches(nn.Module):
    """Two branches that meet; what is used last was registered first, and one layer is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 1)
        self.left = nn.Linear(4, 8)
        self.unused = nn.Linear(4, 2)
        self.right = nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Any:
        """(N, 4) -> (N, 1)"""
        return self.head(self.right(x).tanh() * self.left(x).tanh())


class Reused(nn.Module):
    """A layer that is called three times, which one can read from no list of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.between = nn.Linear(6, 6)
        self.cell = nn.Linear(6, 6)
        self.last = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Any:
        """(N, 4) -> (N, 1)"""
        h = self.cell(self.first(x)).tanh()
        h = self.cell(self.between(h)).tanh()
        return self.last(self.cell(h).tanh())


class Tied(nn.Module):
    """The first and the last layer share a weight, under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(4, 4)
        self.middle = nn.Linear(4, 4)
        self.decoder = nn.Linear(4, 4)
        self.decoder.weight = self.encoder.weight

    def forward(self, x: Tensor) -> Any:
        """(N, 4) -> (N, 1)"""
        return self.decoder(self.middle(self.encoder(x).tanh()).tanh()).mean(dim=1, keepdim=True)


class Straight(nn.Module):
    """Layers of different sizes, one after the other, in order of registration."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Any:
        """(N, 4) -> (N, 1)"""
        return self.layers(x)


MODELS: tuple[type[nn.Module], ...] = (Straight, Branches, Reused, Tied)


def made(kind: type[nn.Module]) -> nn.Module:
    """One with the same values every time."""
    manual_seed(6)
    return kind()


def batch(samples: int = 5, requires_grad: bool = False) -> Tensor:
    """(samples, 4), the same every time."""
    x = Tensor(np.arange(4.0 * samples, dtype=np.float32).reshape(samples, 4) / 100)
    return x.requires_grad_(requires_grad)


# ----------------------------------------------------------------------------------------------- in which order


def check_ready_order(student: Student) -> str:
    """The names that DDP's statistics have, with a bucket for each parameter."""
    compared = 0
    for kind in MODELS:
        for with_input in (False, True):
            what = f"{kind.__name__}" + (", whose input requires grad too" if with_input else "")
            right, module = order_of_ddp(kind), made(kind)
            first = _order(student, module, what, right, with_input)
            expect(_gradients(module) == _reference(kind), _left(what))
            kept = list(first)
            _order(student, module, f"{what}, a second time", right, with_input)
            expect(_gradients(module) == _reference(kind, 2), _left(f"{what}, a second time, which adds to the first"))
            expect(
                first == kept,
                f"ready_order({what}): the list of the first call grew in the second backward: {first}: "
                "a hook that you registered is still there; remove it, or use backward(on_leaf=...)",
            )
            compared += len(right)
    return f"{2 * len(MODELS)} models, {compared} gradients, all in the order of DDP's own buckets"


def _order(student: Student, module: nn.Module, what: str, right: list[str], with_input: bool) -> list[str]:
    order: list[str] = student.ready_order(module, module(batch(requires_grad=with_input)).mean())
    expect(isinstance(order, list), f"ready_order({what}): a list of names should come, got {order!r:.80}")
    strange = [name for name in order if name not in dict(module.named_parameters())]
    expect(
        not strange,
        f"ready_order({what}): names of module.named_parameters() should come, got also {strange!r:.80}: "
        "a shared parameter goes by its first name, and an input is no parameter",
    )
    twice = sorted({name for name in order if order.count(name) > 1})
    expect(
        not twice,
        f"ready_order({what}): each name should come once, got {', '.join(twice)} more than once: a gradient "
        "is complete once, however often its layer was called",
    )
    unused = [name for name in order if name not in right]
    expect(
        not unused,
        f"ready_order({what}): only what backward reached should come, got {', '.join(unused)} too, on which "
        "the loss does not depend",
    )
    missing = [name for name in right if name not in order]
    expect(not missing, f"ready_order({what}): {', '.join(missing)} should be in the list, which has {order}")
    expect(order == right, f"ready_order({what}): {right} should come, got {order}: " + _why(module, order))
    return order


def _why(module: nn.Module, order: list[str]) -> str:
    """Which mistake makes such an order."""
    registered = [name for name in dict(module.named_parameters()) if name in order]
    if order == registered[::-1] or order == registered:
        return "that follows the order of registration; backward follows the graph"
    return "a gradient counts once the last contribution to it is there, not the first"


def _left(what: str) -> str:
    return (
        f"ready_order({what}): every parameter should have the gradient that loss.backward() leaves, got others: run "
        "backward once, on this loss, and leave .grad alone"
    )


def _gradients(module: nn.Module) -> list[list[float] | None]:
    return [None if param.grad is None else param.grad.reshape(-1).tolist() for param in module.parameters()]


def _reference(kind: type[nn.Module], backwards: int = 1) -> list[list[float] | None]:
    module = made(kind)
    for _ in range(backwards):
        module(batch()).mean().backward()
    return _gradients(module)


def order_of_ddp(kind: type[nn.Module]) -> list[str]:
    """In which order the buckets of a model became ready that DDP cut into one for each parameter."""
    module = made(kind)
    module(batch()).mean().backward()
    used = {name for name, param in module.named_parameters() if param.grad is not None}
    ddp = DDP(made(kind), SoloCommunicator(), bucket_cap_bytes=1, find_unused_parameters=True)
    ddp(batch()).mean().backward()
    buckets = [ddp.plan.buckets[index] for index in ddp.stats().ready_order]
    names = [ddp.plan.names[entry] for bucket in buckets for entry in bucket.entries]
    return [name for name in names if name in used]


# ------------------------------------------------------------------------------------------------- and when


def check_ready_fractions(student: Student) -> str:
    """The part of the bytes that is complete: so the virtual clock walks through a backward."""
    earliest = 1.0
    for kind in MODELS:
        right = fractions_of(kind)
        found, passed_s = _timed(student, kind)
        what = f"ready_fractions({kind.__name__}, after {_WAITED_S} s between forward and backward)"
        expect(isinstance(found, dict), f"{what}: a dict of fractions by name should come, got {found!r:.80}")
        expect(set(found) == set(right), f"{what}: {sorted(right)} should be in it, got {sorted(map(str, found))}")
        expect(list(found) == list(right), f"{what}: names in the order {list(right)} should come, got {list(found)}")
        backward_s = 5 * 0.01 * 2 / 3
        expect(
            abs(passed_s - backward_s) < 1e-9,
            f"{what}: {backward_s:.4f} s should pass on the clock, one backward, "
            f"got {passed_s:.4f} s: one backward runs, on the loss that was given",
        )
        worst = max(right, key=lambda name: abs(float(found[name]) - right[name]))
        expect(
            np.isclose(float(found[worst]), right[worst], rtol=0.0, atol=1e-9),
            f"{what}: {right[worst]:.4f} should come for {worst}, got {float(found[worst]):.4f}: "
            + _mistaken(found, right, worst),
        )
        earliest = min(earliest, *right.values())
    _expect_clock_is_read(student)
    return f"{len(MODELS)} models; the first gradient is complete after {earliest:.1%} of backward"


def _mistaken(found: dict[str, float], right: dict[str, float], worst: str) -> str:
    """Which mistake makes such a fraction."""
    count = len(right)
    if all(abs(float(found[name]) - (i + 1) / count) < 1e-9 for i, name in enumerate(right)):
        return "that counts gradients, and they do not take equally long: read the clock"
    if all(abs(float(found[name]) - (1.0 - right[name])) < 1e-9 for name in right):
        return "that is what is left of backward: 0 is its beginning"
    if all(found[name] == found[worst] for name in right):
        return "all have one moment: read the clock in on_leaf, while backward runs"
    if float(found[worst]) > right[worst]:
        return "the clock has run before backward began; only what passed since counts, over all that backward takes"
    return "divide by what the whole backward takes, from its beginning until it has returned"


def _expect_clock_is_read(student: Student) -> None:
    """Require other fractions on a clock whose backward does not take time by bytes."""
    found, passed_s = _timed(student, Straight, faster=2.0)
    ended_s = _WAITED_S + forward_s() + passed_s
    began_s = ended_s - passed_s
    for name, fraction in fractions_of(Straight).items():
        moment_s = began_s + fraction * passed_s
        right = (moment_s**2 - began_s**2) / (ended_s**2 - began_s**2)
        expect(
            abs(float(found[name]) - right) < 1e-9,
            f"ready_fractions(Straight, on a clock that goes faster and faster): {right:.4f} should come for {name}, "
            f"got {float(found[name]):.4f}: read the clock that you are given; not every backward takes time by bytes",
        )


def forward_s() -> float:
    """What a forward takes on the virtual clock: half of a backward."""
    return 5 * 0.01 / 3


def _timed(student: Student, kind: type[nn.Module], faster: float = 1.0) -> tuple[dict[str, float], float]:
    """What a student's function returns, and what passes on the virtual clock, of which it sees a power."""
    trace = run(_body, Cluster.of_speeds([1.0], per_sample_s=0.01), student, kind, faster)
    found: tuple[dict[str, float], float] = trace.results[0]
    return found


def _body(
    comm: Communicator, student: Student, kind: type[nn.Module], faster: float
) -> tuple[dict[str, float], float]:
    module = made(kind)
    loss = module(batch()).mean()
    comm.clock.advance(_WAITED_S)
    began_s = comm.clock.now_s()
    found = student.ready_fractions(module, loss, SimpleNamespace(now_s=lambda: comm.clock.now_s() ** faster))
    return found, comm.clock.now_s() - began_s


def fractions_of(kind: type[nn.Module]) -> dict[str, float]:
    """The bytes that are complete with each gradient, over those of all."""
    order, params = order_of_ddp(kind), dict(made(kind).named_parameters())
    done = np.cumsum([params[name].data.nbytes for name in order])
    return dict(zip(order, (done / done[-1]).tolist()))
