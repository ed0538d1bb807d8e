"""Collectives through which gradients flow back to the rank whose they are.

Each rank's loss L_r is the mean over its own n_r samples, and what is trained is their mean over all samples,
L = Σ n_r·L_r / Σ n_r: so gradients are combined. A row of rank s that was gathered is in the losses of all ranks. What
L says of it is Σ_r n_r·g_r / Σ n_r, g_r being what L_r says; when gradients are combined, what rank s passes on of it
is weighted by n_s / Σ n_r. So backward gives rank s

    Σ_r (n_r / n_s) · g_r

which for equal n is the plain sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from minigrad.absent import absent
from minigrad.arguments import as_samples
from minigrad.autograd.tape import Node, accumulate, backwards_under_way, leaves_of
from minigrad.backend.device import array_module, to_host
from minigrad.backend.dtypes import Array, is_half
from minigrad.distributed.comm.checks import check_array
from minigrad.distributed.comm.context import communicator_for
from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.ddp.combine import as_weight
from minigrad.distributed.ddp.reducer import reducers_of
from minigrad.errors import AutogradError, DtypeError, ShapeError
from minigrad.recording import is_grad_enabled
from minigrad.stamp import next_number
from minigrad.tensor import Tensor, record

_WHO = "distributed.nn.all_gather"


def all_gather(
    tensor: Tensor, group: Communicator | None = None, *, samples: float | None = None
) -> tuple[Tensor, ...]:
    """The tensors of all ranks, in order of rank, for losses that compare samples of all ranks; `cat` makes one.

    Its gradient is Σ_r (n_r / n_s) · g_r on rank s: g_r is what rank r's loss says of the rows of rank s, n_r what
    that loss is a mean over. With it the combined gradients are those of one device with all samples, whatever each
    rank's part, whether each loss is a mean over the rank's own rows or the same global mean on all ranks. n_r is known
    from the DistributedDataParallel that the backward reaches; without one it is `samples`.

    All ranks make the call, and all their backwards reach it: else the others raise, here or when they have waited.

    Shapes:
        tensor: (N, ...) with N >= 0, which may differ between ranks -> one for each rank, (N of that rank, ...)

    Args:
        group: The ranks; by default those of this context.
        samples: What this rank's loss is a mean over, where no wrapper counts it, as for `average_gradients`; by
            default N.

    Raises:
        ShapeError, DtypeError: no axis, or other shapes beyond it or another dtype than on rank 0; on all ranks.
        AutogradError: it requires grad on some ranks alone; on all. In backward: under `no_sync`, or any other way in
            which it is not known yet what the gradients will weigh; two wrappers that count differently; a rank whose
            rows the others use and whose gradients weigh nothing.

    Example:
        >>> from minigrad import cat, distributed, ones
        >>> def body(comm):
        ...     x = ones(1 + comm.rank, 2).requires_grad_()
        ...     everything = cat(all_gather(x))
        ...     everything.sum().backward()  # the same on both ranks, whose losses count 1/3 and 2/3
        ...     return everything.shape, x.grad.tolist()
        >>> distributed.run(body, 2)[0]
        ((3, 2), [[3.0, 3.0]])
    """
    comm = communicator_for(_WHO, group)
    if not isinstance(tensor, Tensor):
        raise DtypeError(f"{_WHO}: expected a tensor, got {type(tensor).__name__}")
    if samples is not None:
        samples = as_samples(_WHO, samples)
    wanted = tensor.requires_grad and is_grad_enabled()
    rows, name = _agree(comm, tensor, wanted)
    with comm.device.current():
        whole = _gathered(comm, tensor.data, rows)
    if wanted:
        for reducer in reducers_of([leaves_of(tensor.node or tensor)]):
            reducer.in_order = True
    out = record(whole, _all_gather_backward, (tensor,), (comm, rows, samples, name))
    stops = np.cumsum(rows).tolist()
    return tuple(out[stop - count : stop] for stop, count in zip(stops, rows))


def _agree(comm: Communicator, x: Tensor, wanted: bool) -> tuple[list[int], str]:
    """The rows of each rank, and a name of this call: a backward is not to meet that of another one."""
    facts: list[Any] = comm.all_gather_object([list(x.shape), x.dtype.name, wanted, next_number()])
    for rank, (shape, dtype, wants, _) in enumerate(facts):
        who = f"rank {comm.rank}: {_WHO}"
        if not shape or shape[1:] != facts[0][0][1:]:
            raise ShapeError(
                f"{who}: expected tensors of one shape but for their rows, got {tuple(facts[0][0])} on rank 0 and "
                f"{tuple(shape)} on rank {rank}"
            )
        if dtype != facts[0][1]:
            raise DtypeError(f"{who}: expected one dtype, got {facts[0][1]} on rank 0 and {dtype} on rank {rank}")
        if wants != facts[0][2]:
            raise AutogradError(
                f"{who}: expected tensors that require grad on all ranks or on none, got requires_grad={facts[0][2]} "
                f"on rank 0 and {wants} on rank {rank}: within no_grad, or by detach(), on all of them"
            )
    return [shape[0] for shape, *_ in facts], f"{_WHO} {facts[0][-1]}"


def _gathered(comm: Communicator, own: Array, rows: Sequence[int]) -> Array:
    """The arrays of all ranks, one after the other; where they have different lengths they travel padded."""
    xp, most, rest = array_module(own), max(rows), own.shape[1:]
    sent = xp.zeros((most, *rest), own.dtype)
    sent[: len(own)] = own
    check_array(_WHO, comm.rank, sent)
    received = xp.empty((comm.world_size, most, *rest), own.dtype)
    comm.all_gather(received, sent).wait()
    if min(rows) == most:
        return received.reshape(-1, *rest) if most else received.reshape(0, *rest)
    return xp.concatenate([part[:count] for part, count in zip(received, rows)])


def _all_gather_backward(node: Node, grad: Array) -> None:
    comm, rows, samples, name = node.saved
    rank, xp = comm.rank, array_module(grad)
    weights = _weights(comm, _loss_weight(comm, float(rows[rank]), samples), name)
    total, own = sum(weights), weights[rank]
    stop = sum(rows[: rank + 1])
    if not total:
        accumulate(node.inputs[0], xp.zeros((rows[rank], *grad.shape[1:]), grad.dtype))
        return
    lost = [r for r, weight in enumerate(weights) if rows[r] and not weight]
    if lost:
        raise AutogradError(
            f"rank {rank}: {_WHO}: expected rows of ranks whose gradients count, got some of rank "
            f"{', '.join(map(str, lost))}, where no samples do: gather none there, or say with samples(n) what counts"
        )
    combined = grad.astype(np.float32 if is_half(grad.dtype) else grad.dtype, order="C")  # a copy
    comm.weighted_all_reduce(combined, as_weight(combined, own / total), f"{name}, backward").wait()
    mine = combined[stop - rows[rank] : stop]
    accumulate(node.inputs[0], (mine * (total / own if own else 0.0)).astype(grad.dtype, copy=False))


def _weights(comm: Communicator, own: float, name: str) -> list[float]:
    """What the losses of all ranks weigh."""
    with comm.device.current() as xp:
        weights = xp.zeros(comm.world_size, np.float64)
        weights[comm.rank] = own
        comm.all_reduce(weights, layout=f"{name}, weights in backward").wait()
    return to_host(weights).tolist()  # type: ignore[no-any-return]


def _loss_weight(comm: Communicator, rows: float, samples: float | None) -> float:
    """What this rank's loss weighs, up to a factor that all ranks share, in the backward under way.

    Wrappers that it reaches send what they have to send first: others may be at this very place.
    """
    reducers = reducers_of(backwards_under_way()[-1:])
    known = {reducer.loss_weight for reducer in reducers}
    who = f"rank {comm.rank}: {_WHO}"
    if any(reducer.own.mean and not reducer.syncing for reducer in reducers):
        raise AutogradError(
            f"{who}: expected a backward that combines gradients, got one that leaves them to a later one, as under "
            'no_sync, so nobody knows what they will weigh: call it outside, or wrap with reduce="sum"'
        )
    if len(known) > 1:
        raise AutogradError(f"{who}: expected wrappers that count alike, got {' and '.join(map(str, sorted(known)))}")
    if known and samples is not None and samples not in known:
        raise AutogradError(
            f"{who}: expected samples as the wrapper counts them, {known.pop():g}, got {samples:g}: leave it out, or "
            "say it with samples(n) of the wrapper"
        )
    for reducer in reducers:
        reducer.settle()
    return known.pop() if known else rows if samples is None else samples


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        raise absent("minigrad.distributed.nn", name)
