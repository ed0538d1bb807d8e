"""Write the committed table of PyTorch's samples again, or show what single ones give."""

import datetime
import sys

import torch

from tests.parity.samples import measure, table


def main(names):
    """Run the samples of all, or of these."""
    found = {"torch": torch.__version__.split("+")[0], "date": f"{datetime.date.today()}"}
    for part in table.PARTS:
        found[part] = {}
        for name, make in measure.rows(part).items():
            own = name.split(" ")[0]
            if names and not {name, own, own.split(".")[-1]} & set(names):
                continue
            row = make()
            found[part][name] = row.as_json()
            print(*(f"{name} | {words}" for words in row.remarks()), sep="\n", end="\n" if row.examples else "")
            if names:
                print(name, row.as_json())
    if not names:
        table.save(found | measure.absent())
        unexplained = sum(sum(table.totals(found[part], "unexplained").values()) for part in table.PARTS)
        print(f"{unexplained} samples neither agree nor are explained by a choice")


main(sys.argv[1:])
