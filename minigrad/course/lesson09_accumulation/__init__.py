"""Lesson 9: accumulation, no_sync, zeroing."""

from minigrad.course.lesson import Exercise, Lesson
from minigrad.course.lesson09_accumulation.checks import check_accumulated_step, check_get_ddp_accumulating
from minigrad.course.lesson09_accumulation.picture import picture

LESSON = Lesson(
    number=9,
    title="Accumulation, no_sync, zeroing",
    minutes=50,
    needs=(1, 5),
    proves="Gradients of several backwards can be exchanged once, and the step is that of one batch, if samples are "
    "counted since the last exchange, losses are weighted by their samples, and clipping comes after the exchange.",
    tasks=(
        Exercise(
            "get_ddp_accumulating",
            check_get_ddp_accumulating,
            (
                "Begin with your lesson 5. What must be remembered from one forward to the next, and when is it over?",
                "self.n += len(inputs[0]) in each forward, self.n = 0 after finish has combined; in between p.grad "
                "adds up by itself. A flag says whether finish does anything.",
                "@contextmanager def no_sync(self): before, self.syncs = self.syncs, False; try: yield; finally: "
                "self.syncs = before. finish returns at once where self.syncs is False; else it is that of lesson 5.",
            ),
            points=2,
        ),
        Exercise(
            "accumulated_step",
            check_accumulated_step,
            (
                "Write it for one rank first: two micro-batches of 3 and 1 samples are to make the step of one of 4.",
                "zero_grad once; weight each loss by len(inputs) / samples of this rank; no_sync for all but the last; "
                "then finish, then clip, then step. What does a rank do that has no micro-batch at all?",
                "for i, (x, y) in enumerate(micro_batches, 1): with nullcontext() if i == len(micro_batches) else "
                "ddp.no_sync(): (loss_fn(ddp(x), y) * (len(x) / max(1, samples))).backward(); ddp.finish(). Without "
                "micro-batches: ddp.finish() alone. norm = clip_grad_norm_(ddp.module.parameters(), max_norm).",
            ),
            points=2,
        ),
    ),
    picture=picture,
)
