import itertools
import sys
from collections import Counter

import numpy as np
import pytest

from minigrad.data import DataLoader, DistributedSampler, Sequences, text
from minigrad.data import bundled
from minigrad.data.bundled import split_topics
from minigrad.errors import ArgumentError, MissingPackageError
from minigrad.nn.functional import cross_entropy
from minigrad.tensor import Tensor

TOPICS = {
    "a": "Loops\n*****\n\nA loop ends.\n\nOnly here.",
    "b": "Blocks\n\nA  loop\n   ends.\n\nOnly there.",
    "c": "Loops\n*****\n\nA loop ends.",
    "d": "x" * 400,
}


def sections(topic):
    return {" ".join(section.split()) for section in topic.split("\n\n")}


def test_by_hand():
    """One topic fits into a tenth of 499 characters; what another has too goes from it, however it is broken."""
    parts = {tuple(held_out): (train, held_out) for train, held_out in (split_topics(TOPICS, s) for s in range(20))}
    assert set(parts) == {("a",), ("b",), ()}  # of `c` there is nothing left
    assert parts[("a",)][1]["a"] == "Only here." and sorted(parts[("a",)][0]) == ["b", "c", "d"]
    assert parts[("b",)][1]["b"] == "Blocks\n\nOnly there." and sorted(parts[()][0]) == ["a", "b", "d"]


def test_nothing_held_out_stands_in_the_training_part():
    whole = text()
    from pydoc_data.topics import topics

    assert set(topics) > set(whole.train) > set() and not set(whole.train) & set(whole.held_out)
    assert whole.length == sum(map(len, topics.values()))
    assert 0.9 * whole.length <= sum(map(len, whole.train.values())) < whole.length
    assert sum(map(len, whole.held_out.values())) > 0.02 * whole.length
    train = {section for codes in whole.train.values() for section in sections(whole.decode(codes))}
    assert not any(train & sections(whole.decode(codes)) for codes in whole.held_out.values())
    assert whole.decode(whole.train["assert"]) == topics["assert"]


def test_characters_too_rare_are_told():
    rare, all_of_them = text(), text(min_count=1)
    counts = Counter(itertools.chain.from_iterable(all_of_them.decode(c) for c in all_of_them.train.values()))
    assert set(rare.vocabulary[:-1]) == {character for character, count in counts.items() if count >= 10}
    assert set(rare.replaced) >= {character for character, count in counts.items() if count < 10}
    assert rare.vocabulary[-1] == "\ufffd" and "replaced={" in repr(rare)
    assert np.concatenate(list(rare.train.values())).max() < len(rare.vocabulary)


def test_what_is_held_out_has_no_say_in_the_vocabulary(monkeypatch):
    topics = {"a": "x" * 400 + "yyy", "b": "yyyzz"}
    monkeypatch.setattr(bundled, "_load_topics", lambda: topics)
    parts = next(part for part in (text(seed=seed, min_count=4) for seed in range(20)) if part.held_out)
    assert parts.vocabulary == "x\ufffd" and parts.replaced == {"y": 6, "z": 2}
    assert parts.held_out["b"].tolist() == [1] * 5 and parts.train["a"].tolist() == [0] * 400 + [1] * 3


def test_a_seed_gives_its_parts_and_the_text_its_hash():
    whole = [text(seed=seed) for seed in (0, 0, 1)]
    names = [list(part.held_out) for part in whole]
    assert names[0] == names[1] != names[2]
    assert len({part.sha256 for part in whole}) == 1 and len(whole[0].sha256) == 64
    assert whole[0].sha256[:16] in repr(whole[0])
    if sys.version_info[:3] == (3, 11, 7):  # recorded once
        assert whole[0].sha256.startswith("b25a9eaf18663901")


def test_encode_and_decode_are_inverses():
    parts = text()
    codes = parts.encode("def f(x):\n    return x")
    assert codes.dtype == np.int64 and parts.decode(Tensor(codes)) == "def f(x):\n    return x"
    with pytest.raises(ArgumentError, match="Text.encode: expected a text, got int"):
        parts.encode(3)


def test_without_topics_the_error_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(MissingPackageError, match="a Python with its own topics"):
        text()


def test_every_token_but_the_first_of_a_document_is_a_target():
    documents = {"a": np.arange(10), "b": np.arange(100, 103), "c": np.array([7])}
    found = Sequences(documents, 4)
    assert [row.tolist() for row in found[2]] == [[8, 9, 0, 0], [9, -100, -100, -100]]
    assert [row.tolist() for row in found[-1]] == [[100, 101, 102, 0], [101, 102, -100, -100]]
    targets = [t for _, row in found for t in row.tolist() if t >= 0]
    assert len(found) == 4 and targets == [*range(1, 10), 101, 102]


@pytest.mark.parametrize("stride", [1, 2, 3, 4])
@pytest.mark.parametrize("length", [2, 5, 6, 9, 10, 11])
def test_sequences_that_overlap(length, stride):
    """Each token follows the one before it; with `once` it is a target in one place, with at least as much before."""
    every = Sequences([np.arange(length)], 4, stride)
    once = Sequences([np.arange(length)], 4, stride, once=True)
    assert len(every) == len(once) == len(range(0, max(length - 1 - 4, 0) + stride, stride))
    for tokens, targets in every:
        assert np.array_equal(targets[targets >= 0], tokens[targets >= 0] + 1)
    assert [t for _, row in once for t in row.tolist() if t >= 0] == list(range(1, length))
    assert all(np.array_equal(a[0], b[0]) for a, b in zip(every, once))
    for place in range(1, len(once)):
        assert np.all(once[place][1][: 4 - stride] == -100)


def test_ranks_divide_sequences():
    dataset = Sequences([np.arange(50)], 4, 2)
    found = []
    for rank in range(2):
        sampler = DistributedSampler(dataset, rank=rank, world_size=2, mode="exact")
        for tokens, targets in DataLoader(dataset, batch_size=3, sampler=sampler):
            assert tokens.shape == targets.shape == (len(tokens), 4) and tokens.dtype == np.int64
            found += tokens[:, 0].tolist()
    assert sorted(found) == list(range(0, 48, 2))


def test_filled_up_places_are_left_out_of_the_loss():
    tokens, targets = (Tensor(rows) for rows in Sequences([np.arange(4)], 5).read([0]))
    scores = Tensor(np.random.default_rng(0).standard_normal((5, 6)))
    assert cross_entropy(scores, targets.reshape(-1)).item() == cross_entropy(scores[:3], targets[0, :3]).item()
    assert tokens.tolist() == [[0, 1, 2, 3, 0]]
