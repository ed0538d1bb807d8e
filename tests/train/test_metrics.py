"""Metrics of all ranks: each held against sums that are made by hand, in one message, without waiting before that."""

import importlib
import math
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import minigrad
from minigrad import metrics, record_scalar, tensor
from minigrad.distributed import Recording, SoloCommunicator, run
from minigrad.errors import AbsentModuleError, ArgumentError, ReplicaMismatchError
from minigrad.train import Accuracy, Mean, MetricCollection, Scalars, Sum
from minigrad.train import metrics as module, totals
from minigrad.utils.checkpoint import checkpoint
from tests.distributed.worlds import run_ranks

SOLO = SoloCommunicator()


@settings(max_examples=20)
@given(
    st.lists(
        st.lists(st.tuples(st.floats(-1e6, 1e6, width=32), st.integers(0, 9)), max_size=4), min_size=1, max_size=4
    )
)
def test_mean_and_sum_are_over_the_samples_of_all_ranks(batches):
    def body(comm):
        mean, total = Mean(), Sum()
        for value, n in batches[comm.rank]:
            mean.update(value if n else math.nan, n)  # of no samples nothing is taken over
            total.update(tensor(value, minigrad.float64), n)
        return mean.result(comm), mean.per_rank, total.result(comm), total.per_rank

    by_rank = [sum((Fraction(value) * n for value, n in own), Fraction(0)) for own in batches]
    counts = [sum(n for _, n in own) for own in batches]
    results = run(body, len(batches))
    assert results == [results[0]] * len(batches)
    mean, means, total, totals = results[0]
    close = dict(rel=1e-12, abs=1e-3)
    assert total == pytest.approx(float(sum(by_rank)), **close)
    assert (mean is None) is (sum(counts) == 0)
    if mean is not None:
        assert mean == pytest.approx(float(sum(by_rank) / sum(counts)), **close)
    for n, own, each, sums in zip(counts, by_rank, means, totals):
        assert (each is None) is (sums is None) is (n == 0)
        assert n == 0 or each == pytest.approx(float(own / n), **close)


@pytest.mark.parametrize("kind", ["threads", "shm"])
def test_all_ranks_get_the_same_bits(kind):
    """Of sums whose rounding tells in which order they were added."""

    def body(comm):
        mean = Mean()
        mean.update([1e16, 1.0, -1e16][comm.rank], 3)
        return mean.result(comm), list(mean.per_rank)

    assert run_ranks(kind, body, 3) == [(1 / 3, [1e16, 1.0, -1e16])] * 3


def test_nan_and_infinity_are_seen():
    def body(comm):
        broken, endless = Mean(), Sum()
        broken.update(math.nan if comm.rank else 1.0, 2)
        endless.update(math.inf if comm.rank else -math.inf)
        return broken.result(comm), broken.per_rank[0], endless.result(comm)

    for value, first, both in run(body, 2):
        assert math.isnan(value) and first == 1.0 and math.isnan(both)


def test_no_sample_anywhere_is_none_but_for_a_sum():
    def body(comm):
        found = MetricCollection({"mean": Mean(), "sum": Sum(), "accuracy": Accuracy()})
        found["mean"].update(1.0, 0)
        return found.result(comm), found["mean"].per_rank

    assert run(body, 2) == [({"mean": None, "sum": 0.0, "accuracy": None}, (None, None))] * 2


def test_accuracy_of_logits_and_labels():
    rng = np.random.default_rng(0)
    logits, labels = rng.standard_normal((2, 5, 3, 4)).astype(np.float32), rng.integers(0, 3, (2, 5, 4))
    labels[0, 0] = -100
    counted = labels != -100
    met = ((logits.argmax(2) == labels) & counted).sum(axis=(1, 2))

    def body(comm):
        accuracy = Accuracy()
        accuracy.update(tensor(logits[comm.rank]), tensor(labels[comm.rank]))
        other = Accuracy(ignore_index=0)
        other.update(logits[comm.rank].argmax(1), labels[comm.rank] * counted[comm.rank])  # classes, as arrays
        return accuracy.result(comm), accuracy.per_rank, other.result(comm)

    n = counted.sum(axis=(1, 2))
    rest = labels * counted
    other = ((logits.argmax(2) == rest) & (rest != 0)).sum() / (rest != 0).sum()
    assert run(body, 2) == [(met.sum() / n.sum(), tuple(met / n), other)] * 2


def test_accuracy_sees_a_nan_among_logits_that_count():
    accuracy, ignored = Accuracy(), Accuracy()
    logits = tensor([[0.0, 1.0], [math.nan, 0.0]])
    accuracy.update(logits, tensor([1, 0]))
    ignored.update(logits, tensor([1, -100]))
    assert math.isnan(accuracy.result(SOLO)) and ignored.result(SOLO) == 1.0


@pytest.mark.parametrize("mine, other, words", [
    (Sum(), Mean(), "(Sum|Mean).result: .*got metric is Sum.. on rank 0 and Mean.. on rank 1"),
    (Accuracy(), Accuracy(ignore_index=0), "got metric is Accuracy.. on rank 0 and Accuracy.ignore_index=0. on rank 1"),
])
def test_metrics_that_count_otherwise_on_another_rank_are_refused(mine, other, words):
    with pytest.raises(ReplicaMismatchError, match=words):
        run(lambda comm: (other if comm.rank else mine).result(comm), 2)


def test_the_second_run_of_a_checkpoint_counts_nothing():
    """Else the second batch, which alone is run twice, would weigh 4 of 6."""
    scalars, mean = Scalars(), Mean()

    def forward(x):
        record_scalar("first", x[0, 0])
        mean.update(x[0, 0], 2)
        return x * x

    for i in range(2):
        x = minigrad.full((2, 1), float(i), requires_grad=True)
        with scalars.batch(2):
            (checkpoint(forward, x) if i else forward(x)).sum().backward()
    assert scalars.result(SOLO) == {"first": 0.5} and mean.result(SOLO) == 0.5


def test_a_reset_begins_anew():
    mean = Mean()
    mean.update(3.0, 1)
    assert mean.result(SOLO) == mean.result(SOLO) == 3.0
    mean.reset()
    mean.update(1.0, 1)
    assert mean.result(SOLO) == 1.0


def test_a_collection_is_one_message():
    comm = Recording(SOLO)
    found = MetricCollection({name: Mean() for name in "abc"})
    for name, metric in found.items():
        metric.update(ord(name), 1)
    assert found.result(comm) == {"a": 97.0, "b": 98.0, "c": 99.0}
    assert [call.kind for call in comm.calls] == ["all_gather_object"] and len(found) == 3 and [*found] == [*"abc"]
    assert dict(zip(found.keys(), found.values())) == dict(found.items())


@pytest.mark.parametrize("other, words", [
    ({"loss": Mean}, "got top5 is Mean.. on rank 0 and missing on rank 1"),
    ({"loss": Mean, "top5": Mean, "late": Mean}, "got late is missing on rank 0 and Mean.. on rank 1"),
    ({"loss": Sum, "top5": Mean}, "got loss is Mean.. on rank 0 and Sum.. on rank 1"),
])
def test_other_names_are_an_error_on_all_ranks_that_says_which(other, words):
    def body(comm):
        kinds = other if comm.rank else {"loss": Mean, "top5": Mean}
        with pytest.raises(ReplicaMismatchError, match=f"rank {comm.rank}: .*{words}"):
            MetricCollection({name: kind() for name, kind in kinds.items()}).result(comm)
        return True

    assert run(body, 2) == [True, True]


def test_scalars_are_weighted_by_the_samples_of_their_batch():
    """3 samples of 1 and 1 of 5 on rank 0, 4 of 2 on rank 1, none on rank 2, which has no names."""

    def body(comm):
        scalars = Scalars()
        for n, value in ([(3, 1.0), (1, 5.0)], [(4, 2.0)], [])[comm.rank]:
            with scalars.batch(n):
                record_scalar("value", tensor(value, requires_grad=True))
                record_scalar("tokens", 1.0 + comm.rank, n=10 * n)
        return scalars.result(comm)

    assert run(body, 3) == [{"tokens": 1.5, "value": 2.0}] * 3


def test_scalars_of_other_names_are_an_error_on_all_ranks():
    def body(comm):
        scalars = Scalars()
        with scalars.batch(2):
            record_scalar("loss", 1.0)
            if comm.rank == 1:
                record_scalar("acc", 1.0)
        with pytest.raises(ReplicaMismatchError, match="got acc is missing on rank 0 and recorded on rank 1: call rec"):
            scalars.result(comm)
        return True

    assert run(body, 2) == [True, True]


def test_a_scalar_outside_of_a_batch_says_where_to_call_it():
    with Scalars().batch(1):
        record_scalar("inside", 1.0)
    with pytest.raises(ArgumentError, match="got none for 'x': call it inside a trainer's loss_fn, or within `with"):
        record_scalar("x", 1.0)


def test_what_is_wrong_on_a_gpu_is_told_with_the_result(cuda, monkeypatch):
    """And nothing is read before that."""
    mean, accuracy = Mean(), Accuracy()
    read = totals.to_host
    monkeypatch.setattr(totals, "to_host", lambda array: pytest.fail("an update waits for the device"))
    there = partial(tensor, device=cuda)
    mean.update(there(0.5, minigrad.float16), 3)
    mean.update(there([2.5]), there(1).data)
    mean.update(4.0, 2)
    mean.update(there(math.nan).data, there(0))
    logits, labels = minigrad.randn(6, 3, device=cuda), minigrad.arange(6, device=cuda) % 3
    accuracy.update(logits, labels)
    accuracy.update(there(1.0), 2)
    scalars = Scalars()
    with scalars.batch(2):
        record_scalar("largest", logits.max())
    monkeypatch.setattr(totals, "to_host", read)
    comm = SoloCommunicator(cuda)
    assert mean.result(comm) == (1.5 + 2.5 + 8.0) / 6
    logits, labels = logits.cpu().numpy(), labels.cpu().numpy()
    met = (logits.argmax(1) == labels).sum()
    assert accuracy.result(comm) == (met + 2) / 8
    assert scalars.result(comm) == {"largest": logits.max()}
    wrong, much = Mean(), Accuracy()
    wrong.update(1.0, there(3))
    wrong.update(1.0, there(-1))
    much.update(there(17.0), 20)
    with pytest.raises(ArgumentError, match="Mean: expected finite numbers of samples >= 0, got others on rank 0"):
        wrong.result(comm)
    with pytest.raises(ArgumentError, match="labels that were met to be a number in .0, 1., got 17"):
        much.result(comm)


def test_the_room_has_a_name_of_its_own():
    assert metrics is module and minigrad.record_scalar is record_scalar
    with pytest.raises(AbsentModuleError, match="write from minigrad import metrics"):
        importlib.import_module("minigrad.metrics")
