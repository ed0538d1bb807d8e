"""Trainer.start: the loop that a user of DDP writes, bit for bit; the handle, the places, what callbacks may do."""

import pytest

from tests.distributed.worlds import run_ranks
from tests.train.runs import by_hand_on_threads, cluster, dataset, make_plain, train


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_synchronous_gradients_are_the_loop_by_hand(world_size):
    expected = by_hand_on_threads(world_size)
    assert train(ranks=world_size) == expected
    assert train(cluster=cluster(world_size)) == expected
    assert run_ranks("shm", lambda comm: train(comm=comm), world_size) == [expected] * world_size


def test_a_rank_without_a_last_batch_takes_part():
    expected = by_hand_on_threads(2, 41, make_plain)  # 21 and 20 samples, by fours
    assert train(ranks=2, make_model=make_plain, dataset=dataset(41)) == expected


def test_one_rank_alone_is_the_loop_by_hand():
    assert train() == by_hand_on_threads(1)
