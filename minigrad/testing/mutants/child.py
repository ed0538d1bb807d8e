"""A process of its own for what a mutant may leave behind: threads that hang, or what it wrote where others read."""

from __future__ import annotations

import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from minigrad.arguments import as_real
from minigrad.errors import RankFailedError
from minigrad.testing.mutants.edit import Edit


def in_child(edit: Edit | None, body: Callable[[], Any], timeout_s: float = 20.0, *, quiet: bool = True) -> Any:
    """What body() returns in a forked process in which an edit is in force; in this one it never is.

    The process is over when this returns, whatever its threads did. Fork it before this process starts threads that
    hold locks.

    Args:
        edit: None for minigrad as it is.
        body: Returns what can be pickled.
        timeout_s: Seconds until the process is killed, > 0.
        quiet: What it writes to the standard error goes nowhere, and it may start no processes.

    Raises:
        RankFailedError: body did not return in time, the process ended before, or what body returned can't be
            pickled. And whatever body raises.

    Example:
        >>> from minigrad.distributed.ddp.combine import weight_of
        >>> in_child(Edit("distributed.ddp.combine", "samples / total if", "1.0 if"), lambda: weight_of(1.0, 4.0))
        1.0
        >>> weight_of(1.0, 4.0)
        0.25
    """
    timeout_s = as_real("in_child", "timeout_s", timeout_s, above=0.0)
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(edit, body, theirs, quiet), daemon=quiet)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # BLAS has threads; they hold nothing that we need
        process.start()
    theirs.close()
    try:
        if not mine.poll(timeout_s):
            raise RankFailedError(f"in_child: expected an end within {timeout_s:g} s, got none")
        good, result = mine.recv()
    except EOFError:
        process.join(timeout_s)
        raise RankFailedError(f"in_child: expected a result, got exit code {process.exitcode}") from None
    finally:
        process.kill()
        process.join()
        mine.close()
    if not good:
        raise result
    return result


def _child(edit: Edit | None, body: Callable[[], Any], results: Connection, quiet: bool) -> None:
    with open(os.devnull, "w") as nothing:
        if quiet:
            sys.stderr = nothing
        try:
            if edit is None:
                outcome = True, body()
            else:
                with edit.in_force():
                    outcome = True, body()
        except BaseException as error:
            outcome = False, error.with_traceback(None)
        try:
            results.send(outcome)
        except Exception as error:
            results.send((False, RankFailedError(f"in_child: expected a result that can be pickled, got {error}")))
        sys.stdout.flush()
        os._exit(0)
