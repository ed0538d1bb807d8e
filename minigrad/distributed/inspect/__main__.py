"""The command line of what reads records: `python -m minigrad.distributed.inspect page run.json`, or `hang DIR`.

`schedule ring 8` needs none: it draws how an all_reduce goes.

Each command is a module with `arguments(parser)` and `carry_out(options)`, which returns the exit status.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from minigrad.distributed.inspect import hangs
from minigrad.distributed.inspect.page import command as page
from minigrad.distributed.inspect.page import schedule_command as schedule
from minigrad.errors import MinigradError

COMMANDS = {"hang": hangs, "page": page, "schedule": schedule}


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command; what it is not given as it expects goes to stderr, and the status is 2."""
    parser = argparse.ArgumentParser(prog="python -m minigrad.distributed.inspect")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, module in COMMANDS.items():
        about = (module.__doc__ or "").splitlines()[0]
        module.arguments(commands.add_parser(name, help=about, description=about))
    options = parser.parse_args(arguments)
    try:
        return int(COMMANDS[options.command].carry_out(options))
    except (MinigradError, OSError) as error:
        print(f"{parser.prog} {options.command}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
