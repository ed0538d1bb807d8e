"""What the registration of a hook gives back, to remove the hook with."""

from __future__ import annotations

from collections.abc import Callable


class Removal:
    """Removes a hook: `removal.remove()`, `removal()`, or at the end of a block."""

    __slots__ = ("_undo",)

    def __init__(self, undo: Callable[[], object]) -> None:
        self._undo = undo

    def remove(self) -> None:
        """Remove the hook; it may be removed already."""
        self._undo()

    __call__ = remove

    def __enter__(self) -> Removal:
        return self

    def __exit__(self, *error: object) -> None:
        self._undo()
