"""Faults of data parallelism that belong to no part of their own; `FAULTS.md` lists all, and where they are tested."""

from dataclasses import dataclass

import numpy as np
import pytest

import minigrad
from minigrad import nn, optim
from minigrad.distributed import DDP, SoloCommunicator, plan_buckets, run
from minigrad.distributed.ddp.buckets import Entry
from minigrad.errors import AutogradError, LayoutError, NonFiniteError, RankFailedError
from minigrad.nn.module import Module
from minigrad.nn.parameter import Parameter
from tests.distributed.models import Mlp, assert_gradients_close, data, gradients, mean_loss, values

TIMEOUT_S = 10.0


def test_a_forward_that_goes_around_the_wrapper_is_an_error():
    """Nobody has counted its samples, so gradients would stay local, and replicas drift apart."""

    def body(comm, syncing):
        ddp = DDP(Mlp(0), comm)
        ddp.reducer.syncing = syncing
        inputs, targets = data(4, comm.rank)
        loss = mean_loss(ddp.module(minigrad.Tensor(inputs)), targets)
        with pytest.raises((AutogradError, RankFailedError), match="call the wrapper, not its module"):
            loss.backward()
        return True

    assert run(body, 2, True, timeout_s=TIMEOUT_S) == run(body, 2, False, timeout_s=TIMEOUT_S) == [True, True]


def test_a_forward_around_the_wrapper_may_say_its_samples():
    batches = [data(2, 0), data(6, 1)]

    def body(comm):
        ddp = DDP(Mlp(0), comm)
        inputs, targets = batches[comm.rank]
        loss = mean_loss(ddp.module(minigrad.Tensor(inputs)), targets)
        with ddp.samples(len(inputs)):
            loss.backward()
        return gradients(ddp.module)

    alone = Mlp(0)
    inputs, targets = (np.concatenate(parts) for parts in zip(*batches))
    mean_loss(alone(minigrad.Tensor(inputs)), targets).backward()
    for actual in run(body, 2, timeout_s=TIMEOUT_S):
        assert_gradients_close(actual, gradients(alone))


def test_a_backward_that_raises_is_told_to_the_others_even_when_it_is_caught():
    """Half of its buckets may be combined and half not: nobody goes on with such gradients."""

    def body(comm):
        ddp = DDP(Mlp(0), comm, bucket_cap_bytes=1)
        inputs, targets = data(4, 0)
        loss = mean_loss(ddp(minigrad.Tensor(inputs)), targets)
        if comm.rank == 1:
            with pytest.raises(ArithmeticError, match="planted"):
                loss.backward(on_leaf=_raise)
        else:
            with pytest.raises(RankFailedError, match="its backward raised ArithmeticError: planted"):
                loss.backward()
        with pytest.raises(RankFailedError, match="planted"):
            mean_loss(ddp(minigrad.Tensor(inputs)), targets).backward()
        return True

    assert run(body, 2, timeout_s=TIMEOUT_S) == [True, True]


def _raise(leaf):
    raise ArithmeticError("planted")


@dataclass
class Heads:
    """An output of a kind that nobody searches for tensors."""

    named: dict
    listed: list


class Nested(Module):
    """Outputs inside a dict, a list of tuples and a dataclass."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([Mlp(seed) for seed in range(3)])

    def forward(self, x):
        first, second, third = (part(x) for part in self.parts)
        return Heads({"first": first}, [(second, None), (third, "text")])


def test_parameters_are_used_whatever_holds_the_outputs():
    inputs, targets = data(6, 0)

    def body(comm):
        part = [slice(0, 2), slice(2, 6)][comm.rank]
        ddp = DDP(Nested(), comm)
        heads = ddp(minigrad.Tensor(inputs[part]))
        outputs = [heads.named["first"], heads.listed[0][0], heads.listed[1][0]]
        sum((mean_loss(output, targets[part]) for output in outputs), minigrad.Tensor(np.zeros(()))).backward()
        return gradients(ddp.module)

    alone = [Mlp(seed) for seed in range(3)]
    for model in alone:
        mean_loss(model(minigrad.Tensor(inputs)), targets).backward()
    expected = {f"parts.{i}.{name}": g for i, model in enumerate(alone) for name, g in gradients(model).items()}
    for actual in run(body, 2, timeout_s=TIMEOUT_S):
        assert_gradients_close(actual, expected)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_stay_where_they_are_reduced_whichever_way_they_are_zeroed(set_to_none):
    inputs, targets = data(6, 0)

    def body(comm):
        part = [slice(0, 2), slice(2, 6)][comm.rank]
        ddp = DDP(Mlp(0), comm, bucket_cap_bytes=64)
        for _ in range(3):
            ddp.zero_grad(set_to_none)
            mean_loss(ddp(minigrad.Tensor(inputs[part])), targets[part]).backward()
            assert all(p.grad_array is p.grad_view for p in ddp.parameters())
        return gradients(ddp.module)

    alone = Mlp(0)
    mean_loss(alone(minigrad.Tensor(inputs)), targets).backward()
    for actual in run(body, 2, timeout_s=TIMEOUT_S):
        assert_gradients_close(actual, gradients(alone))


def test_rows_of_an_embedding_that_two_ranks_use_are_added_and_others_are_zero():
    tokens = [[0, 1, 1], [1, 3, 0]]

    def body(comm):
        ddp = DDP(nn.Embedding(5, 2, dtype="float64"), comm)
        ddp(minigrad.Tensor(np.array(tokens[comm.rank]))).sum(dim=1).mean().backward()
        return gradients(ddp.module)

    counts = np.bincount(np.ravel(tokens), minlength=5) / 6
    for actual in run(body, 2, timeout_s=TIMEOUT_S):
        np.testing.assert_allclose(actual["weight"], np.stack([counts, counts], axis=1), atol=1e-15)


@pytest.mark.parametrize("optimizer", [optim.AdamW, lambda p, **options: optim.SGD(p, momentum=0.9, **options)])
def test_an_idle_layer_moves_neither_by_decay_nor_by_the_momentum_of_before(optimizer):
    """Used in the first step and by no rank in the second: as in one process, it stays where it is."""

    def body(comm):
        ddp = DDP(nn.ModuleDict({"a": Mlp(0), "b": Mlp(1)}), comm, find_unused_parameters=True)
        step = optimizer(ddp.parameters(), lr=0.1, weight_decay=0.1)
        inputs, targets = data(3, comm.rank)
        seen = []
        for names in (["a", "b"], ["a"]):
            step.zero_grad()
            with ddp.samples(3):
                outputs = [ddp.module[name](minigrad.Tensor(inputs)) for name in names]
                sum((mean_loss(o, targets) for o in outputs), minigrad.Tensor(np.zeros(()))).backward()
            step.step()
            seen.append(values(ddp.module))
        return seen

    for first, second in run(body, 2, timeout_s=TIMEOUT_S):
        for name in first:
            assert (first[name].tobytes() == second[name].tobytes()) == name.startswith("b."), name


def test_a_step_that_is_not_finite_on_one_rank_is_skipped_by_all():
    """They look at the combined gradient, so that all decide alike, and stay together after it."""

    def body(comm):
        ddp = DDP(Mlp(0), comm)
        step = optim.SGD(ddp.parameters(), lr=0.1)
        skipped = 0
        for number in range(3):
            inputs, targets = data(4, 10 * comm.rank + number)
            if comm.rank == number == 1:
                inputs = inputs * float("nan")
            step.zero_grad()
            mean_loss(ddp(minigrad.Tensor(inputs)), targets).backward()
            try:
                optim.clip_grad_norm_(ddp.parameters(), 1.0, error_if_nonfinite=True)
            except NonFiniteError:
                skipped += 1
                continue
            step.step()
        return skipped, values(ddp.module)

    (skipped, first), (also, second) = run(body, 2, timeout_s=TIMEOUT_S)
    assert skipped == also == 1 and np.isfinite(first["w1"]).all()
    assert all(first[name].tobytes() == second[name].tobytes() for name in first)


@pytest.mark.parametrize("change", ["added", "removed"])
def test_a_layer_that_comes_or_goes_after_wrapping_is_noticed(change):
    ddp = DDP(nn.Sequential(Mlp(0), Mlp(1, (2, 3, 2))), SoloCommunicator())
    if change == "added":
        ddp.module.later = Parameter(np.zeros(1))
    else:
        ddp.module[1] = nn.Identity()
    with pytest.raises(LayoutError, match="later" if change == "added" else r"1\.w1"):
        ddp(minigrad.Tensor(np.zeros((2, 3))))


def test_dropout_differs_by_rank_and_weights_do_not():
    def body(comm):
        model = nn.Linear(4, 4)
        return model.weight.data.copy(), nn.Dropout(0.5)(minigrad.Tensor(np.ones(64))).data

    minigrad.manual_seed(5)
    (weights, mask), (others_weights, others_mask) = run(body, 2, timeout_s=TIMEOUT_S)
    assert weights.tobytes() == others_weights.tobytes()
    assert (mask != others_mask).any()


def test_a_bucket_ends_with_its_buffer_even_where_the_next_one_seems_to_go_on():
    """A part of a model that an optimizer laid out as a whole may begin anywhere in its buffer."""
    entries = [Entry("a", 0, 0, 16, 4), Entry("b", 1, 16, 32, 8)]
    assert [bucket.entries for bucket in plan_buckets(entries).buckets] == [(0,), (1,)]
