"""The table of the idioms, or the record of them:

    python -m tests.parity.idioms                     # what agrees, what is refused in words, what fails
    python -m tests.parity.idioms record [group ...]  # what PyTorch does; by hand, where it is installed
"""

import argparse

from tests.parity.idioms import GROUPS, store
from tests.parity.idioms.table import table, verdicts


def record(groups):
    """Run the idioms of these groups, or of all, in PyTorch, and keep what they leave."""
    from tests.parity.idioms.theirs import play_theirs

    kept = dict(store.load())
    for group in GROUPS:
        if groups and group.name not in groups:
            continue
        left = play_theirs(group)
        for idiom in group.idioms:
            found = left[idiom.name]
            if idiom.is_mistake != isinstance(found, Exception):
                print(f"{idiom.name}: PyTorch {'takes it' if idiom.is_mistake else 'refuses it'}: {found!r:.300}")
            found = {"raises": type(found).__name__} if isinstance(found, Exception) else found
            kept[idiom.name] = [idiom.mark, found]
        print(f"{group.name}: {len(group.idioms)} idioms")
    store.save({idiom.name: kept[idiom.name] for group in GROUPS for idiom in group.idioms if idiom.name in kept})


def main():
    """Print the table, or record."""
    parser = argparse.ArgumentParser(prog="python -m tests.parity.idioms")
    parser.add_argument("verb", nargs="?", default="table", choices=["table", "record"])
    parser.add_argument("groups", nargs="*")
    options = parser.parse_args()
    if options.verb == "record":
        record(options.groups)
    else:
        print(table(verdicts()))


if __name__ == "__main__":
    main()
