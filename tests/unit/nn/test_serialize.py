"""Files in the safetensors format: nothing lost, shared tensors once, an old file never half replaced."""

import os

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from minigrad import Tensor
from minigrad.backend.dtypes import as_dtype
from minigrad.errors import ArgumentError, DeviceError, DtypeError, StateDictError
from minigrad.nn import load_file, load_metadata, save_file
from minigrad.testing import assert_close
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

    def fail(tensors, filename, metadata=None):
        filename.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(safetensors.numpy, "save_file", fail)
    with pytest.raises(OSError, match="disk full"):
        save_file({"x": np.zeros(2)}, path)
    assert os.listdir(path.parent) == [path.name]
    assert_close(load_file(path)["x"], np.ones(2))


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
