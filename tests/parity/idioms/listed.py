"""The idioms that do not run."""

# Refused by an error of ours: words of its message that say what to write instead.
REFUSED: dict[str, tuple[str, ...]] = {}

# Not there yet.
OPEN = {"rank and world size"}
