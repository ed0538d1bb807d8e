"""What the operations and layers over the steps of sequences, and packing, refuse."""

import numpy as np

from minigrad import Tensor, nn, ops
from minigrad.errors import ArgumentError, CallError, DtypeError, ShapeError
from minigrad.nn.utils import rnn as packing


def ones(*shape):
    return Tensor(np.ones(shape, np.float32))


X, ROWS_OF_X, H = ones(4, 3, 2), ones(5, 2), ones(3, 5)
GATES = {"rnn": 1, "gru": 3, "lstm": 4}


def call(name, x=X, hx=None, **others):
    """One of the operations, with weights that fit but for those that are given."""
    rows = 5 * GATES[name]
    weights = {"weight_ih": ones(rows, 2), "weight_hh": ones(rows, 5)}
    return getattr(ops, name)(x, hx, **{**weights, **others})


ALL = ["rnn", "gru", "lstm"]
TOLD = [  # of an operation: arguments by name, error, words
    ({"x": X.numpy()}, DtypeError, "expected a tensor, got ndarray"),
    ({"x": ones(3, 2)}, ShapeError, r"expected x of shape \(steps, sequences, features\), got \(3, 2\)"),
    ({"x": ones(0, 3, 2)}, ShapeError, r"expected at least one step, got x of shape \(0, 3, 2\)"),
    ({"reverse": 1}, ArgumentError, "expected reverse to be True or False, got 1"),
    ({"batch_sizes": [3, 2]}, ShapeError, r"\(rows, features\), with batch_sizes, got \(4, 3, 2\)"),
    ({"x": ROWS_OF_X, "batch_sizes": [2, 3]}, ArgumentError, r"never grow and add up to 5 rows, got \[2, 3\]"),
    ({"x": ROWS_OF_X, "batch_sizes": [3, 1]}, ArgumentError, r"never grow and add up to 5 rows, got \[3, 1\]"),
    ({"x": ROWS_OF_X, "batch_sizes": [5, 0]}, ArgumentError, r"batch_sizes to be integers >= 1, got \[5, 0\]"),
    ({"weight_ih": ones(7)}, ShapeError, r"expected weight_ih of shape \(.*hidden, features\), got \(7,\)"),
    ({"weight_ih": None}, DtypeError, "expected weight_ih to be a tensor, got NoneType"),
    ({"weight_hh": None}, DtypeError, "expected weight_hh to be a tensor, got NoneType"),
    ({"weight_hh": ones(5, 4)}, ShapeError, r"expected weight_hh of shape \(\d+, 5\) for x \(4, 3, 2\), got \(5, 4\)"),
    ({"bias_ih": ones(4)}, ShapeError, r"expected bias_ih of shape \(\d+,\) for x \(4, 3, 2\), got \(4,\)"),
    ({"bias_hh": 1.0}, DtypeError, "expected bias_hh to be a tensor, got float"),
    ({"x": X.double()}, DtypeError, "expected one float dtype, got x float64, weight_ih float32, weight_hh float32"),
    ({"x": X.long()}, DtypeError, "expected one float dtype, got x int64, weight_ih float32"),
]
LSTM, CELL = nn.LSTM(2, 3, 2, bidirectional=True), nn.LSTMCell(2, 3)
PACKED = packing.pack_padded_sequence(X, [4, 2, 1])
ROWS = [
    *[(lambda name=name, others=others: call(name, **others), error, f"^{name}: .*{words}")
      for name in ALL for others, error, words in TOLD],
    (lambda: call("rnn", nonlinearity="gelu"), ArgumentError, "rnn: expected nonlinearity to be one of 'tanh', 'relu'"),
    (lambda: call("rnn", hx=ones(1, 5)), ShapeError, r"rnn: expected h of shape \(3, 5\) for x .*, got \(1, 5\)"),
    (lambda: call("gru", weight_ih=ones(7, 2)), ShapeError, r"gru: expected weight_ih of shape \(3·hidden, features\)"),
    (lambda: call("lstm", hx=H), ArgumentError, "lstm: expected hx to be a pair of tensors, h and c, got Tensor"),
    (lambda: call("lstm", hx=(H, ones(3, 4))), ShapeError, r"lstm: expected c of shape \(3, 5\) .*, got \(3, 4\)"),
    (lambda: call("lstm", weight_hr=ones(2, 4)), ShapeError, r"lstm: expected weight_hh of shape \(20, 2\)"),
    # layers
    *[
        (lambda kind=kind, options=options: getattr(nn, kind)(**{"input_size": 2, "hidden_size": 3, **options}),
         ArgumentError, f"{kind}: expected {words}")
        for kind in ("RNN", "GRU", "LSTM")
        for options, words in [
            ({"input_size": 0}, "input_size to be an integer >= 1, got 0"),
            ({"num_layers": 0}, "num_layers to be an integer >= 1, got 0"),
            ({"bias": 1}, "bias to be True or False, got 1"),
            ({"batch_first": None}, "batch_first to be True or False, got None"),
            ({"dropout": 1.5}, r"dropout to be a number in \[0, 1\], got 1.5"),
        ]
    ],
    (lambda: nn.RNN(2, 3, 1, True), ArgumentError, "RNN: expected nonlinearity to be one of 'tanh', 'relu', got True"),
    (lambda: nn.RNN(2, 3, proj_size=2), ArgumentError, "RNN: expected no proj_size, got 2: write an LSTM"),
    (lambda: nn.GRU(2, 3, proj_size=2), ArgumentError, "GRU: expected no proj_size, got 2: write an LSTM"),
    (lambda: nn.LSTM(2, 3, proj_size=3), ArgumentError, "LSTM: expected proj_size below hidden_size, got 3 and 3"),
    (lambda: nn.LSTM(2, 3, proj_size=-1), ArgumentError, "LSTM: expected proj_size to be an integer >= 0, got -1"),
    (lambda: nn.LSTM(2, 3, nonlinearity="relu"), CallError, "LSTM: expected LSTM"),
    (lambda: LSTM([1.0]), DtypeError, "LSTM: expected a tensor or a PackedSequence, got list"),
    (lambda: LSTM(ones(4, 5, 3)), ShapeError, r"LSTM: expected x of shape \(L, N, 2\) or \(L, 2\), got \(4, 5, 3\)"),
    (lambda: LSTM(X, H), ArgumentError, "LSTM: expected hx to be a pair of tensors, h and c, got Tensor"),
    (lambda: LSTM(X, (ones(4, 1, 3),) * 2), ShapeError, r"initial h of shape \(4, 3, 3\), got \(4, 1, 3\)"),
    (lambda: LSTM(X[:, 0], (ones(4, 3), ones(4, 1, 3))), ShapeError, r"initial c of shape \(4, 3\), got \(4, 1, 3\)"),
    (lambda: LSTM(PACKED, (ones(4, 3, 3), 0)), DtypeError, "LSTM: expected the initial c to be a tensor, got int"),
    (lambda: LSTM(PACKED._replace(data=ones(7, 3))), ShapeError, r"packed rows of 2 features, got \(7, 3\)"),
    (lambda: nn.GRU(2, 3, batch_first=True)(ones(5)), ShapeError, r"\(N, L, 2\) or \(L, 2\), got \(5,\)"),
    (lambda: nn.RNN(2, 3)(X.double()), DtypeError, "rnn: expected one float dtype, got x float64, weight_ih float32"),
    (lambda: nn.GRUCell(2, 0), ArgumentError, "GRUCell: expected hidden_size to be an integer >= 1, got 0"),
    (lambda: nn.LSTMCell(2, 3, bias=None), ArgumentError, "LSTMCell: expected bias to be True or False, got None"),
    (lambda: nn.RNNCell(2, 3, nonlinearity="x"), ArgumentError, "RNNCell: expected nonlinearity to be one of"),
    (lambda: CELL(ones(1, 4, 2)), ShapeError, r"LSTMCell: expected x of shape \(N, 2\) or \(2,\), got \(1, 4, 2\)"),
    (lambda: CELL([1.0]), DtypeError, "LSTMCell: expected a tensor, got list"),
    (lambda: CELL(ones(4, 2), ones(4, 3)), ArgumentError, "LSTMCell: expected hx to be a pair of tensors, h and c"),
    (lambda: CELL(ones(4, 2), (ones(4, 3), ones(3, 3))), ShapeError, r"initial c of shape \(4, 3\), got \(3, 3\)"),
    (lambda: CELL(ones(2), (ones(3), 0)), DtypeError, "LSTMCell: expected the initial c to be a tensor, got int"),
    # packing
    *[
        (lambda lengths=lengths, options=options: packing.pack_padded_sequence(X, lengths, **options), error,
         f"pack_padded_sequence: {words}")
        for lengths, options, error, words in [
            ([4, 2, 0], {}, ArgumentError, r"expected lengths in \[1, 4\], got \[4, 2, 0\]"),
            ([4, 2, -1], {"enforce_sorted": False}, ArgumentError, r"expected lengths in \[1, 4\], got \[4, 2, -1\]"),
            ([5, 2, 1], {}, ArgumentError, r"expected lengths in \[1, 4\], got \[5, 2, 1\]"),
            ([2, 4, 1], {}, ArgumentError, r"expected the longest .* first, got lengths \[2, 4, 1\]: write enf"),
            ([4, 2], {}, ArgumentError, "expected a length for each of 3 sequences, got 2"),
            ([2, 2, 2], {"batch_first": True}, ArgumentError, "expected a length for each of 4 sequences, got 3"),
            (ones(3), {}, DtypeError, "expected lengths as integers, one for each sequence, got array"),
            (Tensor(np.ones((1, 3), np.int64)), {}, DtypeError, "expected lengths as integers"),
            (4, {}, DtypeError, "expected lengths as integers, one for each sequence, got 4"),
            ([4, 2, 1], {"enforce_sorted": 1}, ArgumentError, "expected enforce_sorted to be True or False, got 1"),
        ]
    ],
    (lambda: packing.pack_padded_sequence(ones(3), [1]), ShapeError, r"axes for steps and sequences, got shape \(3,\)"),
    (lambda: packing.pack_padded_sequence([1], [1]), DtypeError, "pack_padded_sequence: expected a tensor, got list"),
    (lambda: packing.pack_padded_sequence(ones(3, 0), []), ArgumentError, "expected at least one sequence, got none"),
    (lambda: packing.pad_packed_sequence(X), DtypeError, "expected a PackedSequence, got Tensor: pack_padded_sequence"),
    (lambda: packing.pad_packed_sequence(PACKED, total_length=3), ArgumentError, "total_length to be an integer >= 4"),
    (lambda: packing.pack_sequence([ones(2), ones(3)]), ArgumentError, r"longest sequence first, got lengths \[2, 3\]"),
    (lambda: packing.pack_sequence([]), ArgumentError, "pad_sequence: expected at least one sequence, got none"),
    (lambda: packing.unpad_sequence(X, [4, 2]), ArgumentError, "unpad_sequence: expected a length for each of 3"),
    (lambda: packing.unpad_sequence(ones(2), [1, 1]), ShapeError, "unpad_sequence: expected axes for steps and"),
    (lambda: packing.unpad_sequence(1, [1, 1]), DtypeError, "unpad_sequence: expected a tensor, got int"),
    (lambda: packing.unpack_sequence(X), DtypeError, "unpack_sequence: expected a PackedSequence, got Tensor"),
    (lambda: packing.invert_permutation(X), DtypeError, "invert_permutation: expected a tensor of integers"),
    (lambda: packing.invert_permutation(X.long()), ShapeError, "expected a permutation of one axis"),
    (lambda: packing.PackedSequence(X), ArgumentError, "PackedSequence: expected batch_sizes to be a tensor, got None"),
    (lambda: packing.PackedSequence((X, [3, 1])), DtypeError, "expected data to be a tensor, got tuple"),
    (lambda: packing.PackedSequence(ROWS_OF_X, Tensor(np.array([2, 3]))), ArgumentError, "never grow and add up to 5"),
]
