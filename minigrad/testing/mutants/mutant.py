"""What a planted bug is: a text that is replaced, with a number, a kind, and the tools that find it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from minigrad.testing.mutants.edit import Edit, SourcePlace

KINDS = {  # of bugs -> what they have to do with
    "weights": "how much the gradient of each rank counts",
    "samples": "how the samples behind a gradient are counted",
    "reduction": "whether a gradient is added up over the ranks, and taken over",
    "old gradients": "a gradient that is not of this step",
    "unused": "parameters that a step leaves out, or that are frozen",
    "refusals": "a mistake that has to be refused, or an error that has to be told",
    "buffers": "buffers, and statistics over the ranks",
    "buckets": "what goes out when, and together with what",
    "precision": "16 bits, and factors on the wire",
    "accounts": "what statistics and timelines count",
    "data": "which samples a rank reads, and in which order",
    "joining": "ranks that run out of data",
    "optimizer": "what is done with a combined gradient: clipping, steps, schedules",
    "loss scale": "the loss scale",
    "seeds": "random numbers",
    "averaging": "steps of each rank's own, and averages of parameters",
    "balance": "parts in proportion to speed",
}


@dataclass(frozen=True)
class Mutant:
    """A planted bug.

    Attributes:
        number: Of it; it never changes.
        name: What is wrong, in words.
        kind: One of `KINDS`.
        program: The name of the program of `PROGRAMS` in which it shows.
        tools: Which of `TOOLS` find it there.
        edit: The text, and what stands there instead.

    Example:
        >>> from minigrad.testing.mutants import MUTANTS
        >>> mutant = MUTANTS[1]
        >>> print(mutant.name, mutant.level, mutant.place.function, sep="; ")
        the samples of the last micro-batch count alone; 2; OwnGradients._add
    """

    number: int
    name: str
    kind: str
    program: str
    tools: tuple[str, ...]
    edit: Edit

    @property
    def level(self) -> int:
        """1: what is printed tells, or the ranks part. 2: they agree on wrong numbers. 3: all numbers are right."""
        if {"output", "fingerprint"} & set(self.tools):
            return 1
        return 2 if {"twin", "loss"} & set(self.tools) else 3

    @property
    def hint(self) -> str:
        """What it has to do with, and who finds it."""
        return f"It has to do with {KINDS[self.kind]}. What finds it: {', '.join(self.tools)}."

    @property
    def place(self) -> SourcePlace:
        """Where the text stands now."""
        return self.edit.place


@contextmanager
def planted(mutant: Mutant | Edit) -> Iterator[None]:
    """Inside, the bug is in minigrad: for all threads of this process.

    What a bug leaves behind, a rank that waits say, is the caller's; `in_child` has it in a process of its own.

    Example:
        >>> from minigrad.distributed.ddp.combine import weight_of
        >>> with planted(Edit("distributed.ddp.combine", "samples / total if", "1.0 if")):
        ...     weight_of(1.0, 4.0)
        1.0
    """
    with (mutant.edit if isinstance(mutant, Mutant) else mutant).in_force():
        yield
