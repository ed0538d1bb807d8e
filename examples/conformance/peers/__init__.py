"""Other people's data-parallel wrappers, written from what they publish, on minigrad's tensors and communicators.

Each is small enough to be shown in a lecture, and does what its source says, right or wrong; the README beside this
folder has what the conformance checks find in it. The code is ours: where a source leaves something open, the docstring
says what is done.
"""
