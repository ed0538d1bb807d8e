"""What people write in lesson 17."""

from statistics import fmean, median

from minigrad.course.lesson17_who_was_late.solution import PHASES
from tests.course.wrong import Wrong


def seconds_of(own, phase):
    return getattr(own, "handing_s" if phase == "link" else f"{phase}_s")


def means_of(steps, rank):
    return {phase: fmean(seconds_of(each[rank], phase) for each in steps.values()) for phase in PHASES}


def longest_step(steps):
    """Whose steps are longest: they are all alike."""
    ranks = next(iter(steps.values()))
    rank = max(ranks, key=lambda rank: fmean(each[rank].wall_s for each in steps.values()))
    means = means_of(steps, rank)
    return rank, max(means, key=means.get)


def who_waited_least(steps):
    """The right rank, where there is one; the phase is the longest."""
    ranks = next(iter(steps.values()))
    rank = min(ranks, key=lambda rank: sum(each[rank].idle_s for each in steps.values()))
    means = means_of(steps, rank)
    return rank, max(means, key=means.get)


def who_waited_least_and_where(steps):
    """And the phase in which it is above the others; but somebody always waits least."""
    ranks = list(next(iter(steps.values())))
    rank = min(ranks, key=lambda rank: sum(each[rank].idle_s for each in steps.values()))
    means = {own: means_of(steps, own) for own in ranks}
    above = {phase: means[rank][phase] - median(means[r][phase] for r in ranks if r != rank) for phase in PHASES}
    return rank, max(above, key=above.get)


def _by_phase(steps, middle, least=1 / 20, over=fmean):
    ranks = list(next(iter(steps.values())))
    length_s = median(own.wall_s for each in steps.values() for own in each.values())
    found = {}
    for rank in ranks:
        for phase in PHASES:
            late_s = over(
                [
                    seconds_of(each[rank], phase) - middle([seconds_of(each[r], phase) for r in ranks if r != rank])
                    for each in steps.values()
                ]
            )
            if late_s > least * length_s:
                found[rank, phase] = late_s
    return max(found, key=found.get, default=None)


def on_average(steps):
    """Means over steps and phases on their own: accidents are told, and what was made up for."""
    return _by_phase(steps, median)


def median_of_steps(steps):
    """What is in less than half of the steps is not seen."""
    return _by_phase(steps, median, over=median)


def beside_the_fastest(steps):
    return _by_phase(steps, min)


def over_a_fixed_time(steps):
    """Phases that take long, on whatever rank."""
    ranks = list(next(iter(steps.values())))
    means = {(rank, phase): mean for rank in ranks for phase, mean in means_of(steps, rank).items()}
    longest = max(means, key=means.get)
    return longest if means[longest] > 0.016 else None


def all_lateness(steps, rank, phase):
    late_s = 0.0
    for each in steps.values():
        others_s = median(seconds_of(own, phase) for other, own in each.items() if other != rank)
        late_s += max(0.0, seconds_of(each[rank], phase) - others_s)
    return late_s


def what_others_waited(steps, rank, phase):
    return sum(fmean(own.idle_s for other, own in each.items() if other != rank) for each in steps.values())


def by_the_mean_step(steps, rank, phase):
    """As `seconds_won`, but for the means over all steps."""
    ranks, count = list(next(iter(steps.values()))), len(steps)
    busy_s = {r: fmean(e[r].wall_s - e[r].idle_s - e[r].exposed_s for e in steps.values()) for r in ranks}
    before_s = max(busy_s.values())
    means = {r: means_of(steps, r)[phase] for r in ranks}
    busy_s[rank] -= max(0.0, means[rank] - median(mean for r, mean in means.items() if r != rank))
    return count * (before_s - max(busy_s.values()))


def without_the_optimizer(steps, rank, phase):
    """As `seconds_won`, but a rank is busy until it hands in: what comes after is forgotten."""
    return _won(steps, rank, phase, PHASES[:-1], least_s=0.0)


def slower_where_it_was_early(steps, rank, phase):
    """As `seconds_won`, but a rank that was early is made as slow as the middle one."""
    return _won(steps, rank, phase, PHASES, least_s=-1.0)


def _won(steps, rank, phase, phases, least_s):
    won_s = 0.0
    for each in steps.values():
        busy_s = {r: sum(seconds_of(own, p) for p in phases) for r, own in each.items()}
        before_s = max(busy_s.values())
        others_s = median(seconds_of(own, phase) for r, own in each.items() if r != rank)
        busy_s[rank] -= max(least_s, seconds_of(each[rank], phase) - others_s)
        won_s += before_s - max(busy_s.values())
    return won_s


WRONG = {
    "who_was_late": [
        Wrong(longest_step, "the steps of all ranks are equally long"),
        Wrong(who_waited_least, "compare what each did itself"),
        Wrong(who_waited_least_and_where, "it came last by chance"),
        Wrong(on_average, "once is an accident"),
        Wrong(median_of_steps, "in 4 of 10 steps"),
        Wrong(beside_the_fastest, "one may be fast"),
        Wrong(over_a_fixed_time, "who_was_late"),
    ],
    "seconds_won": [
        Wrong(all_lateness, "only what is left between the two is won"),
        Wrong(what_others_waited, "only what is left between the two is won"),
        Wrong(without_the_optimizer, "the optimizer's time is waited for too"),
        Wrong(slower_where_it_was_early, "it does not become slower"),
        Wrong(by_the_mean_step, "each step has a last rank of its own"),
    ],
}
