"""Lesson 10, to write: parameters that a backward leaves out, on some ranks or on all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minigrad import nn
from minigrad.distributed import Communicator


def used_anywhere(comm: Communicator, used: Sequence[bool]) -> list[bool]:
    """For each entry, whether it is true on any rank.

    All ranks call it, with lists of one length, and all get the same answer. It makes one `comm.all_reduce`, of at
    most 8 bytes an entry, and no other collective; none where the list is empty.

    Args:
        comm: The ranks.
        used: What this rank has to say of each parameter, in the order of `module.parameters()`.

    Example:
        Rank 0 calls used_anywhere(comm, [True, False, False]), and rank 1 used_anywhere(comm, [False, True, False]):
        both get [True, True, False].
    """
    raise NotImplementedError


def get_ddp_unused(module: nn.Module, comm: Communicator, find_unused_parameters: bool = False) -> Any:
    """A data-parallel wrapper that copes with parameters that are frozen, tied or left out.

    What it returns is used by all ranks like this; `finish` is yours to have or not, the others are a must:

        ddp = get_ddp_unused(module, comm)    the parameters of rank 0 are now those of all ranks
        loss = ddp(*inputs).mean()            the forward of the module; this rank has n = len(inputs[0]) samples
        loss.backward()                       gradients of earlier steps were dropped by module.zero_grad()
        ddp.finish()                          now they are combined: Σ n_r·g_r / Σ n_r, the same bits on all ranks

    What must hold of parameters that are not simply used once:

    - frozen (`requires_grad` is False): they do not travel, and have no gradient.
    - tied, one parameter under two names: it counts once, and its gradient is the sum of both uses.
    - without elements, of shape (0, 3) say: no reason to stop.
    - left out: a backward gave no gradient to a parameter on a rank that has samples.
      - find_unused_parameters=False: `backward` or `finish` raises a RuntimeError on every rank, of those too that used
        the parameter; its message has the name of the parameter, as in `module.named_parameters()`. No rank waits for
        another until a timeout. All ranks raise after the same collectives, so `comm` can go on to be used.
      - find_unused_parameters=True: the missing gradient counts as zeros; the samples of that rank count as ever.
        A parameter that no rank used keeps `grad` None: weight decay must not move it.
    - A rank may have no loss at all: it calls neither the module nor backward, only `finish` (n = 0; it needs no
      gradients, whatever the option), and has the combined gradients afterwards.

    Args:
        module: All its parameters are on `comm.device`, and of one dtype.
        comm: The ranks.
        find_unused_parameters: Whether a backward may leave parameters out.
    """
    raise NotImplementedError
