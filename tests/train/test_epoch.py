"""What an epoch came to: each figure against one made by hand, of times that a virtual clock tells."""

import json
import math

import pytest

from minigrad import tensor
from minigrad.distributed import SoloCommunicator, simulate
from minigrad.distributed.simulate import Cluster
from minigrad.errors import ArgumentError, ReplicaMismatchError, StateDictError
from minigrad.train import EpochMeter, EpochMetrics, Mean, MetricCollection, RankMetrics, Sum, record_scalar
from minigrad.train.epoch import joined
from tests.distributed.worlds import run_ranks

STEPS = [[(4, 0.5, 2.0)], [(2, 1.0, 3.0), (2, 3.0, 1.0)], []]  # of each rank: samples, loss, seconds


def train(comm):
    """An epoch of these steps, with half a second before each."""
    own = MetricCollection({"twice": Mean()})
    meter = EpochMeter(comm, own)
    meter.start(7)
    for n, loss, seconds in STEPS[comm.rank]:
        comm.clock.advance(0.5)
        with meter.step(n):
            comm.clock.advance(seconds)
            meter.add_loss(tensor(loss))
            record_scalar("half", 0.5 * loss)
            own["twice"].update(2.0 * loss, n)
    return meter.finish()


def test_the_figures_of_an_epoch():
    """8 samples in 5 s on the slowest rank; Σ n·loss = 2 + 6 + 2."""
    results = simulate.run(train, Cluster.of_speeds([1, 1, 1])).results
    metrics = results[0]
    assert results == [metrics] * 3
    assert metrics == EpochMetrics(
        epoch=7,
        loss=10 / 8,
        scalars={"half": 5 / 8, "twice": 20 / 8},
        per_rank=(
            RankMetrics(0.5, {"half": 0.25, "twice": 1.0}, 4.0, 1, 2.0, 4 / 2.0),
            RankMetrics(8 / 4, {"half": 1.0, "twice": 4.0}, 4.0, 2, 4.0, 4 / 4.0),
            RankMetrics(None, {"half": None, "twice": None}, 0.0, 0, 0.0, 0.0),
        ),
        epoch_s=5.0,
        throughput=8 / 5.0,
        shares=(0.5, 0.5, 0.0),
    )
    assert EpochMetrics.from_json(metrics.to_json()) == metrics


def test_throughput_is_of_all_batches_over_all_their_time():
    """3 batches of 100 samples, each of 10 ms, are 10 samples a millisecond, and not 30."""

    def body(comm):
        meter = EpochMeter(comm)
        for _ in range(3):
            with meter.step(100):
                comm.clock.advance(0.010)
        return meter.finish()

    [metrics] = simulate.run(body, Cluster.of_speeds([1])).results
    assert metrics.throughput == metrics.per_rank[0].throughput == pytest.approx(10_000.0)


def test_the_time_of_a_step_holds_its_backward():
    """That of 4 samples of 1/10 s each, which were charged by hand, passes in it, and not later."""

    def body(comm):
        meter = EpochMeter(comm)
        with meter.step(4):
            comm.clock.compute(4)  # where no module says so
        comm.clock.advance(5.0)
        return meter.finish()

    [metrics] = simulate.run(body, Cluster.of_speeds([1], per_sample_s=0.1, fixed_s=0.0)).results
    assert metrics.per_rank[0].train_s == pytest.approx(0.4) and metrics.epoch_s == pytest.approx(5.4)


def test_an_epoch_without_samples_divides_by_nothing():
    def body(comm):
        meter = EpochMeter(comm)
        with meter.step(0):
            meter.add_loss(math.nan)
            record_scalar("x", math.nan)
        return meter.finish(), meter.finish().epoch

    for metrics, following in run_ranks("threads", body, 2):
        assert (metrics.loss, metrics.scalars, metrics.throughput, metrics.shares) == (None, {"x": None}, 0.0, (0, 0))
        assert [(each.loss, each.steps) for each in metrics.per_rank] == [(None, 1)] * 2 and following == 1


def test_an_epoch_is_one_message_and_the_same_on_processes():
    def body(comm):
        metrics = train(comm)
        return metrics.to_json()

    first, *others = run_ranks("shm", body, 3)
    assert others == [first] * 2 and EpochMetrics.from_json(first).loss == 10 / 8


@pytest.mark.parametrize("what, words", [
    ("epoch", "equal epochs and metrics on all ranks, got epoch is 0 on rank 0 and 1 on rank 1"),
    ("metric", "got loss is missing on rank 0 and Mean.. on rank 1"),
    ("scalar", "got top1 is recorded on rank 0 and missing on rank 1"),
])
def test_ranks_that_differ_are_an_error_on_all_of_them(what, words):
    def body(comm):
        odd = comm.rank == 1
        meter = EpochMeter(comm, MetricCollection({"loss": Mean()} if odd and what == "metric" else {}))
        meter.start(int(odd and what == "epoch"))
        with meter.step(2):
            record_scalar("top5" if odd and what == "scalar" else "top1", 1.0)
        with pytest.raises(ReplicaMismatchError, match=words):
            meter.finish()
        return True

    assert run_ranks("threads", body, 2) == [True, True]


def test_a_name_is_that_of_a_scalar_or_of_a_metric():
    meter = EpochMeter(SoloCommunicator(), MetricCollection({"x": Mean()}))
    with meter.step(1):
        record_scalar("x", 1.0)
    with pytest.raises(ArgumentError, match="expected another name for a scalar than that of a metric, got 'x'"):
        meter.finish()


def test_a_state_goes_on_with_the_bits_and_the_seconds():
    """Saved in the middle, and loaded into fresh ones: the figures of one that nobody interrupted."""
    steps = [(3, 0.1), (5, 0.7), (1, 0.9), (2, 0.3)]

    def body(comm, stop, ranks):
        def made():
            own = MetricCollection({"twice": Mean(), "sum": Sum()})
            return own, EpochMeter(comm, own)

        own, meter = made()
        for number, (n, loss) in enumerate(steps):
            if number == stop:
                state = json.loads(json.dumps(meter.state_dict()))
                states = comm.all_gather_object(state)
                own["twice"].update(9.0, 9)  # is forgotten
                own, meter = made()
                meter.load_state_dict(state if ranks else joined(states) if comm.rank == 0 else {**state, **NOTHING})
            with meter.step(n * (1 + comm.rank)):
                comm.clock.advance(1.0)
                meter.add_loss(loss)
                record_scalar("half", 0.5 * loss)
                own["twice"].update(2.0 * loss, n)
                own["sum"].update(loss)
        return repr(meter.finish())

    mean = {"kind": "Mean()", "totals": [[0.0, 0.0], []]}
    NOTHING = {"loss": mean, "scalars": {"batches": 0, "means": {}}, "samples": 0.0, "steps": 0, "train_s": 0.0}
    NOTHING |= {"metrics": {"twice": mean, "sum": {**mean, "kind": "Sum()"}}}
    cluster = Cluster.of_speeds([1, 1])
    whole, *same = (simulate.run(body, cluster, stop, True).results[0] for stop in (None, 0, 2, 3))
    assert same == [whole] * 3
    assert "epoch_s=4.0" in whole
    elsewhere = simulate.run(body, cluster, 2, False).results[0]
    assert elsewhere.split("per_rank")[0] == whole.split("per_rank")[0] and "samples=27.0" in elsewhere


def test_a_state_of_other_metrics_is_refused():
    comm = SoloCommunicator()
    state = EpochMeter(comm, MetricCollection({"a": Mean()})).state_dict()
    for metrics, words in (
        (None, r"EpochMeter: expected a state without metrics, got those of \['a'\]"),
        ({"b": Mean()}, r"MetricCollection: expected a state with the keys \['b'\], got \['a'\]"),
        ({"a": Sum()}, r"Sum: expected the state of Sum\(\), got that of 'Mean\(\)'"),
    ):
        meter = EpochMeter(comm, metrics and MetricCollection(metrics))
        with pytest.raises(StateDictError, match=words):
            meter.load_state_dict(state)
    with pytest.raises(StateDictError, match="EpochMeter: expected steps to be an integer"):
        EpochMeter(comm).load_state_dict({**EpochMeter(comm).state_dict(), "steps": -1})
    with pytest.raises(StateDictError, match="Mean: expected a usable state, got 3"):
        Mean().load_state_dict({"kind": "Mean()", "totals": 3})
