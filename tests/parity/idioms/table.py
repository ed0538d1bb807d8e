"""The table of the idioms by group, which TABLE.md keeps."""

from pathlib import Path

from tests.parity.idioms import GROUPS
from tests.parity.idioms.judge import judge
from tests.parity.idioms.listed import REFUSED
from tests.parity.idioms.play import play_ours

PATH = Path(__file__).with_name("TABLE.md")
WORDS = ["agrees", "refused", "fails"]


def verdicts():
    """The verdict on each idiom, by group and name."""
    found = {}
    for group in GROUPS:
        left = play_ours(group)
        found[group.name] = {idiom.name: judge(idiom, left[idiom.name]) for idiom in group.idioms}
    return found


def table(verdicts):
    """The verdicts counted by group, and below them what does not agree: what a refusal says, or what went wrong."""
    rows = [[name, *_counts(of.values())] for name, of in verdicts.items()]
    rows.append(["all", *_counts([verdict for of in verdicts.values() for verdict in of.values()])])
    lines = ["# What people type, beside PyTorch", ""]
    lines += ["| group | idioms | agree | refused in words | fail |", "|---|---|---|---|---|"]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    for word, title in [("refused", "Refused in words"), ("fails", "Fails")]:
        named = [(name, v.reason) for of in verdicts.values() for name, v in of.items() if v.word == word]
        if named:
            lines += ["", f"{title}:", "", *(f"- {name}: {_said(name, reason)}" for name, reason in named)]
    return "\n".join(lines)


def _said(name, reason):
    return " ... ".join(REFUSED.get(name, [])) or " ".join(reason.split())


def _counts(verdicts):
    words = [verdict.word for verdict in verdicts]
    return [len(words), *map(words.count, WORDS)]
