"""The rows of the table, from PyTorch's samples."""

import functools
import re
from collections import Counter

from torch.testing._internal.common_methods_invocations import op_db

import minigrad
from tests.parity.samples import modules, ops, optims, table
from tests.parity.samples.choices import choice_of
from tests.parity.samples.crossing import brief, size_of


class Row:
    """What came of the samples of one operation, module or optimizer."""

    def __init__(self, name, names):
        self.name, self.names = name, names
        self.agree, self.choices, self.foreign, self.unexplained = 0, Counter(), Counter(), Counter()
        self.examples = {}  # of each kind that is not explained, the smallest: (size, in words)

    def add(self, note, sample, outcome):
        """Count a sample."""
        key = choice_of(self.name, note, outcome)
        if outcome.word == "agrees":
            self.agree += 1
        elif outcome.word == "foreign":
            self.foreign[outcome.reason] += 1
        elif key is not None:
            self.choices[key] += 1
        else:
            self.unexplained[outcome.word] += 1
            kind = outcome.word, "nan" in outcome.reason, re.split(r", got|: -?[\d.]+ for", outcome.reason)[0][:60]
            example = size_of(sample), f"{outcome.word}: {note} {brief(sample)} -> {outcome.reason:.200}"
            self.examples[kind] = min(self.examples.get(kind, example), example)

    def as_json(self):
        """The row as it is committed."""
        samples = self.agree + self.choices.total() + self.unexplained.total()
        counts = {name: dict(sorted(getattr(self, name).items())) for name in ("choices", "foreign", "unexplained")}
        return {"names": sorted(self.names), "samples": samples, "agree": self.agree, **counts}

    def remarks(self):
        """What is not explained, in words."""
        return [words for _, words in self.examples.values()]


def make_row(name, names, outcomes, *args):
    """The row of what gives these outcomes."""
    row = Row(name, names)
    for note, sample, outcome in outcomes(*args):
        row.add(note, sample, outcome)
    return row


def rows(part):
    """By name, a function that gives the row of each thing of a part of the table that exists here."""
    found = {}
    if part == "operations":
        for op, forms in ops.existing():
            names = [form.name for form in forms]
            found[ops.title(op)] = functools.partial(make_row, ops.title(op), names, ops.outcomes, op, forms)
    else:
        source = {"modules": modules, "optimizers": optims}[part]
        for info, kind in source.existing():
            found[kind.__name__] = functools.partial(
                make_row, kind.__name__, [kind.__name__], source.outcomes, info, kind
            )
    return dict(sorted(found.items()))


def absent():
    """The names of PyTorch's samples that nothing here has; the names of operations here that have no sample."""
    here = ops.existing()
    sampled = {table.base_name(form.name) for _, forms in here for form in forms}
    lacking = {op.name for op in op_db} - {op.name for op, _ in here}
    return {
        "absent": sorted(lacking),
        "unsampled": sorted(set(minigrad.ops.__all__) - sampled),
        "absent modules": sorted(i.module_cls.__name__ for i in modules.module_db if not modules.is_here(i)),
        "absent optimizers": sorted(i.optim_cls.__name__ for i in optims.optim_db if not optims.is_here(i)),
    }
