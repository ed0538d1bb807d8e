"""Lesson 4: threads, processes, machines: what a communicator is made of."""

from minigrad.course.lesson import Exercise, Lesson
from minigrad.course.lesson04_machines.checks import check_read_seat, check_solo, check_threads
from minigrad.course.lesson04_machines.picture import picture

LESSON = Lesson(
    number=4,
    title="Threads, processes, machines",
    minutes=60,
    needs=(2,),
    proves="One script runs on threads, processes and machines, since a communicator is five ways of moving bytes and "
    "a rule for what happens when somebody does not come.",
    tasks=(
        Exercise(
            "get_solo_communicator",
            check_solo,
            (
                "Front does the checking. What is left to do for a rank that is alone: which of the five calls has to "
                "move anything at all?",
                "A sum over one rank is the array as it is; so is a broadcast. reduce_scatter and all_gather have an "
                "output beside the source, and somebody must fill it.",
                "output[...] = source.reshape(output.shape) in the latter two; every one returns an object whose "
                "done() is True, whose wait(host=False) returns at once, and whose span is None.",
            ),
        ),
        Exercise(
            "get_thread_communicators",
            check_threads,
            (
                "Write one method by which every rank tells all others what it calls and what it has, and gets what "
                "they have. The five calls are short then.",
                "A threading.Condition and a dict: number of the call -> rank -> (header, copy of the array). Put "
                "yours there, notify, wait until there are world_size of them, the timeout is over, or the world "
                "has failed. Copy: as soon as a rank has its result it overwrites its own array.",
                "After the wait: all there? Compare the headers, then compute from the copies in order of rank, with "
                "minigrad.distributed.collectives. Not all? self._fail(CollectiveTimeoutError(..)), which calls your "
                "_tell(error): it puts the error into the failure of every rank, by other.failure.set(error), and "
                "notifies. Last, self.failure.raise_on(self.rank).",
            ),
            points=3,
        ),
        Exercise(
            "read_seat",
            check_read_seat,
            (
                "Write the names down as a table, a row for each launcher, in order of precedence.",
                "The first row of which the rank or the world size is set decides. A row that is set by half is an "
                "error, not a reason to look at the next one.",
                "Slurm's row counts only where SLURM_STEP_ID is there. Convert with int() inside try, and say which "
                "variable had which text; compare the rank with the world size after that.",
            ),
        ),
    ),
    picture=picture,
)
