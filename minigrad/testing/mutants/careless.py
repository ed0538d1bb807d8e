"""Scripts that make a mistake on purpose, which minigrad has to refuse, and to say where it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minigrad import nn, optim
from minigrad.backend.random import manual_seed
from minigrad.distributed import DDP
from minigrad.testing.mutants.nets import Net
from minigrad.ops.creation import ones
from minigrad.ops.sampling import randn
from minigrad.tensor import Tensor
from minigrad.testing.mutants.watch import Onlooker


def _wrapped(comm: Any, watch: Onlooker, **options: Any) -> Any:
    manual_seed(watch.seed)
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4))
    ddp = DDP(net, comm, bucket_cap_bytes=64, timeline=watch.timeline, **options)
    watch.begin(ddp)
    return ddp


def around(comm: Any, watch: Onlooker) -> None:
    """The forward goes around the wrapper: nobody counts its samples."""
    ddp = _wrapped(comm, watch)
    watch.refused(lambda: ddp.module(randn(2, 3)).mean().backward())


def left_out(comm: Any, watch: Onlooker) -> None:
    """A backward leaves out a layer, which nobody has allowed."""
    manual_seed(watch.seed)
    ddp = DDP(Net(), comm, bucket_cap_bytes=64, timeline=watch.timeline)
    watch.begin(ddp)
    watch.refused(lambda: ddp(randn(2, 3), both=False).mean().backward())


def forgotten(comm: Any, watch: Onlooker) -> None:
    """Gradients set by hand, and nobody says what they weigh."""
    ddp = _wrapped(comm, watch, sync="manual")
    for param in ddp.parameters():
        param.grad = Tensor(np.full(param.shape, comm.rank, np.float32))
    watch.refused(ddp.sync_gradients)


def over_combined(comm: Any, watch: Onlooker) -> None:
    """A combined gradient is overwritten by hand, and combined once more."""
    ddp = _wrapped(comm, watch, sync="manual")
    ddp(ones(2, 3)).mean().backward()
    ddp.sync_gradients()
    weight = ddp.module[0].weight
    weight.grad = Tensor(np.full(weight.shape, comm.rank, np.float32))
    watch.refused(ddp.sync_gradients)


def left_forward(comm: Any, watch: Onlooker) -> None:
    """A forward without backward, and gradients set by hand."""
    ddp = _wrapped(comm, watch, sync="manual")
    ddp(ones(2 + comm.rank, 3))
    for param in ddp.parameters():
        param.grad = Tensor(np.full(param.shape, comm.rank, np.float32))
    watch.refused(ddp.sync_gradients)


def summed_twice(comm: Any, watch: Onlooker) -> None:
    """A backward onto a combined gradient, where gradients are sums."""
    ddp = _wrapped(comm, watch, reduce="sum")
    ddp(ones(2, 3)).sum().backward()
    watch.refused(lambda: ddp(ones(2, 3)).sum().backward())


def nested(comm: Any, watch: Onlooker) -> None:
    """A backward within a backward, and the error is caught."""
    ddp = _wrapped(comm, watch)

    def again(leaf: Any) -> None:
        if leaf is ddp.module[1].bias:
            watch.refused(lambda: ddp(ones(1, 3)).mean().backward())

    watch.refused(lambda: ddp(ones(2, 3)).mean().backward(on_leaf=again))


def early_step(comm: Any, watch: Onlooker) -> None:
    """An optimizer steps while backward is under way."""
    ddp = _wrapped(comm, watch)
    optimizer = optim.SGD(ddp.parameters(), lr=0.1)

    def step(leaf: Any) -> None:
        if leaf is ddp.module[0].weight:
            watch.refused(optimizer.step)

    ddp(ones(2, 3)).mean().backward(on_leaf=step)


def changed(comm: Any, watch: Onlooker) -> None:
    """A gradient is halved once its bucket has gone out."""
    ddp = _wrapped(comm, watch)

    def halve(leaf: Any) -> None:
        if leaf is ddp.module[0].weight:
            ddp.module[1].weight.grad *= 0.5

    watch.refused(lambda: ddp(ones(2, 3)).mean().backward(on_leaf=halve), named=False)


def moved(comm: Any, watch: Onlooker) -> None:
    """A parameter is replaced by another one behind the wrapper's back."""
    ddp = _wrapped(comm, watch)
    ddp.module[0].weight.data = ddp.module[0].weight.data.copy()
    watch.refused(lambda: ddp(ones(2, 3)).mean().backward())


def frozen_late(comm: Any, watch: Onlooker) -> None:
    """A parameter is frozen that has accumulated a gradient."""
    ddp = _wrapped(comm, watch)
    with ddp.no_sync():
        ddp(ones(2, 3)).mean().backward()
    ddp.module[0].bias.requires_grad_(False)
    watch.refused(lambda: ddp(ones(2, 3)).mean().backward())


def frozen_alone(comm: Any, watch: Onlooker) -> None:
    """One rank freezes a parameter, the others do not."""
    ddp = _wrapped(comm, watch)
    if comm.rank == 1:
        ddp.module[0].bias.requires_grad_(False)
    watch.refused(lambda: ddp(ones(2, 3)).mean().backward())


def other_shapes(comm: Any, watch: Onlooker) -> None:
    """One rank has a wider model than the others."""
    manual_seed(watch.seed)
    watch.refused(lambda: DDP(nn.Linear(3, 4 + (comm.rank == 1)), comm))


def other_options(comm: Any, watch: Onlooker) -> None:
    """One rank combines by hand, the others in backward."""
    manual_seed(watch.seed)
    watch.refused(lambda: DDP(nn.Linear(3, 4), comm, sync="manual" if comm.rank == 1 else "auto"))


def other_rate(comm: Any, watch: Onlooker) -> None:
    """The optimizer of one rank has another learning rate."""
    ddp = _wrapped(comm, watch)
    optimizer = optim.Adam(ddp.parameters(), lr=0.5 if comm.rank == 1 else 0.25)

    def step() -> None:
        for _ in range(2):
            optimizer.zero_grad()
            ddp(ones(2, 3)).mean().backward()
            optimizer.step()

    watch.refused(step)


def other_axis(comm: Any, watch: Onlooker) -> None:
    """One rank counts its samples along another axis."""
    ddp = _wrapped(comm, watch)
    if comm.rank == 1:
        ddp.batch_dim = 1
    watch.refused(lambda: ddp(ones(2, 3)).mean().backward())


def other_order(comm: Any, watch: Onlooker) -> None:
    """Two wrappers of equal models, which one rank uses in another order."""
    manual_seed(watch.seed)
    first, second = DDP(nn.Linear(3, 4), comm), DDP(nn.Linear(3, 4), comm)
    order = (second, first) if comm.rank == 1 else (first, second)

    def train() -> None:
        for ddp in order:
            ddp(ones(2, 3)).mean().backward()

    watch.refused(train)


def failing(comm: Any, watch: Onlooker) -> None:
    """One rank fails in backward, and catches its error."""
    ddp = _wrapped(comm, watch)

    def fail(leaf: Any) -> None:
        if comm.rank == 1:
            raise ZeroDivisionError("a rank fails")

    watch.refused(lambda: ddp(ones(2, 3)).mean().backward(on_leaf=fail))
    watch.refused(lambda: ddp(ones(2, 3)).mean().backward())


def all_failing(comm: Any, watch: Onlooker) -> None:
    """All ranks fail alike in backward, and go on with the next step."""
    ddp = _wrapped(comm, watch)

    def fail(leaf: Any) -> None:
        raise ZeroDivisionError("all ranks fail")

    watch.refused(lambda: ddp(ones(2 + comm.rank, 3)).mean().backward(on_leaf=fail))
    ddp.zero_grad()
    x = randn(1 + comm.rank, 3)
    loss = ddp(x).square().mean()
    loss.backward()
    watch.say(f"{ddp.module[1].bias.grad.numpy().round(5).tolist()}")
    watch.step(x, loss)


def refused_alike(comm: Any, watch: Onlooker) -> None:
    """All ranks go around the wrapper, then all go on as they should."""
    ddp = _wrapped(comm, watch)
    watch.refused(lambda: ddp.module(randn(2, 3)).mean().backward())
    ddp.zero_grad()
    x = randn(1 + comm.rank, 3)
    loss = ddp(x).square().mean()
    loss.backward()
    watch.say(f"{ddp.module[1].bias.grad.numpy().round(5).tolist()}")
    watch.step(x, loss)


CARELESS: dict[str, Callable[[Any, Onlooker], None]] = {
    f"careless: {name}": train
    for name, train in {
        "around the wrapper": around,
        "a layer left out": left_out,
        "gradients by hand": forgotten,
        "over a combined one": over_combined,
        "a forward is left": left_forward,
        "summed twice": summed_twice,
        "a nested backward": nested,
        "an early step": early_step,
        "a changed gradient": changed,
        "a moved parameter": moved,
        "frozen late": frozen_late,
        "frozen on one rank": frozen_alone,
        "other shapes": other_shapes,
        "other options": other_options,
        "another rate": other_rate,
        "another axis": other_axis,
        "another order": other_order,
        "one fails": failing,
        "all fail": all_failing,
        "all are refused": refused_alike,
    }.items()
}
