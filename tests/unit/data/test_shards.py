"""Rows of files as samples: their forms, what is read of them, what ranks train on, and what is refused."""

import contextvars
import itertools

import numpy as np
import pytest
from safetensors.numpy import save_file

import minigrad
from minigrad import distributed, manual_seed, nn, optim
from minigrad.data import DataLoader, FileShards
from minigrad.data.rows import RowFile
from minigrad.errors import ArgumentError, DtypeError, ShapeError, StateDictError
from minigrad.testing import assert_close

LENGTHS = [5, 3, 4]


def rows(first, length):
    """x of two numbers and y of one, of the rows [first, first + length)."""
    numbers = np.arange(first, first + length)
    return {"y": numbers, "x": np.stack([numbers, -numbers], axis=1).astype(np.float32)}


@pytest.fixture
def paths(tmp_path):
    """Three safetensors files, given in the wrong order."""
    for i, length in enumerate(LENGTHS):
        save_file(rows(sum(LENGTHS[:i]), length), tmp_path / f"{i}.safetensors")
    return [tmp_path / f"{i}.safetensors" for i in (2, 0, 1)]


@pytest.fixture
def written(tmp_path):
    """Write a file under a name, and give its path."""

    def write(name, value):
        path = tmp_path / name
        if isinstance(value, bytes):
            path.write_bytes(value)
        elif isinstance(value, dict):
            save_file(value, path)
        else:
            np.save(path, value, allow_pickle=True)
        return path

    return write


# ------------------------------------------------------------------------------------------------------- samples


def test_a_sample_is_a_row_of_each_array(paths):
    named, pair, alone = FileShards(paths), FileShards(paths, ["y", "x"]), FileShards(paths, keys="y")
    assert [int(sample["y"]) for sample in named] == list(range(12)) and [*next(iter(named))] == ["x", "y"]
    y, x = next(iter(pair))
    assert (int(y), x.tolist()) == (0, [0.0, 0.0])
    assert [int(y) for y in alone] == list(range(12)) == list(range(len(alone)))
    [batch] = DataLoader(named, 12)
    assert (batch["x"].shape, batch["x"].dtype, batch["y"].dtype) == ((12, 2), "float32", "int64")


@pytest.mark.parametrize("dtype", ["uint8", ">f4", "bool", "bfloat16"])
def test_arrays_of_any_dtype_and_order_of_bytes(written, dtype):
    wanted = minigrad.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    array = np.asfortranarray(np.arange(12).reshape(6, 2).astype(wanted))
    if dtype == "bfloat16":
        shards = FileShards([written("a.safetensors", {"x": np.ascontiguousarray(array)})], keys="x")
    else:
        shards = FileShards([written("a.npy", array)])
    [batch] = DataLoader(shards, 6)
    assert batch.dtype == wanted.newbyteorder("=") and np.array_equal(batch.numpy(), array)


def test_only_the_rows_of_a_rank_are_read_and_a_pool_at_a_time(paths, monkeypatch):
    read, seen = RowFile.read, []

    def noting(file, keys, start, stop):
        seen.append((file.path[-13], start, stop))
        return read(file, keys, start, stop)

    monkeypatch.setattr(RowFile, "read", noting)
    samples = iter(FileShards(paths, "y", rank=1, world_size=2, pool_samples=4))
    assert seen == []
    assert [int(y) for y in itertools.islice(samples, 4)] == [6, 7, 8, 9] and seen == [("1", 1, 3), ("2", 0, 2)]
    assert [int(y) for y in samples] == [10, 11] and seen[2:] == [("2", 2, 4)]


def test_a_shuffle_is_of_epoch_and_seed_and_mixes_files(paths):
    def order(epoch, **options):
        shards = FileShards(paths, "y", shuffle=True, **options)
        shards.set_epoch(epoch)
        return [int(y) for y in shards]

    orders = [order(0), order(1), order(0, seed=1), order(0, pool_samples=8)]
    assert len({*map(tuple, orders)}) == 4 and all(sorted(each) == list(range(12)) for each in orders)
    assert order(0) == orders[0]
    counted = FileShards(paths, "y", shuffle=True)
    assert [[int(y) for y in counted] for _ in range(2)] == orders[:2]
    firsts = [{*order(epoch, pool_samples=8, rank=0, world_size=2)} for epoch in range(8)]
    assert len({*map(frozenset, firsts)}) > 1  # a rank has other rows in other epochs


def test_ends_are_told_beforehand(paths):
    parts = {deal: FileShards(paths, rank=0, world_size=2, deal=deal).samples_of_ranks for deal in ("rows", "files")}
    assert parts == {"rows": [6, 6], "files": [7, 5]}
    assert FileShards(paths, rank=1, world_size=2, deal="files", mode="pad").samples_of_ranks == [7, 7]
    loader = DataLoader(FileShards(paths, rank=1, world_size=2, deal="files", mode="drop"), 2)
    assert len(loader) == len(list(loader)) == 3


def test_ranks_are_those_of_the_context(paths):
    def body(comm):
        return [int(y) for y in FileShards(paths, "y")]

    assert distributed.run(body, 3) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


# ----------------------------------------------------------------------------------------------------- training


def train(model, batches):
    optimizer = optim.Adam(model.parameters(), lr=0.1)
    for x, y in batches:
        optimizer.zero_grad()
        (model(x)[:, 0] - y.float()).pow(2).mean().backward()
        optimizer.step()


def make_net():
    manual_seed(1)
    return nn.Linear(2, 1)


@pytest.mark.parametrize("deal, shuffle", [("files", True), ("rows", False)])
def test_two_ranks_over_uneven_files_are_one_device(paths, deal, shuffle):
    """The k-th global batch is what the k-th batches of the ranks that still have one come to, with threads or not."""

    def shards(rank):
        return FileShards(paths[:2], ["x", "y"], rank=rank, world_size=2, deal=deal, shuffle=shuffle, pool_samples=3)

    def body(comm):
        ddp = distributed.DDP(make_net(), comm)
        with ddp.join():
            train(ddp, DataLoader(shards(comm.rank), 2, prefetch=2 * comm.rank))
        return ddp.module.weight.detach().numpy().copy()

    first, second = distributed.run(body, 2)
    assert np.array_equal(first, second)
    parts = [[tuple(map(minigrad.tensor, batch)) for batch in DataLoader(shards(rank), 2)] for rank in range(2)]
    whole = [[each for each in batches if each] for batches in itertools.zip_longest(*parts)]
    alone = make_net()
    train(alone, [tuple(map(minigrad.cat, zip(*batches))) for batches in whole])
    assert_close(first, alone.weight.detach().numpy(), tolerance=1e-5)


@pytest.mark.parametrize("stop", [2, 5])
def test_a_run_that_is_stopped_in_mid_file_ends_in_the_same_bits(paths, tmp_path, stop):
    """By save and load, on two ranks that read files of different lengths; four batches an epoch."""

    def body(comm, resume):
        manual_seed(3)
        shards = FileShards(paths, ["x", "y"], deal="files", mode="pad", shuffle=True, pool_samples=3)
        model, loader = distributed.DDP(make_net(), comm), DataLoader(shards, 2)
        optimizer = optim.LAMB(model.parameters(), lr=0.1)
        run = {"model": model, "optimizer": optimizer, "loader": loader}
        step = minigrad.load(tmp_path / "run", into=run)["step"] if resume else 0
        while step < 8:
            for x, y in loader:
                optimizer.zero_grad()
                (model(x)[:, 0] - y.float()).pow(2).mean().backward()
                optimizer.step()
                step += 1
                if step == stop:
                    minigrad.save({**run, "step": step}, tmp_path / "run")
        return model.module.weight.detach().numpy().copy()

    unstopped = distributed.run(lambda comm: body(comm, False), 2)
    resumed = distributed.run(lambda comm: body(comm, True), 2)
    assert all(np.array_equal(weight, unstopped[0]) for weight in unstopped + resumed)


def test_files_that_are_dealt_stay_in_their_own_order(paths):
    dealt = [FileShards(paths, "y", rank=rank, world_size=3, deal="files") for rank in range(3)]
    assert [[int(y) for y in part] for part in dealt] == [[0, 1, 2, 3, 4], [8, 9, 10, 11], [5, 6, 7]]


def test_ranks_mix_their_pools_in_ways_of_their_own(written):
    path = written("a.npy", np.arange(16))
    parts = [FileShards([path], rank=rank, world_size=2, shuffle=True, pool_samples=64) for rank in range(2)]
    first, second = ([int(row) for row in part] for part in parts)
    assert sorted(first + second) == list(range(16)) and {row // 8 for row in first} in ({0}, {1})
    assert [row % 8 for row in first] != [row % 8 for row in second]


def test_a_state_brings_its_seed(paths):
    first, other = (FileShards(paths, "y", shuffle=True, seed=seed) for seed in (1, 2))
    samples = iter(first)
    next(samples)
    other.load_state_dict(first.state_dict())
    assert [int(y) for y in other] == [int(y) for y in samples]
    assert [int(y) for y in other] == [int(y) for y in first]


def test_files_may_differ_in_their_order_of_bytes(written):
    shards = FileShards([written(f"{i}.npy", np.ones((2, 2), kind)) for i, kind in enumerate(("<f4", ">f4"))])
    assert [row.dtype.isnative for row in shards] == [True] * 4


def test_an_array_of_two_names_has_both(tmp_path):
    """save_file writes it once."""
    array = np.arange(3)
    nn.save_file({"x": array, "y": array}, tmp_path / "a.safetensors")
    assert [{**sample} for sample in FileShards([tmp_path / "a.safetensors"])] == [{"x": i, "y": i} for i in range(3)]


# ------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    "name, value, error, message",
    [
        ("b.safetensors", {"x": np.ones((2, 2), "f4")}, ArgumentError, r"keys 'x' and 'y' of .*, got 'x' in .*b.safe"),
        ("b.safetensors", {**rows(0, 2), "z": np.ones(2)}, ArgumentError, r"got 'x' and 'y' and 'z' in .*b.safe"),
        ("b.safetensors", {**rows(0, 2), "x": np.ones((2, 2))}, DtypeError, r"got float64 in 'x' of .*b.safetensors"),
        ("b.safetensors", {**rows(0, 2), "y": np.ones((2, 2), "i8")}, ShapeError, r"got \(2,\) in 'y' of .*b.safe"),
        ("b.safetensors", {**rows(0, 2), "y": np.ones(3, "i8")}, ShapeError, r"\(2, 2\) of 'x', \(3,\) of 'y' in .*b"),
        ("b.safetensors", {**rows(0, 2), "y": np.array(3)}, ShapeError, r"one first axis in common, got .* in .*b"),
        ("b.safetensors", rows(0, 0), ArgumentError, "at least one row in each file, got none in .*b.safe.*: leave it"),
        ("b.safetensors", {}, ArgumentError, "expected arrays in each file, got none in .*b.safetensors"),
        ("b.safetensors", b"", ArgumentError, "expected a safetensors file, got .*b.safetensors: .*header"),
        ("b.npy", np.ones(3), ArgumentError, "expected the keys .*, got '' in .*b.npy"),
        ("b.npy", b"", ArgumentError, "expected a .npy file of numbers, got .*b.npy: EOF"),
        ("b.npy", b"\x80\x04N.", ArgumentError, "expected a .npy file of numbers, got .*b.npy: .*magic string"),
        ("b.npy", b"PK\x03\x04" + bytes(99), ArgumentError, "expected a .npy file of numbers, got .*b.npy: .*magic"),
        ("b.npy", np.array([{}, 1]), ArgumentError, "expected a .npy file of numbers, got .*b.npy: .*Python objects"),
        ("b.npy", np.array(["a"]), DtypeError, "b.npy: dtype: expected one of .*, got str"),
        ("b.npy", np.ones((0, 2)), ArgumentError, "(at least one row|a .npy file of numbers).* got .*b.npy"),
        ("b.npy", np.ones(2, complex), DtypeError, "b.npy: dtype: expected one of .*, got complex128"),
        ("b.npz", b"", ArgumentError, "files that end in .safetensors or .npy, got .*b.npz: write its arrays to a"),
        ("b.pt", b"", ArgumentError, "files that end in .safetensors or .npy, got .*b.pt$"),
    ],
)
def test_files_that_do_not_fit_are_named(paths, written, name, value, error, message):
    with pytest.raises(error, match=f"FileShards: .*{message}"):
        FileShards([*paths, written(name, value)])


def test_a_file_that_is_not_there_is_named(paths, tmp_path):
    for name in ("c.safetensors", "c.npy"):
        with pytest.raises(FileNotFoundError, match=f"{name}"):
            FileShards([*paths, tmp_path / name])


def test_a_file_that_became_another_one_is_named(paths, written):
    shards, changed = FileShards(paths), FileShards(paths)
    written("1.safetensors", rows(5, 2))
    with pytest.raises(ArgumentError, match="expected rows 0 to 3 of .*1.safetensors, got none: .*shape"):
        list(shards)
    written("1.safetensors", {**rows(5, 3), "x": np.ones((3, 2))})
    with pytest.raises(ArgumentError, match="expected 'x' of .*1.safetensors to stay as it was .*, got float64"):
        list(changed)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"deal": "turns"}, "expected deal to be one of 'rows', 'files', got 'turns'"),
        ({"mode": "all"}, "expected mode to be one of 'pad', 'drop', 'exact', got 'all'"),
        ({"rank": 2, "world_size": 2}, r"expected rank to be an integer in \[0, 2\), got 2"),
        ({"rank": 0}, "expected rank and world_size, or neither, got no world_size"),
        ({"shuffle": 1}, "expected shuffle to be True or False, got 1"),
        ({"seed": -1}, "expected seed to be an integer"),
        ({"pool_samples": 0}, "expected pool_samples to be an integer >= 1, got 0"),
        ({"keys": "z"}, r"expected keys among \['x', 'y'\], each once, got 'z'"),
        ({"keys": ["x", "x"]}, r"expected keys among .*, got \['x', 'x'\]"),
        ({"keys": []}, r"expected keys among .*, got \[\]"),
        ({"keys": 3}, "expected keys among .*, got 3"),
        ({"rank": 0, "world_size": 4, "deal": "files"}, 'a file for each of 4 ranks .*, got 3: write deal="rows"'),
        ({"rank": 0, "world_size": 13, "mode": "drop"}, "mode='drop' leaves out all of 12, for there are 13 ranks"),
    ],
)
def test_options_that_do_not_fit_are_refused(paths, options, message):
    with pytest.raises(ArgumentError, match=f"^FileShards: .*{message}"):
        contextvars.Context().run(FileShards, paths, **options)  # which has no ranks


@pytest.mark.parametrize(
    "given, message",
    [
        ("folder", "expected a list of paths, got 'folder': write Path"),
        (3, "expected a list of paths, got 3"),
        ([], "expected at least one path, got none: does the pattern fit"),
        ([None], "expected a list of paths, got None in it"),
        (["a.npy", "b.npy", "a.npy"], "expected each file once, got a.npy twice"),
        (["a.npy", "./a.npy"], "expected each file once, got a.npy twice"),
    ],
)
def test_what_is_no_list_of_paths_is_refused(given, message):
    with pytest.raises(ArgumentError, match=f"^FileShards: {message}"):
        FileShards(given)


def test_a_npy_file_has_no_keys(written):
    with pytest.raises(ArgumentError, match="expected no keys, for a .npy file has one array, got 'x'"):
        FileShards([written("a.npy", np.ones(3))], keys="x")


def test_a_batch_that_no_rank_can_fill_is_refused(paths):
    with pytest.raises(ArgumentError, match=r"drop_last=True leaves out all of 6 sample\(s\), for a batch has 7"):
        DataLoader(FileShards(paths, rank=1, world_size=2), 7, drop_last=True)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda p: FileShards(p, rank=0, world_size=2), "a state with world_size 1, got 2"),
        (lambda p: FileShards(p[:2]), "a state with files 3, got 2: it was saved over other files"),
        (lambda p: FileShards(p, shuffle=True), "a state with shuffle False, got True"),
        (lambda p: FileShards(p, mode="pad"), "a state with mode 'exact', got 'pad'"),
        (lambda p: FileShards(p, deal="files"), "a state with deal 'rows', got 'files'"),
        (lambda p: FileShards(p, pool_samples=5), "a state with pool_samples 4096, got 5"),
    ],
)
def test_a_state_over_something_else_is_refused(paths, make, message):
    with pytest.raises(StateDictError, match=f"^FileShards: expected {message}"):
        FileShards(paths).load_state_dict(make(paths).state_dict())


@pytest.mark.parametrize("change", [{"position": 13}, {"epoch": -1}, {"seed": None}, {"checksum": 1}, {"more": 1}])
def test_a_state_that_is_none_is_refused(paths, change):
    shards = FileShards(paths)
    with pytest.raises(StateDictError, match="^FileShards: expected a "):
        shards.load_state_dict({**shards.state_dict(), **change})
    assert shards.state_dict()["position"] == 0


def test_files_in_another_folder_are_the_same_files(paths, tmp_path):
    shards = FileShards(paths, "y")
    list(itertools.islice(shards, 5))
    loader = DataLoader(shards, 2)
    list(itertools.islice(loader, 2))
    (tmp_path / "moved").mkdir()
    moved = FileShards([path.rename(tmp_path / "moved" / path.name) for path in paths], "y")
    resumed = DataLoader(moved, 2)
    resumed.load_state_dict(loader.state_dict())
    resumed.dataset.set_epoch(1)
    assert [batch.tolist() for batch in resumed] == [[4, 5], [6, 7], [8, 9], [10, 11]]
    resumed.load_state_dict(loader.state_dict())
    resumed.dataset.set_epoch(2)
    with pytest.raises(StateDictError, match="expected epoch 1, that of the loaded state, got 2: call set_epoch with"):
        list(resumed)
