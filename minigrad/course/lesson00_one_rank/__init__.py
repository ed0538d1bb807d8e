"""Lesson 0: one rank is no special case."""

from minigrad.course.lesson import Exercise, Lesson
from minigrad.course.lesson00_one_rank.checks import check_train
from minigrad.course.lesson00_one_rank.picture import picture

LESSON = Lesson(
    number=0,
    title="One rank is no special case",
    minutes=25,
    needs=(),
    proves="One loop, unchanged, gives the weights and the losses of one device on any number of ranks.",
    tasks=(
        Exercise(
            "train",
            check_train,
            hints=(
                "Write the loop of one device first. Three things change: which samples, who holds the model, and "
                "what the loss is a mean over.",
                "x[comm.rank :: comm.world_size] is a part; all of x with one rank. DistributedDataParallel(model, "
                "comm) gives all ranks the parameters of rank 0, and combines gradients while backward runs.",
                "The loss of a step: all-reduce np.array([loss.item() * n, n]), n the samples of this rank; divide. "
                "zero_grad, backward and step are as on one device.",
            ),
        ),
    ),
    picture=picture,
)
