"""Tensors of other libraries: what is taken from them, on whose memory it is, and what is refused."""

import zipfile

import numpy as np
import pytest

import minigrad
from minigrad import nn
from minigrad.backend.dtypes import as_dtype
from minigrad.errors import AutogradError, DtypeError, StateDictError
from minigrad.testing import assert_close
from tests.foreign import ForeignState, ForeignTensor, foreign_state

ARRAYS = {
    "matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
    "transposed": np.arange(6, dtype=np.float64).reshape(2, 3).T,
    "strided": np.arange(8, dtype=np.int32)[::3],
    "number": np.array(3),
    "empty": np.zeros((0, 2), np.float16),
    "bool": np.array([True, False]),
    "bfloat16": np.arange(6).astype(as_dtype("bfloat16")).reshape(2, 3).T,
}
SHARING = [minigrad.as_tensor, minigrad.from_dlpack]


def norms():
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_each_dtype_and_layout(array):
    source = ForeignTensor(array)
    for make in (minigrad.tensor, *SHARING):
        x = make(source)
        assert x.dtype == array.dtype and x.shape == array.shape and (x.data == array).all()
        assert np.shares_memory(x.data, array) == (make is not minigrad.tensor and array.size > 0)


def test_what_one_writes_the_other_shows():
    array = np.zeros(2, np.float32)
    for make in SHARING:
        make(ForeignTensor(array)).add_(1.0)
    assert array.tolist() == [2.0, 2.0]


def test_a_copy_leaves_the_gradient_and_a_view_refuses_to():
    source = ForeignTensor(np.ones((2, 1), np.float32), requires_grad=True)
    x = minigrad.tensor(source)
    assert x.tolist() == [[1.0], [1.0]] and not x.requires_grad
    for make in SHARING:
        with pytest.raises(
            AutogradError, match=r"without gradient, got a tests.ForeignTensor of torch.float32 \(2, 1\) that .*detach"
        ):
            make(source)


@pytest.mark.parametrize(
    "source, words",
    [
        (ForeignTensor(np.ones(2, np.complex64)), r"got a tests.ForeignTensor of torch.complex64 \(2,\): dtype"),
        (ForeignTensor(np.ones(2), device="meta"), "Unknown device type meta"),
    ],
    ids=["complex", "meta"],
)
def test_what_a_tensor_cannot_hold(source, words):
    for make in (minigrad.tensor, *SHARING):
        with pytest.raises(DtypeError, match=f"{make.__name__}: expected data that a tensor can hold, .*{words}"):
            make(source)


def test_another_device_is_copied_from_but_not_shared():
    """CuPy refuses what is no device memory; where there is no CuPy, a copy is made by way of the host."""
    source = ForeignTensor(np.ones(2, np.float32), device="xpu:0")
    source.__class__ = type("Elsewhere", (ForeignTensor,), {"__dlpack_device__": lambda self: (14, 0)})
    assert minigrad.tensor(source).tolist() == [1.0, 1.0]
    with pytest.raises(DtypeError, match="from_dlpack: .*kind 14, neither the host's nor CUDA's"):
        minigrad.from_dlpack(source)


def test_to_other_libraries():
    x = minigrad.tensor([1.0, 2.0])
    assert np.shares_memory(np.from_dlpack(x), x.data) and np.shares_memory(np.asarray(x), x.data)
    with pytest.raises(AutogradError, match="dlpack: expected a tensor without gradient"):
        np.from_dlpack(minigrad.ones(2, requires_grad=True))
    with pytest.raises(DtypeError, match="dlpack: expected data that DLPack carries, got bfloat16"):
        np.from_dlpack(x.to("bfloat16"))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: minigrad.ones(2) + x,
        lambda x: x @ minigrad.ones(2),
        lambda x: nn.Linear(2, 1)(x),
        lambda x: nn.MSELoss()(minigrad.ones(2), x),
        lambda x: nn.CrossEntropyLoss()(minigrad.ones(1, 2), x),
        lambda x: nn.CosineSimilarity()(minigrad.ones(2), x),
        minigrad.Tensor,
        nn.Parameter,
    ],
)
def test_elsewhere_the_library_is_named_and_what_to_write(call):
    with pytest.raises(DtypeError, match="got tests.ForeignTensor: take it in by minigrad.as_tensor"):
        call(ForeignTensor(np.ones(2, np.float32)))


# ----------------------------------------------------------------------------------------------------- state_dict


def test_a_foreign_state_loads_as_it_is():
    source, target = norms().bfloat16(), norms().bfloat16()
    source[1].num_batches_tracked.add_(7)
    assert target.load_state_dict(foreign_state(source, {"1": 2})) == ([], [])
    for name, x in source.state_dict().items():
        assert_close(target.state_dict()[name], x.data, tolerance=0)
    wanting = {name: ForeignTensor(p.data + 1, requires_grad=True) for name, p in source.named_parameters()}
    target.load_state_dict(wanting, strict=False)
    assert_close(target[0].weight, source[0].weight.data + 1, tolerance=0)
    assert not np.shares_memory(target[0].weight.data, wanting["0.weight"]._array)


def test_what_does_not_fit_is_named():
    state = foreign_state(norms(), {"1": 2})
    state["0.weight"] = ForeignTensor(np.zeros((3, 2)))
    state["0.bias"] = ForeignTensor(np.zeros(2, np.complex64))
    state["1.bias"] = ForeignTensor(np.zeros(2), device="meta")
    state["1.extra"] = state.pop("1.weight")
    with pytest.raises(StateDictError) as caught:
        norms().load_state_dict(state)
    lines = str(caught.value).splitlines()[1:]
    assert lines[:3] == [
        "  missing 1.weight",
        "  unexpected 1.extra",
        "  0.weight: expected float32 (2, 3), got float64 (3, 2)",
    ]
    got = "expected data that a tensor can hold, got a tests.ForeignTensor of torch"
    assert lines[3].startswith(f"  0.bias: {got}.complex64 (2,): ")
    assert lines[4:] == [f"  1.bias: {got}.float64 (2,): Unknown device type meta for Dlpack"]
    assert norms().load_state_dict({}, strict=False).unexpected_keys == []


def test_a_batch_norm_of_before_it_counted_batches():
    """PyTorch's had no count until their version 2; a state without a version may lack it too."""
    old = {name: x for name, x in foreign_state(norms()).items() if not name.endswith("num_batches_tracked")}
    for state in (old, ForeignState(old, {"1": 1}), ForeignState(old, {"1": None})):
        module = norms()
        module[1].num_batches_tracked.add_(3)
        assert module.load_state_dict(state) == ([], []) and module[1].num_batches_tracked.item() == 3
    with pytest.raises(StateDictError, match="missing 1.num_batches_tracked"):
        norms().load_state_dict(ForeignState(old, {"1": 2}))
    assert nn.BatchNorm1d(2).load_state_dict({}, strict=False).missing_keys == [
        "weight", "bias", "running_mean", "running_var"
    ]


# ---------------------------------------------------------------------------------------------------------- files


def test_a_foreign_state_is_saved(tmp_path):
    state = foreign_state(norms().bfloat16())
    nn.save_file(state, tmp_path / "net.safetensors")
    loaded = nn.load_file(tmp_path / "net.safetensors")
    assert norms().bfloat16().load_state_dict(loaded) == ([], [])


@pytest.mark.parametrize("read", [nn.load_file, nn.load_metadata])
def test_a_pickled_file_is_named_with_what_converts_it(read, tmp_path):
    zipped, legacy, other = tmp_path / "net.pt", tmp_path / "net.pth", tmp_path / "net.zip"
    for path, member in ((zipped, "net/data.pkl"), (other, "net.txt")):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(member, b"\x80\x02}.")
    legacy.write_bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.")
    for path, kind in ((zipped, "a zip file around a pickle"), (legacy, "a pickle")):
        with pytest.raises(StateDictError) as caught:
            read(path)
        assert f"got {path}, {kind}, as torch.save writes: convert it" in str(caught.value)
        converted = f"torch.load({str(path)!r}, weights_only=True), {str(path.with_suffix('.safetensors'))!r})"
        assert f"safetensors.torch.save_file({converted}" in str(caught.value)
    with pytest.raises(StateDictError) as caught:
        read(other)
    assert "torch" not in str(caught.value)


# -------------------------------------------------------------------------------------------------------- PyTorch


@pytest.mark.torch
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_the_stand_in_does_what_pytorch_does(array, requires_grad):
    """The same arrays, and errors of the same kinds, both ways of reading."""
    import torch

    if requires_grad and array.dtype.kind not in "fV":
        return
    name = array.dtype.name
    theirs = torch.tensor(array.astype(np.float64)).to(getattr(torch, name)).requires_grad_(requires_grad)
    for read in (np.from_dlpack, np.asarray, minigrad.tensor, *SHARING):
        assert _outcome(read, ForeignTensor(array, requires_grad)) == _outcome(read, theirs)


def _outcome(read, value):
    try:
        found = read(value)
    except Exception as error:
        return type(error)
    return type(found), found.dtype, tuple(found.shape), found.tolist()


@pytest.mark.torch
def test_files_of_pytorch(tmp_path):
    import torch
    from safetensors.torch import save_file

    theirs = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    for name, zipped in (("net.pt", True), ("net.pth", False)):
        torch.save(theirs.state_dict(), tmp_path / name, _use_new_zipfile_serialization=zipped)
        with pytest.raises(StateDictError, match="as torch.save writes: convert it"):
            nn.load_file(tmp_path / name)
        save_file(torch.load(tmp_path / name, weights_only=True), tmp_path / "net.safetensors")
        assert norms().load_state_dict(nn.load_file(tmp_path / "net.safetensors")) == ([], [])
    del (state := theirs.state_dict())["1.num_batches_tracked"]
    with pytest.raises(StateDictError, match="missing 1.num_batches_tracked"):
        norms().load_state_dict(state)
    assert norms().load_state_dict(dict(state)) == ([], [])
