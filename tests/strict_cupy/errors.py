"""What the stand-in raises: one family, so that a test can say `raises(StrictError)`, by the kinds that CuPy raises."""


class StrictError(AssertionError):
    """The code would go wrong on a GPU. CuPy itself might say nothing."""


class RefusedError(StrictError, TypeError):
    """CuPy refuses this with a TypeError: a NumPy array, a list or an unknown keyword where it takes none."""


class CaptureError(StrictError, RuntimeError):
    """CUDA, or CuPy, refuses this while a stream is captured as a graph."""


class MissingError(StrictError, AttributeError):
    """CuPy has no such name."""
