"""What people type in their first hours: short snippets, each run by PyTorch, recorded, and run by minigrad.

A group is a file; `python -m tests.parity.idioms` prints how many of each agree, and what does not.
"""

from typing import NamedTuple

from tests.parity.idioms import (
    algebra,
    attention,
    autograd,
    averaging,
    derivatives,
    feeding,
    held_out,
    images,
    indexing,
    layers,
    maths,
    modules,
    networks,
    ranks,
    recurrence,
    saving,
    shapes,
    streams,
    tensors,
    texts,
    training,
)


class Group(NamedTuple):
    """The idioms of a file; each is run by so many ranks."""

    name: str
    idioms: list
    ranks: int = 1


GROUPS = [
    Group("tensors", tensors.IDIOMS),
    Group("indexing", indexing.IDIOMS),
    Group("shapes", shapes.IDIOMS),
    Group("maths", maths.IDIOMS),
    Group("algebra", algebra.IDIOMS),
    Group("autograd", autograd.IDIOMS),
    Group("layers", layers.IDIOMS),
    Group("modules", modules.IDIOMS),
    Group("training", training.IDIOMS),
    Group("feeding", feeding.IDIOMS),
    Group("networks", networks.IDIOMS),
    Group("held out", held_out.IDIOMS),
    Group("attention", attention.IDIOMS),
    Group("recurrence", recurrence.IDIOMS),
    Group("images", images.IDIOMS),
    Group("derivatives", derivatives.IDIOMS),
    Group("streams", streams.IDIOMS),
    Group("saving", saving.IDIOMS),
    Group("texts", texts.IDIOMS),
    Group("ranks", ranks.IDIOMS, ranks=2),
    Group("averaging", averaging.IDIOMS, ranks=2),
]
