"""The stand-in for CuPy: what it takes, what it refuses, what it counts as waiting for the GPU."""

import copy
import sys
import threading

import numpy as np
import pytest

from minigrad import Device, available_devices
from minigrad.backend import device
from minigrad.backend.device import array_module, device_of, to_device, to_host
from tests.strict_cupy import MissingError, RefusedError, StrictError, cupy, ndarray, no_sync, syncs

HOST = np.arange(12.0).reshape(3, 4)


@pytest.fixture
def x():
    return cupy.asarray(HOST)


# ------------------------------------------------------------------------------------------------ what it takes


@pytest.mark.parametrize(
    "compute",
    [
        lambda xp, x: x + 1,
        lambda xp, x: 2 - x * x,
        lambda xp, x: x @ x.T,
        lambda xp, x: x.dot(x.T),
        lambda xp, x: -x[1:, ::2] ** 2,
        lambda xp, x: xp.exp(x).sum(axis=0, keepdims=True),
        lambda xp, x: xp.where(x > 3, x, 0.0),
        lambda xp, x: xp.concatenate([x, x.T.reshape(3, 4)], axis=1),
        lambda xp, x: xp.einsum("ij,kj->ik", x, x),
        lambda xp, x: xp.tensordot(x, x, axes=([1], [1])),
        lambda xp, x: xp.lib.stride_tricks.sliding_window_view(x, (2, 2)).sum(axis=(-1, -2)),
        lambda xp, x: x[xp.asarray([2, 0, 0])],
        lambda xp, x: x[x > 3],
        lambda xp, x: xp.add(x, x, out=xp.zeros_like(x)),
        lambda xp, x: xp.add.reduce(x, axis=1),
        lambda xp, x: np.float32(2) * x.astype("float32"),
        lambda xp, x: np.exp(x) + np.sum(x),
        lambda xp, x: np.linalg.norm(x),
        lambda xp, x: x.argmax(axis=1),
        lambda xp, x: divmod(x, 3.0)[1],
        lambda xp, x: abs(~(x > 2)),
    ],
)
def test_results_are_numpys_and_stay_on_the_device(x, compute):
    got, expected = compute(cupy, x), np.asarray(compute(np, HOST))
    assert isinstance(got, ndarray)
    assert got.dtype == expected.dtype and got.shape == expected.shape
    assert np.array_equal(got.memory, expected)


def test_it_is_no_numpy_array(x):
    assert not isinstance(x, np.ndarray)
    assert type(x).__module__ == "cupy"
    assert not hasattr(x, "ctypes") and not hasattr(x.flags, "writeable")


def test_a_reduction_gives_an_array_of_no_axes(x):
    assert isinstance(x.sum(), ndarray) and x.sum().shape == ()
    assert isinstance(x[0, 0], ndarray)


def test_slices_are_views_and_writing_through_them_shows(x):
    x[1:][0, 0] = 50
    x.T[:] += 1
    assert x.memory[1, 0] == 51
    assert HOST[1, 0] == 4


def test_new_memory_is_in_c_order(x):
    assert (HOST.T + 1).flags.f_contiguous
    assert (x.T + 1).flags.c_contiguous


def test_bad_values_warn_no_one(x):
    assert np.isnan((x * 0 / 0).memory).all()
    assert np.isneginf(cupy.log(x * 0).memory).all()


def test_empty_memory_shows_when_it_is_read():
    assert np.isnan(cupy.empty((2, 3), "float32").memory).all()


# ------------------------------------------------------------------------------------------- host against device


@pytest.mark.parametrize(
    "mix",
    [
        lambda x: np.asarray(x),
        lambda x: np.array(x),
        lambda x: x + HOST,
        lambda x: HOST + x,
        lambda x: x + np.array(1.0),
        lambda x: np.add(x, HOST),
        lambda x: np.add(HOST, x),
        lambda x: cupy.add(HOST, 1.0),
        lambda x: np.add(x, 1.0, out=np.zeros((3, 4))),
        lambda x: cupy.where(x > 0, x, HOST),
        lambda x: cupy.concatenate([x, HOST]),
        lambda x: np.concatenate([HOST, x]),
        lambda x: cupy.matmul(x, HOST.T),
        lambda x: x.dot(HOST.T),
        lambda x: x[np.array([0, 1])],
        lambda x: x.sum(axis=0, out=np.zeros(4)),
        lambda x: x.__iadd__(HOST),
        lambda x: x.__setitem__(..., HOST),
        lambda x: x.__setitem__(..., np.array(1.0)),
        lambda x: x.__setitem__(..., [1.0, 2.0, 3.0, 4.0]),
        lambda x: HOST.copy().__setitem__(..., x),
        lambda x: HOST.copy().__iadd__(x),
    ],
)
def test_host_and_device_do_not_mix(x, mix):
    with pytest.raises(RefusedError):
        mix(x)


def test_scalars_of_numpy_and_python_are_fine(x):
    for scalar in (1, 1.0, True, np.float64(1.0), np.int32(1)):
        assert ((x + scalar).memory == HOST + 1).all()


@pytest.mark.parametrize("mix", [lambda x: x + [1, 2, 3, 4], lambda x: cupy.add(x, [1]), lambda x: np.exp([x])])
def test_elementwise_functions_take_no_lists(x, mix):
    with pytest.raises(TypeError):
        mix(x)


def test_upload_and_download_are_copies(x):
    host = x.get()
    host[0, 0] = 7
    assert x.memory[0, 0] == 0
    x.set(host)
    assert x.memory[0, 0] == 7 and cupy.asnumpy(x)[0, 0] == 7
    with pytest.raises(RefusedError):
        x.set(host.astype("float32"))


# ---------------------------------------------------------------------------------------------- names and keywords


@pytest.mark.parametrize(
    "name",
    "errstate vecdot insert nditer ndenumerate frompyfunc unstack spacing einsum_path block matvec polyint".split(),
)
def test_names_that_cupy_lacks_are_missing(name):
    assert not hasattr(cupy, name)
    with pytest.raises(MissingError):
        getattr(cupy, name)


@pytest.mark.parametrize("name", "vecdot vector_norm tensordot svdvals".split())
def test_names_that_its_linalg_lacks_are_missing(name):
    with pytest.raises(MissingError):
        getattr(cupy.linalg, name)


@pytest.mark.parametrize("name", "normal permutation shuffle choice spawn bit_generator".split())
def test_methods_that_its_generator_lacks_are_missing(name):
    generator = cupy.random.default_rng(0)
    assert generator.standard_normal((2, 3)).shape == (2, 3)
    with pytest.raises(MissingError):
        getattr(generator, name)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: cupy.add(x, x, where=x > 0),
        lambda x: np.add(x, x, where=True),
        lambda x: cupy.add(x, x, order="C"),
        lambda x: x.sum(initial=0),
        lambda x: cupy.max(x, initial=0, axis=0),
        lambda x: np.sum(x, where=x > 0),
        lambda x: cupy.var(x, correction=1),
        lambda x: x.take(cupy.asarray([1]), mode="clip"),
        lambda x: x.astype("int64", casting="unsafe"),
        lambda x: cupy.clip(x, min=0),
        lambda x: cupy.einsum("ij->i", x, out=cupy.zeros(3)),
        lambda x: cupy.einsum("ij->i", x, order="C"),
        lambda x: cupy.lib.stride_tricks.sliding_window_view(x, (2, 2), writeable=True),
        lambda x: cupy.argsort(x, stable=True),
        lambda x: cupy.argsort(x, kind="heapsort"),
        lambda x: x.sort(kind="quicksort"),
        lambda x: cupy.sort(x.max()),
        lambda x: x.astype("bfloat16").argsort(),
        lambda x: cupy.zeros(3, device="cpu"),
    ],
)
def test_keywords_that_cupy_does_not_take(x, call):
    with pytest.raises(RefusedError):
        call(x)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: cupy.maximum.reduce(x),
        lambda x: cupy.logical_or.reduce(x > 0),
        lambda x: np.maximum.reduce(x),
        lambda x: cupy.maximum.accumulate(x),
        lambda x: cupy.multiply.reduceat(x, cupy.asarray([0, 1])),
        lambda x: cupy.multiply.at(x, cupy.asarray([0]), 2.0),
    ],
)
def test_methods_that_a_ufunc_lacks(x, call):
    with pytest.raises(RefusedError):
        call(x)


@pytest.mark.parametrize("dtype", ["int8", "int16", "uint8", "bool", "complex64"])
def test_add_at_refuses_dtypes_without_atomics(dtype):
    with pytest.raises(RefusedError, match=dtype):
        cupy.add.at(cupy.zeros(3, dtype), cupy.asarray([0]), 1)


def test_add_at_adds_for_each_mention():
    total = cupy.zeros(3, "float32")
    cupy.add.at(total, cupy.asarray([0, 2, 0]), cupy.ones(3, "float32"))
    assert total.memory.tolist() == [2, 0, 1]


# ------------------------------------------------------------------------------------------- silently wrong on a GPU


@pytest.mark.parametrize(
    "use",
    [
        lambda x, i: x[i],
        lambda x, i: x[:, i],
        lambda x, i: x[i, i],
        lambda x, i: x.take(i, axis=0),
        lambda x, i: cupy.take(x, i, axis=0),
        lambda x, i: cupy.take_along_axis(x[:2], i[:, None], axis=1),
        lambda x, i: cupy.add.at(x, i, 1.0),
        lambda x, i: x.__setitem__(i, 0.0),
    ],
)
@pytest.mark.parametrize("bad", [4, -5])
def test_index_arrays_out_of_range(x, use, bad):
    with pytest.raises(StrictError, match="wrap around"):
        use(x, cupy.asarray([0, bad]))


def test_a_python_index_out_of_range_is_an_ordinary_error(x):
    with pytest.raises(IndexError):
        x[3]


def test_assigning_twice_to_one_element(x):
    with pytest.raises(StrictError, match="duplicates"):
        x[cupy.asarray([1, 1])] = cupy.asarray(HOST[:2])
    x[cupy.asarray([1, 1])] = 5.0
    x[cupy.asarray([1, 2])] = cupy.asarray(HOST[:2])
    assert (x.memory[2] == HOST[1]).all()


@pytest.mark.parametrize("view", [lambda x: cupy.broadcast_to(x, (2, 3, 4)), lambda x: cupy.broadcast_to(x[0], (3, 4))])
def test_writing_into_a_broadcast_view(x, view):
    with pytest.raises(StrictError, match="shared"):
        view(x)[...] = 1.0
    with pytest.raises(StrictError, match="shared"):
        view(x).__iadd__(1.0)


@pytest.mark.parametrize("value", [np.inf, np.nan, -1.0])
def test_casting_what_differs_between_both(value):
    with pytest.raises(StrictError):
        cupy.asarray([value]).astype("uint8")
    assert cupy.asarray([3.7]).astype("uint8").memory.tolist() == [3]


@pytest.mark.parametrize("product", [cupy.matmul, cupy.dot, lambda a, b, out: a.dot(b, out)])
@pytest.mark.parametrize("out", [lambda: cupy.zeros((3, 3)).T[:, ::-1], lambda: cupy.zeros((3, 3), "float32")])
def test_products_want_contiguous_out_of_their_dtype(x, product, out):
    with pytest.raises(StrictError, match="C order"):
        product(x, x.T, out=out())


def test_products_write_into_out(x):
    out = cupy.zeros((3, 3))
    assert cupy.matmul(x, x.T, out=out) is out and x.dot(x.T, out) is out
    assert (out.memory == HOST @ HOST.T).all()


# ------------------------------------------------------------------------------------------------------- waiting


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x[0, 0].item(),
        lambda x: float(x[0, 0]),
        lambda x: int(x[0, 0]),
        lambda x: bool(x[0, 0] > 0),
        lambda x: complex(x[0, 0]),
        lambda x: f"{x[0, 0]:.3f}",
        lambda x: str(x),
        lambda x: x.tolist(),
        lambda x: x.get(),
        lambda x: x.tobytes(),
        lambda x: cupy.asnumpy(x),
        lambda x: x[x > 1],
        lambda x: x.__setitem__(x > 9, cupy.zeros(2)),
        lambda x: cupy.nonzero(x),
        lambda x: x.nonzero(),
        lambda x: cupy.where(x > 1),
        lambda x: cupy.unique(x),
        lambda x: cupy.repeat(x, cupy.asarray([1, 2, 3]), axis=0),
        lambda x: cupy.cuda.Device(0).synchronize(),
        lambda x: cupy.cuda.get_current_stream().synchronize(),
    ],
)
def test_what_waits_is_counted_and_can_be_forbidden(x, read):
    before = syncs.count
    read(x)
    assert syncs.count == before + 1
    with no_sync(), pytest.raises(StrictError, match="wait"):
        read(x)


def test_computing_does_not_wait(x):
    with no_sync():
        y = cupy.where(x > 1, x, 0.0).sum()
        x[x > 1] = 0.0
        x *= y
        x[cupy.asarray([0])].max(axis=0)


def test_an_element_is_no_python_index():
    with pytest.raises(TypeError):
        range(cupy.asarray(3))


# ------------------------------------------------------------------------------------------------------- devices


def test_devices_do_not_mix(x):
    with cupy.cuda.Device(1):
        y = cupy.asarray(HOST)
        assert y.device.id == 1
        for use in (lambda: x + y, lambda: y + x, lambda: x.sum(), lambda: y.__setitem__(..., x)):
            with pytest.raises(StrictError, match="current device"):
                use()
        assert (y + y).device.id == 1
        assert x.T.reshape(-1)[2:].device.id == 0
    with pytest.raises(StrictError, match="cuda:1"):
        y + 1


def test_copies_arrive_on_the_current_device(x):
    with cupy.cuda.Device(1):
        for moved in (x.copy(), cupy.asarray(x), cupy.array(x), copy.deepcopy(x)):
            assert moved.device.id == 1 and (moved.memory == HOST).all()
    assert cupy.asarray(x) is x


def test_the_current_device_belongs_to_a_thread():
    seen = []
    with cupy.cuda.Device(1):
        thread = threading.Thread(target=lambda: seen.append(cupy.cuda.Device().id))
        thread.start()
        thread.join()
        assert cupy.cuda.Device().id == 1
    assert seen == [0] and cupy.cuda.Device().id == 0


def test_a_device_that_is_not_there():
    with pytest.raises(StrictError, match="got 2"):
        cupy.cuda.Device(2).use()


def test_minigrad_takes_it_for_cupy(strict_cupy):
    assert [str(found) for found in available_devices()] == ["cpu", "cuda:0", "cuda:1"]
    moved = to_device(HOST, Device("cuda:1"))
    assert array_module(moved) is strict_cupy and device_of(moved) == Device("cuda:1")
    assert (to_host(to_device(moved, Device("cuda:0"))) == HOST).all()


def test_without_the_fixture_it_is_out_of_sight():
    """Whatever used the fixture before in this process."""
    assert sys.modules.get("cupy") is not cupy
    assert ndarray not in device._MODULES
