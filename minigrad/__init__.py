"""minigrad: a small deep-learning framework, native to CuPy, whose heart is data-parallel training.

Every operation of `minigrad.ops` is here too. The rooms below `data`, and what is shown of them here, are loaded at
their first use.
"""

import builtins as _builtins
import importlib as _importlib
import threading as _threading
import typing
from math import e as e, inf as inf, nan as nan, pi as pi

from numpy import dtype as dtype

from minigrad import autograd as autograd, data as data, nn as nn, ops as ops
from minigrad.absent import absent as _absent, answer_imports as _answer_imports
from minigrad.backend.device import (
    Device as Device,
    Device as device,
    available_devices as available_devices,
    get_default_device as get_default_device,
    set_default_device as set_default_device,
)
from minigrad.backend.dtypes import (
    bool_ as bool_,
    double as double,
    finfo as finfo,
    float16 as float16,
    float32 as float32,
    float64 as float64,
    get_default_dtype as get_default_dtype,
    half as half,
    iinfo as iinfo,
    int16 as int16,
    int32 as int32,
    int64 as int64,
    int8 as int8,
    long as long,
    set_default_dtype as set_default_dtype,
    short as short,
    uint8 as uint8,
)
from minigrad.backend.flags import debug as debug, raise_all_found as raise_all_found
from minigrad.backend.gemm import allow_tf32 as allow_tf32
from minigrad.backend.memory import keep_freed_memory as keep_freed_memory
from minigrad.backend.random import (
    Generator as Generator,
    get_rng_state as get_rng_state,
    initial_seed as initial_seed,
    manual_seed as manual_seed,
    set_rng_state as set_rng_state,
)
from minigrad.foreign import offer_operations as _offer_operations
from minigrad.nn.nested import load as load, save as save
from minigrad.ops import *
from minigrad.ops.creation import *
from minigrad.ops.facts import *
from minigrad.ops.methods import names_in as _names_in
from minigrad.ops.precision import autocast as autocast, is_autocast_enabled as is_autocast_enabled
from minigrad.ops.sampling import *
from minigrad.recording import (
    enable_grad as enable_grad,
    inference_mode as inference_mode,
    is_grad_enabled as is_grad_enabled,
    no_grad as no_grad,
    set_grad_enabled as set_grad_enabled,
)
from minigrad.tensor import Tensor as Tensor

if typing.TYPE_CHECKING:
    from minigrad import accelerator as accelerator, amp as amp, backends as backends, cuda as cuda
    from minigrad import distributed as distributed, graph as graph, linalg as linalg, optim as optim, train as train
    from minigrad import utils as utils
    from minigrad.cuda.graphs import capture as capture
    from minigrad.nn.summary import summary as summary
    from minigrad.train import FlowBuilder as FlowBuilder, Graph as Graph, Trainer as Trainer
    from minigrad.train import metrics as metrics, record_scalar as record_scalar

    bfloat16: typing.Any

__version__ = "0.1.0"
Size, newaxis = tuple, None

_BUILTINS = {"bool": bool_, "float": float32, "int": int32}  # dtypes that `from minigrad import *` has to leave out
_LATER = {  # where what is loaded at its first use is: a name in a room, or a room
    "FlowBuilder": "minigrad.train",
    "Graph": "minigrad.train",
    "Trainer": "minigrad.train",
    "accelerator": "minigrad.accelerator",
    "amp": "minigrad.amp",
    "capture": "minigrad.cuda.graphs",
    "backends": "minigrad.backends",
    "cuda": "minigrad.cuda",
    "distributed": "minigrad.distributed",
    "graph": "minigrad.graph",
    "linalg": "minigrad.linalg",
    "metrics": "minigrad.train",
    "optim": "minigrad.optim",
    "record_scalar": "minigrad.train",
    "summary": "minigrad.nn.summary",
    "train": "minigrad.train",
    "utils": "minigrad.utils",
}
_loading = _threading.RLock()  # threads that import rooms of one package at once would wait for each other

if not typing.TYPE_CHECKING:  # a type checker knows all that is imported above, and nothing else
    _rooms = {"autograd", "data", "nn", "ops", *_LATER}
    __all__ = sorted({*_names_in(globals()), "bfloat16", *_rooms} - set(dir(_builtins)))
    _offer_operations(globals())
    _answer_imports()

    def __getattr__(name: str) -> typing.Any:
        """A room, or a name from one, at its first use; and bfloat16, since importing ml_dtypes takes time."""
        if name == "bfloat16":
            import ml_dtypes
            import numpy as np

            found: typing.Any = np.dtype(ml_dtypes.bfloat16)
        elif name in _LATER:
            with _loading:
                room = _importlib.import_module(_LATER[name])
            found = room if room.__name__ == f"minigrad.{name}" else getattr(room, name)
        elif name.endswith("_") and not name.startswith("_") and hasattr(Tensor, name):
            found = getattr(Tensor, name)  # in place, as relu_(x)
        elif name in _BUILTINS:
            found = _BUILTINS[name]
        else:
            raise _absent("minigrad", name)
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), "bfloat16", *_BUILTINS, *_LATER})
