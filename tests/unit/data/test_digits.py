import hashlib
import sys

import numpy as np
import pytest

from minigrad.data import digits
from minigrad.errors import MissingPackageError


def test_the_parts_are_the_whole():
    train, test, every = (digits(split).arrays for split in ("train", "test", "all"))
    assert train[0].shape == (1437, 1, 8, 8) and test[0].shape == (360, 1, 8, 8)
    both = np.concatenate([train[0], test[0]]).reshape(1797, 64)
    whole = every[0].reshape(1797, 64)
    assert sorted(map(bytes, both)) == sorted(map(bytes, whole))
    assert every[0].dtype == np.float32 and every[1].dtype == np.int64
    assert every[0].min() == 0.0 and every[0].max() == 1.0


def test_the_images_keep_their_labels():
    """The two parts of the images, told apart by their pixels, have the labels that scikit-learn gives them."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    known = {bytes((image / 16).astype(np.float32)): label for image, label in zip(pixels, labels)}
    for split in ("train", "test"):
        images, found = digits(split).arrays
        assert [known[bytes(image)] for image in images] == found.tolist()


def test_each_class_has_its_fraction_in_the_test_set():
    counts = {split: np.bincount(digits(split).arrays[1]) for split in ("test", "all")}
    assert np.all(np.abs(counts["test"] - counts["all"] * 360 / 1797) < 1)


def test_the_split_is_the_same_on_every_machine():
    """Recorded once."""
    labels = digits("test").arrays[1]
    assert labels[:12].tolist() == [1, 4, 6, 1, 8, 0, 5, 5, 6, 8, 3, 0]
    assert hashlib.sha256(labels.astype("<i8").tobytes()).hexdigest()[:16] == "b8a87dc55b9fcfb5"


def test_another_seed_gives_another_split():
    images = [digits("test", seed=seed).arrays[0].tobytes() for seed in (0, 0, 1)]
    assert images[0] == images[1] != images[2]


def test_standardized_by_the_training_set():
    train, test = (digits(split, standardize=True, dtype="float64").arrays[0] for split in ("train", "test"))
    assert abs(train.mean()) < 1e-12 and abs(train.std() - 1) < 1e-12
    assert 1e-12 < abs(test.mean()) < 0.1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_pixels_of_any_float_dtype(dtype):
    images = digits("test", dtype=dtype).arrays[0]
    assert images.dtype.name == dtype
    assert np.array_equal(images.astype(np.float64) * 16, np.round(images.astype(np.float64) * 16))


def test_without_scikit_learn_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'minigrad\[examples\]'"):
        digits()
