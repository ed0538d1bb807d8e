"""Data-parallel training from nothing, in five steps, each asserted equal to `DDP` before the next.

    python examples/02_ddp_by_hand.py                                                   two threads
    python examples/02_ddp_by_hand.py --ranks 3
    python -m minigrad.distributed.launch -n 2 examples/02_ddp_by_hand.py               two processes

Every rank has a replica of one model, and a part of each batch. After backward it holds the gradient of the mean loss
over its own part; what all of them need is that of the mean over the whole batch. Each of the five functions leaves
it in `grad`, and returns how many collectives that took.

Steps 2 to 5 have the bits of DDP: the same products are added up over the ranks in the same order, in whatever
message they travel. Step 1 divides a sum, where DDP adds up what was divided; to divide by a power of two rounds
nothing, so with two ranks or four the bits are the same; else they agree to 1e-12. The fifth step is what
`distributed/ddp/passes.py` does. DDP differs in four points: the counts travel while backward runs, where step 5
waits for them first; gradients lie side by side from the start, so that nothing is packed or unpacked; ranks without
samples, accumulation and GPUs are cared for; and what would go wrong in silence is refused, most of it in
`distributed/ddp/reducer.py`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import numpy as np

import minigrad
from minigrad import Tensor, distributed, nn
from minigrad.distributed import DDP, Communicator
from minigrad.nn import Parameter

Bucket = list[Parameter]
BUCKET_ELEMENTS = 512  # at most, or one parameter; DDP takes 25 MiB


def one_by_one(comm: Communicator, params: Bucket, loss: Tensor, samples: int) -> int:
    """Step 1, the mean of each gradient over the ranks: right as long as all have equally many samples."""
    loss.backward()
    for param in params:
        add_up(comm, gradient(param)).div_(comm.world_size)
    return len(params)


def weighted(comm: Communicator, params: Bucket, loss: Tensor, samples: int) -> int:
    """Step 2, a rank counts as much as it has samples, whatever its part of the batch."""
    loss.backward()
    weight = weight_of(comm, samples)
    for param in params:
        add_up(comm, gradient(param).mul_(weight))
    return 1 + len(params)


def in_buckets(comm: Communicator, params: Bucket, loss: Tensor, samples: int) -> int:
    """Step 3, the gradients of several parameters travel as one: each message costs time, however short it is."""
    loss.backward()
    weight, buckets = weight_of(comm, samples), cut(params)
    for bucket in buckets:
        unpack(add_up(comm, packed(bucket, weight)), bucket)
    return 1 + len(buckets)


def from_events(comm: Communicator, params: Bucket, loss: Tensor, samples: int) -> int:
    """Step 4, backward itself tells which gradient is complete: a bucket goes out as soon as its last one is."""
    weight, buckets = weight_of(comm, samples), cut(params)

    def launch(bucket: Bucket) -> None:
        unpack(add_up(comm, packed(bucket, weight)), bucket)

    loss.backward(on_leaf=when_complete(buckets, launch))
    return 1 + len(buckets)


def overlapped(comm: Communicator, params: Bucket, loss: Tensor, samples: int) -> int:
    """Step 5, backward goes on while buckets travel: nobody waits for them before it is over."""
    weight, buckets, under_way = weight_of(comm, samples), cut(params), []

    def launch(bucket: Bucket) -> None:
        flat = packed(bucket, weight)
        under_way.append((comm.all_reduce(flat.data), flat, bucket))

    loss.backward(on_leaf=when_complete(buckets, launch))
    for work, flat, bucket in under_way:
        work.wait()
        unpack(flat, bucket)
    return 1 + len(buckets)


# ---------------------------------------------------------------------------------------------------- their parts


def gradient(param: Parameter) -> Tensor:
    """The gradient, which backward has left there."""
    assert param.grad is not None
    return param.grad


def add_up(comm: Communicator, x: Tensor) -> Tensor:
    """Overwrite a tensor by its sum over the ranks."""
    comm.all_reduce(x.data).wait()
    return x


def weight_of(comm: Communicator, samples: int) -> float:
    """This rank's samples, as a fraction of those of all ranks."""
    total = add_up(comm, minigrad.full((1,), samples, dtype="float64", device=comm.device))
    return samples / float(total.item())


def cut(params: Bucket) -> list[Bucket]:
    """Buckets, from the last parameter to the first: backward completes the last layer's first."""
    buckets: list[Bucket] = []
    for param in reversed(params):
        if buckets and sum(each.numel() for each in [*buckets[-1], param]) <= BUCKET_ELEMENTS:
            buckets[-1].append(param)
        else:
            buckets.append([param])
    return buckets


def packed(bucket: Bucket, weight: float) -> Tensor:
    """The weighted gradients of a bucket, one after the other."""
    return minigrad.cat([gradient(param).reshape(-1) for param in bucket]).mul_(weight)


def unpack(flat: Tensor, bucket: Bucket) -> None:
    """Back into the gradients."""
    start = 0
    for param in bucket:
        gradient(param).copy_(flat[start : start + param.numel()].reshape(param.shape))
        start += param.numel()


def when_complete(buckets: list[Bucket], launch: Callable[[Bucket], None]) -> Callable[[Tensor], None]:
    """What hears of complete gradients, and launches complete buckets; in order, since all ranks have to call alike."""
    missing = [{id(param) for param in bucket} for bucket in buckets]
    launched = 0

    def leaf(param: Tensor) -> None:
        nonlocal launched
        for ids in missing:
            ids.discard(id(param))
        while launched < len(buckets) and not missing[launched]:
            launch(buckets[launched])
            launched += 1

    return leaf


# ------------------------------------------------------------------------------------------------- beside DDP


def make_model(comm: Communicator) -> nn.Module:
    """The same values on every rank: (N, 2) -> (N, 1)."""
    minigrad.manual_seed(0)
    layers = nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)
    return nn.Sequential(*layers).to("float64").to(comm.device)


def beside_ddp(comm: Communicator, step: Callable[..., int], sizes: list[int]) -> tuple[int, float]:
    """The collectives of a step on parts of these sizes, and the largest difference of its gradients to DDP's."""
    points = np.random.default_rng(1).standard_normal((sum(sizes), 2))
    x = Tensor(np.split(points, np.cumsum(sizes))[comm.rank]).to(comm.device)
    target = x.square().sum(dim=1, keepdim=True)
    ours, theirs = make_model(comm), make_model(comm)
    collectives = step(comm, list(ours.parameters()), nn.functional.mse_loss(ours(x), target), len(x))
    ddp = DDP(theirs, comm, bucket_cap_bytes=8 * BUCKET_ELEMENTS)
    nn.functional.mse_loss(ddp(x), target).backward()
    pairs = zip(ours.parameters(), theirs.parameters())
    return collectives, max(float((gradient(a) - gradient(b)).abs().max().item()) for a, b in pairs)


def body(comm: Communicator) -> bool:
    """What every rank runs: the steps, one after the other, on equal parts and on unequal ones."""
    say = print if comm.rank == 0 else lambda *words: None
    equal, unequal = [16] * comm.world_size, [16 * (rank + 1) for rank in range(comm.world_size)]
    allowed = 0.0 if comm.world_size & (comm.world_size - 1) == 0 else 1e-12
    collectives, apart = beside_ddp(comm, one_by_one, equal)
    assert apart <= allowed, f"expected step 1 to be DDP on equal parts, got {apart} apart"
    _, wrong = beside_ddp(comm, one_by_one, unequal)
    assert wrong > 1e-3 or comm.world_size == 1, f"expected step 1 to be wrong on parts of {unequal}, got {wrong} apart"
    say(f"1 one_by_one:  {collectives} collectives; {apart:.1g} apart on equal parts, {wrong:.1g} on {unequal}")
    for number, step in enumerate((weighted, in_buckets, from_events, overlapped), 2):
        for sizes in (equal, unequal):
            collectives, apart = beside_ddp(comm, step, sizes)
            assert apart == 0.0, f"expected step {number} to have the bits of DDP, got {apart} apart on {sizes}"
        say(f"{number} {step.__name__ + ':':12} {collectives} collectives; the bits of DDP on both")
    return True


def main() -> int:
    """Run the steps on threads, or as the rank that a launcher started."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="thread ranks; a launcher's processes come instead")
    parser.add_argument("--smoke", action="store_true", help="changes nothing: it takes a second")
    options = parser.parse_args()
    comm = distributed.init()
    return 0 if all([body(comm)] if comm.world_size > 1 else distributed.run(body, options.ranks)) else 1


if __name__ == "__main__":
    sys.exit(main())
