"""Cases for the recurrent layers and their cells: see tests/cases/layers.py."""

from importlib import import_module

from tests.cases.case import normal
from tests.cases.layers import layer_case

LENGTHS, BOTH = [2, 4, 1], {"bidirectional": True}
STEPS, BATCHES, ONE, ROWS = normal((4, 3, 2)), normal((3, 4, 2)), normal((4, 2)), normal((3, 2))


def _parts(values):
    """The tensors in nested tuples, as vectors."""
    return [part for value in values for part in _parts(value)] if isinstance(values, tuple) else [values.reshape(-1)]


def _made(name, *args, lengths=None, **options):
    """A layer all of whose outputs come as one vector, packed by lengths where these are given."""

    def make(nn):
        package = import_module(nn.__name__.partition(".")[0])

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = getattr(nn, name)(*args, **options)

            def forward(self, x, *state):
                utils, first = nn.utils.rnn, options.get("batch_first", False)
                if lengths is not None:
                    x = utils.pack_padded_sequence(x, lengths, batch_first=first, enforce_sorted=False)
                found = self.layer(x, state[0] if len(state) == 1 else state or None)
                if lengths is not None:
                    found = utils.pad_packed_sequence(found[0], batch_first=first)[0], found[1]
                return package.cat(_parts(found))

        return Net()

    return make


LAYERS = [
    layer_case("RNN", "default", _made("RNN", 2, 3), STEPS),
    layer_case("RNN", "all", _made("RNN", 2, 2, 2, "relu", False, True, 0.0, True), BATCHES),
    layer_case("GRU", "one", _made("GRU", 2, 3), normal((4, 2), (1, 3))),
    layer_case("GRU", "packed", _made("GRU", 2, 2, 2, lengths=LENGTHS, **BOTH), normal((4, 3, 2), (4, 3, 2))),
    layer_case("LSTM", "default", _made("LSTM", 2, 2, batch_first=True), BATCHES),
    layer_case("LSTM", "one", _made("LSTM", 2, 3, bias=False), normal((4, 2), (1, 3), (1, 3))),
    layer_case("LSTM", "packed", _made("LSTM", 2, 2, 2, batch_first=True, lengths=LENGTHS, **BOTH), BATCHES),
    layer_case("LSTM", "projected", _made("LSTM", 2, 3, proj_size=2, lengths=LENGTHS, **BOTH), STEPS),
    layer_case("RNNCell", "default", _made("RNNCell", 2, 3), ROWS),
    layer_case("RNNCell", "all", _made("RNNCell", 2, 3, False, "relu"), normal((2,), (3,))),
    layer_case("GRUCell", "default", _made("GRUCell", 2, 3), normal((3, 2), (3, 3))),
    layer_case("LSTMCell", "default", _made("LSTMCell", 2, 3), normal((3, 2), (3, 3), (3, 3))),
]
