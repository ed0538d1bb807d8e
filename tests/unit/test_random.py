"""The two random streams: what a seed fixes, what ranks share, what a context keeps to itself."""

import contextvars
import functools
import json

import numpy as np
import pytest

import minigrad
from minigrad import get_rng_state, manual_seed, set_rng_state
from minigrad.backend.random import init_generator, noise_generator, set_noise_key, shard_noise
from minigrad.errors import ArgumentError


def isolated(function):
    """Run a test in a context of its own, so that its seeds do not reach other tests."""

    @functools.wraps(function)
    def run(*args, **kwargs):
        return contextvars.copy_context().run(function, *args, **kwargs)

    return run


def draws():
    """Three numbers of each stream: (init, noise)."""
    return init_generator().random(3).tolist(), noise_generator().random(3).tolist()


@isolated
def test_a_seed_fixes_both_streams():
    manual_seed(5)
    first = draws()
    later = draws()
    manual_seed(5)
    assert draws() == first and first != later and first[0] != first[1]
    manual_seed(6)
    other = draws()
    assert other[0] != first[0] and other[1] != first[1]


@isolated
def test_the_stream_of_a_seed_never_changes():
    """Recorded once: a seed must give the same weights in every version."""
    manual_seed(0)
    assert init_generator().bit_generator.random_raw(2).tolist() == np.random.Philox(
        key=np.array([0, 0], np.uint64)
    ).random_raw(2).tolist()
    assert isinstance(noise_generator().bit_generator, np.random.Philox)


@isolated
def test_ranks_share_init_and_differ_in_noise():
    found = []
    for rank in range(3):
        set_noise_key(rank)
        manual_seed(7)
        found.append(draws())
    inits, noises = zip(*found)
    assert inits[0] == inits[1] == inits[2]
    assert len({tuple(noise) for noise in noises}) == 3


@isolated
def test_a_noise_key_leaves_init_where_it_was():
    manual_seed(7)
    init_generator().random(3)
    expected = contextvars.copy_context().run(lambda: get_rng_state()["init"]["state"]["counter"])
    set_noise_key(4)
    assert get_rng_state()["init"]["state"]["counter"] == expected and get_rng_state()["noise_key"] == 4


@isolated
def test_contexts_do_not_share_a_position():
    """What a rank's context draws after it took its key does not move the parent's streams."""
    manual_seed(3)
    set_noise_key(0)
    expected = draws()
    manual_seed(3)

    def rank():
        set_noise_key(1)
        return draws()

    assert contextvars.copy_context().run(rank)[0] == expected[0]
    assert draws() == expected


@isolated
def test_a_seed_set_in_a_context_stays_there():
    manual_seed(3)
    expected = draws()
    manual_seed(3)
    contextvars.copy_context().run(manual_seed, 9)
    assert draws() == expected


@isolated
def test_state_round_trip():
    manual_seed(11)
    set_noise_key(2)
    draws()
    state = get_rng_state()
    first = draws()
    noise_generator().standard_normal(7, np.float32)
    assert draws() != first
    set_rng_state(json.loads(json.dumps(state)))
    assert draws() == first
    set_rng_state(state)  # the state itself was not moved on
    assert draws() == first


@isolated
def test_the_state_of_another_rank_leaves_each_rank_its_noise():
    """As far as that rank had come, but with numbers that no rank has drawn; its replay has to be asked for."""
    manual_seed(11)
    early = {tuple(draws()[1])}
    noise_generator().integers(0, 9, dtype=np.uint32)
    state = json.loads(json.dumps(get_rng_state()))
    init, noise = draws()
    found = set()
    for rank in range(3):
        manual_seed(5)
        set_noise_key(rank)
        early.add(tuple(draws()[1]))
        set_rng_state(state)
        assert get_rng_state()["noise_key"] == rank
        assert init_generator().random(len(init)).tolist() == init
        found.add(tuple(noise_generator().random(len(noise)).tolist()))
    assert len(found) == 3 and tuple(noise) in found and not found & early
    set_rng_state(state, noise_key="theirs")
    assert draws() == (init, noise) and get_rng_state()["noise_key"] == 0
    with pytest.raises(ArgumentError, match="set_rng_state: expected noise_key to be one of 'own', 'theirs', got 3"):
        set_rng_state(state, noise_key=3)


@isolated
def test_a_state_taken_within_a_shard_restores_exactly_there():
    manual_seed(11)
    with shard_noise(2):
        state = get_rng_state()
        first = draws()
        set_rng_state(state)
        assert draws() == first


@isolated
def test_unseeded_contexts_differ():
    empty = contextvars.Context()
    assert empty.run(draws) != contextvars.Context().run(draws)


@isolated
def test_the_largest_seed_and_numpy_integers():
    manual_seed(2**64 - 1)
    manual_seed(np.int64(4))
    first = draws()
    manual_seed(4)
    assert draws() == first


MAKERS = [minigrad.randn, minigrad.rand, minigrad.randperm, lambda n: minigrad.randint(100, size=(n,))]


@pytest.mark.parametrize("make", MAKERS)
@isolated
def test_random_tensors_come_from_the_noise_stream(make):
    manual_seed(1)
    first = make(6).tolist()
    init = init_generator().random()
    manual_seed(1)
    assert make(6).tolist() == first and init_generator().random() == init
    given = np.random.default_rng(0)
    kept = get_rng_state()["noise"]["state"]["counter"]
    minigrad.randn(4, rng=given)
    assert get_rng_state()["noise"]["state"]["counter"] == kept


@isolated
def test_a_shard_draws_the_same_on_every_rank_and_goes_on_where_it_was():
    manual_seed(4)
    with shard_noise(1):
        first = draws()[1]
    own = draws()[1]
    with shard_noise(1):
        second = draws()[1]
    manual_seed(4)
    set_noise_key(3)
    assert draws()[1] not in (first, own)
    for expected in (first, second):
        with shard_noise(0):
            assert draws()[1] != expected
        with shard_noise(1):
            assert draws()[1] == expected


@isolated
def test_state_holds_the_streams_of_shards():
    manual_seed(4)
    with shard_noise(5):
        draws()
    state = get_rng_state()
    with shard_noise(5):
        expected = draws()
    set_rng_state(json.loads(json.dumps(state)))
    with shard_noise(5):
        assert draws() == expected


def test_randint_like_takes_shape_and_dtype():
    minigrad.manual_seed(0)
    drawn = minigrad.randint_like(minigrad.zeros(50, dtype=minigrad.int32), 2, 5)
    assert drawn.shape == (50,) and drawn.dtype == np.int32 and set(drawn.tolist()) == {2, 3, 4}
    assert set(minigrad.randint_like(minigrad.zeros(50), 2).tolist()) == {0.0, 1.0}
