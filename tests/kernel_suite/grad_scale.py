"""pack, scale_ and unpack: exact, whatever the sizes and the alignment."""

import numpy as np
import pytest

from minigrad.backend.device import to_host
from minigrad.backend.fused import grad_scale
from minigrad.backend.fused.grad_scale import WIRES, Placement, pack, scale_, unpack
from minigrad.errors import ArgumentError, DtypeError
from tests.kernel_suite.values import DTYPES, SIZES, draw, equal, wide_range

PAIRS = [(s, w) for s in DTYPES for w in DTYPES if DTYPES[w].name in WIRES[DTYPES[s].name]]
GAPS = (0, 3, 1, 0, 7, 2)  # elements in front of each array in the bucket


def weighted(x, weight, dtype):
    """What a pass must write: multiplied in the wider of float32 and both dtypes, rounded once."""
    wide = np.result_type(np.float32, *(d for d in (x.dtype, dtype) if d.kind == "f"))
    with np.errstate(over="ignore", invalid="ignore"):
        return (x.astype(wide) * wide.type(weight) if weight else np.zeros(x.shape)).astype(dtype)


def places():
    offsets, end = [], 0
    for gap, size in zip(GAPS, SIZES):
        offsets.append(end + gap)
        end += gap + size
    return offsets, end + 5


def misaligned(on, x, by):
    """The array on the device, its first element `by` elements behind an aligned place."""
    return on(np.concatenate([np.zeros(by, x.dtype), x]))[by:]


def weight_on(on, value):
    return on(np.array([value]))


@pytest.mark.parametrize("source, wire", PAIRS)
@pytest.mark.parametrize("chunk", [32, 8192])
def test_pack(on, source, wire, chunk, monkeypatch):
    monkeypatch.setattr(grad_scale, "CHUNK", chunk)
    offsets, length = places()
    hosts = [wide_range(i, size, source) for i, size in enumerate(SIZES)]
    arrays = [misaligned(on, x, i % 3) for i, x in enumerate(hosts)]
    bucket = on(np.full(length, 7, DTYPES[wire]))
    expected = np.full(length, 7, DTYPES[wire])
    for x, offset in zip(hosts, offsets):
        expected[offset : offset + len(x)] = weighted(x, 0.3, DTYPES[wire])
    pack(Placement(arrays, offsets), bucket, weight_on(on, 0.3))
    assert equal(bucket, expected)
    assert all(equal(array, x) for array, x in zip(arrays, hosts))


@pytest.mark.parametrize("target, wire", PAIRS)
def test_unpack(on, target, wire):
    offsets, length = places()
    bucket = wide_range(1, length, wire)
    arrays = [misaligned(on, np.full(size, 7, DTYPES[target]), i % 3) for i, size in enumerate(SIZES)]
    nonfinite, squares = on(np.zeros(1, np.uint32)), on(np.full(1, 9.0))
    unpack(on(bucket), weight_on(on, 0.7), Placement(arrays, offsets), nonfinite, squares)
    total = 0.0
    for array, offset in zip(arrays, offsets):
        expected = weighted(bucket[offset : offset + array.size], 0.7, DTYPES[target])
        assert equal(array, expected)
        total += np.dot(*[expected.astype(np.float64)] * 2)
    np.testing.assert_allclose(to_host(squares), total, rtol=1e-13)
    assert to_host(nonfinite)[0] == 0


@pytest.mark.parametrize("count", [1, 48, 49, 100])
def test_as_many_arrays_as_there_are(on, count):
    """48 a launch; those without elements take no place."""
    sizes = [(7 * i) % 41 for i in range(count + count // 10)]
    hosts = [draw(i, size) for i, size in enumerate(sizes)]
    offsets = [3 + 45 * i for i in range(len(sizes))]
    bucket, arrays = on(np.full(45 * len(sizes), 7, np.float32)), [on(x) for x in hosts]
    expected = np.full(bucket.size, 7, np.float32)
    for x, offset in zip(hosts, offsets):
        expected[offset : offset + len(x)] = weighted(x, 0.3, DTYPES["f32"])
    placement, squares = Placement(arrays, offsets), on(np.full(1, 9.0))
    pack(placement, bucket, weight_on(on, 0.3))
    assert equal(bucket, expected)
    unpack(bucket, weight_on(on, 1.0), placement, squares=squares)
    found = [weighted(x, 0.3, DTYPES["f32"]) for x in hosts]
    assert all(equal(array, x) for array, x in zip(arrays, found))
    np.testing.assert_allclose(to_host(squares)[0], np.square(np.concatenate(found).astype(np.float64)).sum(), 1e-13)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shift", [0, 1])
def test_scale(on, dtype, shift):
    for size in SIZES:
        x = wide_range(size, size, dtype)
        array, nonfinite, squares = misaligned(on, x, shift), on(np.zeros(1, np.uint32)), on(np.full(1, 9.0))
        expected = weighted(x, 1 / 3, x.dtype)
        scale_(array, weight_on(on, 1 / 3), nonfinite, squares)
        assert equal(array, expected)
        np.testing.assert_allclose(to_host(squares)[0], np.dot(*[expected.astype(np.float64)] * 2), rtol=1e-13)
        assert to_host(nonfinite)[0] == 0
        scale_(array, weight_on(on, 1.0))
        assert equal(array, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_bad_value_is_seen_wherever_it_is(on, dtype, bad):
    for at in (0, 33, 70):
        x = wide_range(0, 71, dtype)
        x[at] = bad
        flags = on(np.zeros(3, np.uint32))
        array, bucket = on(x), on(np.zeros(71, x.dtype))
        pack(Placement([array], [0]), bucket, weight_on(on, 0.5), flags[0:1])
        scale_(array, weight_on(on, 0.5), flags[1:2])
        unpack(bucket, weight_on(on, 0.5), Placement([array], [0]), flags[2:3])
        assert to_host(flags).tolist() == [1, 1, 1]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_weight_of_zero_writes_zeros_even_over_nan(on, dtype):
    x = wide_range(0, 70, dtype)
    x[::3] = np.nan
    x[1::3] = np.inf
    array, bucket = on(x), on(np.full(70, 7, x.dtype))
    nonfinite, squares = on(np.zeros(1, np.uint32)), on(np.ones(1))
    pack(Placement([array], [0]), bucket, weight_on(on, 0.0), nonfinite)
    assert equal(bucket, np.zeros(70, x.dtype))
    unpack(on(x), weight_on(on, 0.0), Placement([bucket], [0]), nonfinite, squares)
    assert equal(bucket, np.zeros(70, x.dtype))
    scale_(array, weight_on(on, 0.0), nonfinite, squares)
    assert equal(array, np.zeros(70, x.dtype))
    assert to_host(nonfinite)[0] == 0 and to_host(squares)[0] == 0


@pytest.mark.parametrize("wire, limit", [("f16", 65504.0), ("bf16", 3.3895e38)])
def test_overflow_of_the_wire_sets_the_flag(on, wire, limit):
    """The flag is about what is sent, not about what came."""
    for value, expected in ((limit, 0), (limit * 1.003, 1)):
        x = np.full(40, 0.0, np.float32)
        x[33] = np.float32(value)
        bucket, nonfinite = on(np.zeros(40, DTYPES[wire])), on(np.zeros(1, np.uint32))
        pack(Placement([on(x)], [0]), bucket, weight_on(on, 1.0), nonfinite)
        assert to_host(nonfinite)[0] == expected


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_every_half_survives_a_round_trip(on, dtype):
    """Conversions are exact: all bit patterns but those of NaN, and of what a GPU takes for 0 in float32."""
    bits = np.arange(2**16, dtype=np.uint16)
    x = bits[(bits & 0x7FFF) <= {"f16": 0x7C00, "bf16": 0x7F80}[dtype]].view(DTYPES[dtype])
    size = np.abs(x.astype(np.float32))
    x = x[(size > 1.2e-38) | (size == 0)]
    wide, back = on(np.zeros(x.size, np.float32)), on(np.zeros(x.size, x.dtype))
    unpack(on(x), weight_on(on, 1.0), Placement([wide], [0]))
    assert equal(wide, x.astype(np.float32))
    pack(Placement([wide], [0]), back, weight_on(on, 1.0))
    assert equal(back, x)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_casts_round_to_nearest_even(on, dtype):
    """Halfway between every two neighbours, and one bit of float32 to both sides of it."""
    bits = np.arange(0x0400, 0x7800, 7, dtype=np.uint16)
    low, high = (b.view(DTYPES[dtype]).astype(np.float32) for b in (bits, bits + np.uint16(1)))
    middle = (low / 2 + high / 2).astype(np.float32)
    x = np.concatenate([middle, np.nextafter(middle, low), np.nextafter(middle, high)])
    x = x[(np.abs(x) > 1e-37)]
    bucket = on(np.zeros(x.size, DTYPES[dtype]))
    pack(Placement([on(x)], [0]), bucket, weight_on(on, 1.0))
    assert equal(bucket, x.astype(DTYPES[dtype]))


def test_empty_arrays_are_no_work(on):
    empty = on(np.zeros(0, np.float32))
    bucket, squares = on(np.ones(4, np.float32)), on(np.ones(1))
    pack(Placement([empty], [2]), bucket, weight_on(on, 0.5))
    unpack(bucket, weight_on(on, 0.5), Placement([empty], [2]), None, squares)
    assert to_host(squares)[0] == 0
    scale_(empty, weight_on(on, 0.5))
    assert equal(bucket, np.ones(4, np.float32))


def test_the_same_input_gives_the_same_bits(on):
    x = wide_range(0, 100_000, "f32")
    sums = []
    for _ in range(3):
        squares = on(np.zeros(1))
        scale_(on(x), weight_on(on, 0.3), None, squares)
        sums.append(to_host(squares)[0])
    assert sums[0] == sums[1] == sums[2]


def test_wrong_arguments(on):
    x, bucket, one = on(np.ones((4, 6), np.float32)), on(np.zeros(30, np.float32)), weight_on(on, 1.0)
    with pytest.raises(ArgumentError, match=r"expected contiguous arrays, got strides \(24, 8\)"):
        Placement([x[:, ::2]], [0])
    with pytest.raises(DtypeError, match="expected arrays of one dtype, got float32 and float64"):
        Placement([x, on(np.ones(3))], [0, 24])
    with pytest.raises(ArgumentError, match="expected arrays, and an offset for each, got 1 arrays and 2 offsets"):
        Placement([x], [0, 1])
    with pytest.raises(ArgumentError, match="expected a bucket of at least 31 elements, got 30"):
        pack(Placement([x], [7]), bucket, one)
    with pytest.raises(DtypeError, match="expected a bucket of float32, float16, bfloat16, got float64"):
        pack(Placement([x], [0]), on(np.zeros(30)), one)
    with pytest.raises(ArgumentError, match=r"expected weight of float64 \(1,\), got float32 \(1,\)"):
        scale_(bucket, on(np.ones(1, np.float32)))
    with pytest.raises(ArgumentError, match=r"expected nonfinite of uint32 \(1,\), got uint32 \(2,\)"):
        scale_(bucket, one, on(np.zeros(2, np.uint32)))
    with pytest.raises(ArgumentError, match=r"expected a contiguous bucket of one axis, got \(4, 6\)"):
        scale_(x, one)
