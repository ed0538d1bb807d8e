"""Lesson 5: naive data-parallel training, and what it costs."""

from minigrad.course.lesson import Exercise, Lesson
from minigrad.course.lesson05_naive.checks import check_get_ddp_naive, check_latency_bill_s
from minigrad.course.lesson05_naive.picture import picture

LESSON = Lesson(
    number=5,
    title="Naive DDP and its latency bill",
    minutes=60,
    needs=(1, 3),
    proves="One all_reduce a parameter after backward is right, and on many ranks most of a step is latency: messages "
    "times parameters times ranks, while bytes hardly grow.",
    tasks=(
        Exercise(
            "get_ddp_naive",
            check_get_ddp_naive,
            (
                "Write a class with __init__, __call__ and finish. What has finish to know that only __call__ sees?",
                "finish first all-reduces n as one float64, then for each trainable parameter scales p.grad.data in "
                "place by n / total and all-reduces it. With n = 0 there may be no p.grad: make one of zeros.",
                "__init__: comm.broadcast(t.data, 0).wait() for all parameters and buffers. __call__: self.n = "
                "len(inputs[0]). finish: total = np.array([self.n], np.float64), all_reduce; for each p with "
                "requires_grad: p.grad = Tensor(np.zeros_like(p.data)) if n is 0; p.grad.data *= n / total[0]; "
                "all_reduce; and self.n = 0 at the end.",
            ),
            points=3,
        ),
        Exercise(
            "latency_bill_s",
            check_latency_bill_s,
            (
                "How many all_reduces does a step make, and how many messages does each need round a ring?",
                "There is one call more than there are parameters, and its 8 bytes travel too. One rank sends nothing.",
                "Messages: (parameters + 1)·2 (W - 1)·latency. Bytes: 2 (W - 1) / W·(nbytes + 8) / bandwidth.",
            ),
        ),
    ),
    picture=picture,
)
