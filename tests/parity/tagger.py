"""A tagger and classifier of sentences by an LSTM of two layers in both directions, over batches packed by lengths."""

import numpy as np

from tests.parity.streams import as_arrays, stream

WORDS, TAGS, KINDS, LENGTHS = 20, 4, 3, [3, 7, 1, 5]
WHOLE = {"evaluated", "tags", "kinds"}


def make(nn):
    """The network, of the layers of this package."""

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(WORDS, 6, padding_idx=0)
            self.lstm = nn.LSTM(6, 5, num_layers=2, batch_first=True, bidirectional=True)
            self.tag = nn.Linear(2 * 5, TAGS)
            self.kind = nn.Linear(2 * 5, KINDS)

        def forward(self, words, lengths):
            self.lstm.flatten_parameters()
            packed = nn.utils.rnn.pack_padded_sequence(
                self.embedding(words), lengths, batch_first=True, enforce_sorted=False
            )
            output, (h, c) = self.lstm(packed)
            output, _ = nn.utils.rnn.pad_packed_sequence(output, batch_first=True, total_length=words.shape[1])
            return self.tag(output), self.kind(h[-2:].transpose(0, 1).reshape(-1, 10) + c[0].sum())

    return Tagger()


def state_value(name, shape):
    """What a tensor of the state_dict holds."""
    drawn = stream(name).standard_normal(shape, np.float32)
    if name == "embedding.weight":
        drawn[0] = 0
        return drawn
    return drawn * np.float32(0.4)


def batch():
    """Words, 0 where there is none; their tags, -100 there; kinds of the sentences."""
    rng = stream("sentences")
    shape = len(LENGTHS), max(LENGTHS) + 1
    there = np.arange(shape[1]) < np.array(LENGTHS)[:, None]
    words, tags = rng.integers(1, WORDS, shape) * there, np.where(there, rng.integers(0, TAGS, shape), -100)
    return words, tags, rng.integers(0, KINDS, len(LENGTHS))


def run(package, model, as_tensor):
    """What a model computes: evaluated, outputs, loss, and gradients of parameters.

    Args:
        package: torch or minigrad.
        as_tensor: An array as a tensor of the model's dtype, or of integers.
    """
    words, tags, kinds = (as_tensor(array) for array in batch())
    lengths = (words != 0).sum(1)
    with package.no_grad():
        evaluated = model.eval()(words, lengths)[0]
    found_tags, found_kinds = model.train()(words, lengths)
    loss = package.nn.CrossEntropyLoss()
    total = loss(found_tags.reshape(-1, TAGS), tags.reshape(-1)) + loss(found_kinds, kinds)
    total.backward()
    found = {"evaluated": evaluated, "tags": found_tags.detach(), "kinds": found_kinds.detach(), "loss": total.detach()}
    return as_arrays(found, model)
