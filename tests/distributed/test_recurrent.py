"""Recurrent networks on two ranks: shards that are uneven and padded to lengths of their own, weighed by tokens."""

import numpy as np
import pytest

import minigrad
from minigrad import nn
from minigrad.distributed import DDP, run
from minigrad.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from tests.distributed.models import assert_gradients_close, gradients

TIMEOUT_S = 10.0
SENTENCES = [np.random.default_rng(length).integers(1, 7, length) for length in (5, 2, 4, 1)]


class Reader(nn.Module):
    """An LSTM over packed batches, then a cell that is called at each step: the score of each token."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 3, padding_idx=0)
        self.lstm = nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True)
        self.cell = nn.GRUCell(8, 2)

    def forward(self, words):
        lengths = (words != 0).sum(1)
        packed = pack_padded_sequence(self.embedding(words), lengths, batch_first=True, enforce_sorted=False)
        output, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        state, scores = None, []
        for step in output.unbind(1):
            state = self.cell(step, state)
            scores.append(state)
        return minigrad.stack(scores, 1)


def padded(sentences):
    longest = max(map(len, sentences))
    return minigrad.tensor(np.stack([np.pad(words, (0, longest - len(words))) for words in sentences]))


def made():
    minigrad.manual_seed(3)
    return Reader().double()


def mean_over_tokens(model, sentences):
    words = padded(sentences)
    scores = model(words)
    there = (words != 0).to(scores.dtype).unsqueeze(-1)
    return (scores * scores * there).sum() / there.sum()


@pytest.mark.parametrize("cut", [1, 3])
def test_gradients_are_those_of_one_device_and_each_parameter_is_told_once(cut):
    parts = SENTENCES[:cut], SENTENCES[cut:]

    def body(comm):
        ddp, told = DDP(made(), comm), []
        for name, param in ddp.module.named_parameters():
            param.register_post_accumulate_grad_hook(lambda _, name=name: told.append(name))
        own = parts[comm.rank]
        with ddp.samples(sum(map(len, own))):
            mean_over_tokens(ddp, own).backward()
        return gradients(ddp.module), sorted(told)

    alone = made()
    mean_over_tokens(alone, SENTENCES).backward()
    names = sorted(name for name, _ in alone.named_parameters())
    for actual, told in run(body, 2, timeout_s=TIMEOUT_S):
        assert_gradients_close(actual, gradients(alone))
        assert told == names


def test_a_rank_without_sentences_counts_for_nothing():
    def body(comm):
        ddp = DDP(made(), comm)
        own = SENTENCES if comm.rank else [np.array([1])]
        with ddp.samples(comm.rank * sum(map(len, own))):
            mean_over_tokens(ddp, own).backward()
        return gradients(ddp.module)

    alone = made()
    mean_over_tokens(alone, SENTENCES).backward()
    for actual in run(body, 2, timeout_s=TIMEOUT_S):
        assert_gradients_close(actual, gradients(alone))


def test_a_packed_batch_has_no_length_to_count():
    """Its rows are tokens and not samples: what a loss is a mean over has to be said."""

    def body(comm):
        ddp = DDP(nn.LSTM(3, 2).double(), comm)
        packed = pack_padded_sequence(minigrad.ones(4, 2, 3, dtype="float64"), [4, 1 + comm.rank])
        with pytest.raises(minigrad.errors.ArgumentError, match=r"expected a tensor argument .*: use samples\(n\)"):
            ddp(packed)
        with ddp.samples(5 + comm.rank):
            ddp(packed)[0].data.sum().backward()
        return True

    assert run(body, 2, timeout_s=TIMEOUT_S) == [True, True]
