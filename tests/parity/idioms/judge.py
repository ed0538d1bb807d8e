"""Whether minigrad does with an idiom what PyTorch did."""

from typing import NamedTuple

from minigrad.errors import MinigradError
from tests.parity.idioms import store
from tests.parity.idioms.listed import REFUSED
from tests.parity.idioms.value import difference


class Verdict(NamedTuple):
    """`word` is "agrees", "refused" or "fails"; `reason` says why, where it does not agree."""

    word: str
    reason: str = ""


def judge(idiom, found):
    """The verdict on an idiom: `found` is what it left, or the exception that it ended with."""
    if idiom.name not in store.load():
        return Verdict("fails", "it is not recorded: run python -m tests.parity.idioms record")
    expected = store.load()[idiom.name][1]
    if isinstance(found, Exception):
        return _judge_error(idiom, found)
    if idiom.is_mistake:
        return Verdict("fails", f"it is taken, and leaves {found}; PyTorch refuses it")
    reason = difference(found, expected)
    return Verdict("fails", reason) if reason else Verdict("agrees")


def _judge_error(idiom, error):
    text = f"{type(error).__name__}: {error}"
    if not isinstance(error, MinigradError):
        return Verdict("fails", text)
    if idiom.is_mistake:
        return Verdict("agrees")
    said = idiom.name in REFUSED and all(word in str(error) for word in REFUSED[idiom.name])
    return Verdict("refused" if said else "fails", text)
