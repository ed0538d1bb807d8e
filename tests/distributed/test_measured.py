"""What a link costs beside its alpha and beta, fitting it to measured times, and the virtual cluster beside a real one.

The measured runs, and how they are predicted, are those of tests/benchmarks/measured.py.
"""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minigrad.distributed import simulate
from minigrad.distributed.simulate import Cluster, Link, RankCost, SimulatedDevices, SyncReading, forecast
from tests.benchmarks import measured

ROWS = measured.read_rows()
REAL = Link(0.01, 100.0, efficiency=0.5, ramp_s=0.3, skew_s_per_step=0.02)


@pytest.fixture(scope="module")
def compared():
    return measured.compare(ROWS)


def flat(found, name):
    return [error for kinds in found.values() for error in kinds[name]]


def mean(values):
    return math.fsum(values) / len(values)


# ------------------------------------------------------------------------------------------------------- costs


def test_a_collective_on_a_real_link_by_hand():
    wire_s = 2 * 3 * (0.01 + 20 / 50.0)
    assert REAL.cost_s("all_reduce", 80, 4) == pytest.approx(wire_s + 0.3)
    assert REAL.cost_s("all_reduce", 80, 4, local_steps=5) == pytest.approx(wire_s + 0.3 + 0.1)
    assert REAL.cost_s("barrier", 0, 4, local_steps=5) == pytest.approx(2 * 0.01 + 0.1)  # no bytes, no ramp
    assert REAL.cost_s("all_reduce", 80, 1, local_steps=5) == 0.0
    assert REAL.message_s(80) == pytest.approx(0.01 + 80 / 50.0)
    tree = replace(REAL, topology="tree")
    assert tree.cost_s("all_gather", 80, 4) == pytest.approx(2 * 0.01 + 3 / 4 * 80 / 50.0 + 0.3)
    inner = Link(0.0, 1000.0, efficiency=0.25, ramp_s=0.1)
    nodes = replace(REAL, topology="hierarchical", ranks_per_node=2, inner=inner)
    inside_s = 2 * (40 / 250.0) + 0.1 + 80 / 250.0 + 0.1  # an all_reduce, and a broadcast back, each with its ramp
    assert nodes.cost_s("all_reduce", 80, 4) == pytest.approx(inside_s + 2 * (0.01 + 40 / 50.0) + 0.3)


@given(
    st.sampled_from(["ring", "tree"]),
    st.integers(1, 9),
    st.integers(0, 10**6),
    st.floats(0.01, 1.0),
    st.sampled_from(["all_reduce", "broadcast", "reduce_scatter", "all_gather", "gather", "all_to_all"]),
)
def test_efficiency_is_a_smaller_bandwidth(topology, world_size, nbytes, efficiency, kind):
    slow = Link(0.25, 64.0 * efficiency, topology)
    cost_s = Link(0.25, 64.0, topology, efficiency=efficiency).cost_s(kind, nbytes, world_size)
    assert cost_s == slow.cost_s(kind, nbytes, world_size)


def test_ranks_of_a_simulation_wait_for_each_step_since_their_last_collective():
    def body(comm):
        for step in range(2 + comm.rank):  # the rank that makes most of them counts
            comm.clock.compute(step)
        comm.barrier()
        comm.barrier()
        comm.clock.compute(1)
        comm.all_reduce(np.zeros(10)).wait()
        return comm.clock.now_s()

    cluster = Cluster((RankCost(1.0, 0.0),) * 2, replace(REAL, latency_s=0.0))
    trace = simulate.run(body, cluster)
    expected = 3 + 3 * 0.02 + 1 + 0.02 + 2 * 40 / 50.0 + 0.3
    assert trace.results == pytest.approx([expected, expected])


def test_a_call_that_is_refused_leaves_the_steps_to_the_next_one():
    def body(comm):
        comm.clock.compute(1)
        with pytest.raises(Exception, match="contiguous"):
            comm.all_reduce(np.zeros((4, 4)).T[1:])
        comm.barrier()
        return comm.clock.now_s()

    trace = simulate.run(body, Cluster((RankCost(1.0, 0.0),) * 2, Link(skew_s_per_step=0.5)))
    assert trace.results == pytest.approx([1.5, 1.5])


def test_devices_and_forecasts_take_the_same_link():
    cluster = Cluster((RankCost(1.0, 0.0),) * 2, replace(REAL, latency_s=0.0))
    reduce_s = 2 * 40 / 50.0 + 0.3 + 0.02
    assert forecast(cluster, [1, 1], 1, gradient_bytes=80).step_s[0] == pytest.approx(1 + reduce_s)
    devices = SimulatedDevices(cluster)
    for clock in devices.clocks:
        clock.compute(1)
    devices.all_reduce([np.zeros(10), np.zeros(10)])
    assert [clock.now_s() for clock in devices.clocks] == pytest.approx([1 + reduce_s] * 2)
    devices.all_reduce([np.zeros(10), np.zeros(10)])
    assert devices.clocks[0].now_s() == pytest.approx(1 + 2 * reduce_s - 0.02)


# ------------------------------------------------------------------------------------------------------ fitting

numbers = st.floats(0.0, 1.0)


def readings_of(link, sizes, steps):
    """What a link gives, by hand."""
    return [
        SyncReading(
            link.latency_s * 6
            + 1.5 * nbytes / (link.bandwidth_bytes_s * link.efficiency)
            + link.ramp_s
            + link.skew_s_per_step * local,
            nbytes,
            link.bandwidth_bytes_s,
            4,
            local,
        )
        for nbytes in sizes
        for local in steps
    ]


@given(st.floats(0.05, 1.0), numbers, numbers, st.sampled_from([0.0, 0.01]))
def test_a_fit_finds_the_numbers_that_made_the_times(efficiency, ramp_s, skew_s, latency_s):
    link = Link(latency_s, 100.0, efficiency=efficiency, ramp_s=ramp_s, skew_s_per_step=skew_s)
    found = Link.fit(readings_of(link, [50, 200, 1000], [1, 8, 32]), Link(latency_s))
    assert (found.efficiency, found.ramp_s, found.skew_s_per_step) == pytest.approx(
        (efficiency, ramp_s, skew_s), rel=1e-6, abs=1e-7
    )
    assert (found.latency_s, found.bandwidth_bytes_s, found.topology) == (latency_s, 100.0, "ring")


@given(st.integers(0, 2**32 - 1), st.integers(3, 12))
def test_no_link_nearby_fits_better(seed, count):
    rng = np.random.default_rng(seed)
    rows = [
        SyncReading(1.5 * size / 100.0 * spread, size, 100.0, 4, steps)
        for size, spread, steps in zip(
            rng.uniform(10, 1000, count), np.exp(rng.normal(0.3, 0.5, count)), rng.integers(0, 9, count)
        )
    ]
    if all(row.seconds < 1.5 * row.nbytes / 100.0 for row in rows):
        return

    def off(slower, ramp_s, skew_s):
        times = [1.5 * row.nbytes / 100.0 * (1 + slower) + ramp_s + skew_s * row.local_steps for row in rows]
        return math.fsum((time / row.seconds - 1) ** 2 for time, row in zip(times, rows))

    found = Link.fit(rows)
    best = (1 / found.efficiency - 1, found.ramp_s, found.skew_s_per_step)
    for i in range(3):
        for step in (1e-3, -1e-3):
            near = [value + step * (i == j) for j, value in enumerate(best)]
            assert min(near) < 0.0 or off(*near) >= off(*best) - 1e-12


def test_what_rows_do_not_tell_apart_counts_as_efficiency_then_as_ramp():
    one = Link.fit([SyncReading(3.0, 100, 100.0, 4, 10)])
    assert (one.efficiency, one.ramp_s, one.skew_s_per_step) == (pytest.approx(0.5), 0.0, 0.0)
    far = Link.fit([SyncReading(2.5, 100, 1e9, 4, 10), SyncReading(2.5, 300, 1e9, 4, 10)])  # no matter what is sent
    assert (far.efficiency, far.ramp_s, far.skew_s_per_step) == pytest.approx((1.0, 2.5, 0.0), abs=1e-6)


def test_a_fit_takes_tree_and_nodes_and_several_bandwidths():
    inner = Link(0.0, 1000.0)
    for like in (Link(0.01, topology="tree"), Link(0.01, topology="hierarchical", ranks_per_node=2, inner=inner)):
        link = replace(like, efficiency=0.8, ramp_s=0.25, skew_s_per_step=0.125)
        rows = [
            SyncReading(replace(link, bandwidth_bytes_s=b).cost_s("all_reduce", 80, 4, (), h), 80, b, 4, h)
            for b in (10.0, 100.0)
            for h in (1, 4)
        ]
        found = Link.fit(rows, like, bandwidth_bytes_s=50)
        assert found.bandwidth_bytes_s == 50 and found.topology == like.topology and found.inner == like.inner
        numbers = found.efficiency, found.ramp_s, found.skew_s_per_step
        assert numbers == pytest.approx((0.8, 0.25, 0.125))


# -------------------------------------------------------------------------------------------- beside a real cluster


def test_the_file_has_64_runs_that_agree_with_themselves():
    assert len(ROWS) == 64 and {row.algorithm for row in ROWS} == {"diloco", "local_sgd"}
    assert {(row.world_size, row.nbytes) for row in ROWS} == {(4, 123_386_880)}
    for row in ROWS:
        assert row.utilisation == pytest.approx(row.compute_s / row.wall_s, abs=1.2e-5)  # as rounded as it is published
        assert row.synchronisations == row.steps // row.local_steps
    for bandwidth in (50e6, 200e6, 1e9, 5e9):
        here = [row for row in ROWS if row.bandwidth_bytes_s == bandwidth / 8]
        assert (len(here), sum(row.is_fitted for row in here)) == (16, 6)


def test_a_simulated_run_has_the_utilisation_of_the_formula():
    link = Link(efficiency=0.9, ramp_s=0.125, skew_s_per_step=0.01)
    for row in ROWS[::5]:
        ring_s = 2 * 3 / 4 * row.nbytes / row.bandwidth_bytes_s
        for each, sync_s in ((Link(), ring_s), (link, ring_s / 0.9 + 0.125 + 0.01 * row.local_steps)):
            expected = row.compute_s / (row.compute_s + row.synchronisations * sync_s)
            at = replace(each, bandwidth_bytes_s=row.bandwidth_bytes_s)
            assert measured.predicted(row, at) == pytest.approx(expected, rel=1e-9)


def test_with_nothing_fitted_the_virtual_cluster_is_off_by_an_eighth(compared):
    found = flat(compared[0], "nominal")
    assert len(found) == 64
    assert mean(found) == pytest.approx(0.123, abs=5e-4) and max(found) == pytest.approx(0.302, abs=5e-4)


def test_fitted_to_each_link_it_is_off_by_a_fiftieth(compared):
    found, links = compared
    assert len(flat(found, "fitted")) == 40
    assert mean(flat(found, "fitted")) == pytest.approx(0.0201, abs=1e-4) and mean(flat(found, "fitted")) <= 0.03
    assert max(flat(found, "fitted")) == pytest.approx(0.0517, abs=1e-4) and max(flat(found, "fitted")) <= 0.07
    for bandwidth, link in links["fitted"].items():  # the two normal equations, by Cramer's rule
        rows = [row for row in ROWS if row.bandwidth_bytes_s == bandwidth and row.is_fitted]
        ring_s = 1.5 * rows[0].nbytes / bandwidth
        taken = [(row.wall_s - row.compute_s) / row.synchronisations for row in rows]
        a = [ring_s / time for time in taken]
        h = [row.local_steps / time for row, time in zip(rows, taken)]
        aa, ah, hh, a1, h1 = (math.fsum(x * y for x, y in pairs) for pairs in map(
            lambda pair: zip(*pair), [(a, a), (a, h), (h, h), (a, [1] * 6), (h, [1] * 6)]
        ))
        skew_s = (aa * h1 - ah * a1) / (aa * hh - ah**2)
        slowness = (a1 - ah * skew_s) / aa if skew_s >= 0.0 else a1 / aa
        assert link.efficiency == pytest.approx(1 / slowness) and link.ramp_s == 0.0
        assert link.skew_s_per_step == pytest.approx(max(0.0, skew_s))


def test_one_fit_for_all_links_does_worse_than_one_for_each(compared):
    found, links = compared
    assert len({(link.efficiency, link.ramp_s, link.skew_s_per_step) for link in links["one fit"].values()}) == 1
    once, each = flat(found, "one fit"), flat(found, "fitted")
    assert mean(once) == pytest.approx(0.0571, abs=1e-4) and max(once) == pytest.approx(0.1734, abs=1e-4)
    assert mean(once) > 2 * mean(each) and max(once) > 2 * max(each)
    by_link = [mean(kinds["one fit"]) for kinds in found.values()]
    assert by_link == pytest.approx([0.1208, 0.0077, 0.0607, 0.0391], abs=1e-4)


def test_readme_has_the_table(compared):
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    assert "\n" + "\n".join(measured.table(*compared)) + "\n" in readme
