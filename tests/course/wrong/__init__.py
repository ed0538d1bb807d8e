"""Wrong solutions of the course's tasks: in lessonNN.py a WRONG, name of a task -> at least three of them."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Wrong(NamedTuple):
    """A mistake that people make, as the function of a task, and words of the message that names it."""

    function: Callable[..., Any]
    words: str
