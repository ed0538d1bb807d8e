"""Do replicas still hold the same bits? One 64-bit fingerprint a tensor, compared in one small collective.

The fingerprint of n elements with bits b_0 .. b_(n-1), in C order and zero-extended to 64 bits, is

    Σ_i mix(b_i + (i + 1) · 0x9E3779B97F4A7C15)  mod 2**64

    mix(z):  z = (z ^ z >> 30) · 0xBF58476D1CE4E5B9  mod 2**64
             z = (z ^ z >> 27) · 0x94D049BB133111EB  mod 2**64
             z ^ z >> 31

so each element adds the (i+1)-th output of a SplitMix64 generator that starts at its bits (Steele, Lea and Flood,
"Fast splittable pseudorandom number generators", OOPSLA 2014). A sum does not depend on the order of its terms, so
any split of the work, over threads of a GPU say, gives the same number. mix is a bijection: a change of one element
always changes the fingerprint; other changes go unnoticed with probability 2**-64.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minigrad.arguments import as_integer, check_switch
from minigrad.backend.device import array_module, to_host
from minigrad.backend.dtypes import Array
from minigrad.backend.fused.bits import fingerprint_of_bits
from minigrad.backend.kernels import kernels_for
from minigrad.distributed.comm.protocol import Communicator
from minigrad.errors import DtypeError, ReplicaMismatchError
from minigrad.nn.module import Module
from minigrad.tensor import Tensor

_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_CHUNK = 32768  # elements at a time, which stay in the cache
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def fingerprint(array: Array, start: int = 0) -> Array:
    """The fingerprint of an array's bits, see above; NaNs of different payload and zeros of different sign differ.

    Shapes:
        array: any, output: () of uint64, on the array's device

    Args:
        array: Elements of 1, 2, 4 or 8 bytes.
        start: Number of elements before this array, where it is a part of a larger one: the fingerprint of the whole
            is the sum of those of its parts.

    Raises:
        DtypeError: elements of another size.

    Example:
        >>> a = np.arange(4.0)
        >>> bool(fingerprint(a) == fingerprint(a[:1]) + fingerprint(a[1:], start=1))
        True
    """
    xp = array_module(array)
    word = _WORDS.get(array.dtype.itemsize)
    if word is None or array.dtype.kind == "O":
        raise DtypeError(f"fingerprint: expected elements of 1, 2, 4 or 8 bytes, got {array.dtype.name}")
    bits = xp.ascontiguousarray(array).reshape(-1).view(word)
    if kernels_for(bits) is not None:
        return fingerprint_of_bits(bits, start)
    total = xp.zeros((), np.uint64)
    size = min(bits.size, _CHUNK)
    steps = xp.arange(1, size + 1, dtype=np.uint64) * np.uint64(_GAMMA)
    scratch = xp.empty(size, np.uint64)
    for begin in range(0, bits.size, _CHUNK):
        part = bits[begin : begin + _CHUNK]
        offset = np.uint64((start + begin) * _GAMMA % 2**64)
        z = steps[: part.size] + offset
        z += part
        _mix(z, scratch[: part.size])
        total += z.sum(dtype=np.uint64)
    return total


def _mix(z: Array, scratch: Array) -> None:
    """Apply mix to every element, in place."""
    xp = array_module(z)
    for shift, factor in ((30, _FIRST), (27, _SECOND), (31, None)):
        xp.right_shift(z, np.uint64(shift), out=scratch)
        z ^= scratch
        if factor is not None:
            z *= np.uint64(factor)


def module_fingerprints(module: Module, *, buffers: bool = True) -> tuple[list[str], Array]:
    """The names of a module's parameters and buffers, each tensor once, and their fingerprints.

    Shapes:
        fingerprints: (tensors,) of uint64, on the module's device

    Args:
        buffers: Whether buffers count.
    """
    named: list[tuple[str, Tensor]] = [(f"parameter {name}", p) for name, p in module.named_parameters()]
    if buffers:
        named += [(f"buffer {name}", b) for name, b in module.named_buffers()]
    names = [name for name, _ in named]
    if not named:
        return names, np.zeros(0, np.uint64)
    with named[0][1].device.current() as xp:
        return names, xp.stack([fingerprint(tensor.data) for _, tensor in named])


def _gathered(module: Module, comm: Communicator, buffers: bool) -> tuple[list[str], np.ndarray[Any, Any]]:
    """Names, and the fingerprints of all ranks: (world_size, tensors), on the host."""
    names, mine = module_fingerprints(module, buffers=buffers)
    xp = array_module(mine)
    everyone = xp.empty(comm.world_size * len(names), np.uint64)
    comm.all_gather(everyone, mine).wait(host=True)
    return names, to_host(everyone).reshape(comm.world_size, len(names))


def replicas_agree(module: Module, comm: Communicator, *, buffers: bool = True) -> bool:
    """Whether all ranks hold the same bits in every parameter and buffer; all ranks call it together.

    Args:
        module: This rank's replica.
        buffers: Whether buffers count: those that every rank updates from its own batches differ by right.

    Example:
        >>> from minigrad import nn, distributed
        >>> distributed.run(lambda comm: replicas_agree(nn.BatchNorm1d(3), comm), 2)
        [True, True]
    """
    check_switch("replicas_agree", buffers=buffers)
    _, rows = _gathered(module, comm, buffers)
    return bool((rows == rows[0]).all())


def check_agreement(module: Module, comm: Communicator, step: int, *, buffers: bool = True) -> None:
    """Refuse replicas whose bits differ; all ranks call it together.

    Args:
        step: For the message.
        buffers: Whether buffers count.

    Raises:
        ReplicaMismatchError: on all ranks; it names the first tensor that differs, and which ranks agree.
    """
    names, rows = _gathered(module, comm, buffers)
    differing = np.flatnonzero((rows != rows[0]).any(axis=0))
    if differing.size:
        first = int(differing[0])
        raise ReplicaMismatchError(
            f"rank {comm.rank}: expected equal replicas at step {step}, got different bits in {names[first]} "
            f"({differing.size} of {len(names)} tensors differ): {_parties(rows[:, first])}"
        )


class ReplicaCheck:
    """Compares replicas in every so many passes.

    Args:
        module, comm: This rank's replica, and the ranks.
        every: Passes between two comparisons, >= 1; None never compares.

    Raises:
        ArgumentError: another cadence.
    """

    def __init__(self, module: Module, comm: Communicator, every: int | None) -> None:
        if every is not None:
            as_integer("DistributedDataParallel", "check_replicas_every, where it is not None,", every, 1)
        self.module, self.comm, self.every = module, comm, every
        self._passes = 0

    def after_pass(self, *, buffers: bool) -> None:
        """Compare where it is due; every rank calls it after each pass.

        Args:
            buffers: Whether buffers count.

        Raises:
            ReplicaMismatchError: see `check_agreement`; passes count from 1.
        """
        self._passes += 1
        if self.every is not None and self._passes % self.every == 0:
            check_agreement(self.module, self.comm, self._passes, buffers=buffers)


def _parties(column: np.ndarray[Any, Any]) -> str:
    """Which ranks agree with each other, the largest party first."""
    parties: dict[int, list[int]] = {}
    for rank, value in enumerate(column.tolist()):
        parties.setdefault(value, []).append(rank)
    ordered = sorted(parties.values(), key=lambda ranks: (-len(ranks), ranks))
    return "; ".join(
        f"rank {ranks[0]} has bits of its own" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} agree"
        for ranks in ordered
    )
