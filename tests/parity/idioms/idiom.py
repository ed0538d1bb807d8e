"""An idiom: a name, and a few lines as people write them, which leave `result`."""

import re
import zlib
from typing import NamedTuple

MISTAKE = "mistake: "  # what the name of one begins with that PyTorch refuses


class Idiom(NamedTuple):
    """A snippet and its name; `mark` is another one where the snippet is."""

    name: str
    source: str

    @property
    def mark(self):
        return f"{zlib.crc32(self.source.encode()):08x}"

    @property
    def is_mistake(self):
        return self.name.startswith(MISTAKE)


def read(text):
    """The idioms of a text: a line `## <name>`, and below it the source, up to the next."""
    _, *parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
    return [Idiom(name, source.strip() + "\n") for name, source in zip(parts[::2], parts[1::2])]
