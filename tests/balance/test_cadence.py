"""El Che: counts, anchor and reasons, number by number."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minigrad.distributed.balance import CadenceConfig, ElChe, clamp_total


def measured(walls, sync_ms=80.0, **options):
    """El Che after a first report in which every rank ran ten batches: speeds are known, the anchor is as it was."""
    el_che = ElChe.start(len(walls), CadenceConfig(**options))
    return el_che.report_timing(walls, [10] * len(walls), sync_ms)[0]


def steady(el_che, ms_per_batch, sync_ms, **options):
    """A report of ranks that ran what they were asked to."""
    walls = [ms * count for ms, count in zip(ms_per_batch, el_che.batch_counts)]
    return el_che.report_timing(walls, el_che.batch_counts, sync_ms, **options)


def test_counts_make_all_ranks_ready_at_one_time():
    el_che = ElChe.start(2)
    assert el_che.batch_counts == (10, 10) and not el_che.is_calibrated and el_che.anchor_wall_ms == 0.0
    el_che, counts, reason = el_che.report_timing([500.0, 1000.0], [10, 10], 80.0)
    assert counts == el_che.batch_counts == (20, 10)
    assert reason == "first report, the anchor stays 10; counts (10, 10) -> (20, 10): speeds are known"
    assert el_che.ms_per_batch == (50.0, 100.0) and el_che.anchor_wall_ms == 1000.0 and el_che.total_batches == 30
    assert [el_che.batches(rank) for rank in (0, 1)] == [20, 10]


def test_no_rank_gets_more_than_a_thousand_times_the_batches_of_the_slowest():
    assert measured([1e-6, 1000.0]).batch_counts == (10_000, 10)
    assert ElChe.start(2, CadenceConfig(speed_hint={0: 1e9})).batch_counts == (10_000, 10)


def test_the_anchor_grows_with_the_overhead_at_most_to_its_double():
    el_che, counts, reason = steady(measured([500.0, 1000.0]), [50.0, 100.0], 400.0)
    assert el_che.anchor == 20 and counts == (40, 20)
    assert reason == "overhead 0.4 is over 0.1: anchor 10 -> 20; counts (20, 10) -> (40, 20): the anchor moved"
    el_che, counts, reason = steady(el_che, [50.0, 100.0], 400.0)
    assert el_che.anchor == 40 and counts == (80, 40) and reason.startswith("overhead 0.2 is over 0.1: anchor 20 -> 40")
    assert steady(el_che, [50.0, 100.0], 400.0)[2].startswith("overhead 0.1 is near 0.1: anchor 40 stays")


def anchors(sync_ms, reports=10, batch_ms=(100.0, 100.0), **options):
    """The anchor after each of some reports of a steady link."""
    el_che, seen = ElChe.start(len(batch_ms), CadenceConfig(**options)), []
    for _ in range(reports):
        el_che = steady(el_che, batch_ms, sync_ms)[0]
        seen.append(el_che.anchor)
    return seen


def test_the_anchor_goes_where_the_overhead_meets_its_target_and_stays_there():
    assert anchors(500.0)[:6] == [10, 20, 40, 50, 50, 50]
    assert anchors(1e6)[:7] == [10, 20, 40, 80, 160, 200, 200]
    assert anchors(1e6, max_anchor=30)[-1] == 30
    assert anchors(16.0, 30, (4.0, 4.0), anchor=7, min_anchor=1)[3:] == [40] * 27
    assert anchors(16.0, 30, (4.0, 4.0), anchor=38, min_anchor=1) == [38] * 5 + [40] * 25
    assert anchors(16.0, 3, (4.0, 2.0), anchor=200, min_anchor=1) == [200, 40, 40]


@given(
    anchor=st.integers(1, 200),
    floor=st.integers(1, 200),
    cap=st.integers(1, 200),
    sync_ms=st.floats(0.0, 1e4),
    batch_ms=st.lists(st.integers(1, 10_000), min_size=1, max_size=3),
    target=st.sampled_from([0.01, 0.05, 0.1, 0.37, 0.5]),
)
def test_from_any_start_a_steady_link_has_its_anchor_in_ten_reports(anchor, floor, cap, sync_ms, batch_ms, target):
    floor, anchor, cap = sorted((floor, anchor, cap))
    due = min(cap, max(floor, math.ceil(sync_ms / (target * max(batch_ms)))))
    options = {"anchor": anchor, "min_anchor": floor, "max_anchor": cap, "overhead_target": target}
    seen = anchors(sync_ms, 20, batch_ms, **options)
    assert due in seen[:10]
    assert all(abs(one - due) <= max(1, 0.1 * due) for one in seen[9:])


@given(
    at=st.integers(0, 20),
    size=st.floats(0.0, 1e9),
    where=st.sampled_from(["sync", 0, 1]),
    anchor=st.integers(1, 200),
    sync_ms=st.sampled_from([0.0, 4.0, 16.0, 79.0]),
    batch_ms=st.sampled_from([(4.0, 4.0), (5.0, 12.0)]),
)
def test_one_outlier_is_forgotten_within_ten_rounds(at, size, where, anchor, sync_ms, batch_ms):
    """Counts are again those of a run without it, whenever it comes and whatever it hits."""
    calm = spoilt = ElChe.start(2, CadenceConfig(anchor, min_anchor=1))
    for number in range(at + 20):
        calm = steady(calm, batch_ms, sync_ms)[0]
        seen = {0: batch_ms[0], 1: batch_ms[1], "sync": sync_ms, **({where: size} if number == at else {})}
        spoilt = steady(spoilt, [seen[0], seen[1]], seen["sync"])[0]
        if number >= max(at + 10, 9):
            assert (spoilt.anchor, spoilt.batch_counts) == (calm.anchor, calm.batch_counts)


def test_one_slow_reduction_moves_nothing():
    el_che = ElChe.start(2, CadenceConfig(10, min_anchor=1))
    seen = []
    for number in range(20):
        el_che = steady(el_che, [4.0, 4.0], 104.0 if number == 8 else 4.0)[0]
        seen.append(el_che.batch_counts)
    assert seen[7:] == [(10, 10)] * 13


def test_growth_can_be_held():
    el_che, counts, reason = steady(measured([1000.0, 1000.0]), [100.0, 100.0], 200.0, allow_growth=False)
    assert el_che.anchor == 10 and counts == (10, 10)
    assert "growth is held" in reason


def test_low_overhead_shrinks_the_anchor_to_where_it_belongs_and_counts_with_it():
    el_che = ElChe.start(2, CadenceConfig(anchor=100, min_anchor=85))
    seen = []
    for _ in range(4):
        el_che, counts, reason = steady(el_che, [10.0, 10.0], 0.0)
        seen.append((el_che.anchor, counts))
    assert seen == [(100, (100, 100))] + [(85, (85, 85))] * 3
    assert reason == "overhead 0 is under 0.1: anchor 85 stays; counts (85, 85) stay"


def test_a_small_change_waits_until_it_has_lasted():
    """A tenth off is jitter, unless five reports running say the same."""
    el_che = measured([1000.0, 1000.0], min_anchor=1)
    jitter = [95.0, 105.0, 94.0, 106.0]
    for sync_ms in jitter * 3:
        el_che, counts, reason = steady(el_che, [100.0, 100.0], sync_ms)
        assert counts == (10, 10)
    seen = []
    for _ in range(12):
        el_che, counts, reason = steady(el_che, [100.0, 100.0], 91.0)
        seen.append(counts)
    assert seen == [(10, 10)] * 12
    for _ in range(10):
        el_che, counts, reason = steady(el_che, [100.0, 100.0], 89.0)
        seen.append(counts)
    assert seen[12:] == [(10, 10)] * 6 + [(9, 9)] * 4


def test_what_leans_to_the_other_side_starts_anew():
    el_che, seen = measured([1000.0, 1000.0], min_anchor=1), []
    for sync_ms in [100.0] * 5 + [89.0] * 3 + [109.0] * 8:
        el_che = steady(el_che, [100.0, 100.0], sync_ms)[0]
        seen.append((el_che.leaning[0], el_che.anchor))
    assert seen[6:] == [(0, 10), (-1, 10), (-2, 10), (-3, 10), (1, 10), (2, 10), (3, 10), (4, 10), (5, 11), (0, 11)]


def test_a_speed_is_the_median_of_the_last_five():
    el_che = measured([1000.0, 1000.0])
    for ms, median in ((110.0, 105.0), (150.0, 110.0), (1000.0, 130.0), (90.0, 110.0), (90.0, 110.0), (90.0, 90.0)):
        el_che = steady(el_che, [100.0, ms], 80.0)[0]
        assert el_che.ms_per_batch == pytest.approx((100.0, median))


def test_counts_stay_within_a_tenth():
    el_che = measured([1000.0, 1000.0])
    same, counts, reason = el_che.report_timing([1000.0, 1090.0], [10, 10], 80.0)
    assert counts == (10, 10) and reason.endswith("counts (10, 10) stay")
    assert steady(el_che, [100.0, 180.0], 80.0)[1] == (14, 10)


def test_the_change_of_a_count_can_be_limited_and_still_arrives():
    el_che = measured([5000.0, 1000.0], max_batch_diff=3)
    assert el_che.batch_counts == (10, 50)
    seen = []
    for _ in range(30):
        el_che, counts, _ = steady(el_che, [500.0, 500.0], 400.0)
        seen.append(counts)
    assert seen[0] == (10, 47)
    assert all(abs(a[1] - b[1]) <= 3 for a, b in zip(seen, seen[1:]))
    assert seen[-1] == (10, 10)


def test_a_rank_not_measured_takes_the_median():
    el_che, counts, _ = ElChe.start(4).report_timing([500.0, 1000.0, 250.0, 0.0], [10, 10, 10, 0], 80.0)
    assert counts == (20, 10, 40, 20) and el_che.ms_per_batch[3] is None


def test_without_any_measurement_counts_stay():
    el_che, counts, reason = ElChe.start(2, CadenceConfig(speed_hint=(1, 2.3))).report_timing([0, 0], [0, 0], 5.0)
    assert counts == (23, 10) and reason == "no rank was measured, so the counts stay"
    assert el_che.has_speed_hint


def test_time_of_a_rank_that_ran_no_batch_is_no_measurement():
    el_che = measured([500.0, 1000.0])
    same, counts, reason = el_che.report_timing([5.0, 0.0], [0, 3], 80.0)
    assert same == el_che and counts == (20, 10) and reason.startswith("no rank was measured")


def test_an_overhead_beyond_all_measure_takes_the_anchor_to_its_cap():
    assert anchors(1e10, 6, (1e-300,))[-1] == anchors(1.0, 6, (1e-323,))[-1] == 200


def test_a_nudge_lowers_the_anchor_its_floor_and_the_counts():
    el_che = measured([500.0, 1000.0], anchor=20)
    assert el_che.batch_counts == (40, 20)
    el_che, counts, reason = el_che.nudge_anchor_down(0.5)
    assert (el_che.anchor, el_che.min_anchor, counts) == (10, 10, (20, 10))
    assert reason == "nudged by 0.5: anchor 20 -> 10; counts (40, 20) -> (20, 10): the anchor moved"
    assert ElChe.start(2, CadenceConfig(speed_hint=(1, 2.0))).nudge_anchor_down(0.25)[1] == (6, 3)
    assert el_che.nudge_anchor_down(0.01)[0].anchor == 1


def test_a_fixed_anchor_stays_whatever_the_overhead():
    el_che = ElChe.start(2, CadenceConfig.fixed(7, speed_hint=(0, 2.0)))
    assert el_che.batch_counts == (7, 14)
    for sync in (0.0, 1e4, 0.0, 0.0):
        el_che, counts, _ = steady(el_che, [30.0, 10.0], sync)
        assert el_che.anchor == 7 and counts == (7, 21)


def test_one_rank_is_a_world_too():
    assert steady(ElChe.start(1), [10.0], 0.0)[1] == (10,)


def test_clamping_keeps_the_sum_and_the_order():
    assert clamp_total([3, 4], 7) == (3, 4)
    assert clamp_total([10, 20, 30], 5) == (1, 2, 2)
    assert ElChe.start(3).clamp_total(2) == (1, 1, 0)


@given(
    walls=st.lists(st.lists(st.floats(0.0, 1e4), min_size=3, max_size=3), max_size=12),
    sync=st.floats(0.0, 1e5),
    limit=st.none() | st.integers(1, 9),
)
def test_any_reports_give_whole_batches_and_an_anchor_in_its_bounds(walls, sync, limit):
    el_che = ElChe.start(3, CadenceConfig(anchor=8, min_anchor=4, max_anchor=40, max_batch_diff=limit))
    for wall in walls:
        el_che, counts, reason = el_che.report_timing(wall, el_che.batch_counts, sync)
        assert counts == el_che.batch_counts and min(counts) >= 1 and reason
        assert 4 <= el_che.anchor <= 40
        assert limit is not None or el_che.anchor in counts or not el_che.is_calibrated


@given(walls=st.lists(st.sampled_from([10.0, 20.0, 35.0, 90.0]), min_size=1, max_size=6), data=st.data())
def test_permuted_ranks_get_permuted_counts(walls, data):
    order = data.draw(st.permutations(range(len(walls))))
    counts = measured(walls).batch_counts
    assert measured([walls[i] for i in order]).batch_counts == tuple(counts[i] for i in order)
