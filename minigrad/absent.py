"""The names of PyTorch that are not here, and what to write instead: what a module or a tensor answers to them."""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterable
from typing import Any

import numpy

from minigrad.errors import AbsentModuleError, AbsentNameError

_LEAVE = "leave it out"
_DENSE, _FIRST = "tensors are dense", "there are first derivatives only"
_LAYOUT = "leave it out: layers lay images out on a GPU as it likes them"
_LEGACY = {"Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64"}
_LEGACY |= {"Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool_"}
_THREADS = "set OMP_NUM_THREADS before Python starts"
_RANKS = "write python -m minigrad.distributed.launch -n N script.py, or distributed.run(function, N)"
_REPARAMETER = "write a Module that computes its weight in forward"
_FLAT = "an image has two axes beside its channels"
_BAG = "write embedding, and .mean(1) of what it gives"
_BILINEAR = "write einsum('bi,oij,bj->bo', x1, weight, x2) + bias"
_SOFT_MARGIN = "write softplus(-target * x).mean()"
_ON_OUTPUT = "write register_forward_hook(hook), whose hook calls output.register_hook(...) and returns None"
_WITHOUT = "save what it would give beside the state_dict()"
_BITS = "write all_gather(tensors, tensor), and combine them"
_AVERAGER = "averager = distributed.ParameterAverager(model, comm, distributed.average.{}), and averager.step(len(x))"
_PERIODIC = f"write {_AVERAGER.format('EveryK(period)')} after each step"
_POST_LOCAL = f"write {_AVERAGER.format('PostLocalSGD(switch, k)')} after each step, without DDP"
_COMM_HOOKS = (
    "write fp16_compress_hook and its kin, of minigrad.distributed, and ParameterAverager(model, comm, "
    "average.PostLocalSGD(switch, k)) for post-local SGD"
)
_JOIN = "write with ddp.join(also=[optimizer]): around the loop"
_SPLIT = "write comm.split(color), with comm = distributed.init(): the ranks of one color make a group"
_MESH = "write comm.split(comm.rank // columns) for the rows of a grid, comm.split(comm.rank % columns) for its columns"
_RUN = "write Trainer.start(make_model, make_optimizer, train_fn, dataset, batch_size=32, epochs=10)"
_FOUND = "leave it out: init finds the others by the environment"
_TIMELINE = "write timeline = distributed.Timeline(), DDP(model, timeline=timeline) and with timeline.span(name):"
_HANGS = (
    "leave it out: the error of a hang has the last calls of each rank, and "
    "python -m minigrad.distributed.inspect hang DIR reads what dead ranks left"
)
_METRICS = {  # of torchmetrics
    **dict.fromkeys(["MeanMetric", "RunningMean"], "write Mean"),
    **dict.fromkeys(["SumMetric", "CatMetric"], "write Sum"),
    **dict.fromkeys(["BinaryAccuracy", "MulticlassAccuracy"], "write Accuracy"),
}
_DECODER = "write TransformerEncoder, with mask=minigrad.ones(n, n, dtype=bool).triu(1) for a causal one"

INSTEAD: dict[str, dict[str, str]] = {  # by module
    "minigrad": {
        **{f"{kind}Tensor": f"write minigrad.tensor(data, minigrad.{name})" for kind, name in _LEGACY.items()},
        "channels_last": _LAYOUT,
        "compile": "leave it out: a module runs as it is",
        "complex64": "no tensor is complex",
        "complex128": "no tensor is complex",
        "contiguous_format": _LAYOUT,
        "distributions": "write its log density; minigrad.randn, bernoulli and multinomial draw",
        "fft": "write numpy.fft on x.numpy()",
        "func": _FIRST,
        "get_num_threads": _THREADS,
        "is_inference_mode_enabled": "write not is_grad_enabled()",
        "jit": "leave it out: a module runs as it is",
        "multiprocessing": _RANKS,
        "preserve_format": _LAYOUT,
        "profiler": _TIMELINE,
        "quantile": "write minigrad.tensor(numpy.quantile(x.numpy(), q))",
        "range": "write arange, without the end",
        "seed": "write manual_seed(seed)",
        "set_anomaly_enabled": "write with minigrad.debug():",
        "set_float32_matmul_precision": "write with minigrad.allow_tf32(): around the products",
        "set_num_threads": _THREADS,
        "set_printoptions": "write numpy.set_printoptions(...), which tensors are shown by",
        "sparse_coo_tensor": _DENSE,
        "special": "write minigrad.erf and its kin, or scipy.special on x.numpy()",
        "strided": _DENSE,
        "testing": "write import minigrad.testing",
        "use_deterministic_algorithms": "leave it out: the same seed gives the same numbers",
        "version": "write minigrad.__version__",
        "vmap": "add an axis: operations broadcast",
    },
    "minigrad.linalg": {
        **{name: "write numpy.linalg on x.numpy()" for name in "cholesky eig eigh lstsq pinv qr svd svdvals".split()},
        "matrix_norm": "write norm",
    },
    "minigrad.nn": {
        "modules": "write import minigrad.nn, where all layers are",
        "quantized": "weights are floats",
        **{f"{kind}3d": _FLAT for kind in ("Conv", "ConvTranspose", "AvgPool", "MaxPool")},
        "DataParallel": "write distributed.Ddp.wrap(models, devices)",
        **{f"Lazy{kind}": f"write {kind} with its number of inputs" for kind in ("Linear", "Conv2d", "BatchNorm2d")},
        "AlphaDropout": "write Dropout",
        "Bilinear": _BILINEAR,
        "CTCLoss": "there is no loss over alignments",
        "EmbeddingBag": _BAG,
        "LocalResponseNorm": "write BatchNorm2d",
        "MultiLabelSoftMarginLoss": "write BCEWithLogitsLoss",
        "MultiMarginLoss": "write CrossEntropyLoss",
        "RReLU": "write LeakyReLU",
        "SoftMarginLoss": _SOFT_MARGIN,
        "TripletMarginWithDistanceLoss": "write relu(d(anchor, positive) - d(anchor, negative) + margin).mean()",
        **dict.fromkeys(["Transformer", "TransformerDecoder", "TransformerDecoderLayer"], _DECODER),
        "RNNBase": "write (nn.RNN, nn.GRU, nn.LSTM)",
        "SyncBatchNorm": "write distributed.convert_sync_batchnorm(module)",
    },
    "minigrad.nn.functional": {
        "bilinear": _BILINEAR,
        "ctc_loss": "there is no loss over alignments",
        "embedding_bag": _BAG,
        **dict.fromkeys(["upsample", "upsample_nearest"], "write interpolate"),
        "upsample_bilinear": 'write interpolate(x, size, mode="bilinear", align_corners=True)',
        "multi_margin_loss": "write cross_entropy",
        "multilabel_soft_margin_loss": "write binary_cross_entropy_with_logits",
        "rrelu": "write leaky_relu",
        "soft_margin_loss": _SOFT_MARGIN,
    },
    "minigrad.nn.utils": {
        "parametrizations": _REPARAMETER,
        "parametrize": _REPARAMETER,
        "prune": "multiply the weight by a mask in forward",
        "spectral_norm": _REPARAMETER,
        "stateless": "write load_state_dict, which takes other values",
        "weight_norm": _REPARAMETER,
    },
    "minigrad.optim": {
        "Lamb": "write LAMB",
        **{name: "write Adam or AdamW" for name in ("Adafactor", "Adamax", "NAdam", "RAdam", "SparseAdam")},
        **{name: "write SGD or RMSprop" for name in ("ASGD", "Rprop")},
        "LBFGS": "write Adam, or scipy.optimize.minimize on nn.utils.parameters_to_vector",
    },
    "minigrad.data": {
        "ChainDataset": "write an IterableDataset whose __iter__ is itertools.chain(*datasets)",
    },
    "minigrad.distributed.algorithms": {
        "model_averaging": _PERIODIC,
        "ddp_comm_hooks": _COMM_HOOKS,
        **dict.fromkeys(["join", "Join", "Joinable", "JoinHook"], _JOIN),
    },
    "minigrad.distributed": {
        **dict.fromkeys(["model_averaging", "PeriodicModelAverager", "LocalSGD"], _PERIODIC),
        **dict.fromkeys(["PostLocalSGDOptimizer", "PostLocalSGDState", "post_localSGD_hook"], _POST_LOCAL),
        "HierarchicalModelAverager": "write " + _AVERAGER.format("EveryK(period)") + ", over all ranks at once",
        "ZeroRedundancyOptimizer": "write ShardedOptimizer(optimizer, ddp)",
        "Join": _JOIN,
        "checkpoint": "write minigrad.save({'model': model, 'optimizer': optimizer}, path) on every rank, or "
        "train.Checkpoint(folder), which keeps the last few",
        "device_mesh": _MESH,
        "local_sgd": "write average.EveryK(sync_every), and average.DiLoCo() or average.StreamingDiLoCo()",
        "elastic": "write python -m minigrad.distributed.launch -n N --on-failure shrink script.py, where the script "
        "has Trainer.start(..., on_failure='shrink')",
        **dict.fromkeys(["flight_recorder", "_dump_nccl_trace"], _HANGS),
        **dict.fromkeys(["start_timeline", "stop_timeline"], _TIMELINE + " and timeline.to_perfetto(path)"),
        "fsdp": "write DistributedDataParallel: each rank keeps a whole replica",
        "optim": "write minigrad.optim: each rank keeps the state of a whole replica; in the place of "
        "PostLocalSGDOptimizer " + _POST_LOCAL.removeprefix("write "),
        "rpc": "write all_gather_object, which all ranks call",
        "tensor": "a tensor is of one rank",
        "Backend": "write the name, such as 'nccl' or 'gloo'",
        "BuiltinCommHookType": "write ddp.register_comm_hook(state, hook)",
        **dict.fromkeys(["DeviceMesh", "init_device_mesh"], _MESH),
        **dict.fromkeys(["DistError", "DistBackendError", "DistNetworkError"], "write errors.DistributedError"),
        **dict.fromkeys(["Store", "FileStore", "HashStore", "PrefixStore", "TCPStore", "rendezvous"], _FOUND),
        **dict.fromkeys(["send_object_list", "recv_object_list"], "write all_gather_object, which all ranks call"),
        "all_reduce_coalesced": "write all_reduce(tensor) for each of them",
        "all_gather_coalesced": "write all_gather(tensors, tensor) for each of them",
        "all_gather_single": "write all_gather_into_tensor",
        "reduce_scatter_single": "write reduce_scatter_tensor",
        "ProcessGroup": "write distributed.Communicator",
        "is_gloo_available": "leave it out: 'gloo' always is",
        "get_node_local_rank": "write int(os.environ['LOCAL_RANK']); init takes the GPU that is the rank's",
        **dict.fromkeys(["get_debug_level", "set_debug_level"], "set MINIGRAD_DEBUG=1 before init"),
        "is_backend_available": "leave it out: init says what is missing",
        "is_mpi_available": "leave it out: init says what is missing",
        "is_nccl_available": "write minigrad.cuda.is_available()",
        "is_torchelastic_launched": "leave it out: init reads the variables that torchrun sets",
        "monitored_barrier": "write barrier(), which names the ranks that do not come",
        **dict.fromkeys(["new_subgroups", "new_subgroups_by_enumeration", "split_group"], _SPLIT),
        "reduce_op": "write ReduceOp",
        "shrink_group": "write Trainer.start(..., on_failure='shrink')",
    },
    "minigrad.distributed.nn": {
        **dict.fromkeys(["all_reduce", "reduce"], "write sum(all_gather(x))"),
        **dict.fromkeys(["all_to_all", "all_to_all_single"], "write all_gather(x), and take this rank's parts"),
        "broadcast": "write all_gather(x)[src]",
        "scatter": "write all_gather(x)[src], and take this rank's part",
        "gather": "write all_gather(x)",
        "reduce_scatter": "write sum(all_gather(x)), and take this rank's part",
    },
    "minigrad.distributed.average": {
        **dict.fromkeys(["PeriodicModelAverager", "ModelAverager", "LocalSGD"], _PERIODIC),
        "HierarchicalModelAverager": "write " + _AVERAGER.format("EveryK(period)") + ", over all ranks at once",
        "PostLocalSGDOptimizer": _POST_LOCAL,
        "Nesterov": "write DiLoCo(lr, momentum), whose outer optimizer it is",
    },
    "minigrad.train.metrics": _METRICS,
    "Ddp": {
        "average_params": "write average_parameters(model, comm, n) on each rank of distributed.run",
        "from_comm": "write DistributedDataParallel(model, comm), a rank's wrapper",
    },
    "Timeline": {
        "record_function": "write with timeline.span(name):",
        **dict.fromkeys(["export_chrome_trace", "export_stacks"], "write timeline.to_perfetto(path)"),
        **dict.fromkeys(["key_averages", "table"], "write print(timeline.summary())"),
        **dict.fromkeys(["start", "stop", "step"], "leave it out: a wrapper that has it writes on it in each step"),
        "load": "write Timeline.from_json(text)",
    },
    "DistributedDataParallel": {"_get_ddp_logging_data": "write ddp.stats()"},
    "Trainer": {
        **dict.fromkeys(["fit", "train"], _RUN),
        "save_checkpoint": "give Checkpoint(folder) to Trainer.start, among its callbacks",
        "load_from_checkpoint": "write model.load_state_dict(minigrad.load(Checkpoint(folder).latest())['model'])",
        **dict.fromkeys(["validate", "test", "predict"], "call the model in a loop of your own, in no_grad()"),
    },
    "Metric": {
        **dict.fromkeys(["compute", "sync", "sync_dist", "forward"], "write result(comm), which all ranks call"),
        **dict.fromkeys(["to", "cuda", "cpu"], "leave it out: sums are where the values are"),
        "merge_state": "write result(comm), over all ranks",
        "plot": "write result(comm), and plot it",
    },
    "MetricCollection": {
        **dict.fromkeys(["compute", "forward"], "write result(comm), which all ranks call"),
        "add_metrics": "give all metrics to MetricCollection({name: metric})",
        "clone": "write copy.deepcopy(metrics)",
        **dict.fromkeys(["to", "cuda", "cpu"], "leave it out: sums are where the values are"),
        "update": "write metrics[name].update(value, n), for each has values of its own",
    },
    "minigrad.train": {
        "drain_scalars": "write meter.finish() of an EpochMeter, or scalars.result(comm) of Scalars",
        **dict.fromkeys(["Callback", "TrainerCallback"], "give functions of (metrics, worker) to Trainer.start"),
        "ModelCheckpoint": "write Checkpoint(folder, every=1), among the callbacks of Trainer.start",
        "EarlyStopping": "give Trainer.start a callback of (metrics, worker), which calls worker.stop()",
        "LightningModule": _RUN,
        "TrainingArguments": "give its options to Trainer.start",
        **_METRICS,
    },
    "minigrad.utils": {
        "tensorboard": "write to a file, or import tensorboardX",
    },
    "minigrad.accelerator": {
        "set_device_index": "write minigrad.distributed.init(device=...), which makes the rank's device current",
    },
    "minigrad.backends": {
        "cuda": "leave it out, or write with minigrad.allow_tf32(): around the products",
    },
    "minigrad.cuda": {
        "Event": "write time.perf_counter() around the work and cuda.synchronize()",
        "profiler": _TIMELINE,
        **dict.fromkeys(["CUDAGraph", "graph", "make_graphed_callables"], "write step = minigrad.capture(function, x)"),
        "Stream": "leave it out: a rank's collectives run on a stream of their own",
        "device": "write with minigrad.device('cuda', index).current():",
        "stream": "leave it out: a rank's collectives run on a stream of their own",
        "max_memory_allocated": "write cuda.max_memory_reserved(), or cuda.memory_allocated() where it is largest",
        "reset_peak_memory_stats": "write cuda.empty_cache(), and read cuda.max_memory_reserved() later",
    },
    **dict.fromkeys(
        ["minigrad.amp", "minigrad.cuda.amp"],
        {
            "custom_fwd": "leave it out, and write x.to(dtype) in forward where it wants another dtype",
            "custom_bwd": "leave it out, and return gradients of the dtypes of forward's arguments",
        },
    ),
    "minigrad.autograd": {
        **{name: f"write from minigrad.autograd.tape import {name}" for name in ("Node", "accumulate", "lend")},
        "Variable": "leave it out: a tensor is one, and x.requires_grad_() lets it collect a gradient",
        **dict.fromkeys(["forward_ad", "gradgradcheck"], _FIRST),
        "functional": "write autograd.grad(y, x, retain_graph=True) for each y of the outputs",
        "graph": "write utils.checkpoint.checkpoint(function, x), which saves less",
        "set_detect_anomaly": "write with minigrad.debug():",
        "detect_anomaly": "write with minigrad.debug():",
    },
    "ReduceOp": {
        **dict.fromkeys(["BAND", "BOR", "BXOR"], _BITS),
        "PREMUL_SUM": "multiply first, and write ReduceOp.SUM",
    },
    "Module": {
        "compile": "leave it out: a module runs as it is",
        "get_extra_state": _WITHOUT,
        "register_backward_hook": "write register_full_backward_hook(hook)",
        "register_full_backward_pre_hook": _ON_OUTPUT,
        "register_load_state_dict_post_hook": "do it after load_state_dict()",
        "register_load_state_dict_pre_hook": "change what is given to load_state_dict()",
        "register_state_dict_post_hook": "change what state_dict() gives",
        "register_state_dict_pre_hook": "do it before state_dict()",
        "set_extra_state": _WITHOUT,
        "share_memory": _RANKS,
        "to_empty": "write to(device)",
        "type": "write to(dtype)",
        "xpu": "write to(device)",
        **dict.fromkeys(["set_training", "is_training"], "write train(mode), and training to ask"),  # flodl, ferrotorch
        "parameters_mut": "write parameters(): they are the tensors themselves",
        "as_graph": "write isinstance(module, Graph)",
    },
    "Tensor": {
        **dict.fromkeys(["H", "mH", "adjoint"], "write x.mT"),
        **dict.fromkeys(["conj", "conj_physical", "real", "resolve_conj"], "leave it out: no tensor is complex"),
        **dict.fromkeys(["angle", "cdouble", "cfloat", "chalf", "imag"], "no tensor is complex"),
        **dict.fromkeys(["coalesce", "indices", "to_dense", "values"], _DENSE),
        "index_put_": "write x[indices] = values, or x.index_add_(dim, index, values) for a sum",
        "apply_": "write minigrad.tensor(function(x.numpy()))",
        "map_": "write minigrad.tensor(function(x.numpy()))",
        "resize_": "write x = x.reshape(...)",
        "share_memory_": "ranks share gradients through a communicator: see distributed.run",
        "storage": "write x.data, the array",
        "to_sparse": _DENSE,
        "untyped_storage": "write x.data, the array",
        "set_grad": "write x.grad = gradient",  # ferrotorch
        "variable": "write requires_grad, grad and data of the parameter: it is a tensor",  # flodl
    },
}
OF_TENSORS = """
    H absolute_ acos_ acosh_ addbmm addbmm_ addmm_ addmv addmv_ addr addr_ adjoint angle apply_ arccos arccos_
    arccosh arccosh_ arcsin arcsin_ arcsinh arcsinh_ arctan arctan2 arctan2_ arctan_ arctanh arctanh_ as_strided
    as_strided_ as_strided_scatter as_subclass asin_ asinh_ atan2_ atan_ atanh_ baddbmm_ bitwise_left_shift
    bitwise_left_shift_ bitwise_right_shift bitwise_right_shift_ cauchy_ ccol_indices cdouble cfloat chalf cholesky
    cholesky_inverse cholesky_solve clamp_max_ clamp_min_ coalesce col_indices conj conj_physical conj_physical_
    const_data_ptr copysign copysign_ corrcoef cosh_ cov crow_indices cummax cummin cumprod_ deg2rad deg2rad_
    dense_dim dequantize diagflat diagonal_scatter digamma digamma_ dim_order dist divide_ dsplit eig eq_ erfc erfc_
    erfinv erfinv_ exp2_ fix_ float_power float_power_ fmax fmin frac_ frexp gcd gcd_ ge_ geometric_ geqrf ger
    grad_dtype greater_ greater_equal_ gt_ hardshrink hash_tensor heaviside heaviside_ histc histogram hsplit hypot
    hypot_ i0 i0_ igamma igamma_ igammac igammac_ imag index index_put index_put_ index_reduce index_reduce_ indices
    inner int_repr ipu is_coalesced is_conj is_cpu is_distributed is_inference is_ipu is_maia is_meta is_mkldnn
    is_mps is_mtia is_neg is_nested is_nonzero is_pinned is_quantized is_same_size is_set_to is_shared is_signed
    is_sparse is_sparse_csr is_vulkan is_xla is_xpu isneginf isposinf isreal istft kron kthvalue layout lcm lcm_
    ldexp ldexp_ le_ less_ less_equal_ lgamma lgamma_ log_normal_ logaddexp2 logcumsumexp logdet logit_ lstsq lt_ lu
    lu_solve mH map2_ map_ matrix_exp matrix_power mode msort mtia multiply_ mvlgamma mvlgamma_ nanmedian
    nanquantile narrow_copy ne_ negative_ new new_empty_strided nextafter nextafter_ nonzero_static not_equal_ orgqr
    ormqr output_nr pin_memory pinverse polygamma polygamma_ positive put put_ q_per_channel_axis
    q_per_channel_scales q_per_channel_zero_points q_scale q_zero_point qr qscheme quantile rad2deg rad2deg_ random_
    real record_stream reinforce renorm renorm_ resize resize_ resize_as resize_as_ resize_as_sparse_ resolve_conj
    resolve_neg rot90 row_indices scatter_reduce scatter_reduce_ select_scatter set_ sgn sgn_ share_memory_ signbit
    sinc sinc_ sinh_ slice_inverse slice_scatter slogdet smm solve sparse_dim sparse_mask sparse_resize_
    sparse_resize_and_clear_ split_with_sizes squeeze_ sspaddmm stft storage storage_offset storage_type subtract_
    sum_to_size svd swapaxes_ swapdims_ symeig t_ to_dense to_mkldnn to_padded_tensor to_sparse to_sparse_bsc
    to_sparse_bsr to_sparse_coo to_sparse_csc to_sparse_csr transpose_ triangular_solve true_divide_
    unique_consecutive unsafe_chunk unsafe_split unsafe_split_with_sizes unsqueeze_ untyped_storage values vdot
    vsplit xlogy xlogy_ xpu
""".split()  # what PyTorch's tensors have, and ours have not
_ROOMS = (
    "minigrad",
    "minigrad.nn",
    "minigrad.nn.functional",
    "minigrad.optim",
    "minigrad.data",
    "minigrad.cuda",
    "minigrad.distributed.average",
    "minigrad.train",
)


def absent(where: str, name: str) -> AbsentNameError:
    """The error for a name that a module, or a tensor, has not: with what to write instead, where that is known."""
    if name.startswith("__"):
        return AbsentNameError(f"{where} has no attribute {name!r}")
    from minigrad.absent_seeds import SEEDS

    advice = INSTEAD.get(where, {}).get(name) or SEEDS.get(where, {}).get(name) or _elsewhere(where, name)
    return AbsentNameError(f"{where}: expected a name that it has, got {name!r}{': ' if advice else ''}{advice}")


class Lacking:
    """In the place of a name that a class lacks: says what to write. A `__getattr__` would slow every attribute."""

    def __init__(self, where: str, name: str) -> None:
        self.where, self.name = where, name

    def __get__(self, x: object, kind: type) -> Any:
        raise absent(self.where, self.name)


def tell_lacking(where: str, kind: type, names: Iterable[str] = ()) -> None:
    """Let a class answer to what it has not, once it has all that it gets: these names, and those of the table."""
    for name in {*names, *INSTEAD.get(where, {})} - {*dir(kind)}:
        setattr(kind, name, Lacking(where, name))


class LackingMembers(enum.EnumMeta):
    """The class of an enumeration that says what to write for a member that it lacks."""

    def __getattr__(cls, name: str) -> Any:
        members = cls.__dict__.get("_member_map_", {})  # Python 3.11 and earlier ask here for those that there are
        if name not in members:
            raise absent(cls.__name__, name)
        return members[name]


class Unfound:
    """Asked last where a module is; says of one of ours that is not here what to write.

    Python asks for one too where a name is imported that its room does not have: `from minigrad.nn import CTCLoss`.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Nothing.

        Raises:
            AbsentModuleError: the module is one of minigrad, and not here.
        """
        where, _, last = name.rpartition(".")
        if where.split(".")[0] == "minigrad" and not last.startswith("_"):
            if hasattr(sys.modules.get(where), last):  # a name of the room, and no module below it
                raise AbsentModuleError(f"{where}: expected a module, got {last}: write from {where} import {last}")
            raise AbsentModuleError(str(absent(where, last)))


def answer_imports() -> None:
    """Let an import of what is not here say what to write."""
    if Unfound not in sys.meta_path:
        sys.meta_path.append(Unfound)


def _elsewhere(where: str, name: str) -> str:
    """Where a name is, or one like it."""
    if where == "Tensor":
        own = vars(sys.modules["minigrad"])
        methods = {*dir(own["Tensor"])} - {*OF_TENSORS, *INSTEAD["Tensor"]}
        plain, result = (name[:-1], "x = ") if name.endswith("_") else (name, "")
        if plain in methods:
            return f"write {result}x.{plain}(...)"
        if callable(own.get(plain)):
            return f"write {result}minigrad.{plain}(x, ...)"
        return _in_numpy(name) or _near(name, sorted(methods))
    if where not in sys.modules:
        return ""
    for room in _ROOMS:
        if room != where and room in sys.modules and not name.startswith("_") and name in vars(sys.modules[room]):
            return f"write {room}.{name}"
    if name.endswith("_") and "Tensor" in vars(sys.modules["minigrad"]):
        if hasattr(vars(sys.modules["minigrad"])["Tensor"], name):
            return f"write x.{name}(...)"
    return _near(name, list(vars(sys.modules[where]))) or (_in_numpy(name) if where == "minigrad" else "")


def _in_numpy(name: str) -> str:
    """What writes it with a function of NumPy, where there is one of this name."""
    function = getattr(numpy, name, None)
    if name.startswith("_") or isinstance(function, type) or not callable(function):
        return ""
    others = ", y.numpy()" * (getattr(function, "nin", 1) - 1)
    return f"write minigrad.tensor(numpy.{name}(x.numpy(){others})), which has no gradient"


def _near(name: str, known: list[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name, [other for other in known if not other.startswith("_")], 1, 0.8)
    return f"did you mean {near[0]}?" if near else ""
