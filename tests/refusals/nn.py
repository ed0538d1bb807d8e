"""What layers, modules and their state refuse."""

import pickle

import numpy as np

from minigrad import Tensor, nn
from minigrad.errors import ArgumentError, CallError, DtypeError, ShapeError
from minigrad.nn import Buffer, Module, Parameter, Sequential
from tests.refusals import each, run
from tests.unit.nn.nets import Scale
from tests.unit.nn.test_module import Mixed, ones
from tests.unit.nn.test_state import net

ROWS = [
    # container
    (lambda: Sequential({"1": Scale()}).append(Scale()), ArgumentError, "Sequential: expected '1' to be free"),
    *each(
        (run, DtypeError),
        (lambda: nn.ParameterList(Parameter(ones(1))), "ParameterList: expected several Parameters, got Parameter"),
        (lambda: nn.ParameterList([1.0]), "ParameterList: expected a Parameter or a Tensor, got float"),
        (lambda: nn.ParameterDict([ones(1)]), "ParameterDict: expected a mapping of names to Parameters, got list"),
        (lambda: nn.ParameterDict({"a": None}), "ParameterDict: expected a Parameter or a Tensor for 'a', got None"),
    ),
    (lambda: nn.ParameterDict({"a.b": Tensor(ones(1))}), ArgumentError, "expected a name without dots, got 'a.b'"),
    (lambda: nn.ParameterDict()["a"], ArgumentError, r"ParameterDict: expected one of \[\], got 'a'"),
    # layer
    *each(
        (run, ArgumentError),
        (lambda: nn.Linear(0, 3), "Linear: expected in_features to be an integer >= 1, got 0"),
        (lambda: nn.Linear(3, -1), "Linear: expected out_features to be an integer >= 1, got -1"),
        (lambda: nn.Linear(3, 1, rng=0), "expected rng to be a numpy.random.Generator, got int"),
        (lambda: nn.Conv2d(4, 6, 3, groups=4), "Conv2d: expected groups to divide the channels, got 4 in, 6 out"),
        (lambda: nn.Conv2d(6, 4, 3, groups=4), "Conv2d: expected groups to divide the channels, got 6 in, 4 out"),
        (lambda: nn.Conv2d(1, 1, 3, groups=0), "Conv2d: expected groups to be an integer >= 1, got 0"),
        (lambda: nn.Conv2d(1, 1, 0), "Conv2d: expected kernel_size .*got 0"),
        (lambda: nn.Conv2d(1, 1, (1, 2, 3)), "Conv2d: expected kernel_size"),
        (lambda: nn.Conv2d(1, 1, 3, stride=0), "Conv2d: expected stride"),
        (lambda: nn.Conv2d(1, 1, 3, padding=-1), "Conv2d: expected padding"),
        (lambda: nn.Conv2d(1, 1, 3, dilation=0), "Conv2d: expected dilation"),
        (lambda: nn.Conv2d(1, 1, 3, padding="full"), "Conv2d: expected padding of integers, 'valid', or 'same'"),
        (lambda: nn.Conv2d(1, 1, 3, 2, "same"), r"'same' with stride 1, got 'same' with \(2, 2\)"),
        (lambda: nn.Conv1d(1, 1, (3, 3)), r"Conv1d: expected kernel_size to be an integer >= 1 .* got \(3, 3\)"),
        (lambda: nn.Conv1d(1, 1, 3, padding_mode="circular"), "Conv1d: expected no padding_mode.*nn.functional.pad"),
        (lambda: nn.ConvTranspose1d(4, 6, 3, groups=4), "ConvTranspose1d: expected groups to divide the channels"),
        (lambda: nn.ConvTranspose2d(1, 1, 3, padding="same"), "ConvTranspose2d: expected padding to be an integer"),
        (lambda: nn.ConvTranspose2d(1, 1, 3, 2, 1, 2), r"ConvTranspose2d: expected output_padding less than stride"),
        *[
            (lambda size=size: nn.ConvTranspose2d(1, 1, 3, 2, 1)(Tensor(ones(1, 1, 2, 2)), output_size=size), words)
            for size, words in (
                ((3, 5), r"ConvTranspose2d: expected output_size of \(3, 3\) to \(4, 4\) for x .* got \(3, 5\)"),
                ((1, 3, 3), "ConvTranspose2d: expected output_size of 2 or 4 integers"),
                (3, "ConvTranspose2d: expected output_size to be a list or a tuple, got 3"),
            )
        ],
        (lambda: nn.InstanceNorm1d(0), "InstanceNorm1d: expected num_features to be an integer >= 1, got 0"),
        (lambda: nn.InstanceNorm2d(3, momentum=2), r"InstanceNorm2d: expected momentum to be a number in \[0, 1\]"),
        (lambda: nn.ConstantPad1d(1.5, 0), "ConstantPad1d: expected padding of an integer or 2 of them, got 1.5"),
        (lambda: nn.ConstantPad2d(1, "a"), "ConstantPad2d: expected value to be a number, got 'a'"),
        (lambda: nn.PixelShuffle(0), "PixelShuffle: expected upscale_factor to be an integer >= 1, got 0"),
        (lambda: nn.PixelUnshuffle(1.5), "PixelUnshuffle: expected downscale_factor to be an integer >= 1, got 1.5"),
        (lambda: nn.Upsample(), "Upsample: expected size or scale_factor, got size=None and scale_factor=None"),
        (lambda: nn.Upsample(2, mode="cubic"), "Upsample: expected mode to be one of 'nearest', "),
        (lambda: nn.UpsamplingNearest2d(2, 2), "UpsamplingNearest2d: expected size or scale_factor"),
        (lambda: nn.UpsamplingBilinear2d(), "UpsamplingBilinear2d: expected size or scale_factor"),
        (lambda: nn.Threshold(None, 0), "Threshold: expected threshold to be a finite number, got None"),
        (lambda: nn.Hardshrink("1"), "Hardshrink: expected lambd to be a finite number, got '1'"),
        (lambda: nn.Softmin(None), "Softmin: expected dim to be an integer, got None"),
        (lambda: nn.MaxPool1d(3, padding=2), r"MaxPool1d: expected padding of at most half the window \(3,\), got 2"),
        (lambda: nn.AvgPool1d(0), "AvgPool1d: expected kernel_size"),
        (lambda: nn.AdaptiveAvgPool1d(0), "AdaptiveAvgPool1d: expected output_size to be an integer >= 1"),
        (lambda: nn.MaxPool2d(0), "MaxPool2d: expected kernel_size"),
        (lambda: nn.MaxPool2d(2, 0), "MaxPool2d: expected stride"),
        (lambda: nn.MaxPool2d(3, padding=2), r"MaxPool2d: expected padding of at most half the window \(3, 3\), got 2"),
        (lambda: nn.MaxPool2d(2, dilation=0), "MaxPool2d: expected dilation"),
        (lambda: nn.AvgPool2d(2, padding=(0, 2)), "AvgPool2d: expected padding of at most half the window"),
        (lambda: nn.AdaptiveAvgPool2d(0), "AdaptiveAvgPool2d: expected an output_size .* got 0"),
        (lambda: nn.AdaptiveAvgPool2d((1, 2, 3)), "AdaptiveAvgPool2d: expected an output_size"),
        (lambda: nn.BatchNorm1d(0), "BatchNorm1d: expected num_features to be an integer >= 1, got 0"),
        (lambda: nn.BatchNorm2d(3, eps=-1.0), "BatchNorm2d: expected eps to be a finite number >= 0, got -1.0"),
        (lambda: nn.BatchNorm2d(3, momentum=1.5), r"BatchNorm2d: expected momentum to be a number in \[0, 1\]"),
        (lambda: nn.LayerNorm(0), "LayerNorm: expected normalized_shape of at least 1, got 0"),
        (lambda: nn.LayerNorm(()), r"LayerNorm: expected normalized_shape of at least 1, got \(\)"),
        (lambda: nn.LayerNorm(3, eps=float("nan")), "LayerNorm: expected eps"),
        (lambda: nn.GroupNorm(3, 4), "GroupNorm: expected num_groups to divide num_channels, got 3 and 4"),
        (lambda: nn.GroupNorm(0, 4), "GroupNorm: expected num_groups to be an integer >= 1, got 0"),
        (lambda: nn.Dropout(1.5), r"Dropout: expected p to be a number in \[0, 1\], got 1.5"),
        (lambda: nn.Dropout2d(-0.1), r"Dropout2d: expected p to be a number in \[0, 1\], got -0.1"),
        (lambda: nn.LeakyReLU(float("inf")), "LeakyReLU: expected negative_slope"),
        (lambda: nn.PReLU(0), "PReLU: expected num_parameters to be an integer >= 1, got 0"),
        (lambda: nn.PReLU(1, "0"), "PReLU: expected init to be a finite number, got '0'"),
        (lambda: nn.CELU(0), "CELU: expected alpha other than 0, got 0"),
        (lambda: nn.Hardtanh(1, 1), "Hardtanh: expected min_val below max_val, got 1 and 1"),
        (lambda: nn.Softshrink(-0.5), "Softshrink: expected lambd to be a finite number >= 0, got -0.5"),
        (lambda: nn.GLU(None), "GLU: expected dim to be an integer, got None"),
        (lambda: nn.ELU(None), "ELU: expected alpha"),
        (lambda: nn.GELU("fast"), "GELU: expected approximate to be one of 'none', 'tanh', got 'fast'"),
        (lambda: nn.Softplus(0.0), "Softplus: expected beta other than 0, got 0"),
        (lambda: nn.Softmax(None), "Softmax: expected dim to be an integer, got None"),
        (lambda: nn.Unflatten(1, (2, -2)), "Unflatten: expected unflattened_size of at least -1"),
        (lambda: nn.Embedding(0, 3), "Embedding: expected num_embeddings to be an integer >= 1, got 0"),
        (lambda: nn.Embedding(3, 3, 3), r"Embedding: expected padding_idx to be an integer in \[-3, 3\), got 3"),
        (lambda: nn.MSELoss(reduction="avg"), "MSELoss: expected reduction to be one of 'mean', 'sum', 'none'"),
        (lambda: nn.CrossEntropyLoss(label_smoothing=2), r"CrossEntropyLoss: expected label_smoothing .* \[0, 1\]"),
    ),
    *each(
        (run, ShapeError),
        (lambda: nn.Softmax2d()(Tensor(ones(2, 3))), r"Softmax2d: expected x of shape .* got \(2, 3\)"),
        (lambda: nn.ZeroPad2d(1)(Tensor(ones(2, 3))), r"ZeroPad2d: expected x of shape .* got \(2, 3\)"),
        (lambda: nn.InstanceNorm2d(3)(Tensor(ones(2, 3))), "InstanceNorm2d: expected x with 3 or 4 axes"),
        (lambda: nn.InstanceNorm2d(3)(Tensor(ones(2, 4, 5, 5))), "InstanceNorm2d: expected 3 channels"),
        (lambda: nn.InstanceNorm1d(3)(Tensor(ones(2, 3, 1))), "instance_norm: expected several values for each"),
    ),
    *each(
        (lambda name: getattr(nn, name)((1, 1, 1)), ArgumentError, "^%s: expected padding of an integer or . of them"),
        *["ZeroPad1d", "ZeroPad2d", "ReflectionPad1d", "ReflectionPad2d", "ReplicationPad1d", "ReplicationPad2d"],
        *["CircularPad1d", "CircularPad2d"],
    ),
    *each(
        (lambda name: getattr(nn, name)()([1.0]), DtypeError, "expected a tensor, an array or a number, got list"),
        *["ReLU", "ReLU6", "Hardsigmoid", "Hardswish", "SiLU", "Mish", "Sigmoid", "LogSigmoid", "Softsign", "Tanh"],
        *["Tanhshrink", "SELU"],
    ),
    (lambda: nn.ZeroPad2d(1)([1.0]), DtypeError, "ZeroPad2d: expected a tensor, got list"),
    (lambda: nn.BatchNorm1d(1)([1.0]), DtypeError, "BatchNorm1d: expected a tensor, got list"),
    (lambda: nn.ConvTranspose1d(1, 1, 2)([1.0], [2]), DtypeError, "ConvTranspose1d: expected a tensor, got list"),
    (lambda: nn.MaxPool1d(2, 2, 0, 1, True), CallError, r"MaxPool1d: expected .*dilation=1, \*, ceil_mode=False"),
    (lambda: nn.LogSoftmax("1"), ArgumentError, "LogSoftmax: expected dim to be an integer, got '1'"),
    (lambda: nn.Flatten(3)(Tensor(np.ones((2, 3)))), ShapeError, r"flatten: expected an axis in \[-2, 2\), got 3"),
    (lambda: nn.ModuleList([nn.ReLU]), DtypeError, "ModuleList: expected a Module, got type"),
    (lambda: nn.ModuleDict({"a": 1}), DtypeError, "ModuleDict: expected a Module for 'a', got int"),
    (lambda: nn.CrossEntropyLoss(np.ones(3)), DtypeError, "CrossEntropyLoss: expected weight to be"),
    (lambda: nn.Embedding.from_pretrained(Tensor(ones(3))), ShapeError, r"\(rows, columns\), got \(3,\)"),
    (lambda: nn.Embedding.from_pretrained([[1.0]]), DtypeError, "from_pretrained: expected a float tensor, got list"),
    (lambda: nn.Embedding.from_pretrained(Tensor(np.ones((2, 2))), 1), ArgumentError, "expected freeze to be True"),
    # module
    *each(
        (lambda method, target: getattr(Mixed(), method)(target), ArgumentError, r"Mixed: expected one of .*\[.*\]"),
        *[("get_submodule", "inner.x"), ("get_parameter", "inner.count"), ("get_buffer", "q")],
    ),
    (lambda: Mixed().register_parameter("plain", Parameter(ones(1))), ArgumentError, "got 'plain', which is taken"),
    (lambda: Mixed().add_module("b", Scale()), ArgumentError, "got 'b', which is taken"),
    (lambda: setattr(Mixed(), "train", Parameter(ones(1))), ArgumentError, "got 'train', which the class defines"),
    (lambda: Mixed().add_module("x", Tensor(ones(1))), DtypeError, "expected a Module or None for 'x', got Tensor"),
    (lambda: Mixed().register_parameter("x", Tensor(ones(1))), DtypeError, "expected a Parameter or None for 'x'"),
    (lambda: Mixed().register_buffer("x", ones(1)), DtypeError, "expected a Tensor or None for 'x', got ndarray"),
    (lambda: Module()(), ArgumentError, r"Module: expected a module that defines forward\(\)"),
    *each(
        (lambda register: register(3), DtypeError, "hook: expected a function, got int"),
        *[Scale().register_forward_hook, Scale().register_forward_pre_hook],
    ),
    (lambda: Scale().train("no"), ArgumentError, "Scale.train: expected mode to be True or False, got 'no'"),
    *each((lambda dtype: Scale().to(dtype), DtypeError, "to: expected a float dtype, got"), "int64", bool),
    (lambda: Scale().to("float32", dtype="float64"), ArgumentError, "to: expected at most one device and one dtype"),
    *each(
        (pickle.dumps, ArgumentError, "pickle: expected plain data, got a .*: save .* with nn.save_file"),
        *[Scale(), Parameter(ones(2)), Buffer(ones(2))],
    ),
    # state
    (lambda: net().load_state_dict([]), DtypeError, "load_state_dict: expected a mapping of names to tensors"),
]
