"""Who was late: a rank and a phase, found in records in which all steps are equally long."""

from __future__ import annotations

from collections.abc import Mapping

from minigrad.distributed.inspect import RankStep

PHASES = ("data", "forward", "backward", "link", "optimizer")


def who_was_late(steps: Mapping[int, Mapping[int, RankStep]]) -> tuple[int, str] | None:
    """The rank that was late, and the phase in which; None where nobody was.

    A rank is late in a phase by what that took it longer than the middle one of the other ranks, in the same step. It
    is told where that is no accident and costs something:

    - in at least three of the steps it is more than a twentieth of the median step, and over all steps, those in which
      it was not late included, it comes to more than that on average;
    - on average the rank does not make up for it in other phases: what it was late in all phases together is more than
      a twentieth of the median step, too.

    In no record are two ranks late, or one in two phases.

    Args:
        steps: What `minigrad.distributed.inspect.steps_of` finds in a record: number of a step -> rank -> its seconds.
            The phases are data_s, forward_s, backward_s, handing_s (of "link": weighting the buckets and handing them
            in) and optimizer_s. In idle_s a rank waits for ranks, in exposed_s for the wire; wall_s is all of it. There
            are four ranks or more, and ten steps or more, which all ranks made.

    Returns:
        (rank, phase), with the phase one of PHASES; or None.

    Example:
        `who_was_late(steps_of(timeline))` is `(1, "backward")`, say.
    """
    raise NotImplementedError


def seconds_won(steps: Mapping[int, Mapping[int, RankStep]], rank: int, phase: str) -> float:
    """The seconds by which the whole run would have been shorter, had a rank been punctual in a phase.

    Punctual means: in each step it takes for that phase what the middle one of the other ranks took, if that is less.
    All ranks wait for the last one in each step; so what counts is when the last one comes, which may be another one
    then. The wire is as it was.

    Args:
        steps: As for `who_was_late`.
        rank, phase: As it tells them; there need not be only one that is late.

    Returns:
        Seconds over all steps, >= 0. It is checked by running the same again with a punctual rank: to a tenth.
    """
    raise NotImplementedError
