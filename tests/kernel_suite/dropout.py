"""Philox on the device: the bits of NumPy's, wherever the generator stands, and dropout by them."""

import numpy as np
import pytest

from minigrad.backend.device import to_host
from minigrad.backend.fused.dropout import (
    LIVE_WORDS,
    draw_words,
    drop,
    move_live,
    position_of,
    set_live,
    take_words,
)
from tests.kernel_suite.values import DTYPES, SIZES, draw, equal

KEY = np.array([0x0123456789ABCDEF, 2**64 - 3], np.uint64)
COUNTERS = [[0, 0, 0, 0], [2**64 - 2, 0, 0, 0], [2**64 - 1, 2**64 - 1, 2**64 - 1, 5], [2**64 - 1] * 4]


def generator(counter=(0, 0, 0, 0), drawn=0):
    rng = np.random.Generator(np.random.Philox(counter=np.array(counter, np.uint64), key=KEY))
    rng.bit_generator.random_raw(drawn)
    return rng


def same_place(one, other):
    return np.array_equal(one.bit_generator.random_raw(9), other.bit_generator.random_raw(9))


@pytest.mark.parametrize("counter", COUNTERS, ids=str)
def test_words_of_philox(on, counter):
    for drawn in range(6):
        for count in (1, 3, 4, 5, 64, 1001):
            ours, numpys = generator(counter, drawn), generator(counter, drawn)
            words = on(np.zeros(count, np.uint64))
            draw_words(words, take_words(ours, count))
            assert np.array_equal(to_host(words), numpys.bit_generator.random_raw(count))
            assert same_place(ours, numpys)


def test_no_words_leave_the_generator_where_it_is(on):
    ours = generator(drawn=3)
    take_words(ours, 0)
    assert same_place(ours, generator(drawn=3))


def test_another_generator_is_left_alone():
    rng = np.random.default_rng(0)
    assert take_words(rng, 5) is None
    assert rng.integers(100) == np.random.default_rng(0).integers(100)


@pytest.mark.parametrize("counter", COUNTERS, ids=str)
def test_a_place_in_device_memory(on, counter):
    """It is moved on by the device, and words are drawn so many words after it."""
    for drawn in range(6):
        for moved, skipped in [(0, 0), (0, 3), (1, 1), (3, 0), (4, 2), (5, 9), (64, 1)]:
            numpys, live = generator(counter, drawn), on(np.zeros(LIVE_WORDS, np.uint64))
            set_live(live, position_of(numpys))
            move_live(live, moved)
            words = on(np.zeros(9, np.uint64))
            elsewhere = take_words(generator((7, 7, 7, 7)), 0)
            draw_words(words, elsewhere._replace(live=live, words_on=np.uint64(skipped)))
            assert np.array_equal(to_host(words), numpys.bit_generator.random_raw(moved + skipped + 9)[-9:])


def test_places_tell_how_many_words_were_given():
    one = generator()
    for count in (1, 2, 4, 5, 64):
        before = position_of(one)
        take_words(one, count)
        assert position_of(one).number() - before.number() == count
        assert position_of(one).place()[0] == before.place()[0] == tuple(KEY)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shift", [0, 1])
def test_dropout_by_words(on, dtype, shift):
    for size in SIZES:
        for drawn in (0, 1, 3):
            count, threshold, scale = -(-size // 4), 20000, 65536 / 45536
            x = draw(size, size, dtype)
            array = on(np.concatenate([np.zeros(shift, x.dtype), x]))[shift:]
            out = drop(array, take_words(generator(drawn=drawn), count), threshold, scale)
            bits = generator(drawn=drawn).bit_generator.random_raw(count).view(np.uint16)[:size]
            wide = np.promote_types(x.dtype, np.float32)
            expected = x.astype(wide) * np.where(bits >= threshold, wide.type(scale), wide.type(0))
            assert equal(out, expected.astype(x.dtype))


def test_dropout_keeps_nan(on):
    """What is dropped is multiplied by 0, as in the reference, so nothing hides a NaN."""
    x = np.full(100, np.nan, np.float32)
    assert np.isnan(to_host(drop(on(x), take_words(generator(), 25), 30000, 2.0))).all()
