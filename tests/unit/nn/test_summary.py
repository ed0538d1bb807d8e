"""The table of a model: each figure by hand, or by counting, and no trace of the run that made it."""

import json

import numpy as np
import pytest

import minigrad
from minigrad import nn, optim, summary
from minigrad.distributed import DDP, run
from minigrad.errors import ArgumentError, ShapeError
from minigrad.nn import functional
from minigrad.nn.module import Module
from minigrad.nn.watch import watching_calls


class Tied(nn.Module):
    """A block that runs twice and has two names, an embedding whose weight is the head's, a weight of its own."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.block = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        self.again = self.block
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight
        self.scales = nn.Parameter(minigrad.ones(3, 3))
        self.unused = nn.Conv2d(1, 2, 3)
        self.block[0].bias.requires_grad_(False)

    def forward(self, x):
        x = self.again(self.block(self.embed(x)))
        return self.head(x), {"half": x[:2]}


TABLE = """\
module  kind         output             parameters  trainable  bytes  products
------------------------------------------------------------------------------
        Tied         (3, 10), (2, 4)             9          9     36         ?
embed   Embedding    (3, 4)                     40         40    160         0
block   Sequential   (3, 4), 2 times             0          0      0         0
  0     Linear       (3, 4), 2 times            20         16     80        96
  1     BatchNorm1d  (3, 4), 2 times             8          8     72         0
  2     Dropout      (3, 4), 2 times             0          0      0         0
again   Sequential   the same as block
head    Linear       (3, 10)                     0          0      0       120
unused  Conv2d       -                          20         20     80         -
------------------------------------------------------------------------------
97 parameters, 93 of them trainable: 388 bytes, and 40 bytes of buffers
head.weight is embed.weight, counted there
216 products with weights, without those in Tied"""


def test_each_figure_by_hand():
    """Linear: 4·4 + 4; products 3·4·4 in each of two calls, 3·10·4 in the head; 3 statistics: 2 of 4·4 B, 1 of 8 B."""
    found = summary(Tied(), minigrad.tensor([1, 2, 3]))
    assert str(found) == repr(found) == TABLE
    assert json.loads(json.dumps([found.rows, found.totals])) == [found.rows, found.totals]
    row = next(row for row in found.rows if row["name"] == "block.0")
    assert (row["depth"], row["calls"], row["outputs"]) == (2, 2, [[[3, 4]]])
    assert found.totals == {
        "parameters": 97, "trainable": 93, "parameter_bytes": 388, "buffer_bytes": 40, "products": 216,
        "uncounted": ["Tied"],
    }
    assert sum(row["parameters"] for row in found.rows) == Tied().num_parameters() == 97


def test_without_inputs_nothing_runs():
    class Never(Module):
        def forward(self, x):
            raise AssertionError

    model = nn.Sequential(Never(), nn.Linear(2, 3))
    assert str(summary(model)).splitlines()[4:] == [
        "1       Linear      -                9          9     36         -",
        "-" * 66,
        "9 parameters, 9 of them trainable: 36 bytes, and 0 bytes of buffers",
    ]


class Counted(float):
    """A number that notes when it is multiplied."""

    times = 0

    def __mul__(self, other):
        Counted.times += 1
        return Counted(float(self) * float(other))

    def __add__(self, other):
        return Counted(float(self) + float(other))

    __rmul__, __radd__ = __mul__, __add__


def counted(array):
    return np.vectorize(Counted, otypes=[object])(array)


def linear_by_loops(x, weight):
    rows = x.reshape(-1, x.shape[-1])
    return [[sum(a * b for a, b in zip(row, unit)) for unit in weight] for row in rows]


def conv_by_loops(x, weight, stride, padding, dilation, groups):
    """The sum of the definition, place by place."""
    x = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)])
    out, per, *kernel = weight.shape
    sizes = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(x.shape[2:], kernel, stride, dilation)]
    for b, o, *place in np.ndindex(len(x), out, *sizes):
        for c, *at in np.ndindex(per, *kernel):
            where = [i * s + j * d for i, s, j, d in zip(place, stride, at, dilation)]
            weight[(o, c, *at)] * x[(b, o // (out // groups) * per + c, *where)]


def turned_by_loops(x, weight, groups):
    """Each element of the input goes to all places of the kernel, in each output channel of its group."""
    (n, channels, *places), (_, per, *kernel) = x.shape, weight.shape
    for b, c, *place in np.ndindex(n, channels, *places):
        for o, *at in np.ndindex(per, *kernel):
            x[(b, c, *place)] * weight[(c, o, *at)]


@pytest.mark.parametrize(
    "layer, shape",
    [
        (nn.Linear(3, 5), (2, 3)),
        (nn.Linear(3, 5, bias=False), (2, 4, 3)),
        (nn.Conv2d(2, 3, 3), (2, 2, 5, 4)),
        (nn.Conv2d(4, 6, (2, 3), stride=2, padding=1, dilation=2, groups=2), (1, 4, 7, 8)),
        (nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), (2, 4, 7)),
        (nn.ConvTranspose1d(4, 6, 3, stride=2), (2, 4, 3)),
        (nn.ConvTranspose2d(4, 6, (2, 3), groups=2), (2, 4, 3, 2)),
    ],
    ids=str,
)
def test_products_are_those_of_the_definition(layer, shape):
    x, weight = counted(np.ones(shape)), counted(layer.weight.detach().numpy())
    Counted.times = 0
    if isinstance(layer, nn.Linear):
        linear_by_loops(x, weight)
    elif isinstance(layer, (nn.ConvTranspose1d, nn.ConvTranspose2d)):
        turned_by_loops(x, weight, layer.groups)
    else:
        conv_by_loops(x, weight, layer.stride, layer.padding, layer.dilation, layer.groups)
    assert summary(layer, shape).totals["products"] == Counted.times > 0


class Restless(nn.Module):
    """Changes what a module may change in forward, and fails when it is told to."""

    def __init__(self):
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.calls, self.sums = nn.Buffer(minigrad.zeros(1)), nn.Buffer(minigrad.zeros(4))
        self.drop.eval()

    def forward(self, x, fails=False):
        self.calls = self.calls + 1
        self.sums.add_(1)
        self.new = nn.Buffer(minigrad.ones(1))
        x = functional.batch_norm(x, self.norm.running_mean, self.norm.running_var, training=True)
        y = functional.dropout(self.drop(x), 0.5, training=True)
        if fails:
            raise ShapeError("it failed")
        return self.norm(y) + minigrad.randn(4)


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_left_of_the_run(fails):
    minigrad.manual_seed(3)
    model = Restless()
    model.drop.register_forward_hook(lambda module, args, output: None)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    loss = model.norm(minigrad.randn(5, 4)).square().sum()
    x = minigrad.randn(5, 4, requires_grad=True)

    def left():
        modules = [(m.training, [*m._forward_hooks], [*m._forward_pre_hooks], [*m._buffers]) for m in model.modules()]
        buffers = [(id(b), b.data.tobytes()) for b in model.buffers()]
        grads = [p.grad for p in model.parameters()], x.grad
        return modules, buffers, grads, minigrad.get_rng_state(), repr(optimizer.state_dict())

    before = left()
    if fails:
        with pytest.raises(ShapeError, match="it failed"):
            summary(model, x, fails=True)
    else:
        assert summary(model, x).rows[0]["outputs"] == [[[5, 4]]]
        summary(model, (5, 4))
    assert left() == before
    assert minigrad.is_grad_enabled()
    loss.backward()  # nor has the tape noticed anything


def test_the_run_records_nothing_and_nobody_hears_of_it():
    class Asking(nn.Linear):
        def forward(self, x):
            found.append(minigrad.is_grad_enabled())
            return super().forward(x)

    class Watcher:
        def call(self, samples):
            raise AssertionError(samples)

    found = []
    with watching_calls(Watcher()):
        summary(nn.Sequential(Asking(3, 4)), (2, 3))
    assert found == [False]


def test_what_is_not_counted_is_named():
    model = nn.Sequential(nn.LSTM(3, 4), nn.Identity())
    found = summary(model, (5, 2, 3))
    assert found.rows[1]["outputs"] == [[[5, 2, 4], [1, 2, 4], [1, 2, 4]]] and found.rows[1]["products"] is None
    assert str(found).endswith("0 products with weights, without those in 0") and found.totals["uncounted"] == ["0"]


def test_what_a_layer_makes_of_its_weights_in_a_forward_of_its_own_is_not_guessed():
    class Silent(nn.Linear):
        def forward(self, x):
            super().forward(x)

    class Named(nn.ConvTranspose1d):
        def __call__(self, x):
            return super().__call__(x=x)

    class Adapted(nn.Linear):
        def __init__(self):
            super().__init__(3, 3)
            self.more = nn.Parameter(minigrad.ones(3, 3))

        def forward(self, x):
            return super().forward(x) + x @ self.more

    for layer, shape in ((Silent(3, 3), (2, 3)), (Named(2, 3, 3), (1, 2, 4)), (Adapted(), (2, 3))):
        assert summary(layer, shape).totals["uncounted"] == [type(layer).__name__]


def test_a_rank_asks_for_a_wrapped_model_by_itself():
    def body(comm):
        ddp = DDP(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), comm)
        before = minigrad.get_rng_state()
        found = summary(ddp, (1, 3)) if comm.rank else None  # batch_norm has no batch of one in training
        assert minigrad.get_rng_state() == before
        ddp(minigrad.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, comm.rank]])).square().mean().backward()
        twin = DDP(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), comm)
        twin.load_state_dict(ddp.state_dict())
        twin(minigrad.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, comm.rank]])).square().mean().backward()
        for mine, other in zip(ddp.parameters(), twin.parameters()):  # the samples of the summary were not counted
            assert mine.grad.tolist() == other.grad.tolist()
        return found and [(row["name"], row["products"]) for row in found.rows]

    assert run(body, 2, timeout_s=10.0)[1] == [("", 0), ("module", 0), ("module.0", 12), ("module.1", 0)]


def test_a_model_on_a_gpu(cuda):
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2)).to(cuda)
    assert summary(model, (3, 1, 4, 4)).totals["products"] == 3 * (2 * 2 * 2 * 9 + 8 * 2)


def test_a_model_is_asked_for():
    with pytest.raises(ArgumentError, match="summary: expected a Module, got function"):
        summary(doubled, (1,))


def doubled(x):
    return 2 * x
