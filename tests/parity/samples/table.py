"""The committed table of samples: a row for each operation, module and optimizer, in JSON and for readers.

A row holds `names`, under which it was called; `samples`; how many `agree`; by choice, those that are refused or
differ on purpose; by reason, what only PyTorch has (`foreign`, no part of the samples); and `unexplained`, which must
be empty.
"""

import json
from pathlib import Path

from tests.parity.samples.choices import CHOICES

FILE = Path(__file__).with_name("table.json")
PAGE = Path(__file__).with_name("TABLE.md")
PARTS = {"operations": "op_db", "modules": "module_db", "optimizers": "optim_db"}
FOREIGN = {
    "complex": "complex numbers",
    "device": "another device",
    "dtype": "a dtype that is not ours",
    "generator": "a torch.Generator",
    "layout": "another layout or memory format",
    "sparse": "sparse tensors",
    "theirs": "PyTorch refuses the sample itself",
}


def load():
    """The committed table."""
    return json.loads(FILE.read_text())


def save(table):
    """Write the table, and the page that shows it."""
    parts = [f"{json.dumps(key)}: {_dumped(value)}" for key, value in table.items()]
    FILE.write_text("{\n" + ",\n".join(parts) + "\n}\n")
    PAGE.write_text(page(table))


def _dumped(value):
    """JSON with a line for each row."""
    if not isinstance(value, dict):
        return json.dumps(value)
    return "{\n" + ",\n".join(f"  {json.dumps(key)}: {json.dumps(row)}" for key, row in value.items()) + "\n}"


def base_name(form):
    """An operation's own name in that of a form: `add` of `Tensor.add_`."""
    return form.split(" ")[0].split(".")[-1].removesuffix("_")


def totals(rows, key):
    """The sum of a column, by reason where it has them."""
    found = {}
    for row in rows.values():
        for name, count in row[key].items() if isinstance(row[key], dict) else [("", row[key])]:
            found[name] = found.get(name, 0) + count
    return found


def page(table):
    """The table for readers, in Markdown."""
    lines = [
        "# PyTorch's own samples",
        "",
        f"What `python -m tests.parity.samples` gave on {table['date']} with PyTorch {table['torch']}: every sample of",
        "`op_db`, `module_db` and `optim_db` (`torch.testing._internal`) whose operation, module or optimizer exists",
        "here, called under each of its public names with PyTorch's arguments as they are, forward and backward, in",
        "float32, float64, int64 and bool; the first of each also with NaN and infinities. A value agrees where it is",
        "within 2e-5 · (1 + |PyTorch's|) in float32, 1e-11 in float64, and NaN where PyTorch's is; integers are equal.",
        "",
        "| | samples | agree | refused by choice | differ by choice | else |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for part, source in PARTS.items():
        rows = table[part]
        count, agree, other = (sum(totals(rows, key).values()) for key in ("samples", "agree", "unexplained"))
        chosen = totals(rows, "choices")
        refused, differ = (
            sum(n for key, n in chosen.items() if CHOICES[key].outcome == word) for word in ("refused", "differs")
        )
        lines.append(f"| {part} (`{source}`) | {count} | {agree} | {refused} | {differ} | {other} |")
    lines += ["", "## What is done on purpose", ""]
    lines += ["| choice | samples | what it is | where it is said |", "| --- | ---: | --- | --- |"]
    for key, choice in CHOICES.items():
        found = sum(totals(table[part], "choices").get(key, 0) for part in PARTS)
        lines.append(f"| {key} | {found} | {choice.words} | `{choice.file}` |")
    lines += ["", "Not counted, since only PyTorch has it: " + "; ".join(_foreign(table)) + "."]
    for part in PARTS:
        lines += ["", f"## {part.capitalize()}", "", "| PyTorch's name | called as | samples | agree | by choice |"]
        lines.append("| --- | --- | ---: | ---: | --- |")
        for name, row in table[part].items():
            chosen = ", ".join(f"{key}: {count}" for key, count in row["choices"].items())
            names = " ".join(f"`{one}`" for one in row["names"])
            lines.append(f"| {name} | {names} | {row['samples']} | {row['agree']} | {chosen} |")
    return "\n".join(lines) + "\n"


def _foreign(table):
    counts = [totals(table[part], "foreign") for part in PARTS]
    found = {key: sum(count.get(key, 0) for count in counts) for key in FOREIGN}
    return [f"{words} {found[key]}" for key, words in FOREIGN.items() if found[key]]
