"""What ranks of a run have to be told alike, in step and apart: a difference is named on all of them."""

import numpy as np
import pytest

from minigrad import distributed, optim
from minigrad.distributed.average import DiLoCo, EveryK, Policy
from minigrad.errors import ArgumentError, DistributedError, ReplicaMismatchError
from minigrad.train import Checkpoint
from tests.train.runs import bits, dataset, make_plain, start, train

APART = {"dispatch": "progressive"}


class Every(Policy):
    """A user's own, which says nothing of itself in words."""

    def __init__(self, k):
        self.k = k

    def start(self, world_size):
        return 0

    def decide(self, state, made):
        return (state, made.batches >= self.k, "")


class Plain:
    """An outer optimizer of the same kind."""

    fragments, delay, makes_alike = 1, 0, True

    def start(self, values):
        return None

    def combine(self, state, local, average):
        return state, average


def on_two(first, second, **common):
    """What two ranks come to that were told other things, but in one place of the program."""
    def body(comm):
        given = second if comm.rank else first
        return bits(start(comm=comm, epochs=1, make_model=make_plain, **common, **given).join())

    return distributed.run(body, 2, timeout_s=10.0)


@pytest.mark.parametrize("common", [{}, APART], ids=["in step", "apart"])
@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("seed", 1, 2), ("batch_size", 4, 3), ("shuffle", True, False), ("max_grad_norm", 0.1, None),
        ("lr_scale", 2.0, None), ("scaler", optim.GradScaler(4.0), None),
        ("schedule", optim.schedule.StepDecay(2, gamma=0.5), None),
    ],
)  # fmt: skip
def test_an_option_that_differs_is_named(common, name, one, other):
    with pytest.raises(ReplicaMismatchError, match=f"equal options.* on all ranks, got {name} is"):
        on_two({name: one}, {name: other}, **common)


@pytest.mark.parametrize("common", [{}, APART], ids=["in step", "apart"])
def test_a_checkpoint_of_one_rank_alone_is_named(common, tmp_path):
    with pytest.raises(ReplicaMismatchError, match="Checkpoint is .* on rank 0 and None on rank 1"):
        on_two({"callbacks": [Checkpoint(tmp_path)]}, {}, **common)


def test_other_data_is_named_where_ranks_are_apart():
    with pytest.raises(ReplicaMismatchError, match="samples is 40 on rank 0 and 46 on rank 1"):
        on_two({"dataset": dataset(40)}, {"dataset": dataset(46)}, **APART)


def test_what_only_reads_otherwise_is_no_difference():
    """The order of names, and objects that print as where they lie."""
    names = {"bucket_cap_mb": 1, "track_nonfinite": True}
    first, second = on_two({"ddp_options": names}, {"ddp_options": dict(reversed(names.items()))})
    assert first == second
    apart = {"average": "parameters"}
    own = on_two({"policy": Every(2), "outer": Plain()}, {"policy": Every(2), "outer": Plain()}, **apart)
    assert own == [train(ranks=2, epochs=1, make_model=make_plain, policy=EveryK(2), **apart)] * 2
    with pytest.raises(ReplicaMismatchError, match="k is 2 on rank 0 and 3 on rank 1"):
        on_two({"policy": Every(2)}, {"policy": Every(3)}, **apart)


def test_weights_of_other_ranks_are_refused_where_nobody_sends_them():
    """In step the first rank's are sent to all; apart ranks have no place for that, and each draws its own."""
    def make_model(device):
        model = make_plain(device)
        model[0].weight.data[...] = np.random.default_rng().standard_normal(model[0].weight.shape)
        return model

    with pytest.raises(ReplicaMismatchError, match="what make_model made by this seed is"):
        start(ranks=2, make_model=make_model, **APART).join()


def test_a_rate_of_one_rank_alone_is_refused_where_ranks_are_apart():
    """They would make other steps of the same gradients, and nobody would see it."""
    def one_alone(metrics, worker):
        if worker.rank == 1:
            worker.lr = 0.1

    with pytest.raises(ReplicaMismatchError, match="'lr': 0.05.* on rank 0 and .*'lr': 0.1"):
        start(ranks=2, callbacks=[one_alone], **APART).join()


@pytest.mark.parametrize("options", [{}, APART], ids=["in step", "apart"])
def test_a_rank_knows_which_it_is(options):
    """Also what asks without a communicator; and apart a collective is refused, not done by one rank for itself."""
    found = set()

    def look(metrics, worker):
        found.add((worker.rank, distributed.get_rank(), distributed.init().rank, distributed.get_world_size()))

    start(ranks=3, epochs=1, callbacks=[look], **options).join()
    assert found == {(rank, rank, rank, 3) for rank in range(3)}

    def meet(metrics, worker):
        distributed.barrier()

    if options:
        with pytest.raises(DistributedError, match="expected no collective where ranks are not in step"):
            start(ranks=2, epochs=1, callbacks=[meet], **options).join()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"devices": 2}, "expected devices as a list"),
        ({"devices": {"cpu"}}, "expected devices as a list"),
        ({"dataset": dataset(0)}, "expected a dataset of samples"),
        ({"autocast": True}, "expected autocast to be one of"),
        ({"autocast": "float32"}, "expected autocast to be one of"),
        ({"outer": np.zeros(2)}, "expected an outer optimizer"),
        ({"outer": DiLoCo, "average": "parameters"}, "expected an outer optimizer"),
        ({"average": "parameters", "average_options": {"optimizer_state": "drop"}}, "expected optimizer_state"),
        ({"average": "parameters", "average_options": {"init_sync": 1}}, "expected init_sync"),
    ],
)
def test_a_wrong_value_is_refused_where_it_is_given(options, words):
    with pytest.raises(ArgumentError, match=words):
        start(**options)
