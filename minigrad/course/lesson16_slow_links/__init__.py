"""Lesson 16: slow links, local steps and DiLoCo."""

from minigrad.course.lesson import Exercise, Lesson
from minigrad.course.lesson16_slow_links.checks import check_local_steps, check_outer_step, check_train_locally
from minigrad.course.lesson16_slow_links.picture import picture

LESSON = Lesson(
    number=16,
    title="Slow links: local steps, DiLoCo",
    minutes=75,
    needs=(1, 5),
    proves="Where a meeting costs more than a step, ranks that meet rarely come further in the same time, and in the "
    "same bytes; what they do when they meet decides how far.",
    tasks=(
        Exercise(
            "outer_step",
            check_outer_step,
            (
                "Which way would SGD go, if start - average were the gradient of what all ranks held?",
                "The velocity is updated first, and both it and the change are in the step. With momentum 0 and lr 1 "
                "the average has to come out.",
                "change = start - average; velocity = momentum * velocity + change (a new array); return start - lr * "
                "(change + momentum * velocity), velocity.",
            ),
        ),
        Exercise(
            "train_locally",
            check_train_locally,
            (
                "Between two meetings it is a training of one rank. What has to be remembered from the last meeting?",
                "Start, velocity and samples. At a meeting join the parameters into one vector, times the samples, "
                "with the samples behind them; one all_reduce, and a division.",
                "sums = np.append(flat * samples, samples); comm.all_reduce(sums).wait(); average = sums[:-1] / "
                "sums[-1]; start, velocity = outer_step(start, average, velocity, lr, momentum); param.copy_ under "
                "no_grad; samples = 0. Meet where made % every == 0 or made == len(batches).",
            ),
            points=2,
        ),
        Exercise(
            "local_steps",
            check_local_steps,
            (
                "What part of the time do meetings take with K steps between them? Below which part is no more to win?",
                "A meeting of reduce_s after K steps of step_s: try the K at which that is a tenth of the steps.",
                "math.ceil(reduce_s / (0.1 * step_s)), but at least 1 and at most `most`.",
            ),
        ),
    ),
    picture=picture,
)
