"""The record of what the idioms leave in PyTorch: one line of JSON for each."""

import functools
import json
from pathlib import Path

PATH = Path(__file__).parents[1] / "fixtures" / "idioms.json"


@functools.cache
def load():
    """[mark of the source, what it leaves] by name; a mistake leaves {"raises": the class of the error}."""
    return json.loads(PATH.read_text()) if PATH.exists() else {}


def save(found):
    """Write what `load` gives back."""
    lines = (f"{json.dumps(name)}: {json.dumps(entry, separators=(',', ':'))}" for name, entry in found.items())
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n")
