import numpy as np
import pytest

from minigrad import Generator
from minigrad.data import (
    ArrayDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    RandomSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)
from minigrad.data.dataset import batch_reader, read_samples
from minigrad.errors import DtypeError, IndexRangeError
from minigrad.tensor import Tensor


@pytest.fixture
def dataset():
    return ArrayDataset(np.arange(10, dtype=np.float32).reshape(5, 2), Tensor(np.arange(5)))


def test_a_sample_is_a_row_of_each_array(dataset):
    row, label = dataset[3]
    assert len(dataset) == 5
    assert row.tolist() == [6.0, 7.0] and label == 3
    assert dataset[-1][1] == 4


def test_a_batch_is_a_tensor_for_each_array(dataset):
    rows, labels = dataset.batch([4, 0, 4])
    assert rows.shape == (3, 2) and rows.dtype == np.float32
    assert labels.tolist() == [4, 0, 4]


def test_an_empty_batch_keeps_shapes_and_dtypes(dataset):
    rows, labels = dataset.batch([])
    assert rows.shape == (0, 2) and labels.shape == (0,) and labels.dtype == np.int64


def test_a_batch_is_a_copy(dataset):
    dataset.batch([0])[0].data[:] = 100.0
    assert dataset[0][0].tolist() == [0.0, 1.0]


def test_a_batch_of_arrays_on_a_gpu_stays_there(cuda, strict_cupy):
    dataset = ArrayDataset(strict_cupy.arange(6, dtype=np.float32))
    (batch,) = dataset.batch([5, 0])
    assert batch.device is cuda and batch.tolist() == [5.0, 0.0]
    with pytest.raises(IndexRangeError, match=r"expected indices in \[-6, 6\), got 6"):
        dataset.batch([0, 6])


@pytest.mark.parametrize("index", [5, -6])
def test_an_index_out_of_range_is_refused(dataset, index):
    with pytest.raises(IndexRangeError, match=rf"\[-5, 5\), got {index}"):
        dataset[index]
    with pytest.raises(IndexRangeError, match=rf"\[-5, 5\), got {index}"):
        dataset.batch([0, index])


@pytest.mark.parametrize("index", [slice(2), 1.0, True, None], ids=repr)
def test_an_index_that_is_no_integer_is_refused(dataset, index):
    with pytest.raises(DtypeError, match="expected an integer as index"):
        dataset[index]


@pytest.mark.parametrize("indices", [[0.5], [True, False], [[0, 1]], ["a"]], ids=repr)
def test_indices_that_are_no_integers_are_refused(dataset, indices):
    with pytest.raises(DtypeError, match="expected a sequence of integers"):
        dataset.batch(indices)
    with pytest.raises(DtypeError, match="expected a sequence of integers"):
        Subset(dataset, indices)


def test_a_subset_has_its_own_order(dataset):
    subset = Subset(dataset, np.array([4, 1, 1]))
    assert subset.indices == [4, 1, 1] and type(subset.indices[0]) is int and subset.places.dtype == np.int64
    assert len(subset) == 3
    assert [label for _, label in (subset[0], subset[1], subset[-1])] == [4, 1, 1]
    assert [label for _, label in subset.__getitems__([2, 0])] == [1, 4]


@pytest.mark.parametrize("index", [-1, 5])
def test_a_subset_of_samples_that_are_not_there_is_refused(dataset, index):
    with pytest.raises(IndexRangeError, match=rf"Subset: expected indices in \[0, 5\), got {index}"):
        Subset(dataset, [0, index])


def test_an_index_beyond_a_subset_is_refused(dataset):
    subset = Subset(dataset, [4, 1])
    with pytest.raises(IndexRangeError, match=r"\[-2, 2\), got 2"):
        subset[2]
    with pytest.raises(IndexRangeError, match=r"\[-2, 2\), got 2"):
        subset.__getitems__([0, 2])


def test_samples_are_read_in_one_call_where_the_dataset_can():
    class Many:
        calls = []

        def __len__(self):
            return 4

        def __getitem__(self, index):
            raise AssertionError("one by one")

        def __getitems__(self, indices):
            self.calls.append(indices)
            return [10 * i for i in indices]

    assert read_samples(Subset(Many(), [3, 2, 1]), [0, 2]) == [30, 10]
    assert Many.calls == [[3, 1]]


def test_arrays_are_read_by_the_batch_also_through_subsets(dataset):
    read = batch_reader(Subset(Subset(dataset, [4, 3, 2]), [2, 0]))
    assert read([0, 1])[1].tolist() == [2, 4]


def test_a_derived_dataset_is_read_by_the_sample():
    """It may change its samples, which reading by the batch would not see."""

    class Negated(ArrayDataset):
        def __getitem__(self, index):
            return tuple(-part for part in super().__getitem__(index))

    dataset = Negated(np.arange(3.0))
    assert batch_reader(dataset) is None and batch_reader(Subset(dataset, [0])) is None


def test_random_split_is_the_same_each_time_and_another_for_another_seed():
    dataset = ArrayDataset(np.arange(100))

    def parts(seed):
        return [part.indices for part in random_split(dataset, [0.7, 0.3], seed=seed)]

    assert parts(3) == parts(3) != parts(4)


def test_a_split_is_no_shuffle_of_the_same_seed():
    (whole,) = random_split(ArrayDataset(np.arange(100)), [100], seed=3)
    assert whole.indices != RandomSampler(100, seed=3).order(0).tolist()


def test_random_split_takes_whole_numbers():
    parts = random_split(ArrayDataset(np.arange(5)), [0, 3, 2])
    assert [len(part) for part in parts] == [0, 3, 2]
    assert sorted(i for part in parts for i in part.indices) == list(range(5))


def test_tensors_as_a_dataset():
    images, labels = Tensor(np.arange(12.0).reshape(4, 3)), Tensor(np.arange(4))
    dataset = TensorDataset(images, labels)
    image, label = dataset[-1]
    assert isinstance(image, Tensor) and image.tolist() == [9.0, 10.0, 11.0] and label.item() == 3
    assert dataset.tensors == (images, labels) and len(dataset) == 4
    assert dataset[1:3][1].tolist() == dataset[[1, 2]][1].tolist() == [1, 2]
    assert [label.item() for _, label in dataset] == [0, 1, 2, 3]
    assert [batch[1].tolist() for batch in DataLoader(dataset, 3)] == [[0, 1, 2], [3]]


def test_datasets_one_after_the_other():
    dataset = ConcatDataset([[10, 11], [], Subset([20, 21, 22], [2, 0])])
    assert [dataset[i] for i in range(4)] == [10, 11, 22, 20] == list(dataset)
    assert dataset[-1] == 20 and dataset[np.int64(-4)] == 10 and dataset.cumulative_sizes == [2, 2, 4]
    assert [batch.tolist() for batch in DataLoader(dataset, 3)] == [[10, 11, 22], [20]]


@pytest.mark.parametrize("lengths, expected", [([0.8, 0.1, 0.1], [1438, 180, 179]), ([0.15, 0.85], [270, 1527])])
def test_fractions_are_rounded_as_in_pytorch(lengths, expected):
    assert [len(part) for part in random_split(range(1797), lengths)] == expected


@pytest.mark.parametrize("write", ["generator", "seed"])
def test_a_generator_gives_the_seed(write):
    def orders(number):
        given = {write: Generator().manual_seed(number)}
        (order,) = DataLoader(TensorDataset(Tensor(np.arange(20))), 20, shuffle=True, **given)
        parts = random_split(range(20), [0.5, 0.5], **given)
        return [order[0].tolist(), parts[0].indices, list(WeightedRandomSampler([1, 2], 20, **given))]

    assert orders(3) == orders(3)
    assert all(one != other for one, other in zip(orders(3), orders(4)))
    first, second = (random_split(range(20), [10, 10], *none) for none in ([], [None]))
    assert first[0].indices == second[0].indices


def test_datasets_are_added_and_a_loader_says_what_it_was_made_with():
    class Squares(Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return index**2

    both = Squares() + [10, 11]
    assert [both[i] for i in range(len(both))] == [0, 1, 4, 10, 11] and len(both + Subset([1, 2], [0])) == 6
    loader = DataLoader(both, batch_size=2, drop_last=True)
    assert (loader.batch_size, loader.drop_last, len(loader.dataset)) == (2, True, 5)
    assert DataLoader(both, batch_sampler=[[0]]).batch_size is None
