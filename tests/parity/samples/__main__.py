"""Write the committed table of PyTorch's samples again, or show what single ones give.

    python -m tests.parity.samples            # all: minutes
    python -m tests.parity.samples new        # what the table does not have yet, into the table
    python -m tests.parity.samples relu cat   # show these, and write nothing
"""

import datetime
import sys

import torch

from tests.parity.samples import measure, table


def measured(name, make):
    """A row, after what of it is not explained was printed."""
    row = make()
    for words in row.remarks():
        print(f"{name} | {words}")
    return row.as_json()


def show(names):
    """Print the rows of these names."""
    for part in table.PARTS:
        for name, make in measure.rows(part).items():
            own = name.split(" ")[0]
            if {name, own, own.split(".")[-1]} & set(names):
                print(name, measured(name, make))


def write(known):
    """Measure what the known rows do not hold or explain, and write the table."""
    found = {"torch": torch.__version__.split("+")[0], "date": f"{datetime.date.today()}"}
    for part in table.PARTS:
        old = {name: row for name, row in known.get(part, {}).items() if not row["unexplained"]}
        found[part] = {name: old.get(name) or measured(name, make) for name, make in measure.rows(part).items()}
    table.save(found | measure.absent())
    unexplained = sum(sum(table.totals(found[part], "unexplained").values()) for part in table.PARTS)
    print(f"{unexplained} samples neither agree nor are explained by a choice")


if sys.argv[1:] in ([], ["new"]):
    write(table.load() if sys.argv[1:] else {})
else:
    show(sys.argv[1:])
