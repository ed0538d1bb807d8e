"""Planted bugs: minigrad with one mistake in it, small programs in which it shows, and the tools that find it.

    with planted(MUTANTS[17]):        # in force in this process; nothing is loaded anew
        seen = observe(PROGRAMS[MUTANTS[17].program])

`in_child` has it in a process of its own, which is killed where it hangs. Tests of one's own are tried on them too: how
many of these bugs does a suite notice?
"""

from minigrad.testing.mutants.catalogue import MUTANTS
from minigrad.testing.mutants.child import in_child
from minigrad.testing.mutants.edit import Edit, SourcePlace
from minigrad.testing.mutants.findings import TOOLS, findings, parted, right_runs
from minigrad.testing.mutants.mutant import KINDS, Mutant, planted
from minigrad.testing.mutants.programs import PROGRAMS
from minigrad.testing.mutants.watch import Onlooker, Program, RankSeen, RunSeen, observe

__all__ = [
    "Edit", "KINDS", "MUTANTS", "Mutant", "Onlooker", "PROGRAMS", "Program", "RankSeen", "RunSeen", "SourcePlace",
    "TOOLS", "findings", "in_child", "observe", "parted", "planted", "right_runs",
]
