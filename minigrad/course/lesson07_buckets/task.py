"""What you write: a plan of buckets, and how large they should be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minigrad.distributed.simulate import Cluster


def get_bucket_plan(params: Sequence[Any], cap_bytes: int, first_cap_bytes: int) -> list[list[int]]:
    """Cut the gradients of a model into buckets, each of which travels as one array.

    The plan is a pure function of its arguments: every rank calls it for itself, and all have to get the same. It
    changes nothing that it is given.

    1. Every parameter that requires grad is in exactly one bucket, the others in none.
    2. Gradients of one dtype on one device are a kind; a bucket holds gradients of one kind.
    3. Within a bucket, and from bucket to bucket of one kind, indices go down: backward completes the parameter that
       was registered last first.
    4. A bucket has at most cap_bytes, the first bucket of each kind at most first_cap_bytes; only a bucket of one
       single gradient may be larger. A gradient has as many bytes as its parameter.
    5. A bucket is closed only when the next gradient of its kind does not fit in.
    6. The buckets of all kinds come in the order in which they are complete where gradients become complete from the
       last index to the first.

    Args:
        params: In order of registration, as `list(module.parameters())`. Of each only this is used:
            `param.numel()`      its elements
            `param.dtype`        a NumPy dtype; `param.dtype.itemsize` is the bytes of an element
            `param.device`       compares with ==, and can be a key of a dict
            `param.requires_grad`
        cap_bytes: > 0.
        first_cap_bytes: > 0.

    Returns:
        A list of buckets; each is a list of indices into params. No bucket is empty.

    Example:
        Five float32 parameters on one device, of 100, 50, 50, 10 and 10 elements; the fourth is frozen.

        >>> from minigrad import nn, zeros
        >>> params = [nn.Parameter(zeros(n)) for n in (100, 50, 50, 10, 10)]
        >>> params[3].requires_grad = False
        >>> get_bucket_plan(params, cap_bytes=400, first_cap_bytes=100)
        [[4], [2, 1], [0]]
    """
    raise NotImplementedError


def best_cap_bytes(nbytes: Sequence[int], cluster: Cluster, samples: int) -> int:
    """Choose the size of buckets with which a step of overlapped data-parallel training is fastest on a cluster.

    The buckets are those of `get_bucket_plan(params, cap_bytes, cap_bytes)`, for parameters of one kind. A step goes
    like this, all ranks beginning at 0:

    - First 8 bytes are all-reduced, the number of samples; forward runs meanwhile.
    - Rank r computes for `cluster.compute_s(r, samples, 0)` seconds. The last `cluster.backward_fraction` of that is
      backward, in which gradients become complete from the last to the first, as their bytes go: when a third of all
      bytes are complete, a third of the backward is over.
    - A bucket can travel once its gradients are complete on all ranks; the ranks compute in the same order, at their
      own speed. One bucket travels at a time, in order, after the 8 bytes. It needs

          cluster.link.cost_s("all_reduce", bytes_of_the_bucket, cluster.world_size)

      seconds.
    - The step is over when the last bucket is there. Packing, unpacking and the optimizer take no time here.

    The check runs this step with your cap, and with all others, on the virtual clock.

    Args:
        nbytes: Bytes of the gradient of each parameter, in order of registration, each > 0.
        cluster: `cluster.world_size` is >= 2; no rank has jitter.
        samples: Of each rank, > 0.

    Returns:
        A cap in bytes, > 0, whose step takes at most 1.02 times as long as that of the best cap.

    Example:
        On a link that is all latency one bucket is best, so any cap that holds everything:

        >>> from minigrad.distributed.simulate import Cluster, Link
        >>> cap = best_cap_bytes([800] * 10, Cluster.of_speeds([1, 1], link=Link(latency_s=1.0)), 8)
        >>> cap >= 8000
        True
    """
    raise NotImplementedError
