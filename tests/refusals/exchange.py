"""What the calls to a root, parts of all to all, and averages at once refuse on one rank."""

import minigrad
from minigrad import distributed as dist, nn
from minigrad.distributed import SoloCommunicator, average_parameters
from minigrad.distributed.average import Cadence, EveryK, PostLocalSGD, Sync, divergence_of
from minigrad.errors import ArgumentError, CallError, DtypeError, ShapeError
from tests.refusals import each

SOLO = SoloCommunicator()
TWO, THREE = minigrad.zeros(2), minigrad.zeros(3)
ROWS = [
    # average_parameters
    *each(
        (average_parameters, ArgumentError),
        (nn.Linear(1, 1), SOLO, -1, "average_parameters: expected a finite number of samples >= 0, got -1"),
        (3, SOLO, 1, "average_parameters: expected a Module or a wrapper of one, got int"),
        (nn.Linear(1, 1), 3, 1, "average_parameters: expected a communicator, got int"),
    ),
    *each(
        (divergence_of, ArgumentError),
        ([], "relative as a number of each rank"),
        ([[1.0, 2.0]], "divergence_of: expected three sums of each rank, got 2 of rank 0"),
        ([[1.0, 2.0, 1.0]], 0, "steps to be an integer >= 1, got 0"),
    ),
    # policies, as they are made in another way
    (lambda: Sync(3), CallError, r"Sync: expected Sync\(\), got a call with too many positional arguments"),
    (lambda: EveryK(every=3), CallError, r"EveryK: expected EveryK\(k\), got a call with missing a required"),
    (lambda: PostLocalSGD(10), CallError, r"PostLocalSGD: expected PostLocalSGD\(switch, k\), got a call with missing"),
    (lambda: Cadence(0.1), ArgumentError, "Cadence: expected a CadenceConfig, got 0.1"),
    # process_group
    *each(
        (lambda value, into, dst: dist.gather_object(value, into, dst, SOLO), (ArgumentError, DtypeError)),
        (1, None, 0, "gather_object: expected object_gather_list on rank 0, got None"),
        (1, [None, None], 0, "object_gather_list of 1, one for each rank, got 2"),
        ((1,), [None], 0, "data that JSON keeps as it is, got the tuple"),
        (1, [None], 1, r"dst to be one of the global ranks \[0\], got 1"),
    ),
    *each(
        (lambda into, values: dist.scatter_object_list(into, values, 0, SOLO), ArgumentError),
        ([None], [1, 2], "scatter_object_input_list of 1, one for each rank, got 2"),
        ([], [1], "a list with a place for an object, got .."),
        ([None], None, "scatter_object_input_list on rank 0, got None"),
    ),
    *each(
        (lambda *args: dist.all_to_all_single(*args, group=SOLO), (ArgumentError, ShapeError)),
        (TWO, THREE, "expected output of 3 elements, as source, got 2"),
        (TWO, TWO, [1], [2], "output_split_sizes that add up to its 2 rows, got .1."),
        (TWO, TWO, [2], [2, 1], "input_split_sizes of 1, one for each rank, got 2"),
    ),
    (lambda: dist.all_to_all([TWO], [TWO, TWO], group=SOLO), ArgumentError, "input_tensor_list of 1, one"),
    (lambda: dist.scatter(TWO, [THREE], group=SOLO), ShapeError, r"scatter_list\[0\] to be float32 \(2,\), got"),
    (lambda: dist.gather(TWO, [THREE], group=SOLO), ShapeError, r"gather_list\[0\] to be float32 \(2,\), got"),
    (lambda: dist.reduce(TWO, 1, group=SOLO), ArgumentError, r"dst to be one of the global ranks \[0\], got 1"),
]
