"""The question of scripts whether they run on a GPU of Apple's."""


def is_available() -> bool:
    """Whether there is one that can be used: never."""
    return False


def is_built() -> bool:
    """Whether minigrad could use one: it could not."""
    return False
