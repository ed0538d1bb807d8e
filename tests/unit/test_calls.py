"""How a PyTorch user calls things: other spellings of keywords, names that are not here, no_grad in all its forms."""

import importlib
import inspect
import pickle
import re
import threading
from types import ModuleType

import numpy as np
import pytest

import minigrad
from minigrad import cuda, data, distributed, nn, optim, train
from minigrad.absent import INSTEAD, OF_TENSORS
from minigrad.absent_seeds import SEEDS
from minigrad.distributed.comm.work import OVER
from minigrad.distributed.process_group import PendingWork
from minigrad.errors import (
    AbsentModuleError, AbsentNameError, ArgumentError, AutogradError, CallError, DeviceError, DtypeError, ShapeError,
)
from minigrad.foreign import KEYWORDS
from minigrad.nn import functional

X = minigrad.arange(6.0).reshape(2, 3)
GENERATOR = minigrad.Generator().manual_seed(0)

SPELLINGS = {  # as PyTorch or NumPy writes it, and as our signature has it
    "input": (lambda: minigrad.sum(input=X, axis=1, keepdims=True), lambda: X.sum(1, True)),
    "self": (lambda: minigrad.exp(self=X), lambda: X.exp()),
    "other": (lambda: X.mul(other=X), lambda: X * X),
    "exponent": (lambda: minigrad.pow(X, exponent=2), lambda: X**2),
    "dims": (lambda: minigrad.permute(input=X, dims=(1, 0)), lambda: X.T),
    "axes": (lambda: minigrad.flip(X, axes=(0,)), lambda: X.flip(0)),
    "shape": (lambda: X.reshape(shape=(3, 2)), lambda: X.reshape(3, 2)),
    "size": (lambda: minigrad.zeros(size=(2, 3)), lambda: X * 0),
    "where": (lambda: minigrad.where(X > 2, input=X, other=0.0), lambda: X * (X > 2)),
    "generator": (lambda: minigrad.rand(2, 3, 1, generator=GENERATOR.manual_seed(1)),  # as many as there are arguments
                  lambda: minigrad.rand((2, 3, 1), rng=GENERATOR.manual_seed(1))),
    "out": (lambda: minigrad.exp(X, out=None), lambda: X.exp()),
    "to": (lambda: X.to("cpu", non_blocking=True, copy=False), lambda: X),
    "layout": (lambda: minigrad.zeros(2, 3, layout=None, pin_memory=False), lambda: X * 0),
    "functional": (lambda: functional.relu(input=X - 2), lambda: (X - 2).relu()),
    "like": (lambda: X.new_full((2,), 3), lambda: minigrad.full((2,), 3.0)),
    "view_as": (lambda: X.view_as(other=minigrad.ones(3, 2)), lambda: X.reshape(3, 2)),
    "type_as": (lambda: minigrad.ones(2, dtype=int).type_as(X), lambda: minigrad.ones(2)),
    "dtype": (lambda: X.int().softmax(1, dtype=float), lambda: X.softmax(1)),
    "log_softmax": (lambda: functional.log_softmax(X, -1, dtype="float64"), lambda: X.double().log_softmax(-1)),
    "pair": (lambda: minigrad.max(input=X, other=X * 2), lambda: X * 2),
    "type": (lambda: X.type(minigrad.double), lambda: X.double()),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_another_spelling_means_the_same(name):
    theirs, ours = (call() for call in SPELLINGS[name])
    assert theirs.dtype == ours.dtype and theirs.tolist() == ours.tolist()


REFUSED = {
    r"^add: expected add\(x, y.*\), got a call with missing a required argument: 'y'": lambda: minigrad.add(X),
    r"^relu: expected relu\(x.*\), got a call with too many positional": lambda: X.relu(False, 1, 2),
    r"^sum: .* keyword argument 'dimm': did you mean dim\?": lambda: X.sum(dimm=1),
    r"^sum: .* got a call with two values for dim": lambda: X.sum(dim=1, axis=1),
    r"^reshape: .* got a call with two values for shape": lambda: X.reshape(6, shape=(3, 2)),
    r"^permute: .* got a call with two values for dims": lambda: minigrad.permute(X, dims=(1, 0), axes=(0, 1)),
    r"^zeros: .* got a call with two values for size": lambda: minigrad.zeros(2, 3, size=(4,)),
    r"^zeros: expected zeros\(\*size, dtype=float, .*'dtyp': did you mean dtype\?": lambda: minigrad.zeros(2, dtyp=1),
    r"^Linear: expected Linear\(in_features, .*'dtype_': did you mean dtype\?": lambda: nn.Linear(3, 4, dtype_="x"),
    r"^Sigmoid: expected Sigmoid\(\), got": lambda: nn.Sigmoid(rate=1),
    r"^BatchNorm2d: expected BatchNorm2d\(num_features, ": lambda: nn.BatchNorm2d(),
    r"^SGD: expected SGD\(params, .*'lrr': did you mean lr\?": lambda: optim.SGD([nn.Parameter(X)], lrr=1),
    r"^DataLoader: expected DataLoader\(dataset, .*did you mean batch_size": lambda: data.DataLoader([1], batchsize=2),
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_call_that_does_not_fit_shows_the_signature(message):
    with pytest.raises(CallError, match=message) as caught:
        REFUSED[message]()
    assert isinstance(caught.value, (ArgumentError, TypeError))


def test_a_keyword_that_asks_for_what_is_not_done_says_what_to_write():
    with pytest.raises(ArgumentError, match=r"(?s)^exp: expected no out, got .*write y.copy_\(result\)"):
        minigrad.exp(X, out=X)
    with pytest.raises(ArgumentError, match="Conv2d: expected no padding_mode, got 'reflect': write nn.functional.pad"):
        nn.Conv2d(1, 1, 3, padding_mode="reflect")
    nn.Conv2d(1, 1, 3, padding_mode="zeros")
    with pytest.raises(DtypeError, match="^exp: expected a tensor"):  # errors of the operation stay what they are
        minigrad.exp(input="one")


PARAM = nn.Parameter(np.ones(1))
ZERO = minigrad.zeros(1, dtype="int64")
CALLED = {  # beside what tests/distributed/test_messages.py makes
    "operation": lambda **o: minigrad.exp(X, **o),
    "scatter": lambda **o: X[0].scatter(0, ZERO, 1.0, **o),
    "scatter_": lambda **o: X[0].clone().scatter_(0, ZERO, 1.0, **o),
    "searchsorted": lambda **o: minigrad.searchsorted(X[0], X, **o),
    "cov": lambda **o: minigrad.cov(X, **o),
    "wait": lambda **o: PendingWork(OVER).wait(**o),
    "embedding": lambda **o: functional.embedding(ZERO, X, **o),
    "multi_head_attention_forward": lambda **o: functional.multi_head_attention_forward(
        X, X, X, X.shape[-1], 1, minigrad.ones(3 * X.shape[-1], X.shape[-1], dtype=X.dtype), *[None] * 3, False, 0.0,
        minigrad.ones(X.shape[-1], X.shape[-1], dtype=X.dtype), None, **o),
    "Embedding": lambda **o: nn.Embedding(2, 3, **o),
    "Convolution": lambda **o: nn.Conv2d(1, 1, 1, **o),
    "ConvolutionBack": lambda **o: nn.ConvTranspose1d(1, 1, 1, **o),
    "MaxPool": lambda **o: nn.MaxPool2d(2, **o),
    "AvgPool": lambda **o: nn.AvgPool1d(2, **o),
    "Module": lambda **o: nn.MSELoss(**o),
    "RNN": lambda **o: nn.RNN(2, 3, **o),
    "GRU": lambda **o: nn.GRU(2, 3, **o),
    **{kind: lambda kind=kind, **o: getattr(optim, kind)([PARAM], **o)
       for kind in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "LAMB")},
    "Muon": lambda **o: optim.Muon([nn.Parameter(np.ones((2, 2)))], **o),
    "clip_grad_norm_": lambda **o: nn.utils.clip_grad_norm_([PARAM], 1.0, **o),
    "clip_grad_value_": lambda **o: nn.utils.clip_grad_value_([PARAM], 1.0, **o),
    "clip_grads_with_norm_": lambda **o: nn.utils.clip_grads_with_norm_([PARAM], 1.0, minigrad.ones(1), **o),
    "get_total_norm": lambda **o: nn.utils.get_total_norm([X], **o),
    "gradcheck": lambda **o: minigrad.autograd.gradcheck(minigrad.exp, [np.ones(1)], **o),
}
DEFAULTS = {  # where it is not None
    "padding_mode": "zeros",
    "proj_size": 0,
    "raise_exception": True,
    "nondet_tol": 0.0,
    **dict.fromkeys(["non_blocking", "requires_grad", "sparse_grad", "return_indices", "capturable"], False),
    **dict.fromkeys(["differentiable", "fast_mode", "scale_grad_by_freq", "sparse"], False),
}
ANYTHING = {"norm_type", "rtol"}  # of what is not there


@pytest.mark.parametrize("who, name", [entry for entry in KEYWORDS if entry[0] in CALLED], ids=lambda text: text)
def test_a_keyword_that_is_not_here_takes_what_pytorch_does_by_default(who, name):
    CALLED[who](**{name: DEFAULTS.get(name)})
    if name not in ANYTHING:
        with pytest.raises(ArgumentError, match=f"expected no {name}, got 'other': ") as caught:
            CALLED[who](**{name: "other"})
        assert KEYWORDS[who, name][0] in str(caught.value)


def test_every_keyword_is_tried():
    elsewhere = {"DistributedDataParallel", "DataLoader", "DistributedSampler", "load", "save"}
    elsewhere |= {"Accuracy", "Metric", "EveryK", "DiLoCo", "StreamingDiLoCo", "SlowMo"}  # tests/train/test_habits.py
    elsewhere |= {"RunConfig", "Checkpoint"}  # there too
    assert {who for who, _ in KEYWORDS} == {*CALLED, *elsewhere}


def test_signatures_stay_exact():
    assert str(inspect.signature(minigrad.sum)).startswith("(x: 'TensorLike', dim: 'Dim' = None")
    assert str(inspect.signature(nn.Linear)).startswith("(in_features: 'int', out_features: 'int', bias: 'bool' = True")
    assert minigrad.sum.__name__ == "sum" and "Sum over axes" in minigrad.sum.__doc__


ABSENT = {
    "minigrad: .* 'FloatTensor': write minigrad.tensor": lambda: minigrad.FloatTensor,
    "minigrad: .* 'kron': write minigrad.tensor\\(numpy.kron": lambda: minigrad.kron,
    "minigrad.nn: .* 'Conv3d': an image has two axes": lambda: nn.Conv3d,
    "minigrad.nn: .* 'DataParallel': write distributed.Ddp.wrap": lambda: nn.DataParallel,
    "minigrad.nn.functional: .* 'exp': write minigrad.exp": lambda: functional.exp,
    "minigrad.optim: .* 'Linear': write minigrad.nn.Linear": lambda: optim.Linear,
    "minigrad.data: .* 'DataLoder'": lambda: data.DataLoder,
    "minigrad.cuda: .* 'max_memory_allocated': write cuda.max": lambda: cuda.max_memory_allocated,
    "minigrad.amp: .* 'custom_fwd': leave it out": lambda: minigrad.amp.custom_fwd,
    "minigrad.cuda.amp: .* 'custom_bwd': leave it out": lambda: cuda.amp.custom_bwd,
    "minigrad.autograd.function: .* 'NestedIOFunction'": lambda: minigrad.autograd.function.NestedIOFunction,
    "minigrad.utils: .* 'tensorboard'": lambda: minigrad.utils.tensorboard,
    "minigrad.autograd: .* 'functional': write autograd.grad": lambda: minigrad.autograd.functional,
    "Tensor: .* 'to_sparse': tensors are dense": lambda: X.to_sparse(),
    "minigrad.distributed: .* 'DiLoCo': write minigrad.distributed.average.Di": lambda: distributed.DiLoCo,
    "minigrad.distributed: .* 'LocalSGD': write averager = .*EveryK": lambda: distributed.LocalSGD,
    "minigrad.distributed: .* 'PostLocalSGDOptimizer': write .*PostLocalSGD": lambda: distributed.PostLocalSGDOptimizer,
    "minigrad.distributed: .* 'TCPStore': leave it out": lambda: distributed.TCPStore,
    "minigrad.distributed: .* 'ApplyPolicy': write 'sync', 'cadence'": lambda: distributed.ApplyPolicy,
    "minigrad.distributed: .* 'DdpHandle': write train.Run": lambda: distributed.DdpHandle,
    "Trainer: .* 'fit': write Trainer.start": lambda: minigrad.Trainer.fit,
    "minigrad.train: .* 'ModelCheckpoint': write Checkpoint": lambda: train.ModelCheckpoint,
    "minigrad.train: .* 'GpuWorker': write Worker": lambda: train.GpuWorker,
    "minigrad.train: .* 'drain_scalars': write meter.finish": lambda: train.drain_scalars,
    "minigrad.train: .* 'MeanMetric': write Mean": lambda: train.MeanMetric,
    "DdpConfig: .* 'new': write DdpConfig.speed_hint": lambda: distributed.DdpConfig.new(),
    "ElChe: .* 'with_max_anchor': write ElChe.start": lambda: distributed.ElChe.start(2).with_max_anchor(3),
    "Graph: .* 'trend': write record_scalar": lambda: train.Graph.trend,
    "FlowBuilder: .* 'gate': write a Module whose": lambda: minigrad.FlowBuilder().gate,
    "DistributedDataParallel: .* 'into_inner': write ddp.unwrap": lambda: distributed.DDP.into_inner,
    "minigrad.distributed: .* 'NcclUniqueId': leave it out": lambda: distributed.NcclUniqueId,
    "minigrad.train: .* 'LMBatch': write data.Text": lambda: train.LMBatch,
    "Tensor: .* 'unsqueeze_': write x = x.unsqueeze": lambda: X.unsqueeze_(0),
    "Tensor: .* 'fmax': write .*numpy.fmax": lambda: X.fmax,
}


@pytest.mark.parametrize("message", ABSENT)
def test_a_name_that_is_not_here_says_what_to_write(message):
    with pytest.raises(AbsentNameError, match=message):
        ABSENT[message]()
    assert not hasattr(X, "nonsense") and not hasattr(nn, "__wrapped__")


IMPORTED = {
    "^minigrad: expected a name that it has, got 'multiprocessing': write python -m": "import minigrad.multiprocessing",
    "^minigrad.nn: .* 'CTCLoss': there is no loss over alignments": "from minigrad.nn import CTCLoss",
    "^minigrad.nn: .* 'MaxPooling2d': did you mean MaxPool2d": "from minigrad.nn import Linear, MaxPooling2d",
    "^minigrad: .* 'vmap': add an axis": "from minigrad import vmap",
    "^minigrad.nn: .* 'modules': write import minigrad.nn": "import minigrad.nn.modules.module as m",
    "^minigrad.distributed.algorithms: .* 'model_averaging': write .*EveryK": (
        "from minigrad.distributed.algorithms.model_averaging import averagers"
    ),
    "^minigrad.distributed: .* 'optim': write .*PostLocalSGD": "import minigrad.distributed.optim",
    "^minigrad.distributed: .* 'fsdp': write DistributedDataParallel": "from minigrad.distributed.fsdp import anything",
}


@pytest.mark.parametrize("message", IMPORTED)
def test_an_import_of_what_is_not_here_says_what_to_write(message):
    with pytest.raises(AbsentModuleError, match=message) as caught:
        exec(IMPORTED[message], {})
    assert isinstance(caught.value, ModuleNotFoundError)


def test_a_module_and_an_operation_of_ranks_say_what_to_write():
    layer = nn.Linear(1, 1)
    with pytest.raises(AbsentNameError, match="^Module: expected a name that it has, got 'compile': leave it out"):
        layer.compile()
    layer.compile = layer.type = nn.ReLU()  # names of one's own come first
    assert repr(layer.type) == "ReLU()" and list(dict(layer.named_children())) == ["compile"]
    with pytest.raises(AbsentNameError, match="^ReduceOp: expected a name that it has, got 'BAND': write all_gather"):
        distributed.ReduceOp.BAND
    assert not hasattr(nn.ReLU(), "register_backward_hook") and "BAND" not in distributed.ReduceOp.__members__


def test_what_a_tensor_is_told_to_write_is_there():
    for name in OF_TENSORS:
        with pytest.raises(AbsentNameError) as caught:
            getattr(X, name)
        told = re.match(r".*: write (x = )?(x|minigrad|minigrad.tensor\(numpy)\.(\w+)\(", str(caught.value))
        if told:
            place = {"x": minigrad.Tensor, "minigrad": minigrad}.get(told[2], np)
            assert callable(getattr(place, told[3])), str(caught.value)
    with pytest.raises(AbsentNameError, match="write x = minigrad.xlogy"):
        X.xlogy_
    with pytest.raises(AbsentNameError, match="hypot.x.numpy.., y.numpy"):
        X.hypot


def test_what_is_absent_is_not_here():
    places = {"minigrad": minigrad, "Tensor": minigrad.Tensor, "Module": nn.Module, "ReduceOp": distributed.ReduceOp}
    places |= {"Metric": train.Metric, "MetricCollection": train.MetricCollection}
    classes = (distributed.Ddp, distributed.DdpConfig, distributed.DistributedDataParallel, distributed.ElChe)
    classes += (train.DistributedTrainer, train.FlowBuilder, train.Graph, train.DdpBuilder, train.Run, train.Worker)
    classes += (train.Trainer, distributed.Timeline)
    places |= {kind.__name__: kind for kind in classes}
    for where, names in [*INSTEAD.items(), *SEEDS.items()]:
        place = places[where] if where in places else importlib.import_module(where)
        found = {name: getattr(place, name, ModuleType) for name in dir(place)}
        have = {name for name, value in found.items() if value is not ModuleType and not isinstance(value, ModuleType)}
        assert sorted(have & names.keys()) == [], f"{where} has them: take them out of the table"


def test_what_a_tensor_lacks_costs_what_it_has_nothing():
    """A `__getattr__` of the class would take the fast way from every attribute."""
    assert not any("__getattr__" in vars(kind) for kind in minigrad.Tensor.__mro__)
    assert [name for name in OF_TENSORS if hasattr(X, name) or name in dir(X)] == []
    assert [name for name in OF_TENSORS if name.endswith("_") and hasattr(minigrad, name)] == []


def test_dtypes_have_the_names_of_pytorch():
    assert [minigrad.float, minigrad.double, minigrad.half] == [np.float32, np.float64, np.float16]
    assert [minigrad.int, minigrad.long, minigrad.short, minigrad.bool] == [np.int32, np.int64, np.int16, np.bool_]
    assert minigrad.finfo(minigrad.float).max == np.finfo(np.float32).max and minigrad.finfo("bfloat16").bits == 16
    assert minigrad.iinfo("uint8").max == 255 and minigrad.get_default_dtype() == minigrad.float32
    minigrad.set_default_dtype(minigrad.float32)
    minigrad.set_default_device("cpu")
    with pytest.raises(ArgumentError, match="expected float32, got float64: write dtype="):
        minigrad.set_default_dtype("float64")
    with pytest.raises(DeviceError, match="expected cpu, got cuda:0: write device="):
        minigrad.set_default_device("cuda")
    for refused in (lambda: minigrad.finfo(int), lambda: minigrad.iinfo(float), lambda: minigrad.numel([1])):
        with pytest.raises(DtypeError):
            refused()


def test_functions_in_place_and_draws_of_a_distribution():
    x = minigrad.tensor([-1.0, 4.0])
    assert functional.relu_(x) is x and minigrad.add_(x, 1.0) is x and x.tolist() == [1.0, 5.0]
    assert minigrad.ones(2).addcmul_(x, x, value=2.0).tolist() == [3.0, 51.0]
    draws = minigrad.normal(5.0, 0.01, size=(50,), generator=GENERATOR.manual_seed(2))
    assert draws.shape == (50,) and abs(draws.mean().item() - 5) < 0.01
    assert minigrad.normal(minigrad.zeros(2, 1), minigrad.zeros(3)).tolist() == [[0.0] * 3] * 2
    for refused in (dict(mean=0.0), dict(mean=x, size=2), dict(std=-1.0, size=2)):
        with pytest.raises(ArgumentError, match="^normal: expected"):
            minigrad.normal(**refused)
    assert X.where(X > 2, -X).tolist() == minigrad.where(X > 2, X, -X).tolist()
    assert [X.short().dtype, X.byte().dtype, X.char().dtype] == [np.int16, np.uint8, np.int8]


def test_a_layer_takes_its_input_by_name():
    layer = nn.Linear(3, 2)
    assert layer(input=X).tolist() == layer(X).tolist()
    layer(input=X).backward(gradient=minigrad.ones(2, 2))
    assert layer.bias.grad.tolist() == [2.0, 2.0]
    assert nn.MSELoss()(input=X, target=X).item() == 0


def test_facts_about_a_tensor():
    x = minigrad.ones(2, 3, requires_grad=True)
    assert (x.nelement(), x.ndimension(), x.element_size(), x.itemsize, x.nbytes) == (6, 2, 4, 4, 24)
    assert x.stride() == (3, 1) and x.T.stride(0) == 1 and x.is_contiguous() and not x.T.is_contiguous()
    assert x.grad_fn is None and (x * 2).grad_fn is not None and not x.is_cuda and x.get_device() == -1
    assert x.data_ptr() == x.data.ctypes.data and x.is_floating_point() and not x.is_complex() and x.type() == "float32"
    assert minigrad.is_tensor(x) and not minigrad.is_tensor(x.data) and minigrad.numel(x) == 6


# -------------------------------------------------------------------------------------------------------- no_grad


def recording():
    return minigrad.is_grad_enabled()


def test_no_grad_decorates_functions_and_generators_with_and_without_brackets():
    assert not minigrad.no_grad(recording)() and not minigrad.no_grad()(recording)() and recording()

    @minigrad.no_grad()
    def counted(n):
        """Whether it records while it runs, n times."""
        for _ in range(n):
            yield recording()

    assert [(inside, recording()) for inside in counted(2)] == [(False, True)] * 2
    assert counted.__name__ == "counted"
    with minigrad.no_grad():
        assert minigrad.enable_grad(recording)() and not recording()
    with minigrad.inference_mode():
        assert not recording()
    with minigrad.inference_mode(mode=False):
        assert recording()


def test_a_block_is_entered_inside_itself_and_again():
    block, seen = minigrad.no_grad(), list[bool]()
    for _ in range(2):
        with block:
            with block:
                pass
            seen.append(minigrad.is_grad_enabled())
        seen.append(minigrad.is_grad_enabled())
    switch = minigrad.set_grad_enabled(False)
    minigrad.set_grad_enabled(True)
    for _ in range(2):
        with switch:
            seen.append(minigrad.is_grad_enabled())
        seen.append(minigrad.is_grad_enabled())
    assert seen == [False, True] * 4


def test_a_switch_that_nothing_can_come_of_is_refused():
    x = minigrad.ones(2, requires_grad=True)
    y = x * 2
    y.requires_grad = False
    with pytest.raises(AutogradError, match=r"write x.detach\(\)"):
        y * x
    integers = minigrad.arange(2)
    integers.requires_grad = True
    with pytest.raises(DtypeError, match="requires_grad: expected floats, got int64"):
        (integers * x).sum().backward()
    x.data = minigrad.zeros(2)
    with pytest.raises(DtypeError, match=r"got Tensor: assign array.data"):
        x + 1


def test_a_normal_of_shapes_that_do_not_fit_says_so():
    with pytest.raises(ShapeError, match=r"normal: expected shapes that broadcast, got \(2, 3\) and \(2,\)"):
        minigrad.normal(X, minigrad.ones(2))


def test_a_number_in_a_text_is_a_number():
    assert f"{minigrad.tensor(3)} {minigrad.tensor(0.5):.2f} {minigrad.ones(1)}".startswith("3 0.50 tensor([1.]")


def test_a_block_in_two_threads_gives_each_back_what_it_had():
    """The other one entered last, and within no_grad: its end is not that of this one."""
    block, entered, left = minigrad.no_grad(), threading.Event(), threading.Event()
    found = []

    def other():
        with minigrad.no_grad():
            with block:
                entered.set()
                left.wait(10)
            found.append(recording())

    thread = threading.Thread(target=other)
    with block:
        thread.start()
        assert entered.wait(10)
    found.append(recording())
    left.set()
    thread.join()
    assert found == [True, False]


def test_set_grad_enabled_is_a_call_and_a_block():
    with minigrad.set_grad_enabled(False):
        assert not recording()
    assert recording() and not minigrad.set_grad_enabled(False)(recording)() and recording()
    minigrad.set_grad_enabled(False)
    assert not recording()
    minigrad.set_grad_enabled(True)
    assert recording()
    with pytest.raises(ArgumentError, match="set_grad_enabled: expected mode"):
        minigrad.set_grad_enabled(X)


def test_a_hook_is_removed_by_its_handle():
    layer, calls = nn.Linear(3, 1), []
    handle = layer.register_forward_hook(lambda module, args, output: calls.append(1))
    layer(X)
    handle.remove()
    handle.remove()
    layer(X)
    with layer.weight.register_post_accumulate_grad_hook(lambda weight: calls.append(2)):
        layer(X).sum().backward()
    layer(X).sum().backward()
    assert calls == [1, 2]


# ----------------------------------------------------------------------------------------- autocast, devices, files


def dtype_inside(*target, **options):
    with minigrad.autocast(*target, **options):
        return (X @ X.T).dtype.name


def test_autocast_takes_a_device_type():
    assert dtype_inside("cpu") == dtype_inside() == dtype_inside(device_type="cpu", dtype="bfloat16") == "bfloat16"
    assert dtype_inside("cuda") == dtype_inside("cpu", enabled=False) == dtype_inside("bfloat16", False) == "float32"
    assert dtype_inside("cpu", minigrad.float16) == "float16"  # "cuda" is for tensors on a GPU alone
    with cuda.amp.autocast():
        assert (X @ X.T).dtype == minigrad.float32
    for refused in (dict(device_type="mps"), dict(cache_enabled=False), dict(dtype="float64")):
        with pytest.raises(ArgumentError, match="^autocast: expected"):
            minigrad.autocast(**refused)
    with pytest.raises(ArgumentError, match="got 'cuda' as a second one"):
        minigrad.autocast("cpu", "cuda")
    assert minigrad.amp.GradScaler("cuda", init_scale=2.0).get_scale() == 2.0


def test_devices_by_type_and_index():
    assert minigrad.device("cuda", 1) == minigrad.Device("cuda:1") and minigrad.device("cpu", index=0) == X.device
    with pytest.raises(DeviceError, match="got 'cpu:1'"):
        minigrad.device("cpu", 1)


def test_facts_about_gpus(cuda, strict_cupy):
    facts = minigrad.cuda
    assert facts.is_available() and facts.device_count() == 2 and facts.current_device() == 1
    assert facts.get_device_capability() == facts.get_device_properties("cuda:1")[1:3]
    assert facts.get_device_name(0) == "Stand-in" and facts.is_bf16_supported()
    kept = minigrad.ones(1000, device=cuda)
    assert facts.memory_reserved(cuda) >= facts.memory_allocated() >= kept.nbytes
    facts.empty_cache()
    facts.set_device(1)
    facts.synchronize()
    with pytest.raises(DeviceError, match="expected cuda:1, which is current for this thread, got cuda:0: distributed"):
        facts.set_device(0)
    with pytest.raises(DeviceError, match="expected a GPU, got cpu"):
        facts.synchronize("cpu")


def test_without_a_gpu_the_facts_say_so():
    if not cuda.is_available():
        assert cuda.device_count() == cuda.memory_allocated() == 0 and not cuda.is_bf16_supported()
        with pytest.raises(DeviceError, match="^cuda.current_device: expected a GPU, got cpu alone"):
            cuda.current_device()


def test_a_checkpoint_is_saved_and_loaded(tmp_path):
    layer = nn.Linear(3, 1)
    optimizer = optim.AdamW(layer.parameters())
    layer(X).sum().backward()
    optimizer.step()
    state = {"model": layer.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "best": (0.5, None)}
    minigrad.save(state, tmp_path / "a.pt")
    loaded = minigrad.load(tmp_path / "a.pt", map_location="cpu", weights_only=True)
    assert loaded["epoch"] == 3 and loaded["best"] == (0.5, None)
    assert loaded["optimizer"]["param_groups"] == state["optimizer"]["param_groups"]
    optimizer.load_state_dict(loaded["optimizer"])
    assert layer.load_state_dict(loaded["model"]).missing_keys == []
    minigrad.save(layer.state_dict(), tmp_path / "b.pt")  # of tensors alone: for any program
    assert nn.load_file(tmp_path / "b.pt")["weight"].tolist() == layer.weight.tolist()
    for refused, words in {
        lambda: minigrad.save(layer, tmp_path / "c"): r"got Linear in obj: save its state_dict\(\)",
        lambda: minigrad.save(1, open): "save: expected a path",
        lambda: minigrad.load(f=open): "load: expected a path, got builtin_function_or_method",
        lambda: minigrad.save(1, f=tmp_path / "d", pickle_protocol=4): "save: expected no pickle_protocol, got 4",
        lambda: minigrad.load(tmp_path / "a.pt", weights_only="no"): "expected weights_only to be True or False",
        lambda: minigrad.load(tmp_path / "a.pt", map_location=print): "expected map_location to name a device",
    }.items():
        with pytest.raises((ArgumentError, DtypeError), match=words):
            refused()


def test_an_operation_can_be_pickled():
    for operation in (minigrad.relu, minigrad.zeros, minigrad.linalg.norm, functional.cross_entropy):
        assert pickle.loads(pickle.dumps(operation)) is operation


# ---------------------------------------------------------------------------------------------------------- inplace


def net(inplace):
    minigrad.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(inplace), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(12, 6), nn.LeakyReLU(0.1, inplace), nn.Dropout(0.3, inplace), nn.Linear(6, 6), nn.ELU(1, inplace)),
        *(nn.Linear(6, 6), nn.SiLU(inplace=inplace), nn.Linear(6, 2), nn.Hardtanh(inplace=inplace)),
    )


def test_a_network_trains_the_same_with_layers_that_overwrite():
    x = minigrad.randn(4, 1, 4, 4)
    results = []
    for inplace in (False, True):
        model = net(inplace)
        loss = functional.mse_loss(model(x), minigrad.ones(4, 2))
        loss.backward()
        results.append([loss.item(), *(p.grad.tolist() for p in model.parameters())])
    assert results[0] == results[1]
    assert repr(nn.ReLU(True)) == "ReLU(inplace=True)" and repr(nn.ReLU()) == "ReLU()"
    assert repr(nn.LeakyReLU(0.1, True)) == "LeakyReLU(negative_slope=0.1, inplace=True)"


def test_inplace_overwrites_or_is_refused():
    x = minigrad.tensor([-1.0, 2.0])
    assert functional.relu(x, inplace=True) is x and x.tolist() == [0.0, 2.0]
    assert functional.dropout(x, 1.0, True, True) is x and x.tolist() == [0.0, 0.0]
    leaf = minigrad.ones(2, requires_grad=True)
    with pytest.raises(AutogradError, match="^relu: expected recording to be off, got a leaf"):
        functional.relu(leaf, inplace=True)
    with pytest.raises(AutogradError, match="^silu: expected recording to be off, got a view"):
        functional.silu((leaf * 1).reshape(1, 2), inplace=True)
    with pytest.raises(DtypeError, match="^elu: expected a Tensor with inplace=True, got ndarray"):
        functional.elu(np.ones(2, np.float32), inplace=True)
    with pytest.raises(ArgumentError, match="^ReLU: expected inplace to be True or False"):
        nn.ReLU(inplace=x)
    y = leaf * 2
    assert y.detach_() is y and y.is_leaf and not y.requires_grad
    with pytest.raises(AutogradError, match="^detach_: expected no view"):
        (leaf * 2)[0].detach_()


def test_the_kind_of_device(cuda):
    assert minigrad.accelerator.is_available() and minigrad.accelerator.device_count() == 2
    assert minigrad.accelerator.current_accelerator() == cuda and minigrad.accelerator.current_device_index() == 1


def test_without_a_gpu_there_is_no_accelerator():
    assert minigrad.accelerator.current_accelerator() is None and not minigrad.accelerator.is_available()
    assert not minigrad.backends.mps.is_available() and not minigrad.backends.cudnn.is_available()
