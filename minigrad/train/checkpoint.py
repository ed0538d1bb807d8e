"""Checkpoint: a folder of training states, of which the newest that is whole is where a run goes on.

What is in a file, and what several ranks do, is that of `minigrad.save`; which files there are to be is decided in
`train/keeping.py`. Rank 0 alone looks at the folder and changes it.
"""

from __future__ import annotations

import os
import secrets
import warnings
from pathlib import Path
from typing import Any

from minigrad.arguments import as_integer, check_choice, check_switch, is_integer
from minigrad.errors import ArgumentError
from minigrad.nn.bundle import Recorded, objects_in
from minigrad.nn.bundle_ranks import ranks_of, together
from minigrad.nn.nested import gathered, load, objects_to_fill
from minigrad.nn.serialize import Content
from minigrad.train.beside import BesideTraining
from minigrad.train.folder import CheckpointFolder, Found
from minigrad.train.keeping import END, UNITS, is_due, removable


class Checkpoint:
    """Training states in a folder, written now and then, of which the last few are kept.

    Every rank makes one and calls it at the same places; rank 0 writes. Wherever a run is killed, also while it writes,
    the newest file that is whole is a state to go on from, and the ranks end in the bits of a run that nobody stopped:
    each file is a `minigrad.save` of its own, beside which older ones stay until it is on the disk.

        with Checkpoint("run", every=5, keep=2) as checkpoint:
            done = checkpoint.load_latest(into=everything) or {"epoch": 0}
            for epoch in range(done["epoch"], epochs):
                ...
                checkpoint.save_if_due({**everything, "epoch": epoch + 1}, epoch + 1)

    A folder is that of one run: one that has checkpoints already is gone on with by `load_latest`, or refused. Files
    of other names in it are left alone. What a killed run has left half written is removed when the next begins.

    Args:
        dir: The folder, which all ranks name alike; made where there is none.
        every: Steps or epochs between two, for `save_if_due`; None for never, where `save` alone writes.
        keep: How many are kept, the newest ones; None for all.
        on: What they are numbered by: "epoch" or "step".
        background: Whether rank 0 copies the state, for which there has to be room on the host, and trains on while a
            thread writes. Its error is raised by the next call on all ranks, or by `join` or `close`. The next one
            waits until it is written, and so does the end of the process.

    Attributes:
        dir, every, keep, on, background: As given; the folder from the root on.
        number: Of the last one that was written or loaded here; with background, that is being written. None before.

    Raises:
        ArgumentError: one of them is out of range.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from minigrad import nn, optim
        >>> model = nn.Linear(2, 1)
        >>> run = {"model": model, "optimizer": optim.Adam(model.parameters())}
        >>> with TemporaryDirectory() as folder, Checkpoint(folder, every=2, keep=2) as checkpoint:
        ...     for epoch in range(1, 8):
        ...         path = checkpoint.save_if_due({**run, "epoch": epoch}, epoch)
        ...     Checkpoint(folder).load_latest(into=run)["epoch"], len(os.listdir(folder))
        (6, 2)
    """

    def __init__(
        self,
        dir: str | os.PathLike[str],
        every: int | None = 1,
        keep: int | None = 2,
        *,
        on: str = "epoch",
        background: bool = False,
    ) -> None:
        if not isinstance(dir, (str, os.PathLike)) or not isinstance(os.fspath(dir), str) or not os.fspath(dir):
            raise ArgumentError(f"Checkpoint: expected dir to be the path of a folder, got {dir!r:.100}")
        for name, value, meaning in (("every", every, "for never"), ("keep", keep, "for all")):
            if value is not None and not (is_integer(value) and value >= 1):
                raise ArgumentError(
                    f"Checkpoint: expected {name} to be an integer >= 1, or None {meaning}, got {value!r:.100}"
                )
        check_choice("Checkpoint", UNITS, on=on)
        check_switch("Checkpoint", background=background)
        self.dir, self.every, self.keep, self.on, self.background = Path(dir).absolute(), every, keep, on, background
        self.number: int | None = None
        self._run = ""  # the rest is of rank 0 alone: whose the files are, once there are some
        self._mark = secrets.token_hex(8)  # in what this one has written
        self._written: int | None = None
        self._tried: int | None = None  # the last number whose file may be there
        self._broken: list[int] = []  # newer ones, which are not whole
        self._comm: Any = None
        self._writer = BesideTraining()
        self._is_closed = False
        self._folder = CheckpointFolder(self.dir, on)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self.close()
        else:  # other ranks may be gone: nobody waits for them
            self._writer.tell()

    # ---------------------------------------------------------------------------------------------------- writing

    def is_due(self, number: int) -> bool:
        """Whether a multiple of `every` was reached since the last one, or passed, where a round is several steps."""
        number = as_integer("Checkpoint.is_due", "number", number, 0, END)
        return is_due(number, self.number or 0, self.every)

    def save_if_due(self, obj: Any, number: int) -> Path | None:
        """`save` where `is_due`; None where it is not."""
        return self.save(obj, number) if self.is_due(number) else None

    def save(self, obj: Any, number: int) -> Path:
        """Write a training state, and remove what is older than the last `keep`. All ranks call it, between two steps.

        Args:
            obj: Objects by name and plain values; see `minigrad.save`.
            number: Of the steps, or epochs, that are done: above that of the last one; 0 <= number < 10**10.

        Returns:
            The path of the file, which is there, unless in the background: then it will be.

        Raises:
            ArgumentError: obj without objects; a number that does not go up; a folder in which another run has written.
            OSError: it can't be written, as on a full disk; or, on rank 0, the last one could not be.
            Exception: as `minigrad.save`.
        """
        who = "Checkpoint.save"
        number = as_integer(who, "number", number, 0, END)
        objects = objects_in(obj)
        if not objects:
            raise ArgumentError(f"{who}: expected objects with state_dict() by name, got {type(obj).__name__} without")
        if self.number is not None and number <= self.number:
            raise ArgumentError(f"{who}: expected a number of {self.on}s above the last, {self.number}, got {number}")
        self._check_open(who)
        comm = self._comm = ranks_of(objects.values())
        writes = comm is None or comm.rank == 0
        path = self._folder.path(number)
        whole = gathered(comm, obj, path, self._make_ready if writes else tuple)
        together(comm, who, lambda: self._write(whole, number) if writes else None)
        self.number = number
        return path

    def _write(self, whole: Recorded, number: int) -> None:
        self._run = self._run or secrets.token_hex(8)
        self._tried = number
        whole.note = {"run": self._run, "writer": self._mark, self.on: number}
        content = whole.content(copy=self.background)
        if self.background:
            self._writer.start(f"checkpoint-{number}", self._write_now, content, number)
        else:
            self._write_now(content, number)

    def _write_now(self, content: Content, number: int) -> None:
        content.write(self._folder.path(number))
        self._written = number
        broken, self._broken = self._broken, []
        for old in removable(self._folder.numbers(), number, self.keep, broken):
            try:
                os.unlink(self._folder.path(old))
            except FileNotFoundError:
                continue
            except OSError as error:  # there is one too many, until it goes with a later one
                self._broken += [old] if old in broken else []
                warnings.warn(f"Checkpoint: expected to remove an old one, got {error}", RuntimeWarning, stacklevel=2)

    def _make_ready(self) -> None:
        """On rank 0: the last one is written, and the folder is there, clean, and nobody else's."""
        self._finish()  # so that there is one copy of the state at a time
        self._folder.make()
        self._folder.clean()
        tried = -1 if self._tried is None else self._tried
        others = [number for number in self._folder.numbers() if number > tried and number not in self._broken]
        if not others:
            return
        last = self._folder.path(others[-1])
        if self._tried is None:
            raise ArgumentError(
                f"Checkpoint.save: expected a folder without checkpoints, got {last}: call load_latest first, to go on "
                "from there, or name another folder"
            )
        raise ArgumentError(
            f"Checkpoint.save: expected {self._folder.path(tried)} to be the last, got {last.name}: another run writes "
            "there"
        )

    def _finish(self) -> None:
        """On rank 0: the last one is written, and still that of this run."""
        self._writer.finish()
        written, self._written = self._written, None
        if written is not None and self._folder.writer_of(written) not in ("", self._mark):
            raise ArgumentError(
                f"Checkpoint: expected {self._folder.path(written)} as it was written here, got that of another run, "
                "which writes there"
            )

    # ---------------------------------------------------------------------------------------------------- loading

    def latest(self) -> Path | None:
        """The newest that is whole, None where there is none; a rank may ask by itself. It waits for no writer.

        Raises:
            StateDictError, ArgumentError: see `load_latest`.
        """
        found = self._folder.newest("Checkpoint.latest", self._run)
        return None if found is None else self._folder.path(found.number)

    def load_latest(self, into: Any = None, every_rank: bool = False) -> Any:
        """Fill objects from the newest that is whole, and go on with its run. All ranks call it.

        One that is not whole is passed over where an older one is; a warning names it, and it is removed once a new one
        is written.

        Args:
            into: See `minigrad.load`: as many ranks as have saved it. None for the states that rank 0 had, which any
                number of ranks can read.
            every_rank: Without into: a list of what each rank had.

        Returns:
            What `minigrad.load` returns; None where there is no folder, or no checkpoint in it.

        Raises:
            StateDictError: there are some, and none of them is whole; one of a newer version than this minigrad reads;
                or it does not fit.
            ArgumentError: checkpoints of another run than this one has written, or by another unit.
            Exception: as `minigrad.load`.
        """
        who = "Checkpoint.load_latest"
        self._check_open(who)
        objects = {} if into is None else objects_to_fill(into)
        comm = self._comm = ranks_of(objects.values()) or self._comm
        looks = comm is None or comm.rank == 0
        found = together(comm, who, lambda: self._look(who) if looks else None)
        if comm is not None:
            told = comm.all_gather_object(None if found is None else list(found))[0]
            found = None if told is None else Found(*told)
        if found is None:
            return None
        loaded = load(self._folder.path(found.number), into=into, every_rank=every_rank)
        self.number, self._run, self._broken = found
        self._tried = self.number
        return loaded

    def take_over(self) -> None:
        """Write on in a folder in which another rank of this run has written until now; a rank calls it by itself.

        Raises:
            StateDictError, ArgumentError: see `load_latest`.
        """
        found = None if self._run else self._look("Checkpoint.take_over")
        if found is not None:
            self._tried, self._run, self._broken = found

    def _look(self, who: str) -> Found | None:
        self._finish()
        self._folder.clean()
        return self._folder.newest(who, self._run)

    # ------------------------------------------------------------------------------------------------------- ends

    def join(self) -> None:
        """Return when the last one is on the disk. All ranks call it.

        Raises:
            OSError: it could not be written; on rank 0. RankFailedError: on the others.
            ArgumentError: another run has written over it.
        """
        together(self._comm, "Checkpoint.join", self._finish)

    def finish(self) -> None:
        """`join` of this rank, which calls it by itself, as where others may be gone.

        Raises:
            OSError: it could not be written. ArgumentError: another run has written over it.
        """
        self._finish()

    def close(self) -> None:
        """`join`, after which nothing can be written; idempotent. All ranks call it."""
        if not self._is_closed:
            self._is_closed = True
            self.join()

    def _check_open(self, who: str) -> None:
        if self._is_closed:
            raise ArgumentError(f"{who}: expected to be called before close(), got it afterwards")
