"""CheckpointFolder: which checkpoints are in a folder, and which of them is the newest that is whole."""

from __future__ import annotations

import contextlib
import os
import warnings
from pathlib import Path
from typing import Any, NamedTuple

from minigrad.errors import ArgumentError, StateDictError
from minigrad.nn.bundle import check_version, facts_in
from minigrad.nn.whole_file import remove_leftovers, sync_folder
from minigrad.train.keeping import UNITS, name_of, named, newest_whole, numbers_in


class Found(NamedTuple):
    """The newest checkpoint in a folder that is whole.

    Attributes:
        number: Of the steps or epochs.
        run: Says whose it is.
        broken: The numbers of newer ones, which are not whole.
    """

    number: int
    run: str
    broken: list[int]


class CheckpointFolder:
    """The files of a `Checkpoint`, as one rank sees them.

    Args:
        dir: The folder, which need not be there.
        unit: What the files are numbered by: "epoch" or "step".
    """

    def __init__(self, dir: Path, unit: str) -> None:
        self.dir, self.unit = dir, unit
        self._is_clean = False

    def path(self, number: int) -> Path:
        """That of a file."""
        return self.dir / name_of(self.unit, number)

    def make(self) -> None:
        """Make the folder where there is none, and those above it, for good."""
        missing = [folder for folder in (self.dir, *self.dir.parents) if not folder.exists()]
        for folder in reversed(missing):
            with contextlib.suppress(FileExistsError):  # somebody else has made it
                os.mkdir(folder)
            sync_folder(os.fspath(folder.parent))

    def clean(self) -> None:
        """Remove what killed writers have left; once, before anything is written here."""
        if not self._is_clean and self.dir.is_dir():
            remove_leftovers(os.fspath(self.dir), named)
            self._is_clean = True

    def numbers(self) -> list[int]:
        """Of all checkpoints, in order.

        Raises:
            ArgumentError: it is no folder, or has checkpoints by another unit.
        """
        if not self.dir.exists():
            return []
        if not self.dir.is_dir():
            raise ArgumentError(f"Checkpoint: expected dir to be a folder, got the file {self.dir}")
        names = os.listdir(self.dir)
        other = [name for unit in UNITS if unit != self.unit for name in names if numbers_in(unit, [name])]
        if other:
            raise ArgumentError(f"Checkpoint: expected checkpoints on={self.unit!r} in {self.dir}, got {max(other)}")
        return numbers_in(self.unit, names)

    def writer_of(self, number: int) -> str:
        """The mark of who has written a checkpoint; empty where that can't be read."""
        try:
            return str(facts_in(self.path(number))["note"].get("writer", ""))
        except (StateDictError, OSError):
            return ""

    def newest(self, who: str, run: str) -> Found | None:
        """The newest that is whole, None where there is none; a warning names each newer one.

        Args:
            run: Whose it has to be; empty where it may be anyone's.

        Raises:
            StateDictError: there are some, and none is whole; or one that a newer minigrad has written.
            ArgumentError: it is another run's, or was written in another way.
        """
        numbers, notes, reasons = self.numbers(), dict[int, Any](), list[str]()

        def is_whole(number: int) -> bool:
            try:
                facts = facts_in(self.path(number))
            except StateDictError as error:
                reasons.append(str(error))
                return False
            check_version(who, self.path(number), facts)
            notes[number] = facts["note"]
            return True

        number, broken = newest_whole(numbers, is_whole)
        if number is None and numbers:
            raise StateDictError(f"{who}: expected a checkpoint in {self.dir} that is whole, got {'; '.join(reasons)}")
        if number is None:
            return None
        found = Found(number, self._run_of(who, number, notes[number], run), broken)
        for one, reason in zip(broken, reasons):
            passed, taken = self.path(one), self.path(number).name
            warnings.warn(f"{who}: passed over {passed} for {taken}, since it is not whole: {reason}", stacklevel=5)
        return found

    def _run_of(self, who: str, number: int, note: dict[str, Any], wanted: str) -> str:
        path, run = self.path(number), note.get("run", "")
        if not run or note.get(self.unit) != number:
            got = f"{path}, which says {note}" if note else f"{path}, which minigrad.save wrote by itself"
            raise ArgumentError(f"{who}: expected {self.unit} {number} as a Checkpoint has written it, got {got}")
        if wanted and run != wanted:
            raise ArgumentError(f"{who}: expected checkpoints of run {wanted}, got {path} of run {run}")
        return str(run)
