"""What every communicator must do, as cases that each rank of a world runs; a check of one of your own.

A case is a function of a communicator that asserts on its own rank. `check_communicator` runs all of them;
`CASES` lists them, for tests that want a result for each. Those in which something fails are in `endings.py`,
those in which ranks get different things in `rooted.py`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import pickle
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from minigrad import nn, optim
from minigrad.backend.dtypes import Array
from minigrad.distributed import DDP, Communicator, ReduceOp, SoloCommunicator, collectives, run
from minigrad.errors import ArgumentError, AutogradError, DtypeError, ShapeError
from minigrad.recording import no_grad
from minigrad.tensor import Tensor

Body = Callable[[Communicator], None]
World = Callable[[Body, int, float], object]
DTYPES = ["float16", "bfloat16", "float32", "float64", "int32", "int64", "uint8"]
FLOATS = DTYPES[:4]
OPS: dict[str, Callable[..., Any]] = {"SUM": np.sum, "AVG": np.mean, "MIN": np.min, "MAX": np.max, "PROD": np.prod}


@dataclass(frozen=True)
class Case:
    """Something that every communicator must do.

    Attributes:
        body: Called with its communicator on each rank; asserts.
        sizes: The sizes of the worlds that it is meant for.
        timeout_s: How long collectives have to wait in it.
    """

    body: Body
    sizes: tuple[int, ...]
    timeout_s: float


CASES: dict[str, Case] = {}


def check_communicator(world: World, sizes: Sequence[int] = (1, 2, 3, 4), cases: Sequence[str] = ()) -> None:
    """Let a communicator of your own, a wrapper or a transport, go through the contract.

    Args:
        world: world(body, world_size, timeout_s) makes a world of so many ranks, calls body(comm) on each, in a thread
            or a process, and raises what one of them raised.
        sizes: Which sizes of worlds to try.
        cases: Names from `CASES`; all of them by default.

    Raises:
        AssertionError: a case fails; it is named, and what it raised is the cause.
        ArgumentError: there is no case of such a name.

    Example:
        >>> from minigrad.distributed import Recording, run
        >>> def world(body, world_size, timeout_s):
        ...     return run(lambda comm: body(Recording(comm)), world_size, timeout_s=timeout_s)
        >>> check_communicator(world, sizes=[2], cases=["broadcast_from_each_root"])
    """
    unknown = [name for name in cases if name not in CASES]
    if unknown:
        raise ArgumentError(f"check_communicator: expected cases of {', '.join(CASES)}, got {', '.join(unknown)}")
    for name in cases or CASES:
        case = CASES[name]
        for size in sizes:
            if size in case.sizes:
                try:
                    world(case.body, size, case.timeout_s)
                except Exception as error:
                    raise AssertionError(f"{name}, with {size} ranks: {type(error).__name__}: {error}") from error


def contract(
    *, sizes: tuple[int, ...] = (1, 2, 3, 4), timeout_s: float = 20.0, **values: Sequence[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a function to the contract, once for each combination of the values of its arguments."""

    def add(body: Callable[..., None]) -> Callable[..., None]:
        for combination in itertools.product(*values.values()):
            arguments = dict(zip(values, combination))
            name = "-".join([body.__name__, *map(str, combination)])
            CASES[name] = Case(functools.partial(body, **arguments), sizes, timeout_s)
        return body

    return add


@contextlib.contextmanager
def refused(kind: type[Exception], pattern: str = "") -> Iterator[list[str]]:
    """Something within must raise an error of this kind whose message holds the pattern; the list then holds it."""
    said: list[str] = []
    try:
        yield said
    except kind as error:
        said.append(str(error))
        assert re.search(pattern, said[0]), f"expected a {kind.__name__} that says {pattern!r}, got {said[0]}"
        return
    raise AssertionError(f"expected a {kind.__name__} that says {pattern!r}, got none")


def as_dtype(name: str) -> np.dtype[Any]:
    """The dtype of a name, bfloat16 too."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def whole_numbers(rank: int, count: int, dtype: Any) -> Array:
    """Small ones that differ by rank; few enough that no product overflows a byte."""
    return ((np.arange(count) % 7 + rank + 1) % 3 + 1).astype(dtype)


def _normal(seed: Any, count: int, dtype: Any = np.float64) -> Array:
    return np.random.default_rng(seed).standard_normal(count).astype(dtype)


# --------------------------------------------------------------------------------------------------- collectives


@contract(dtype=DTYPES)
def all_reduce(comm: Communicator, dtype: str) -> None:
    """Every reduction of every dtype is what NumPy makes of the ranks' arrays; there is no average of integers."""
    kind = as_dtype(dtype)
    for op, count in itertools.product(OPS, (0, 1, 7, 1000, 40_000)):
        array = whole_numbers(comm.rank, count, kind)
        if op == "AVG" and "float" not in dtype:
            with refused(DtypeError, f"float dtype for AVG, got {dtype}"):
                comm.all_reduce(array, ReduceOp.AVG)
            continue
        comm.all_reduce(array, ReduceOp[op]).wait()
        stacked = np.stack([whole_numbers(rank, count, np.float64) for rank in range(comm.world_size)])
        expected = OPS[op](stacked, axis=0).astype(kind)
        assert array.dtype == kind
        np.testing.assert_allclose(array.astype(np.float64), expected.astype(np.float64), rtol=1e-6)


@contract(dtype=FLOATS)
def sums_are_added_up_in_the_one_order(comm: Communicator, dtype: str) -> None:
    """Bit for bit what `collectives` gives for a list of the arrays: the same on every kind of world."""
    kind = as_dtype(dtype)
    for op, count in itertools.product((ReduceOp.SUM, ReduceOp.AVG), (5, 3000, 70_001)):
        arrays = [_normal(rank, count, kind) for rank in range(comm.world_size)]
        array = arrays[comm.rank].copy()
        comm.all_reduce(array, op).wait()
        collectives.all_reduce(arrays, op)
        assert array.tobytes() == arrays[0].tobytes()


@contract(dtype=FLOATS)
def weighted_sums_have_the_bits_of_weighting_first(comm: Communicator, dtype: str) -> None:
    """In any memory, with several under way, and where one rank has weighted its elements by itself.

    16-bit floats have the bits of weighting and adding up in float32, rounded once.
    """
    kind, rank, size = as_dtype(dtype), comm.rank, comm.world_size
    inside = np.dtype(np.float32) if kind.itemsize == 2 else kind
    weights = [[0.0, 1.0, 0.3, 1 / 3][(r + 1) % 4] for r in range(size)]  # the last of four ranks has no samples
    arrays, works, expected = [], [], []
    makers: list[Callable[..., Array]] = [comm.empty, np.zeros]
    for count, make in itertools.product((0, 5, 3000, 300_001), makers):
        own = [_normal([r, count], count, kind) for r in range(size)]
        if size == 4:
            own[3][: count // 2] = np.nan
        arrays.append(make(count, kind))
        arrays[-1][...] = own[rank]
        own = [
            array.astype(inside) * inside.type(weight) if weight else np.zeros(count, inside)
            for array, weight in zip(own, weights)
        ]
        if rank == size - 1 and count == 5 and inside == kind:
            arrays[-1][...] = own[rank]
            works.append(comm.all_reduce(arrays[-1], layout="a bucket"))
        else:
            weight = None if weights[rank] == 1.0 else np.array(weights[rank : rank + 1])
            works.append(comm.weighted_all_reduce(arrays[-1], weight, "a bucket"))
        weights = weights[1:] + weights[:1] if size < 4 else weights
        collectives.all_reduce(own)
        expected.append(own[0].astype(kind))
    for work, array, right in zip(works, arrays, expected):
        work.wait()
        assert array.tobytes() == right.tobytes()


@contract()
def works_tell_when_they_ran(comm: Communicator) -> None:
    """After the last rank called, and before this one found it over; where they tell, on one host's clock."""
    for count in (3, 700_001):
        began_s = comm.clock.now_s()
        work = comm.all_reduce(np.zeros(count))
        work.wait(host=True)
        ended_s = comm.clock.now_s()
        last_s = max(comm.all_gather_object(began_s))
        if work.span is not None:
            started_s, over_s = work.span
            assert comm.world_size == 1 or last_s <= started_s <= over_s <= ended_s


@contract()
def a_weighted_sum_of_integers_is_refused(comm: Communicator) -> None:
    """By its dtype, on the rank that asks for it."""
    with refused(DtypeError, f"rank {comm.rank}: weighted_all_reduce: expected a float dtype, got int32"):
        comm.weighted_all_reduce(np.ones(3, np.int32), np.array([0.5]))


@contract()
def all_reduce_of_many_elements(comm: Communicator) -> None:
    """In memory of the communicator's, and in any other, of which shared memory holds a chunk at a time."""
    count, size = 4 * 1024 * 1024 + 3, comm.world_size
    places = np.arange(count, dtype=np.float32) % 1000
    for array in (comm.empty(count, "float32"), np.empty(count, np.float32)):
        np.add(places, comm.rank, out=array)
        comm.all_reduce(array).wait()
        np.testing.assert_array_equal(array, size * places + sum(range(size)))


@contract()
def broadcast_from_each_root(comm: Communicator) -> None:
    """Arrays of any size become the root's."""
    for root in range(comm.world_size):
        for count in (0, 1, 3, 300_001):
            array = np.full(count, float(comm.rank))
            comm.broadcast(array, root).wait()
            assert (array == root).all()


@contract()
def reduce_scatter_then_all_gather_is_all_reduce(comm: Communicator) -> None:
    """Bit for bit."""
    for count in (0, 3, 50_000):
        source = _normal(comm.rank, count * comm.world_size)
        part, whole = np.empty(count), np.empty(count * comm.world_size)
        comm.reduce_scatter(part, source.copy()).wait()
        comm.all_gather(whole, part).wait()
        comm.all_reduce(source).wait()
        assert whole.tobytes() == source.tobytes()


@contract()
def the_part_of_a_rank_may_lie_in_the_whole(comm: Communicator) -> None:
    """Where reduce_scatter leaves it, and all_gather takes it."""
    for count in (3, 50_000):
        source = _normal(comm.rank, count * comm.world_size)
        whole = comm.empty(source.size, source.dtype)
        whole[...] = source
        part = whole[comm.rank * count : (comm.rank + 1) * count]
        comm.reduce_scatter(part, whole).wait()
        comm.all_gather(whole, part).wait()
        comm.all_reduce(source).wait()
        assert whole.tobytes() == source.tobytes()


@contract()
def all_gather_object(comm: Communicator) -> None:
    """JSON data of different lengths arrives as it was, in order of rank."""
    values = [None, 1.5, "text", [1, [2.0]], {"a": True}, "x" * 10 * comm.rank]
    everything = comm.all_gather_object({"rank": comm.rank, "values": values})
    assert everything == [{"rank": r, "values": [*values[:-1], "x" * 10 * r]} for r in range(comm.world_size)]


@contract()
def several_calls_may_be_under_way_at_once(comm: Communicator) -> None:
    """And be waited for in any order."""
    arrays = [np.full(5, float(i + comm.rank)) for i in range(10)]
    works = [comm.all_reduce(array) for array in arrays]
    for work in reversed(works):
        work.wait()
        assert work.done()
    assert [array[0] for array in arrays] == [
        float(sum(i + rank for rank in range(comm.world_size))) for i in range(10)
    ]


@contract(sizes=(2, 3))
def a_work_is_done_once_all_have_come(comm: Communicator) -> None:
    """Not before, and to wait for it again changes nothing."""
    array, met_s = np.ones((2, 3)), time.monotonic()
    comm.barrier()
    if comm.rank == 1:
        time.sleep(0.3)
    work = comm.all_reduce(array)
    done = work.done()
    assert comm.rank == 1 or not done or time.monotonic() >= met_s + 0.3
    for _ in range(2):
        work.wait(host=True)
        assert work.done() and (array == comm.world_size).all()


@contract(sizes=(1, 3))
def arrays_of_any_shape_and_of_any_numbers(comm: Communicator) -> None:
    """Their elements are taken in C order."""
    rank, size = comm.rank, comm.world_size
    for dtype in ("bool", "int16", "bfloat16", "float64"):
        part = np.array([[rank, 1], [0, rank]]).astype(as_dtype(dtype))
        whole, copy = np.empty((2, 2 * size), part.dtype), part.copy()
        comm.all_gather(whole, part).wait()
        comm.broadcast(copy, size - 1).wait()
        rows = whole.reshape(size, 4).astype(np.int64).tolist()
        assert rows == [np.array([r, 1, 0, r]).astype(part.dtype).astype(np.int64).tolist() for r in range(size)]
        assert copy.reshape(-1).astype(np.int64).tolist() == rows[-1]
    scalar, square, most = np.array(2.0), np.ones((2, 2)), np.empty((1, 2))
    comm.all_reduce(scalar, ReduceOp.PROD).wait()
    comm.weighted_all_reduce(square, np.array([rank + 0.5])).wait()
    comm.reduce_scatter(most, np.arange(2.0 * size).reshape(size, 2) * (rank + 1), ReduceOp.MAX).wait()
    assert scalar == 2.0**size and (square == size * size / 2).all()
    assert most.tolist() == [[2.0 * rank * size, (2.0 * rank + 1) * size]]


@contract(sizes=(1, 2))
def what_else_is_asked_of_a_communicator(comm: Communicator) -> None:
    """Memory of zeros, a time limit, what it last called; and it belongs to its rank."""
    assert not comm.empty(3, "int64").any() and not comm.empty(3, "int64").any() and comm.timeout_s > 0
    comm.check_headers("a layout")
    marks = comm.end_pass("a layout", 0.5, True)
    assert not marks or marks == [0.5] * comm.world_size
    comm.check_same("contract")
    comm.event("contract")
    with comm.waiting():
        comm.barrier()
    calls = comm.last_calls()
    assert len(calls) <= 64 and (comm.world_size == 1 or "barrier" in calls[0])
    with refused(ArgumentError, f"which belongs to rank {comm.rank} of this process"):
        pickle.dumps(comm)


@contract()
def refused_before_any_rank_is_asked(comm: Communicator) -> None:
    """Arguments that no collective can take; the ranks may go on."""
    size, anything, fixed = comm.world_size, np.ones(2), np.ones(2)
    fixed.setflags(write=False)
    refusals: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (ShapeError, "C-contiguous", lambda: comm.all_reduce(np.ones((4, 6))[:, ::2])),
        (ShapeError, "C-contiguous", lambda: comm.broadcast(np.ones((3, 2)).T)),
        (ArgumentError, r"root to be an integer in \[0, ", lambda: comm.broadcast(anything, size)),
        (ArgumentError, r"root to be an integer in \[0, ", lambda: comm.broadcast(anything, -1)),
        (ArgumentError, "a ReduceOp, got 'sum'", lambda: comm.all_reduce(anything, "sum")),  # type: ignore[arg-type]
        (DtypeError, "an array, got list", lambda: comm.all_reduce([1.0, 2.0])),
        (DtypeError, "weighted_all_reduce: expected a tensor or an array", lambda: comm.weighted_all_reduce([1.0])),
        (DtypeError, "an array, got float64: use np.asarray", lambda: comm.all_reduce(np.float64(1.0))),
        (DtypeError, "an array of numbers, got object", lambda: comm.broadcast(np.array([None, 1]))),
        (DtypeError, "an array of numbers, got >f8", lambda: comm.all_reduce(np.ones(2, ">f8"))),
        (ArgumentError, "to overwrite, got a read-only one", lambda: comm.all_reduce(fixed)),
        (ArgumentError, "to overwrite, got a read-only one", lambda: comm.weighted_all_reduce(fixed)),
        (ArgumentError, "to overwrite, got a read-only one", lambda: comm.broadcast(fixed)),
        (ArgumentError, r"float64 \(1,\), got float64 \(2,", lambda: comm.weighted_all_reduce(anything, fixed)),
        (ArgumentError, r"weight of float64 \(1,\), got 0.5", lambda: comm.weighted_all_reduce(anything, 0.5)),
        (ShapeError, "elements in all", lambda: comm.reduce_scatter(np.empty(2), np.empty(2 * size + 1))),
        (
            DtypeError,
            "one dtype, got float64 and float32",
            lambda: comm.all_gather(np.empty(2 * size), np.empty(2, np.float32)),
        ),
        (
            ArgumentError,
            f"rank {comm.rank}: empty: expected count to be an integer >= 0, got -1",
            lambda: comm.empty(-1, np.float32),
        ),
        (DtypeError, "expected one of .*, got 'float33'", lambda: comm.empty(3, "float33")),
        (DtypeError, "JSON data, got set", lambda: comm.all_gather_object({1})),
        (
            DtypeError,
            r"JSON keeps as it is, got the key 1 of a dict: make it a string",
            lambda: comm.all_gather_object({1: [2, 3]}),
        ),
        (
            DtypeError,
            r"JSON keeps as it is, got the tuple \(2, 3\): make it a list",
            lambda: comm.all_gather_object([{"1": (2, 3)}]),
        ),
    ]
    for kind, words, call in refusals:
        with refused(kind, words):
            call()
    comm.barrier()


@contract(sizes=(1, 3))
def tensors_are_taken_as_arrays_are(comm: Communicator) -> None:
    """Their memory changes, and backward refuses to use what it was before."""
    rank, size = comm.rank, comm.world_size
    x, part, scalar = Tensor(np.full((2, 2), rank + 1.0)), Tensor(np.full(2, float(rank))), Tensor(np.array(3.0))
    whole, product, other = Tensor(np.empty((size, 2))), Tensor(np.array(2.0)), Tensor(np.array([[rank, 1]]))
    view, most = x.detach(), Tensor(np.empty(1))
    for tensor in (x, whole, product, other, most):
        weight = Tensor(np.ones(1), requires_grad=True)
        loss = (tensor.double() * weight).sum()
        comm.all_reduce(view).wait()
        comm.all_gather(whole, part).wait()
        comm.all_reduce(product, ReduceOp.PROD).wait()
        comm.broadcast(other, size - 1).wait()
        comm.reduce_scatter(most, Tensor(np.arange(float(size))), ReduceOp.MAX).wait()
        if tensor is not other:  # whose integers were converted
            with refused(AutogradError, "got data changed in place since, its input"):
                loss.backward()
    assert (x.data == sum(range(1, size + 1)) * size**4).all() and part.tolist() == [rank, rank]
    assert whole.tolist() == [[r, r] for r in range(size)] and product.item() == 2.0 ** size**5
    assert other.tolist() == [[size - 1, 1]] and most.tolist() == [rank]
    comm.weighted_all_reduce(scalar, np.array([rank + 0.5])).wait()
    assert scalar.item() == 1.5 * size * size


@contract(sizes=(1, 2))
def a_tensor_that_wants_a_gradient_is_refused(comm: Communicator) -> None:
    """But within no_grad, where a parameter is what it says; and others that arrays are refused for."""
    weight, fixed = nn.Linear(2, 3).weight, Tensor(np.broadcast_to(np.ones(1), 1))
    calls: list[Callable[[Tensor], Any]] = [
        comm.all_reduce,
        comm.weighted_all_reduce,
        comm.broadcast,
        lambda x: comm.reduce_scatter(Tensor(np.empty(6 // comm.world_size, np.float32)), x),
        lambda x: comm.all_gather(Tensor(np.empty((comm.world_size, 3, 2), np.float32)), x),
    ]
    for call in calls:
        for x in (weight, 2 * weight):
            with refused(AutogradError, r"not require grad, got one of shape \(3, 2\) that does, .*within no_grad"):
                call(x)
        with refused(ShapeError, r"C-contiguous array, .* use contiguous\(\) of a tensor"):
            call(weight.detach().T)
    with refused(ArgumentError, "to overwrite, got a read-only one"):
        comm.all_reduce(fixed)
    comm.all_gather(Tensor(np.empty(comm.world_size)), fixed).wait()
    with no_grad():
        weight.fill_(comm.rank)
        comm.broadcast(weight, comm.world_size - 1).wait()
    assert weight.detach().tolist() == [[comm.world_size - 1] * 2] * 3


# ------------------------------------------------------------------------------------------------- data parallelism

SHARDS = {1: [7], 2: [3, 5], 3: [4, 0, 7], 4: [1, 0, 6, 2]}


def _trained(comm: Communicator, shards: Sequence[int], dtype: str) -> list[Array]:
    """The parameters after five steps on fresh data each; the loss is smooth, and 0 · sum of an empty shard."""
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2, bias=False))
    for i, param in enumerate(model.parameters()):
        param.data = (0.5 * _normal([comm.rank, i], param.data.size, dtype)).reshape(param.shape)
    ddp = DDP(model, comm, bucket_cap_bytes=64)
    optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    cuts = np.cumsum([0, *shards])
    part = slice(cuts[comm.rank], cuts[comm.rank + 1])
    for step in range(5):
        inputs, targets = (_normal([step, n], cuts[-1] * n, dtype).reshape(-1, n)[part] for n in (3, 2))
        optimizer.zero_grad()
        error = ddp(Tensor(inputs)) - Tensor(targets)
        ((error * error).sum() / max(1, len(inputs))).backward()
        optimizer.step()
    return [param.data.copy() for param in model.parameters()]


@contract(dtype=["float32", "float64"])
def training_equals_one_device_and_has_the_bits_of_threads(comm: Communicator, dtype: str) -> None:
    """Of unequal shards, empty ones too."""
    shards = SHARDS[comm.world_size]
    mine = _trained(comm, shards, dtype)
    threads = run(_trained, comm.world_size, shards, dtype)[comm.rank]
    assert [param.tobytes() for param in mine] == [param.tobytes() for param in threads]
    for param, whole in zip(mine, _trained(SoloCommunicator(), [sum(shards)], dtype)):
        bound = (1e-11 if dtype == "float64" else 1e-5) * max(1.0, float(np.abs(whole).max()))
        assert float(np.abs(param - whole).max()) <= bound
