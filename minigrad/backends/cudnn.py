"""Names that scripts set before they train, on a library that is not used here.

Nothing reads them: results are deterministic whatever they say, and each operation has one implementation to choose.
"""

deterministic = True
benchmark = False
enabled = False


def is_available() -> bool:
    """Whether cuDNN is used: it is not."""
    return False


def version() -> None:
    """The version of cuDNN: None, since there is none."""
