"""The fingerprint of a replica: any bit counts, the order of the computation does not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minigrad
from minigrad import nn, optim
from minigrad.backend.dtypes import as_dtype
from minigrad.distributed import DDP, run
from minigrad.distributed.record.fingerprint import check_agreement, fingerprint, module_fingerprints, replicas_agree
from minigrad.errors import ReplicaMismatchError
from tests.distributed.worlds import run_ranks

DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
sizes, seeds = st.integers(1, 300), st.integers(0, 999)
dtypes = st.sampled_from(DTYPES)


def drawn(count, dtype, seed):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(count) * 50).astype(as_dtype(dtype))


def by_the_formula(array):
    """The documented sum, element by element, in Python's integers."""
    total = 0
    for i, bits in enumerate(array.reshape(-1).view(f"uint{8 * array.dtype.itemsize}").tolist()):
        z = (bits + (i + 1) * 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        total += z ^ z >> 31
    return total % 2**64


@given(count=st.integers(0, 300), dtype=dtypes, seed=seeds)
def test_is_the_documented_sum(count, dtype, seed):
    array = drawn(count, dtype, seed)
    assert int(fingerprint(array)) == by_the_formula(array)


def test_recorded_values():
    """They must never change: files and other implementations hold them. The first is SplitMix64's for seed 0."""
    assert int(fingerprint(np.zeros(1))) == 0xE220A8397B1DCDAF
    assert int(fingerprint(np.arange(5, dtype=np.float32))) == 0xD1430DE7C9A85298


def test_more_elements_than_a_chunk():
    array = np.arange(70_001, dtype=np.int32)
    parts = [fingerprint(array[a:b], start=a) for a, b in ((0, 5), (5, 40_000), (40_000, 70_001))]
    assert int(fingerprint(array)) == by_the_formula(array) == sum(map(int, parts)) % 2**64


@given(count=sizes, dtype=dtypes, seed=seeds, share=st.floats(0, 1))
def test_parts_add_up_in_any_order(count, dtype, seed, share):
    array, cut = drawn(count, dtype, seed), int(share * count)
    first, second = fingerprint(array[:cut]), fingerprint(array[cut:], start=cut)
    assert int(fingerprint(array)) == (int(second) + int(first)) % 2**64


@given(count=sizes, dtype=dtypes, seed=seeds, where=st.integers(0, 10**9))
def test_any_flipped_bit_changes_it(count, dtype, seed, where):
    array = drawn(count, dtype, seed)
    raw = array.copy().view(np.uint8)
    bit = where % (8 * raw.size) if dtype != "bool" else 8 * (where % raw.size)
    raw[bit // 8] ^= np.uint8(1 << bit % 8)
    assert int(fingerprint(raw.view(array.dtype))) != int(fingerprint(array))


@given(count=st.integers(2, 300), dtype=dtypes.filter(lambda d: d != "bool"), seed=seeds, data=st.data())
def test_swapped_elements_change_it(count, dtype, seed, data):
    array = drawn(count, dtype, seed)
    i, j = data.draw(st.lists(st.integers(0, count - 1), min_size=2, max_size=2, unique=True))
    swapped = array.copy()
    swapped[[i, j]] = swapped[[j, i]]
    equal = swapped.tobytes() == array.tobytes()
    assert (int(fingerprint(swapped)) == int(fingerprint(array))) == equal


def test_bits_count_and_not_values():
    quiet, other = np.array([0x7FC00000, 0x7FC00001], np.uint32).view(np.float32).reshape(2, 1)
    assert int(fingerprint(quiet)) != int(fingerprint(other))
    assert int(fingerprint(np.array([0.0]))) != int(fingerprint(np.array([-0.0])))


def test_shape_and_strides_do_not_count():
    array = np.arange(12.0).reshape(3, 4)
    assert int(fingerprint(np.asfortranarray(array))) == int(fingerprint(array)) == int(fingerprint(array.ravel()))
    assert int(fingerprint(np.array(3.0))) == int(fingerprint(np.array([3.0])))


# ------------------------------------------------------------------------------------------------------ replicas


def test_names_and_fingerprints_of_a_module():
    names, values = module_fingerprints(nn.BatchNorm1d(2))
    assert names == [
        "parameter weight",
        "parameter bias",
        "buffer running_mean",
        "buffer running_var",
        "buffer num_batches_tracked",
    ]
    assert values.shape == (5,) and values.dtype == np.uint64
    assert module_fingerprints(nn.BatchNorm1d(2), buffers=False)[0] == names[:2]


@pytest.mark.parametrize("kind", ["threads", "shm"])
def test_ranks_agree_until_one_bit_differs(kind):
    def body(comm):
        module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
        for param in module.parameters():
            param.data[...] = 0.5
        before = replicas_agree(module, comm)
        check_agreement(module, comm, step=6)
        if comm.rank == 1:
            module[0].bias.data.view(np.uint32)[1] ^= 1
            module[1].running_mean.data[0] = 7.0
        assert not replicas_agree(module, comm)
        with pytest.raises(ReplicaMismatchError) as caught:
            check_agreement(module, comm, step=7)
        return before, str(caught.value)

    for rank, (before, message) in enumerate(run_ranks(kind, body, 3)):
        assert before
        assert message == (
            f"rank {rank}: expected equal replicas at step 7, got different bits in parameter 0.bias "
            "(2 of 7 tensors differ): ranks 0, 2 agree; rank 1 has bits of its own"
        )


def test_buffers_may_be_left_out():
    def body(comm):
        module = nn.BatchNorm1d(2)
        module.running_mean.data[...] = comm.rank
        return replicas_agree(module, comm, buffers=False), replicas_agree(module, comm)

    assert run(body, 2) == [(True, False)] * 2


def test_a_module_without_tensors():
    assert run(lambda comm: replicas_agree(nn.ReLU(), comm), 2) == [True, True]


# --------------------------------------------------------------------------------------------- while training


def drifting(comm, options, drift, steps=6):
    """The step and message of the first error; drift(module) spoils rank 1 after step 3."""
    ddp = DDP(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), comm, **options)
    optimizer = optim.SGD(ddp.module.parameters(), lr=0.1)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        rng = np.random.default_rng(10 * step + comm.rank)
        inputs = minigrad.Tensor(rng.standard_normal((4, 3)).astype(np.float32))
        try:
            ddp(inputs).square().mean().backward()
        except ReplicaMismatchError as error:
            return step, str(error)
        optimizer.step()
        if step == 3 and comm.rank == 1:
            drift(ddp.module)
    return None


def flip(module):
    module[1].weight.data.view(np.uint32)[0] ^= 1 << 12  # a lower bit may be rounded away by the next steps


def move_buffer(module):
    module[1].running_var.data += 1.0


@pytest.mark.parametrize("every, noticed", [(1, 4), (2, 4), (3, 6), (5, 5), (7, None), (None, None)])
def test_a_drifting_replica_is_noticed_at_the_next_check(every, noticed):
    for rank, found in enumerate(run(drifting, 3, {"check_replicas_every": every}, flip)):
        assert (found and found[0]) == noticed
        if found:
            assert found[1].startswith(f"rank {rank}: expected equal replicas at step {noticed}, got different bits ")
            assert "in parameter 1.weight (1 of 7" in found[1]
            assert found[1].endswith("ranks 0, 2 agree; rank 1 has bits of its own")


@pytest.mark.parametrize("policy", ["broadcast", "mean", "none"])
@pytest.mark.parametrize("cadence", [1, 2])
def test_buffers_count_only_when_they_were_synchronised(policy, cadence):
    options = {"check_replicas_every": 1, "broadcast_buffers": policy, "buffer_cadence": cadence}
    assert run(drifting, 2, options, lambda module: None) == [None, None]
    assert run(drifting, 2, options, move_buffer) == [None, None]  # mended before it is looked at


def test_ranks_that_wait_in_join_are_not_compared():
    def body(comm):
        ddp = DDP(nn.Linear(3, 2), comm, check_replicas_every=1)
        optimizer = optim.SGD(ddp.module.parameters(), lr=0.1)
        with ddp.join():
            for _ in range(1 + 2 * comm.rank):
                optimizer.zero_grad()
                ddp(minigrad.ones(2, 3)).square().mean().backward()
                optimizer.step()
        return replicas_agree(ddp.module, comm)

    assert run(body, 2) == [True, True]
