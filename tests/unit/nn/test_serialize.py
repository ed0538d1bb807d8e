"""Files in the safetensors format: nothing lost, shared tensors once, an old file never half replaced."""

import errno
import fcntl
import os
import stat

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from minigrad import Tensor
from minigrad.backend.dtypes import as_dtype
from minigrad.distributed import run
from minigrad.errors import ArgumentError, DeviceError, DtypeError, StateDictError
from minigrad.nn import load_file, load_metadata, save_file
from minigrad.testing import assert_close
from tests.disk import Disk
from tests.unit.nn.nets import Scale, Tied

DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "net.safetensors"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 2)], ids=str)
def test_round_trip(path, dtype, shape):
    values = np.asarray(np.random.default_rng(0).integers(0, 2, shape)).astype(as_dtype(dtype))
    save_file({"x": Tensor(values)}, path)
    loaded = load_file(path)["x"]
    assert_close(loaded, values, tolerance=0)
    loaded.data[...] = 1
    assert_close(load_file(path)["x"], values, tolerance=0)


def test_any_order_of_memory(path):
    base = np.arange(24.0).reshape(2, 3, 4)
    views = {"transposed": base.T, "strided": base[:, ::2], "reversed": base[::-1], "plain": base}
    save_file(views, str(path))
    for name, loaded in load_file(str(path)).items():
        assert_close(loaded, views[name], tolerance=0)


def test_a_state_dict(path):
    net, other = Scale(), Scale()
    net.weight.data[...] = 3.0
    save_file(net.state_dict(), path, metadata={"epoch": "3"})
    other.load_state_dict(load_file(path))
    assert_close(other.weight, net.weight.data, tolerance=0)
    with safetensors.safe_open(path, framework="np") as file:
        assert file.metadata() == {"epoch": "3"}


def test_shared_tensors_are_stored_once(path):
    state = Tied().state_dict()
    save_file(state, path)
    assert sorted(safetensors.numpy.load_file(path)) == ["decoder.weight", "encoder.bias"]
    loaded = load_file(path)
    assert sorted(loaded) == sorted(state)
    assert loaded["encoder.weight"].data is loaded["decoder.weight"].data
    Tied().load_state_dict(loaded)


def test_equal_addresses_are_not_enough(path):
    base = np.arange(6.0)
    tensors = {"all": base, "head": base[:3], "matrix": base.reshape(2, 3), "empty": base[:0], "none": base[:0]}
    tensors["bits"] = base.view(np.int64)
    save_file(tensors, path)
    assert sorted(safetensors.numpy.load_file(path)) == sorted(tensors)
    for name, loaded in load_file(path).items():
        assert_close(loaded, tensors[name], tolerance=0)


def test_no_tensors(path):
    save_file({}, path)
    assert load_file(path) == {}


def test_texts_beside_the_tensors(path):
    save_file({"x": np.ones(2)}, path, {"epoch": "3"})
    assert load_metadata(path) == {"epoch": "3"}
    save_file({"x": np.ones(2)}, path)
    assert load_metadata(str(path)) == {}
    path.write_bytes(b"")
    with pytest.raises(StateDictError, match="load_metadata: expected a safetensors file, got"):
        load_metadata(path)


def test_a_failed_write_leaves_the_old_file(path, monkeypatch):
    save_file({"x": np.ones(2)}, path)
    with Disk(fail_at=4).watching(), pytest.raises(OSError, match="to write .*net.safetensors, got Input/output"):
        save_file({"x": np.zeros(2)}, path)
    assert os.listdir(path.parent) == [path.name]
    assert_close(load_file(path)["x"], np.ones(2))


def test_the_bytes_are_those_of_the_library(path):
    tensors = {f"{dtype} é\"\n": np.ones((2, 3), as_dtype(dtype)) for dtype in DTYPES}
    tensors |= {"none": np.ones((0, 2)), "one": np.array(3.0), "b": np.ones(1, np.float32), "a": np.ones(1, np.float32)}
    for texts in (None, {"epoch": "3 é\n"}):
        save_file(tensors, path, texts)
        assert path.read_bytes() == safetensors.numpy.save(tensors, texts)
    save_file({}, path)
    assert path.read_bytes() == safetensors.numpy.save({})
    save_file({"x": np.arange(3, dtype=">f4")}, path)
    assert path.read_bytes() == safetensors.numpy.save({"x": np.arange(3, dtype="<f4")})


def test_a_system_that_writes_less_than_it_was_given(path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, part: write(descriptor, part[:7]))
    save_file({"x": np.arange(20.0)}, path)
    assert_close(load_file(path)["x"], np.arange(20.0))


def leftover(path, name="net.safetensors", number="0123456789abcdef"):
    found = path.with_name(f".{name}.{number}")
    found.write_bytes(b"half of")
    return found


def test_what_a_killed_writer_has_left_is_removed_and_nothing_else(path):
    ours, other = leftover(path), leftover(path, "other.safetensors")
    kept = [leftover(path, number="0123456789abcde"), leftover(path, number="0123456789abcdeg"), other]
    folder = path.with_name(f".{path.name}.{'f' * 16}")
    folder.mkdir()
    save_file({"x": np.ones(2)}, path)
    assert not ours.exists() and {*path.parent.iterdir()} == {path, folder, *kept}


def test_what_another_is_writing_is_left_alone(path):
    theirs = leftover(path)
    with open(theirs) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        save_file({"x": np.ones(2)}, path)
        assert theirs.exists()
    save_file({"x": np.ones(2)}, path)
    assert not theirs.exists()


def test_two_who_write_one_file_do_not_take_each_other_for_killed(path):
    def body(comm):
        for _ in range(20):
            save_file({"x": np.full(1000, comm.rank)}, path)
        return len({*load_file(path)["x"].tolist()})

    assert run(body, 3) == [1, 1, 1] and os.listdir(path.parent) == [path.name]


def test_a_file_that_was_taken_for_left_before_it_was_locked_is_begun_again(path, monkeypatch):
    lock, taken = fcntl.flock, []

    def late(descriptor, how):
        if not taken:
            taken.extend(name for name in os.listdir(path.parent) if name.startswith("."))
            os.unlink(path.parent / taken[0])
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    save_file({"x": np.ones(2)}, path)
    assert taken and os.listdir(path.parent) == [path.name]


def test_folders_that_can_not_be_synced_are_no_hindrance(path, monkeypatch):
    sync, fails = os.fsync, errno.EINVAL

    def some(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(fails, os.strerror(fails))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", some)
    save_file({"x": np.ones(2)}, path)
    fails = errno.EIO
    with pytest.raises(OSError, match="Input/output"):
        save_file({"x": np.ones(2)}, path)


def test_permissions_are_those_of_any_new_file(path):
    (path.parent / "other").touch()
    save_file({"x": np.ones(2)}, path)
    assert path.stat().st_mode == (path.parent / "other").stat().st_mode


@pytest.mark.parametrize(
    "tensors, metadata, error, message",
    [
        ([1], None, DtypeError, "save_file: expected a mapping of names to tensors, got list"),
        ({"x": 3.0}, None, DtypeError, "save_file: expected a tensor for 'x', got float"),
        ({"x": np.array(["a"])}, None, DtypeError, "dtype: expected one of"),
        ({3: np.ones(1)}, None, ArgumentError, "save_file: expected names .* got 3"),
        ({"x": np.ones(1)}, {"x": "y"}, ArgumentError, "save_file: expected names .* got 'x'"),
        ({"x": np.ones(1)}, {"epoch": 3}, ArgumentError, "save_file: expected metadata of names and texts"),
    ],
)
def test_what_can_not_be_saved(path, tensors, metadata, error, message):
    with pytest.raises(error, match=message):
        save_file(tensors, path, metadata)
    assert not os.listdir(path.parent)


@pytest.mark.parametrize("content", [b"", b"not a file of tensors", b"\x10" + bytes(7) + b"{"], ids=len)
def test_a_broken_file(path, content):
    path.write_bytes(content)
    with pytest.raises(StateDictError, match="load_file: expected a safetensors file of known dtypes, got"):
        load_file(path)


def test_a_foreign_dtype_and_an_absent_file_or_device(path):
    with pytest.raises(FileNotFoundError):
        load_file(path)
    safetensors.numpy.save_file({"x": np.ones(2, np.complex64)}, path)
    with pytest.raises(StateDictError, match="got .*complex64"):
        load_file(path)
    save_file({"x": np.ones(2)}, path)
    with pytest.raises(DeviceError, match="cuda:63"):
        load_file(path, "cuda:63")
