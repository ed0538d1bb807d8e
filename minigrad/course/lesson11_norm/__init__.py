"""Lesson 11: buffers and normalisation."""

from minigrad.course.lesson import Exercise, Lesson
from minigrad.course.lesson11_norm.checks import (
    check_combine_moments,
    check_sync_norm_backward,
    check_sync_norm_forward,
)
from minigrad.course.lesson11_norm.picture import picture

LESSON = Lesson(
    number=11,
    title="Buffers and normalisation: one batch out of many",
    minutes=60,
    needs=(1, 2),
    proves="Batch norm makes a rank's gradient depend on the rows of the others; with one collective forward and one "
    "backward, of a few numbers a column, any shards give what the joined batch gives.",
    tasks=(
        Exercise(
            "combine_moments",
            check_combine_moments,
            (
                "Values vary around the mean of their own part, and the means of the parts vary around the common one.",
                "Leave out empty parts. Then Σ n·(variance + (mean - common mean)²) / Σ n.",
                "parts = [p for p in zip(counts, means, variances) if p[0]]; total = Σ n; center = parts[0][1]; mean = "
                "center + Σ n·(m - center) / total; variance = Σ n·(v + (m - mean)²) / total. Where no part is left: "
                "0, zeros, zeros.",
            ),
        ),
        Exercise(
            "sync_norm_forward",
            check_sync_norm_forward,
            (
                "What does a rank have to know of the rows of the others? Not the rows.",
                "Count, mean and variance of the own rows, in float64, in one array of 1 + 2C numbers; comm.all_gather "
                "gives everyone those of all ranks, and combine_moments makes one of them.",
                "wide = x.astype(np.float64); mean and variance over axis 0, zeros where len(x) is 0; "
                "comm.all_gather(everywhere, np.concatenate([[len(x)], mean, variance])).wait() with everywhere of "
                "world_size·(1 + 2C) float64; combine; inverse = 1 / sqrt(variance + eps); (wide - mean)·inverse, as "
                "the dtype of x.",
            ),
            points=2,
        ),
        Exercise(
            "sync_norm_backward",
            check_sync_norm_backward,
            (
                "Derive it for one rank first: x acts on its own normalised value, on the mean, and on the variance.",
                "dx = inverse·(grad - mean(grad) - normalised·mean(grad·normalised)); both means are over the rows of "
                "all ranks.",
                "sums = np.concatenate([grad.sum(axis=0), (grad·normalised).sum(axis=0)]) in float64; "
                "comm.all_reduce(sums).wait(); mean, slope = np.split(sums / count, 2).",
            ),
            points=2,
        ),
    ),
    picture=picture,
)
