"""The runner says what a kernel did wrong, and in which thread, whatever the order of the threads."""

import re
from pathlib import Path

import numpy as np
import pytest

from minigrad.errors import KernelError
from tests.kernels.cuda_on_cpu import CpuModule, compiler
from tests.kernels.cuda_on_cpu.loader import cpu_module

SOURCE = Path(__file__).with_name("faults.cu").read_text()


@pytest.fixture
def run(order):
    """run(name, block, *args): a kernel of faults.cu on one block."""

    def run(name, block, *args, grid=1, **options):
        cpu_module("faults", SOURCE).get_function(name)((grid,), (block,), args, order=order, **options)

    return run


def ones(count, dtype=np.float32):
    return np.ones(count, dtype)


@pytest.mark.parametrize(
    "name, block, message",
    [
        ("divergent_barrier", 64, r"divergent __syncthreads\(\): line \d+, while others wait on line \d+"),
        ("early_exit", 64, r"a thread exited while others wait|after another thread of the block exited"),
        ("dead_lane", 32, r"mask ffffffff names lanes that exited|a lane exited that others wait for"),
        ("dead_lane", 24, r"__shfl_xor_sync: mask ffffffff names lanes that exited or never existed"),
        ("stranger_to_the_mask", 32, r"the calling lane is not in its own mask 0000ffff"),
        ("read_beyond_the_mask", 32, r"reads lane \d+, which is not in the mask"),
        ("different_masks", 32, r"meet under different masks|a lane exited that others|names lanes that exited"),
        ("deadlock", 64, r"deadlock: every live thread waits: thread \d+ in __s\w+;"),
        ("unwritten_shared", 64, r"a read of shared memory that nothing wrote, byte \d+"),
        ("read_before_written", 64, r"a race in shared memory, byte \d+|nothing wrote"),
        ("written_before_read", 64, r"a race in shared memory, byte \d+"),
        ("across_warps", 64, r"a race in shared memory, byte \d+|nothing wrote"),
    ],
)
def test_a_fault_between_threads(run, name, block, message):
    with pytest.raises(RuntimeError, match=rf"^{name}: .*({message})"):
        run(name, block, ones(64))


def test_a_message_names_the_thread(run):
    with pytest.raises(RuntimeError, match=re.escape("[block (0, 0, 0), thread (7, 0, 0)]")):
        run("unwritten_shared", 64, ones(64))


@pytest.mark.parametrize("at", [-1, 8, 8000, -(10**8), 10**8])
def test_a_read_outside_an_array(run, at):
    with pytest.raises(RuntimeError, match="read_beyond: reads outside its arrays"):
        run("read_beyond", 1, ones(8), ones(1), np.int32(at))


def test_a_write_outside_an_array_and_none_was_changed(run):
    memory = np.zeros(100, np.float32)
    with pytest.raises(RuntimeError, match="fill: writes outside its arrays"):
        run("fill", 32, memory[:64], np.int32(65), np.float32(3))
    assert not memory.any()


def test_a_null_pointer(run):
    with pytest.raises(RuntimeError, match="fill: writes outside its arrays"):
        run("fill", 32, None, np.int32(1), np.float32(3))


def test_an_atomic_outside_an_array(run):
    with pytest.raises(RuntimeError, match="atomic_beyond: writes outside its arrays"):
        run("atomic_beyond", 1, np.zeros(1, np.uint32), np.int32(1))


def test_a_write_into_a_read_only_array(run):
    x = ones(8)
    x.flags.writeable = False
    with pytest.raises(RuntimeError, match="fill: writes into an array that is read-only"):
        run("fill", 32, x, np.int32(8), np.float32(3))


def test_a_misaligned_vector(run):
    with pytest.raises(RuntimeError, match=r"misaligned: a misaligned access to 0x\w+ at \S*:\d+"):
        run("misaligned", 1, np.zeros(8).view(np.float32), ones(1, np.float64))


def test_an_index_outside_a_shared_array(run):
    with pytest.raises(RuntimeError, match=r"beyond_shared: index 64 out of bounds at \S*:\d+"):
        run("beyond_shared", 64, ones(64), np.int32(1))
    run("beyond_shared", 32, ones(64), np.int32(32))


def test_neighbours_in_a_table_of_addresses(run):
    """Both arrays lie in one buffer, and yet a write past the first is none into the second."""
    flat = ones(20)
    arrays = [flat[:10], flat[10:]]
    table = np.array([array.ctypes.data for array in arrays])
    run("add_one", 4, table, np.int32(10), reaches=arrays)
    assert (flat == 2).all()
    with pytest.raises(RuntimeError, match="add_one: reads outside its arrays"):
        run("add_one", 4, table, np.int32(11), reaches=arrays)
    with pytest.raises(TypeError, match="expected addresses of the arrays named in `reaches`, got another"):
        run("add_one", 4, table, np.int32(10), reaches=arrays[:1])
    with pytest.raises(TypeError, match="expected addresses of f4 arrays, got one of f8"):
        run("add_one", 4, np.array([ones(10, np.float64).ctypes.data]), np.int32(5), reaches=[ones(10, np.float64)])


def test_a_struct_by_value(run):
    """Its bytes travel; what its addresses point to is guarded as arrays are."""
    first, second = ones(10), ones(10)
    kind = np.dtype([("addresses", np.uint64, 2), ("count", np.int64)])
    pair = np.zeros(1, kind)
    pair["addresses"], pair["count"] = [array.ctypes.data for array in (first, second)], 10
    run("add_one_to_both", 4, pair, reaches=[first, second])
    assert (first == 2).all() and (second == 2).all() and pair["addresses"][0, 0] == first.ctypes.data
    with pytest.raises(TypeError, match="expected addresses of the arrays named in `reaches`"):
        run("add_one_to_both", 4, pair, reaches=[first])
    pair["count"] = 11
    with pytest.raises(RuntimeError, match="add_one_to_both: reads outside its arrays"):
        run("add_one_to_both", 4, pair, reaches=[first, second])
    pair["addresses"][0, 1] = 0
    with pytest.raises(RuntimeError, match="add_one_to_both: reads outside its arrays"):
        run("add_one_to_both", 4, pair, reaches=[first])
    for wrong in (np.zeros(2, kind), np.zeros(3, np.uint64), np.zeros(1, np.dtype([("addresses", np.uint64, 2)])), 1):
        with pytest.raises(TypeError, match="argument 0: expected an array of one element with fields, of 24 bytes"):
            run("add_one_to_both", 4, wrong)


@pytest.mark.parametrize(
    "args, message",
    [
        ((ones(4), np.int64(4), np.float32(1)), "argument 1: expected a int32 scalar, got int64"),
        ((ones(4), 4, np.float32(1)), "argument 1: expected a int32 scalar, got int"),
        ((ones(4), np.int32(4), 1.0), "argument 2: expected a float32 scalar, got float"),
        ((ones(4, np.float64), np.int32(4), np.float32(1)), "argument 0: expected a f4 array, got f8"),
        ((ones(8)[::2], np.int32(4), np.float32(1)), "argument 0: expected a contiguous array, got strides"),
        (([1.0], np.int32(1), np.float32(1)), "argument 0: expected an array, got list"),
        ((ones(4), np.int32(4)), "expected 3 arguments, got 2"),
    ],
)
def test_arguments_that_a_kernel_would_misread(run, args, message):
    with pytest.raises(TypeError, match=message):
        run("fill", 32, *args)


@pytest.mark.parametrize("grid, block", [((0,), (32,)), ((1,), (1025,)), ((1,), (32, 32, 2)), ((1, 70000), (1,))])
def test_a_launch_that_no_gpu_takes(grid, block):
    with pytest.raises(ValueError, match="expected a grid and a block that a GPU takes"):
        cpu_module("faults", SOURCE).get_function("fill")(grid, block, (ones(4), np.int32(4), np.float32(1)))


def test_a_barrier_orders_a_warp_or_a_block(run):
    x = np.arange(64, dtype=np.float32)
    run("within_a_warp", 64, x)
    assert np.array_equal(x, np.arange(64) ^ 31)


def test_votes(run):
    out = np.zeros(6, np.int32)
    run("votes", 64, out)
    assert out.tolist() == [22, 1, 0, 1, 0, np.uint32(0xAAAAAAAA).astype(np.int32)]


def test_shuffles(run):
    out, lanes = np.zeros((3, 64), np.int32), np.arange(64) % 32
    run("shuffles", 64, out)
    assert np.array_equal(out[0], np.maximum(lanes - 1, 0))
    assert np.array_equal(out[1], np.where(lanes % 8 < 6, lanes + 2, lanes))
    assert np.array_equal(out[2], lanes // 16 * 16 + 3)


def test_atomics(run):
    x = np.zeros(6, np.int32)
    run("atomics", 40, x, grid=2)
    assert x.tolist() == [160, 39, -39, 255, 1, 1]


def test_two_blocks_that_write_one_element(run):
    total = np.zeros(1, np.int32)
    run("sum_of_blocks", 32, total)
    assert total[0] == 1
    with pytest.raises(RuntimeError, match=r"sum_of_blocks: a race between blocks: block \d wrote byte 0 too"):
        run("sum_of_blocks", 32, total, grid=2)


def test_the_last_block_sees_what_the_others_left(run):
    x, total = np.arange(1, 10, dtype=np.int32), np.zeros(1, np.int32)
    run("last_block", 32, x, np.zeros_like(x), np.zeros(1, np.uint32), total, grid=9)
    assert total[0] == 45


def test_accesses_are_counted(run):
    flat, counts = ones(20), {}
    run("add_one", 4, np.array([flat.ctypes.data, flat[5:].ctypes.data]), np.int32(8), reaches=[flat], counts=counts)
    [(reads, writes)] = [count for address, count in counts.items() if address == flat.ctypes.data]
    assert reads.tolist() == writes.tolist() == [1] * 5 + [2] * 3 + [1] * 5 + [0] * 7


def test_arrays_that_overlap_share_their_memory(run):
    x = np.arange(8, dtype=np.float32)
    run("read_beyond", 1, x[:6], x[2:3], np.int32(5))
    assert x.tolist() == [0, 1, 5, 3, 4, 5, 6, 7]


def test_a_run_after_a_failed_one_is_right(run):
    x = ones(64)
    with pytest.raises(RuntimeError):
        run("divergent_barrier", 64, x)
    run("fill", 32, x, np.int32(64), np.float32(5))
    assert (x == 5).all()


def test_what_the_compiler_refuses():
    with pytest.raises(KernelError, match=r"(?s)wrong: expected g\+\+ to compile it, got:.*wrong.cu:2:\d+: error"):
        CpuModule("wrong", '#line 1 "wrong.cu"\nextern "C" __global__ void f(float* x) {\n    x[0] = nothing;\n}\n')
    with pytest.raises(KernelError, match="expected shared memory of a fixed size, got `extern __shared__`"):
        CpuModule("wrong", 'extern "C" __global__ void f(float* x) { extern __shared__ float part[]; }')
    with pytest.raises(KernelError, match=r"faults\.cu: expected one of fill, .*, got gone"):
        cpu_module("faults", SOURCE).get_function("gone")


def test_without_a_compiler_it_is_an_error(monkeypatch):
    """Not a skip, which would hide that no kernel was run."""
    monkeypatch.setattr(compiler, "COMPILER", "no-such-compiler")
    compiler._compiler_version.cache_clear()
    try:
        with pytest.raises(KernelError, match="expected no-such-compiler, by which kernels run on a CPU, got no such"):
            CpuModule("faults", SOURCE)
    finally:
        compiler._compiler_version.cache_clear()
