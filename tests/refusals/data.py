"""What datasets, samplers and loaders refuse."""

from fractions import Fraction

import numpy as np

from minigrad.data import (
    ArrayDataset,
    BatchSampler,
    ChunkPool,
    ConcatDataset,
    DataLoader,
    Dispatch,
    RandomSampler,
    SampleLedger,
    Sequences,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    digits,
    random_split,
    text,
)
from minigrad.data.dispatch import overshoot_left
from minigrad.data.order import largest_remainder, permutation, shard
from minigrad.data.sampler import EpochSampler
from minigrad.errors import (
    ArgumentError,
    AutogradError,
    DeviceError,
    DtypeError,
    IndexRangeError,
    ShapeError,
    StateDictError,
)
from minigrad.tensor import Tensor
from tests.refusals import each, run
from tests.unit.data.test_loader import Numbers, never_a_batch
from tests.unit.data.test_sampler import distributed

ROWS = [
    # collate
    *each(
        default_collate,
        ([], ArgumentError, "at least one sample, got none"),
        ([np.zeros(2), np.zeros(3)], ShapeError, r"one shape, got \(2,\) and \(3,\)"),
        ([np.zeros(2), np.zeros(2, np.float32)], DtypeError, "one dtype, got float64 and float32"),
        ([np.zeros(2), Tensor(np.zeros(2))], DtypeError, "one type, got ndarray and Tensor"),
        ([1, "a"], DtypeError, "one type, got int and str"),
        ([1, np.int64(2)], DtypeError, "one type, got int and int64"),
        ([Fraction(1, 2)], DtypeError, "int, float or bool, got Fraction"),
        ([2**70], ArgumentError, "fit into int64, got 1180591620717411303424"),
        ([(1, 2), (1,)], ShapeError, "one length, got 2 and 1"),
        ([{"a": 1}, {"b": 1}], ArgumentError, r"the keys \['a'\], got \['b'\]"),
        ([None, None], DtypeError, "got NoneType: pass collate_fn="),
        ([Tensor(np.zeros(2), requires_grad=True)], AutogradError, "use .detach()"),
    ),
    # chunks
    *each(
        (lambda counts, rank=0: ChunkPool(10, 4).take(rank, counts), ArgumentError),
        ((0, 0), r"ChunkPool.take: expected a rank with a count > 0, got \[0, 0\]"),
        ((1, -1), "each count to be an integer >= 0, got -1"),
        ((1.5, 1), "each count to be an integer >= 0, got 1.5"),
        ((1, 1), 2, r"rank to be an integer in \[0, 2\), got 2"),
    ),
    *each(
        (run, ArgumentError),
        (lambda: ChunkPool(10, 0), "ChunkPool: expected batch_size to be an integer >= 1, got 0"),
        (lambda: ChunkPool(10, 4).take(0, (1, 1))[0].deal((1, 1, 1)), "counts for 2 ranks, got 3"),
        (lambda: ChunkPool(10, 4).divide([0.5, 0.4]), "of sum 1, got"),
        (lambda: ChunkPool(10, 4).give_back([(2, 4)]), "places that were taken, got 2-3, which nobody has"),
        (lambda: ChunkPool(9, 9).deal((1,))[0].give_back([(2, 4), (3, 5)]), "got some of them twice: 2-3, 3-4"),
        (lambda: ChunkPool(10, 4, left=((5, 11),)), r"ChunkPool: expected left in \[0, 10\), got \(5, 11\)"),
    ),
    *each(
        (run, StateDictError),
        (lambda: ChunkPool(3, 1).loaded(ChunkPool(3, 2).state_dict()), "a state with batch_size 1, got 2"),
        (lambda: ChunkPool(3, 1).loaded({**ChunkPool(3, 1).state_dict(), "left": 3}), "a usable state"),
    ),
    # dispatch
    *each(
        (lambda world, options: Dispatch(ChunkPool(10, 4), world, **options), ArgumentError),
        (2, {"shares": (0.5, 0.25, 0.25)}, r"a share for each of 2 ranks, got 3: \[0.5, 0.25, 0.25\]"),
        (2, {"shares": (1.0,)}, r"a share for each of 2 ranks, got 1: \[1.0\]"),
        (2, {"shares": (0.5, 0.6)}, "of sum 1, got .* of sum 1.1"),
        (2, {"mode": "chunks"}, "mode to be one of 'progressive', 'static', 'proportional', got 'chunks'"),
        (0, {}, "world_size to be an integer >= 1, got 0"),
        (2, {"max_overshoot": -1}, "max_overshoot to be an integer >= 0, got -1"),
        (2, {"max_overshoot": 1}, "expected epochs with max_overshoot=1"),
        (2, {"max_batch_diff": 1.5}, "max_batch_diff to be an integer >= 0, got 1.5"),
        (2, {"epochs": 0}, "epochs to be an integer >= 1, got 0"),
    ),
    *each(
        (run, ArgumentError),
        (lambda: Dispatch([1, 2], 2), r"Dispatch: expected a ChunkPool, got \[1, 2\]"),
        (lambda: Dispatch(ChunkPool(10, 4), 2).round((1, 1, 1)), r"counts for 2 ranks, got \[1, 1, 1\]"),
        (lambda: Dispatch(ChunkPool(10, 4), 2).take(0, (1, 1, 1), 2), r"Dispatch.take: expected counts for 2 ranks"),
        (lambda: Dispatch(ChunkPool(10, 4), 2).take(2, (1, 1), 2), "Dispatch.take: expected rank to be an integer"),
        (lambda: Dispatch(ChunkPool(10, 4), 2).take(0, (1, 1), -1), "Dispatch.take: expected most to be an integer"),
        (lambda: Dispatch(ChunkPool(10, 4), 2).give_back([[]]), "what each of 2 ranks gives, got that of 1"),
        (lambda: Dispatch(ChunkPool(10, 4), 2).among([0, 0]), r"among: expected ranks, each once, got \[0, 0\]"),
        (lambda: ChunkPool(10, 4).take(0, (1, 1), -1), "ChunkPool.take: expected most to be an integer >= 0"),
        (
            lambda: Dispatch(ChunkPool(10, 4), 2, "static", (0.0, 1.0)).round((1, 0)),
            r"Dispatch.round: expected a count > 0 of a rank with samples left in its part, got \(1, 0\) with parts of "
            r"\[0, 10\]",
        ),
        (lambda: Dispatch(ChunkPool(10, 4), 2).round((0, 0)), "Dispatch.round: expected a rank with a count > 0"),
        (lambda: overshoot_left(-1, 0, 0), "planned to be an integer >= 0, got -1"),
    ),
    (
        lambda: Dispatch(ChunkPool(10, 4), 2).loaded(Dispatch(ChunkPool(10, 4), 2, "static").state_dict()),
        StateDictError,
        "a state with mode 'progressive', got 'static'",
    ),
    # ledger
    *each(
        (lambda *args, **options: SampleLedger(5).dealt(*args, **options), ArgumentError),
        (-1, 2, "start to be an integer >= 0, got -1"),
        (0, 2.5, "count to be an integer >= 0, got 2.5"),
        (0, 2, 0, "stride to be an integer >= 1, got 0"),
    ),
    *each(
        (run, ArgumentError),
        (lambda: SampleLedger(0), "SampleLedger: expected length to be an integer >= 1, got 0"),
        (lambda: SampleLedger(5, rank=2, world_size=2), r"rank to be an integer in \[0, 2\), got 2"),
        (lambda: SampleLedger(5).skipped(), "a combination since the last one, got none"),
        (lambda: next(SampleLedger(5).wrap([[0, 1]])), "a DataLoader or a BatchSampler .*, got list: tell where each"),
        (lambda: next(SampleLedger(5).wrap(BatchSampler(RandomSampler(4), 2))), "a sampler of 5 samples, got one of 4"),
        (lambda: SampleLedger(5).open(BatchSampler(RandomSampler(4), 2)), "batches of 5 samples, got those of 4"),
        (lambda: SampleLedger(5).merge([]), r"what 1 ranks tell, got ranks \[\]"),
        (lambda: SampleLedger(5).merge([3]), r"a list of what ranks tell by told\(\), got \[3\]"),
        (lambda: SampleLedger(5).combined(-1), "SampleLedger.combined: expected a finite number of samples >= 0"),
        (lambda: SampleLedger(5).sent("1"), "a finite number of samples >= 0, got '1'"),
        (lambda: SampleLedger(5).audit([]), r"epoch to be an integer >= 0, got \[\]"),
        (lambda: SampleLedger(5).entries(-1), "epoch to be an integer >= 0, got -1"),
        (lambda: SampleLedger(5).is_combined(None), "step to be an integer, got None"),
        (lambda: SampleLedger(5).dealt_of(3, 2), "expected rows as a slice, got 2"),
    ),
    *each(
        (run, StateDictError),
        (lambda: SampleLedger(5).load_state_dict(SampleLedger(6).state_dict()), "a state of 5 samples, got one of 6"),
        (lambda: SampleLedger(5).load_state_dict({}), "SampleLedger: expected a state with the keys"),
    ),
    # dataset
    *each(
        lambda arrays: ArrayDataset(*arrays),
        ([], ArgumentError, "at least one array, got none"),
        ([np.zeros(3), np.zeros((4, 2))], ShapeError, r"got shapes \[\(3,\), \(4, 2\)\]"),
        ([np.zeros(())], ShapeError, r"got shapes \[\(\)\]"),
        ([[1, 2]], DtypeError, "expected an array of NumPy or CuPy, got list"),
    ),
    *each(
        (lambda lengths: random_split(ArrayDataset(np.arange(5)), lengths), ArgumentError),
        ([3, 3], r"lengths of sum 5, the dataset's, got \[3, 3\]"),
        ([], r"lengths of sum 5, the dataset's, got \[\]"),
        ([6, -1], "a length to be an integer >= 0, got -1"),
        ([0.5, 0.6], "of sum 1, got .* of sum 1.1"),
        ([0.5, float("nan")], "finite numbers >= 0 of sum 1"),
        ([5, "a"], "a length to be an integer >= 0, got 'a'"),
    ),
    *each(
        (run, DtypeError),
        (lambda: TensorDataset(np.zeros(3)), "TensorDataset: expected tensors, got ndarray: ArrayDataset takes arrays"),
        (lambda: SubsetRandomSampler([0.5]), "SubsetRandomSampler: expected a sequence of integers as indices"),
    ),
    (lambda: TensorDataset(Tensor(np.zeros(3), True)), AutogradError, "without gradient, got one: use .detach()"),
    (lambda: TensorDataset(Tensor(np.zeros(3)))[5], IndexRangeError, "5"),
    (lambda: ConcatDataset([[1, 2], [3]])[3], IndexRangeError, r"ConcatDataset: expected an index in \[-3, 3\), got 3"),
    *each(
        (run, ArgumentError),
        (lambda: TensorDataset(), "expected at least one array, got none"),
        (lambda: ConcatDataset([]), "ConcatDataset: expected at least one dataset, got none"),
        (lambda: ConcatDataset([3]), "ConcatDataset: expected a dataset with __len__ and __getitem__, got 3"),
        (lambda: ConcatDataset(3), "ConcatDataset: expected a list of datasets, got 3"),
        (lambda: random_split([1, 2], [1, 1], generator="a"), "random_split: expected seed .*, got 'a'"),
        (lambda: RandomSampler(2, generator=-1), "RandomSampler: expected seed to be an integer .*, got -1"),
        (lambda: RandomSampler(0, num_samples=2), "expected samples to draw 2 of, got a dataset without any"),
        (lambda: RandomSampler(2, num_samples=0), "RandomSampler: expected num_samples to be an integer >= 1, got 0"),
        (lambda: RandomSampler(2, 1), "RandomSampler: expected replacement to be True or False, got 1"),
        (lambda: WeightedRandomSampler([0.0], 1), "finite weights >= 0 in a row, not all 0, got"),
        (lambda: WeightedRandomSampler([1.0, -1.0], 1), "finite weights >= 0 in a row, not all 0, got"),
        (lambda: WeightedRandomSampler([[1.0]], 1), "finite weights >= 0 in a row, not all 0, got"),
        (lambda: WeightedRandomSampler("ab", 1), "expected weights as numbers in a row, got 'ab'"),
        (lambda: WeightedRandomSampler([1.0], 0), "expected num_samples to be an integer >= 1, got 0"),
        (lambda: WeightedRandomSampler([1.0, 0.0], 2, False), "at least 2 weights > 0 without replacement, got 1"),
        (lambda: distributed(length=RandomSampler(3), shuffle=False), "got shuffle=False with a sampler, which says"),
        (lambda: distributed(length=distributed()), "expected a dataset or a sampler of a whole epoch, got another"),
    ),
    # digits
    *each(
        lambda options: digits(**options),
        ({"split": "validation"}, ArgumentError, "'train', 'test', 'all', got 'validation'"),
        ({"dtype": "int64"}, DtypeError, "a float dtype, got int64"),
        ({"seed": -1}, ArgumentError, "got -1"),
    ),
    # text
    (lambda: text(seed=-1), ArgumentError, "text: expected seed .*, got -1"),
    (lambda: text(min_count=0), ArgumentError, "text: expected min_count to be an integer >= 1, got 0"),
    (lambda: text().encode("a \u2603"), ArgumentError, "Text.encode: .* of the vocabulary, got '\u2603'"),
    (lambda: text().decode([0, 999]), IndexRangeError, "Text.decode: expected indices in .*, got 999"),
    (lambda: text().decode([0.5]), DtypeError, "Text.decode: expected a sequence of integers"),
    *each(
        lambda change: Sequences(**{"documents": [[1, 2, 3]], "length": 2, **change}),
        ({"length": 0}, ArgumentError, "Sequences: expected length to be an integer >= 1, got 0"),
        ({"stride": 3}, ArgumentError, r"Sequences: expected stride to be an integer in \[1, 3\), got 3"),
        ({"once": 1}, ArgumentError, "Sequences: expected once to be True or False, got 1"),
        ({"documents": [[1]]}, ArgumentError, "expected a document of at least two tokens, got none"),
        ({"documents": [[0.5, 1.0]]}, DtypeError, "Sequences: expected a sequence of integers"),
    ),
    (lambda: Sequences([[1, 2]], 2)[1], IndexRangeError, r"Sequences: expected an index in \[-1, 1\), got 1"),
    # loader
    *each(
        (lambda kind: never_a_batch(kind)(), ArgumentError, r"drop_last=True leaves out all of 10 sample\(s\)"),
        *["plain", "shuffled arrays", "batch sampler", "subset", "a rank's tenth of 20"],
    ),
    *each(
        (
            lambda change: DataLoader(Numbers(9), 2).load_state_dict(
                {**DataLoader(Numbers(9), 2).state_dict(), **change}
            ),
            StateDictError,
        ),
        ({"delivered": -1}, "delivered to be an integer >= 0, got -1"),
        ({"delivered": "1"}, "delivered to be an integer >= 0, got '1'"),
        ({"noise": {"key": 0, "seed": -1}}, "a noise seed to be an integer"),
        ({"noise": {"seed": 1}}, r"keys \['key', 'seed'\], got \['seed'\]"),
        ({"sampler": None}, "BatchSampler: expected a state with the keys .*, got NoneType"),
        ({"more": 1}, r"DataLoader: expected a state with the keys \['delivered', 'noise', 'sampler'\]"),
    ),
    (
        lambda: DataLoader(Numbers(9), 3).load_state_dict(DataLoader(Numbers(9), 2).state_dict()),
        StateDictError,
        "expected a state with batch_size 3, got 2",
    ),
    *each(
        lambda options: DataLoader(**{"dataset": Numbers(3), **options}),
        ({"batch_size": 0}, ArgumentError, "DataLoader: expected batch_size to be an integer >= 1, got 0"),
        ({"prefetch": -1}, ArgumentError, "prefetch to be an integer >= 0, got -1"),
        ({"shuffle": True, "sampler": RandomSampler(3)}, ArgumentError, "a sampler or shuffle=True, got both"),
        ({"shuffle": True, "seed": -1}, ArgumentError, r"seed to be an integer in \[0, 2\*\*64\), got -1"),
        ({"seed": 1}, ArgumentError, "shuffle=True with a seed, got seed=1 without it"),
        ({"batch_sampler": [[0]], "batch_size": 2}, ArgumentError, "batch_sampler alone, got it with batch_size=2"),
        ({"batch_sampler": [[0]], "shuffle": True}, ArgumentError, "batch_sampler alone, .* shuffle=True"),
        ({"batch_sampler": [[0]], "drop_last": True}, ArgumentError, "batch_sampler alone, .* drop_last=True"),
        ({"batch_sampler": [[0]], "sampler": [0]}, ArgumentError, r"batch_sampler alone, .* sampler=\[0\]"),
        ({"batch_sampler": 3}, ArgumentError, "a batch_sampler to iterate over, got 3"),
        ({"sampler": 3}, ArgumentError, "a sampler to iterate over, got 3"),
        ({"collate_fn": 3}, ArgumentError, "collate_fn as a function, got 3"),
        ({"dataset": 3}, ArgumentError, "a dataset with __len__ and __getitem__, got 3"),
        ({"device": "gpu"}, DeviceError, "expected 'cpu' or 'cuda:<index>', got 'gpu'"),
    ),
    # sampler
    *each(
        (lambda other: distributed().load_state_dict(other().state_dict()), StateDictError),
        (lambda: distributed(length=21), "expected a state with length 20, got 21"),
        (lambda: distributed(world_size=3), "expected a state with world_size 2, got 3"),
        (lambda: distributed(mode="drop"), "expected a state with mode 'pad', got 'drop'"),
        (lambda: distributed(shuffle=False), "expected a state with shuffle True, got False"),
        (lambda: RandomSampler(20, seed=0), "expected a state with the keys"),
    ),
    *each(
        (
            lambda change: RandomSampler(20, seed=0).load_state_dict(
                {**RandomSampler(20, seed=0).state_dict(), **change}
            ),
            StateDictError,
            "RandomSampler: expected a",
        ),
        *[{"epoch": -1}, {"epoch": 1.5}, {"seed": 2**64}, {"batch": 1}],
    ),
    (lambda: BatchSampler([1, 2, 3], 2).state_dict(), ArgumentError, "expected a sampler with state_dict and"),
    *each(
        (run, ArgumentError),
        (lambda: distributed(rank=2), r"DistributedSampler: expected rank to be an integer in \[0, 2\), got 2"),
        (lambda: distributed(world_size=0), "world_size to be an integer >= 1, got 0"),
        (lambda: distributed(length=-1), "a length to be an integer >= 0, got -1"),
        (lambda: distributed(length=2.0), "a length to be an integer >= 0, got 2.0"),
        (lambda: distributed(mode="wrap"), "mode to be one of 'pad', 'drop', 'exact', got 'wrap'"),
        (lambda: distributed(mode=np.array(["pad", "drop"])), "mode to be one of 'pad', 'drop', 'exact', got array"),
        (lambda: distributed(mode="exact", shares=np.array(1.0)), "shares as a sequence with a value for each rank"),
        (lambda: distributed(seed=-1), r"seed to be an integer in \[0, 2\*\*64\), got -1"),
        (lambda: distributed(mode="exact", shares=[0.5, 0.6]), r"of sum 1, got \[0.5, 0.6\] of sum 1.1"),
        (lambda: distributed(mode="exact", shares=[1.5, -0.5]), r"finite numbers >= 0 of sum 1, got \[1.5, -0.5\]"),
        (lambda: distributed(mode="exact", shares=[float("nan"), 1.0]), r"of sum 1, got \[nan, 1.0\]"),
        (lambda: distributed(mode="exact", shares=[10**400, 1.0]), "finite numbers >= 0 of sum 1, got "),
        (lambda: distributed(mode="exact", shares=["a", 1.0]), r"of sum 1, got \['a', 1.0\]"),
        (lambda: distributed(mode="exact", shares=[]), r"of sum 1, got \[\]"),
        (lambda: distributed(mode="exact", shares=[1.0]), r"a share for each of 2 ranks, got 1: \[1.0\]"),
        (lambda: distributed(shares=[0.5, 0.5]), "expected mode='exact' with shares, got 'pad'"),
        (lambda: RandomSampler(3, seed=1.0), r"RandomSampler: expected seed to be an integer in \[0, .*\), got 1.0"),
        (lambda: RandomSampler(3, seed=0).set_epoch(-1), r"set_epoch: expected epoch to be an integer .*, got -1"),
        (lambda: BatchSampler(SequentialSampler(3), 0), "batch_size to be an integer >= 1, got 0"),
        (lambda: BatchSampler(3, 1), "expected a sampler to iterate over, got 3"),
        (lambda: permutation(-1, 0), "permutation: expected length to be an integer >= 0, got -1"),
        (lambda: shard(-1, 0, 1), "shard: expected length to be an integer >= 0, got -1"),
        (lambda: largest_remainder(-1, [1.0]), "largest_remainder: expected total to be an integer >= 0, got -1"),
        (lambda: largest_remainder(1, [0.5]), r"largest_remainder: expected shares .*, got \[0.5\] of sum 0.5"),
    ),
    (lambda: list(EpochSampler(3)), NotImplementedError, ""),
]
