"""Puts minigrad to its own conformance checks under many schedules: `python -m minigrad.testing.schedules -n 500`."""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Sequence

from tqdm import tqdm

from minigrad.testing.conformance import CHECKS, MinigradAdapter
from minigrad.testing.schedules import schedules


def main(arguments: Sequence[str] | None = None) -> int:
    """Each conformance check under many schedules: a line for each, with its CPU seconds; 1 where one fails."""
    parser = argparse.ArgumentParser(prog="python -m minigrad.testing.schedules", description=__doc__)
    parser.add_argument("-n", type=int, default=500, help="schedules of each check")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("-k", default="", help="only checks whose name contains this text")
    options = parser.parse_args(arguments)
    if options.n < 1 or options.first < 0:
        parser.error(f"expected -n of at least 1 and --first of at least 0, got {options.n} and {options.first}")
    chosen = [check for check in CHECKS if options.k in check.__name__]
    failed, first_s = 0, time.process_time()
    for check in tqdm(chosen, disable=None):
        began_s = time.process_time()
        name = check.__name__.removeprefix("check_")
        found = schedules(functools.partial(check, MinigradAdapter()), options.n, options.first)
        failed += found is not None
        said = "passed" if found is None else f"FAILED under {found.seed}: {type(found.error).__name__}: {found.error}"
        with tqdm.external_write_mode():
            print(f"{name:60} {time.process_time() - began_s:7.1f} s  {said}", flush=True)
    whole_s = time.process_time() - first_s
    print(f"{len(chosen)} checks, {options.n} schedules each: {failed} failed, in {whole_s:.1f} CPU seconds")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
