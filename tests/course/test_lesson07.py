"""Lesson 7: our plan is that of DDP, and our step is that of the virtual clock."""

import numpy as np
import pytest

from minigrad.course.lesson07_buckets import checks, solution
from minigrad.course.lesson07_buckets.picture import lines
from minigrad.distributed import plan_buckets
from minigrad.distributed.ddp.buckets import Entry


def test_a_plan_of_one_kind_is_that_of_ddp():
    for draw in range(30):
        params, cap, first_cap = checks.drawn(draw)
        ends = np.cumsum([0, *[param.elements for param in reversed(params)]]).tolist()
        count = len(params)
        entries = [
            Entry(str(count - 1 - k), 0, ends[k], ends[k + 1], 4, params[count - 1 - k].requires_grad)
            for k in range(count)
        ]
        trainable = all(param.requires_grad for param in params)
        plan = plan_buckets(entries, cap, first_cap)
        theirs = [[count - 1 - entry for entry in bucket.entries] for bucket in plan.buckets]
        ours = solution.get_bucket_plan(params, cap, first_cap)
        assert ours == theirs or not trainable  # DDP does not jump over a frozen one that lies between


@pytest.mark.parametrize("name", ["fast link", "slow link", "unequal ranks"])
def test_a_step_is_computed_as_the_virtual_clock_has_it(name):
    elements, cluster = checks.clusters()[name]
    nbytes = [8 * n for n in elements]
    for cap in checks.caps_of(nbytes)[::3]:
        computed_s = solution._step_s(nbytes, cap, cluster, checks.SAMPLES)
        assert computed_s == pytest.approx(checks.step_s(elements, cap, cluster), rel=1e-9)


def test_caps_have_every_plan_once():
    nbytes = [8, 16, 4, 12]
    plans = [solution._cut(nbytes, cap) for cap in range(1, 60)]
    assert [solution._cut(nbytes, cap) for cap in checks.caps_of(nbytes)] == [
        plan for i, plan in enumerate(plans) if i == 0 or plan != plans[i - 1]
    ]


def test_one_line_of_the_picture_climbs_one_has_its_least_in_between_and_one_falls():
    climbs, between, falls = ([ms for _, ms in line] for line in lines().values())
    assert climbs == pytest.approx(sorted(climbs), abs=0.02) and climbs[-1] > 2 * climbs[0]
    assert falls == sorted(falls, reverse=True)
    assert min(between) < 0.9 * min(between[0], between[-1])
