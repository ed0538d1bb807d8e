"""All planted bugs, by number. A number stays that of its bug; new ones get the next."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from minigrad.testing.mutants.around import PLANTED as _AROUND
from minigrad.testing.mutants.combining import PLANTED as _COMBINING
from minigrad.testing.mutants.mutant import Mutant
from minigrad.testing.mutants.telling import PLANTED as _TELLING

MUTANTS: Mapping[int, Mutant] = MappingProxyType(
    {mutant.number: mutant for mutant in sorted((*_COMBINING, *_TELLING, *_AROUND), key=lambda each: each.number)}
)
