"""Where minigrad does something else than PyTorch on purpose: each choice once, in words, and where it is documented.

A sample that does not agree must be covered by one of them.
"""

import re
from typing import NamedTuple


class Choice(NamedTuple):
    """A choice: what is done, where a reader finds it (file, words in it), and which outcomes are its doing."""

    words: str
    file: str
    written: str
    outcome: str  # "refused" or "differs"
    pattern: str  # of the reason, from its beginning
    ops: str = ""  # of the name of the operation, module or optimizer; any
    notes: str = ""  # of the note of a sample, as "with nan"; any


CHOICES = {
    "two float dtypes": Choice(
        "two float dtypes in one operation are an error that names both; PyTorch promotes",
        "README.md", "dtype", "refused", r"DtypeError: \w+: expected operands of one float dtype",
    ),
}  # fmt: skip


def choice_of(name, note, outcome):
    """The choice that an outcome is the doing of, or None."""
    for key, choice in CHOICES.items():
        if (
            outcome.word == choice.outcome
            and re.match(choice.pattern, outcome.reason, re.DOTALL)
            and re.fullmatch(choice.ops or ".*", name)
            and re.search(choice.notes, note)
        ):
            return key
    return None
