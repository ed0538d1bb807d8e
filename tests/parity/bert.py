"""An encoder of sentences like BERT: words, places and kinds of sentences, two layers of a transformer, two heads.

Devlin et al., "BERT: Pre-training of deep bidirectional transformers for language understanding", 2019. Sentences of
unlike lengths are padded; one head names the kind of the whole, by its first place, one the word at each place.
"""

import numpy as np

from tests.parity.streams import as_arrays, stream

WORDS, KINDS, FEATURES, LENGTHS = 30, 3, 16, [6, 9, 4]
WHOLE = {"evaluated", "kinds"}


def make(nn):
    """The network, of the layers of this package."""

    class Embeddings(nn.Module):
        def __init__(self):
            super().__init__()
            self.word_embeddings = nn.Embedding(WORDS, FEATURES, padding_idx=0)
            self.position_embeddings = nn.Embedding(12, FEATURES)
            self.token_type_embeddings = nn.Embedding(2, FEATURES)
            self.LayerNorm = nn.LayerNorm(FEATURES, eps=1e-12)
            self.dropout = nn.Dropout(0.0)

        def forward(self, words, types):
            places = self.position_embeddings.weight[: words.shape[1]]
            return self.dropout(
                self.LayerNorm(self.word_embeddings(words) + self.token_type_embeddings(types) + places)
            )

    class Bert(nn.Module):
        def __init__(self):
            super().__init__()
            self.embeddings = Embeddings()
            layer = nn.TransformerEncoderLayer(
                FEATURES, 4, dim_feedforward=32, dropout=0.0, activation="gelu", batch_first=True
            )
            self.encoder = nn.TransformerEncoder(layer, num_layers=2)
            self.pooler = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Tanh())
            self.classifier = nn.Linear(FEATURES, KINDS)
            self.words = nn.Linear(FEATURES, WORDS)

        def forward(self, words, types):
            x = self.encoder(self.embeddings(words, types), src_key_padding_mask=words == 0)
            return self.classifier(self.pooler(x[:, 0])), self.words(x)

    return Bert()


def state_value(name, shape):
    """What a tensor of the state_dict holds."""
    drawn = stream(f"bert {name}").standard_normal(shape, np.float32)
    if name.endswith("word_embeddings.weight"):
        drawn[0] = 0
    if "norm" in name.lower() and name.endswith("weight"):
        return np.exp(np.float32(0.1) * drawn)
    return drawn * np.float32(0.3)


def batch():
    """Words, 0 where there is none, and the sentence of a pair that each is of; words to be named, else -100; kinds."""
    rng = stream("pairs of sentences")
    shape = len(LENGTHS), max(LENGTHS)
    places = np.arange(shape[1])
    there = places < np.array(LENGTHS)[:, None]
    words = rng.integers(1, WORDS, shape) * there
    types = (places >= np.array(LENGTHS)[:, None] // 2) & there
    named = np.where(there & (rng.random(shape) < 0.5), rng.integers(1, WORDS, shape), -100)
    return words, types.astype(np.int64), named, rng.integers(0, KINDS, len(LENGTHS))


def run(package, model, as_tensor):
    """What a model computes: kinds evaluated, kinds, loss, and gradients of parameters.

    Args:
        package: torch or minigrad.
        as_tensor: An array as a tensor of the model's dtype, or of integers.
    """
    words, types, named, kinds = (as_tensor(array) for array in batch())
    with package.no_grad():
        evaluated, _ = model.eval()(words, types)
    found_kinds, found_words = model.train()(words, types)
    loss = package.nn.CrossEntropyLoss()
    total = loss(found_kinds, kinds) + loss(found_words.reshape(-1, WORDS), named.reshape(-1))
    total.backward()
    return as_arrays({"evaluated": evaluated, "kinds": found_kinds.detach(), "loss": total.detach()}, model)
