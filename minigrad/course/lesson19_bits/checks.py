"""Checks of lesson 19: bits of W = 1 for W in 2, 4, 8, of a sum, of a loader, and of a training with both."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minigrad import nn
from minigrad.backend.dtypes import Array
from minigrad.backend.random import manual_seed
from minigrad.course.lesson import Student, WrongError, expect
from minigrad.distributed import Communicator, ReduceOp, Work, Wrapper, run
from minigrad.tensor import Tensor

SHARDS, WORLDS, TIMEOUT_S = 8, (1, 2, 4, 8), 2.0
Shards = Sequence[Array]


class AddsFromTheLast(Wrapper):
    """Adds up over the ranks one after the other, the last one first: an order that a communicator may have."""

    def all_reduce(self, array: Array, op: ReduceOp = ReduceOp.SUM, layout: str = "") -> Work:
        """Overwrite array by its sum over the ranks."""
        everyone = np.empty((self.world_size, *array.shape), array.dtype)
        work = self.inner.all_gather(everyone, array)
        work.wait()
        array[...] = functools.reduce(np.add, everyone[::-1])
        return work

    def reduce_scatter(self, output: Array, source: Array, op: ReduceOp = ReduceOp.SUM) -> Work:
        """Overwrite output by this rank's part of the sum."""
        whole = np.array(source)
        work = self.all_reduce(whole, op)
        output[...] = whole.reshape(self.world_size, -1)[self.rank].reshape(output.shape)
        return work

    def reduce(self, array: Array, root: int = 0, op: ReduceOp = ReduceOp.SUM) -> Work:
        """Overwrite the root's array by the sum."""
        return self.all_reduce(array if self.rank == root else np.array(array), op)


def of_rank(shards: Sequence[Any], comm: Communicator) -> list[Any]:
    """The shards that a rank brings."""
    each = len(shards) // comm.world_size
    return list(shards[comm.rank * each : (comm.rank + 1) * each])


def tree(shards: Shards) -> Array:
    """The sum as the specification has it, written down for eight."""
    a, b, c, d, e, f, g, h = shards
    total: Array = ((a + b) + (c + d)) + ((e + f) + (g + h))
    return total


# -------------------------------------------------------------------------------------------------------- the sum


def check_sum_in_one_order(student: Student) -> str:
    """Bits of the tree, for each number of ranks, dtype and shape, on a communicator that adds in another order."""
    rng = np.random.default_rng(19)
    apart = 0
    for dtype, shape in itertools.product((np.float32, np.float64), ((257,), (3, 5))):
        drawn = [rng.standard_normal(shape) * 10.0 ** rng.uniform(-3, 3, shape) for _ in range(SHARDS)]
        shards = [value.astype(dtype) for value in drawn]
        kept, right = [part.copy() for part in shards], tree(shards)
        apart += int((right != functools.reduce(np.add, shards)).sum())
        for world_size in WORLDS:
            what = f"sum_in_one_order of {SHARDS} shards, {np.dtype(dtype).name} {shape}, on {world_size} ranks"
            for rank, total in enumerate(_sums(student, shards, world_size)):
                _expect_bits(f"{what}: rank {rank}", total, right, shards, world_size)
            same = all(np.array_equal(part, before) for part, before in zip(shards, kept))
            expect(same, f"{what}: expected the parts to stay as they are, got others: add into an array of your own")
    for count, world_size in ((2, 2), (4, 1), (16, 4)):
        shards = [rng.standard_normal(257).astype(np.float32) for _ in range(count)]
        what = f"sum_in_one_order of {count} shards, float32 (257,), on {world_size} ranks"
        for rank, total in enumerate(_sums(student, shards, world_size)):
            _expect_bits(f"{what}: rank {rank}", total, _halves(shards), shards, world_size)
    return f"the bits of one rank on 2, 4 and 8; one shard after the other would have given {apart} of 544 sums others"


def _halves(shards: Shards) -> Array:
    """The same for any power of two: the first half of the shards, and the second."""
    middle = len(shards) // 2
    return np.asarray(_halves(shards[:middle]) + _halves(shards[middle:])) if middle else shards[0]


def _sums(student: Student, shards: Shards, world_size: int) -> list[Any]:
    def body(comm: Communicator) -> Any:
        return student.sum_in_one_order(AddsFromTheLast(comm), of_rank(shards, comm))

    return run(body, world_size, timeout_s=TIMEOUT_S, blas_threads=1)


def _expect_bits(who: str, got: Any, right: Array, shards: Shards, world_size: int) -> None:
    expect(isinstance(got, np.ndarray), f"{who}: expected an array, got {type(got).__name__}")
    expect(
        (got.shape, got.dtype) == (right.shape, right.dtype),
        f"{who}: expected {right.dtype.name} of shape {right.shape}, got {got.dtype.name} of shape {got.shape}",
    )
    if got.tobytes() == right.tobytes():
        return
    at = int(np.flatnonzero(got != right)[0])
    raise WrongError(
        f"{who}: expected the bits of the tree, {right.flat[at]:.9g} in element {at}, got {got.flat[at]:.9g}: "
        f"{_mistake(got, shards, world_size)}"
    )


def _mistake(got: Array, shards: Shards, world_size: int) -> str:
    """Which other order these bits are of."""

    def one_by_one(values: Shards) -> Array:
        return functools.reduce(np.add, values)

    each = len(shards) // world_size
    groups = [list(shards[i : i + each]) for i in range(0, len(shards), each)]
    wide = _halves([part.astype(np.longdouble if part.dtype == np.float64 else np.float64) for part in shards])
    orders: dict[str, Callable[[], Array]] = {
        "those are the bits of adding one shard after the other: another number of ranks cuts that order elsewhere, "
        "and can't go on as it began": lambda: one_by_one(shards),
        "each rank added its own shards one after the other, where the tree has pairs": lambda: _fold(
            [one_by_one(group) for group in groups]
        ),
        "that was added up over the ranks by the communicator, in an order of its own": lambda: one_by_one(
            [_fold(group) for group in groups][::-1]
        ),
        "the ranks' sums were added one after the other, where the tree goes on in pairs": lambda: one_by_one(
            [_fold(group) for group in groups]
        ),
        "that was added up in a wider dtype and rounded once": lambda: wide.astype(got.dtype),
    }
    for words, bits in orders.items():
        if bits().tobytes() == got.tobytes():
            return words
    close = np.allclose(got, wide.astype(np.float64), rtol=1e-3, atol=1e-3)
    return "close, but added in another order" if close else "that is not the sum of all shards"


def _fold(values: Shards) -> Array:
    while len(values) > 1:
        values = [left + right for left, right in zip(values[0::2], values[1::2])]
    return values[0]


# ----------------------------------------------------------------------------------------------------- the loader

LENGTH, BATCH, SEED, EPOCH = 76, 16, 5, 2
SIZE, STEPS = BATCH // SHARDS, LENGTH // BATCH
Step = dict[int, tuple[list[int], list[float]]]  # shard -> its samples, and what its generator gives


def check_portable_batches(student: Student) -> str:
    """Each shard's samples and noise for any number of ranks, then a training with them."""
    whole = _epoch(student, 1)
    _expect_epoch(whole)
    for world_size in WORLDS[1:]:
        _expect_same(whole, _epoch(student, world_size), world_size)
    later, other = _epoch(student, 1, epoch=EPOCH + 1), _epoch(student, 1, seed=SEED + 1)
    _expect_apart(whole, later, f"epochs {EPOCH} and {EPOCH + 1}")
    _expect_apart(whole, other, f"seeds {SEED} and {SEED + 1}")
    _expect_own_noise(
        [*_places(later, f"seed {SEED}, epoch {EPOCH + 1}, "), *_places(other, f"seed {SEED + 1}, epoch {EPOCH}, ")]
    )
    for first in (2, STEPS):
        later = _epoch(student, 2, first_step=first)
        expect(
            later == whole[first:],
            f"portable_batches(.., first_step={first}): expected steps {first} to {STEPS - 1} as they are without it, "
            f"got {len(later)} steps{' of other samples or noise' if len(later) == STEPS - first else ''}: a run that "
            "goes on after a restart has to see what it would have seen",
        )
    weights = [run(_trained, world_size, student, timeout_s=TIMEOUT_S, blas_threads=1)[0] for world_size in WORLDS]
    expect(
        all(weight == weights[0] for weight in weights),
        f"training with sum_in_one_order and portable_batches: expected the same weights on {WORLDS} ranks, got others",
    )
    return f"{STEPS} steps of {SHARDS} shards: the samples, the noise and the trained weights of one rank on 2, 4 and 8"


def _epoch(student: Student, world_size: int, seed: int = SEED, epoch: int = EPOCH, first_step: int = 0) -> list[Step]:
    """What all ranks see in an epoch together; np.random's own state is another one on each."""
    steps: list[Step] = []
    state = np.random.get_state()
    each = SHARDS // world_size
    try:
        for rank in range(world_size):
            call = f"portable_batches({LENGTH}, {BATCH}, {SHARDS}, {rank}, {world_size}, ..)"
            np.random.seed(world_size + rank)
            before = _state_of_numpy()
            found = student.portable_batches(LENGTH, BATCH, SHARDS, rank, world_size, seed, epoch, first_step)
            for number, parts in enumerate(map(list, found)):
                expect(number < STEPS, f"{call}: expected {STEPS} steps, got more: a short last batch is left out")
                steps += [{}] * (number == len(steps))
                shards = list(range(rank * each, (rank + 1) * each))
                got = [part[0] for part in parts]
                expect(got == shards, f"{call}: expected shards {shards} in each step, got {got}")
                steps[number] = steps[number] | {part[0]: _seen(call, *part) for part in parts}
            expect(
                _state_of_numpy() == before,
                f"{call}: expected np.random's own state to stay as it is, got another: what is drawn from it, and "
                "np.random.seed, change what others draw, and what they draw changes this; use a np.random.Generator",
            )
    finally:
        np.random.set_state(state)
    return steps


def _state_of_numpy() -> tuple[bytes, int]:
    _, key, position, *_ = np.random.get_state(legacy=True)
    return np.asarray(key).tobytes(), int(position)


def _seen(call: str, shard: int, indices: Any, generator: Any) -> tuple[list[int], list[float]]:
    right = isinstance(indices, np.ndarray) and indices.dtype == np.int64 and indices.shape == (SIZE,)
    expect(right, f"{call}: expected the samples of shard {shard} as int64 ({SIZE},), got {indices!r:.80}")
    expect(
        isinstance(generator, np.random.Generator),
        f"{call}: expected a np.random.Generator for shard {shard}, got {type(generator).__name__}",
    )
    return indices.tolist(), generator.standard_normal(3).tolist()


def _expect_epoch(whole: list[Step]) -> None:
    """Of one rank: as many steps as full batches, each sample at most once, noise of its own everywhere."""
    expect(len(whole) == STEPS, f"portable_batches: expected {STEPS} steps of {BATCH} of {LENGTH}, got {len(whole)}")
    samples = [i for step in whole for indices, _ in step.values() for i in indices]
    twice = sorted({i for i in samples if samples.count(i) > 1 or not 0 <= i < LENGTH})
    expect(
        not twice, f"portable_batches: expected each of {LENGTH} samples at most once an epoch, got {twice[:5]} again"
    )
    expect(samples != sorted(samples), "portable_batches: expected an order drawn by seed and epoch, got 0, 1, 2, ..")
    _expect_own_noise(_places(whole))


def _places(steps: list[Step], where: str = "") -> list[tuple[str, list[float]]]:
    """What the generator of each shard gives, by its place."""
    return [(f"{where}step {n}, shard {v}", noise) for n, step in enumerate(steps) for v, (_, noise) in step.items()]


def _expect_own_noise(drawn: Sequence[tuple[str, list[float]]]) -> None:
    first: dict[float, str] = {}
    for place, noise in drawn:
        for value in noise:
            other = first.setdefault(value, place)
            expect(
                other == place,
                f"portable_batches: expected noise of its own for each shard of each step, got the same numbers in "
                f"{other} and in {place}: where keys are added up, 0 + 1 is 1 + 0",
            )


def _expect_same(whole: list[Step], got: list[Step], world_size: int) -> None:
    expect(len(got) == len(whole), f"portable_batches: expected {STEPS} steps on {world_size} ranks, got {len(got)}")
    for number, (step, other) in enumerate(zip(whole, got)):
        for shard, (indices, noise) in step.items():
            where = f"portable_batches: expected shard {shard} of step {number} on {world_size} ranks"
            expect(
                other[shard][0] == indices,
                f"{where} to have the samples that it has on one, {indices}, got {other[shard][0]}: cut the batch by "
                "shards, not by ranks; the order may depend on no rank, no world size and no state of np.random's own",
            )
            expect(
                other[shard][1] == noise,
                f"{where} to have the noise that it has on one, got other numbers: its generator may depend on the "
                "seed, the epoch, the step and the shard, not on the rank or on what was drawn before",
            )


def _expect_apart(whole: list[Step], other: list[Step], what: str) -> None:
    for step, later in zip(whole, other):
        for shard, (indices, noise) in step.items():
            expect(later[shard][1] != noise, f"portable_batches: expected other noise in {what}, got the same numbers")
    same = [[indices for indices, _ in step.values()] for step in whole]
    expect(
        same != [[indices for indices, _ in step.values()] for step in other],
        f"portable_batches: expected another order in {what}, got the same: an epoch seen twice is the same epoch",
    )


def _trained(comm: Communicator, student: Student) -> bytes:
    """The weights of a small network after an epoch, as bytes: its samples with noise, its gradients in one sum."""
    manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 1))
    data = np.random.default_rng(0).standard_normal((LENGTH, 4)).astype(np.float32)
    for parts in student.portable_batches(LENGTH, BATCH, SHARDS, comm.rank, comm.world_size, SEED, EPOCH):
        total = student.sum_in_one_order(comm, [_gradient(model, data[i], rng) for _, i, rng in parts])
        for param, flat in zip(model.parameters(), np.split(total, _cuts(model))):
            param.data -= np.float32(0.05 / BATCH) * flat.reshape(param.shape)
    return b"".join(param.data.tobytes() for param in model.parameters())


def _gradient(model: nn.Module, rows: Array, rng: np.random.Generator) -> Array:
    """The gradient of the sum over a shard, in one array."""
    noise = rng.standard_normal(rows.shape).astype(np.float32)
    for param in model.parameters():
        param.grad = None
    difference = model(Tensor(rows + np.float32(0.1) * noise)) - Tensor(rows[:, :1])
    (difference * difference).sum().backward()
    return np.concatenate([param.grad.numpy().reshape(-1) for param in model.parameters() if param.grad is not None])


def _cuts(model: nn.Module) -> list[int]:
    return [int(cut) for cut in np.cumsum([param.data.size for param in model.parameters()])[:-1]]
