"""FlowBuilder: what each verb computes, the names that come of it, and every fault reported at once."""

import numpy as np
import pytest

from minigrad import FlowBuilder, Tensor, nn
from minigrad.errors import ArgumentError, WiringError
from minigrad.graph.wiring import Wiring, WiringNode, checked
from minigrad.testing import assert_close
from tests.unit.graph.nets import Masked, Plus, encoder


@pytest.fixture
def x(rng):
    return Tensor(rng.standard_normal((5, 3)))


def linear(inputs=3, outputs=3):
    return nn.Linear(inputs, outputs, dtype="float64")


def faults(builder):
    with pytest.raises(WiringError) as caught:
        builder.build()
    count = len(caught.value.faults)
    assert str(caught.value).startswith(f"FlowBuilder.build: expected a wiring without faults, got {count}:")
    assert all(fault in str(caught.value) for fault in caught.value.faults)
    return list(caught.value.faults)


# ----------------------------------------------------------------------------------------------------------- verbs


def test_through(x):
    a, b = linear(), linear(3, 2)
    assert_close(FlowBuilder.from_(a).through(nn.ReLU()).through(b).build()(x), b(nn.ReLU()(a(x))), tolerance=0)


def test_also_and_also_with(x):
    a, b, c = linear(), linear(), linear()
    graph = FlowBuilder().also(a).also_with(b, c).build()
    y = x + a(x)
    assert_close(graph(x), b(y) + c(y), tolerance=0)


def test_fork_leaves_the_stream(x):
    a, aside, b = linear(), linear(3, 7), linear()
    graph = FlowBuilder.from_(a).fork(aside).tag("aside").through(b).build()
    assert_close(graph(x), b(a(x)), tolerance=0)
    assert_close(graph.tagged("aside"), aside(a(x)), tolerance=0)


@pytest.mark.parametrize(
    "how, dim, expected",
    [
        ("add", None, lambda a, b, c: a + b + c),
        ("mean", None, lambda a, b, c: (a + b + c) / 3),
        ("cat", None, lambda a, b, c: np.concatenate([a, b, c], 1)),
        ("cat", 0, lambda a, b, c: np.concatenate([a, b, c], 0)),
        ("cat", -1, lambda a, b, c: np.concatenate([a, b, c], -1)),
    ],
)
def test_split_and_merge(x, how, dim, expected):
    modules = [linear(), linear(), linear()]
    graph = FlowBuilder().split(modules).merge(how, dim).build()
    assert_close(graph(x), expected(*(module(x).detach().numpy() for module in modules)), tolerance=1e-15)


def test_using_passes_keywords(x):
    a, b, masked = linear(), linear(), Masked().double()
    graph = FlowBuilder.from_(a).tag("first").through(b).through(masked).using(mask="first").build()
    assert_close(graph(x), b(a(x)) * a(x) * 2.0, tolerance=1e-15)


def test_using_an_input_and_its_order(x):
    graph = FlowBuilder("image").input("mask").through(Masked().double()).using("mask").build()
    assert graph.input_names == ("image", "mask")
    assert_close(graph(x, x + 1), 2 * x * (x + 1), tolerance=1e-15)
    assert_close(graph(mask=x + 1, image=x), 2 * x * (x + 1), tolerance=1e-15)


def test_any_python_name_is_an_input(x):
    graph = FlowBuilder("self").input("inputs").through(Plus()).using(named="inputs", self="self").build()
    assert_close(graph(self=x, inputs=x), 3 * x, tolerance=1e-15)


def test_using_is_for_each_branch_and_for_the_module_of_a_residual(x):
    branches = FlowBuilder("x").split([Plus(), Plus()]).using("x").tag_group("branch").merge("add").build()
    assert_close(branches(x), 4 * x, tolerance=1e-15)
    residual = FlowBuilder("x").also(Plus()).using("x").tag("sum").build()
    assert_close(residual(x), 3 * x, tolerance=1e-15)
    assert_close(residual.tagged("sum"), 3 * x, tolerance=1e-15)
    both = FlowBuilder("x").also_with(Plus(), Plus()).using("x").build()
    assert_close(both(x), 3 * x, tolerance=1e-15)


def test_the_output_may_be_read_on_the_way(x):
    graph = FlowBuilder().through(nn.Tanh()).fork(nn.ReLU()).tag("aside").build()
    assert_close(graph(x), nn.Tanh()(x), tolerance=0)


def test_nodes_that_could_be_next_keep_the_order_in_which_they_were_written():
    nodes = [WiringNode(name, "module", ("x",), tag=name) for name in "cab"]
    wiring = checked(Wiring(("x",), (WiringNode("end", "add", ("c", "b")), *nodes), "end"), "test")
    assert [node.name for node in wiring.nodes] == ["c", "a", "b", "end"]


def test_a_tag_may_be_used_before_it_is_written(x):
    a, late = linear(), linear()
    builder = FlowBuilder().fork(Plus()).using("late").tag("early").fork(late).tag("late").through(a)
    graph = builder.build()
    assert [node.name for node in graph.wiring.nodes] == ["late", "early", "linear_1"]
    assert_close(graph(x), a(x), tolerance=0)
    assert_close(graph.tagged("early"), x + late(x), tolerance=1e-15)


def test_a_value_that_is_used_before_it_is_written_has_its_own_shape():
    class Shapes(nn.Module):
        def forward(self, x, state):
            self.seen = x.shape, state.shape
            return x

    reader = Shapes()
    builder = FlowBuilder().fork(reader).using("state").tag("read").fork(nn.Linear(4, 16)).tag("state")
    builder.through(nn.Identity()).build()(Tensor(np.ones((8, 4), np.float32)))
    assert reader.seen == ((8, 4), (8, 16))


def test_a_module_in_two_places_is_one_module(x):
    shared = linear()
    graph = FlowBuilder().through(shared).through(nn.Tanh()).through(shared).build()
    assert_close(graph(x), shared(nn.Tanh()(shared(x))), tolerance=0)
    assert len(list(graph.parameters())) == 2


# ----------------------------------------------------------------------------------------------------------- names


def test_names_of_nodes_and_parameters():
    graph = (
        FlowBuilder("x")
        .through(linear())
        .through(linear())
        .tag("middle")
        .through(linear())
        .split([nn.Tanh(), nn.Tanh()])
        .tag_group("way")
        .merge("mean")
        .build()
    )
    assert [node.name for node in graph.wiring.nodes] == ["linear_0", "middle", "linear_2", "way_0", "way_1", "mean_0"]
    assert [name for name, _ in graph.named_parameters()] == [
        f"{node}.{kind}" for node in ("linear_0", "middle", "linear_2") for kind in ("weight", "bias")
    ]
    assert list(graph.state_dict()) == [name for name, _ in graph.named_parameters()]


def test_a_tag_renames_nothing_but_its_node():
    def names(tagged):
        builder = FlowBuilder().through(linear())
        if tagged:
            builder.tag("first")
        return [name for name, _ in builder.through(linear()).build().named_children()]

    assert names(False) == ["linear_0", "linear_1"]
    assert names(True) == ["first", "linear_1"]


def test_a_label_names_a_sub_graph_and_a_tag_its_output():
    graph = FlowBuilder().through(encoder()).tag("code").through(nn.Linear(4, 1)).build()
    assert [name for name, _ in graph.named_parameters()][:2] == ["encoder.hidden.weight", "encoder.hidden.bias"]
    [node] = [node for node in graph.wiring.nodes if node.tag == "code"]
    assert node.name == "encoder"


def test_a_labelled_graph_used_twice_is_named_once():
    inner = FlowBuilder().through(linear()).label("block").build()
    graph = FlowBuilder().through(inner).through(inner).build()
    assert [node.name for node in graph.wiring.nodes] == ["block", "graph_1"]
    assert [name for name, _ in graph.named_parameters()] == ["block.linear_0.weight", "block.linear_0.bias"]


# ---------------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    "builder, expected",
    [
        (FlowBuilder(), ["wiring: expected at least one node, got none"]),
        (
            FlowBuilder("x").through(Plus()).using("nope"),
            ["plus_0: expected to use one of the tags and inputs 'x', got 'nope'"],
        ),
        (
            FlowBuilder().through(Plus()).using("later").through(linear()).through(nn.Tanh()).tag("later"),
            ["plus_0: expected no cycle, got plus_0 -> linear_0 -> later -> plus_0"],
        ),
        (
            FlowBuilder().through(Plus()).using("self").tag("self"),
            ["self: expected no cycle, got self -> self"],
        ),
        (
            FlowBuilder().through(linear()).tag("a").through(nn.Tanh()).tag("a"),
            ["a: expected a name of its own, got that of through(Linear) for through(Tanh) too"],
        ),
        (
            FlowBuilder().through(encoder()).through(nn.Linear(4, 3)).through(encoder()),
            ["encoder: expected a name of its own, got that of through(Graph) for through(Graph) too"],
        ),
        (
            FlowBuilder().through(linear()).tag("input"),
            ["input: expected a name of its own, got that of input for through(Linear) too"],
        ),
        (
            FlowBuilder().through(nn.Tanh()).tag("linear_0").through(linear()),
            ["linear_0: expected a name of its own, got that of through(Tanh) for through(Linear) too"],
        ),
        (
            FlowBuilder().split([linear(), linear()]),
            ["build: expected merge(...) first, got a split that is open"],
        ),
        (
            FlowBuilder().split([linear(), linear()]).through(nn.Tanh()),
            ["through: expected merge(...) first, got a split that is open"],
        ),
        (
            FlowBuilder().split([linear()]).merge("add"),
            ["split: expected at least two modules, got 1"],
        ),
        (
            FlowBuilder().through(linear()).merge("add"),
            ["merge('add'): expected split(...) before, got no open split"],
        ),
        (
            FlowBuilder().split([linear(), linear()]).merge("max"),
            ["merge: expected how as one of 'add', 'mean', 'cat', got 'max'"],
        ),
        (
            FlowBuilder().split([linear(), linear()]).merge("add", 1),
            ["merge('add'): expected dim with 'cat' only, an integer, got 1"],
        ),
        (
            FlowBuilder().split([linear(), linear()]).merge("cat", "rows"),
            ["merge('cat'): expected dim with 'cat' only, an integer, got 'rows'"],
        ),
        (
            FlowBuilder().through(linear()).input("mask"),
            ["mask: expected an input that is used, got one that no node reads"],
        ),
        (
            FlowBuilder().fork(linear()).through(nn.Tanh()),
            ["linear_0: expected a path to the output, or a tag, got neither: its value is lost"],
        ),
        (
            FlowBuilder().split([linear(), linear()]).tag("both").merge("add"),
            ["tag('both'): expected one output, got the 2 branches of a split: use tag_group"],
        ),
        (
            FlowBuilder().through(linear()).tag_group("one"),
            ["tag_group('one'): expected it right after split(...), got it elsewhere"],
        ),
        (
            FlowBuilder().through(linear()).tag("a").tag("b"),
            ["tag('b'): expected an output without a name, got 'a'"],
        ),
        (
            FlowBuilder("x").tag("a").through(linear()),
            ["tag('a'): expected an output without a name, got 'x'"],
        ),
        (
            FlowBuilder("x").using("x").through(linear()),
            ["using(x): expected a module before, got none"],
        ),
        (
            FlowBuilder("x").through(Plus()).using("x").using("x"),
            ["using('x'): expected each keyword once, got 'x' twice"],
        ),
        (
            FlowBuilder("x").through(Plus()).using(other=3),
            ["using: expected tags (str), got 3"],
        ),
        (
            FlowBuilder().through(linear()).label("a").label("b"),
            ["label('b'): expected one label, got 'a' before"],
        ),
        (
            FlowBuilder().through(linear()).tag("a.b"),
            ["tag: expected a Python name that does not begin with an underscore, got 'a.b'"],
        ),
        (
            FlowBuilder().through(linear()).tag("train"),
            ["train of through(Linear): expected a name that a Graph does not have for itself"],
        ),
        (
            FlowBuilder().through(linear()).tag("training"),
            ["training of through(Linear): expected a name that a Graph does not have for itself"],
        ),
        (
            FlowBuilder().through(np.tanh),
            ["through: expected a Module, got ufunc"],
        ),
        (
            FlowBuilder().split(linear()).merge("add"),
            ["split: expected a list of modules, got Linear"],
        ),
        (
            FlowBuilder().through(nn.ModuleList()),
            ["modulelist_0: expected a module that can be called, got a ModuleList, which has no forward()"],
        ),
        (
            FlowBuilder().through(Masked()),
            [
                "masked_0: expected Masked.forward to take one value, got Masked.forward(x, mask): "
                "missing a required argument: 'mask'"
            ],
        ),
        (
            FlowBuilder("x").through(linear()).using(size="x"),
            [
                "linear_0: expected Linear.forward to take one value and size=, got Linear.forward(x): "
                "got an unexpected keyword argument 'size'"
            ],
        ),
        (
            FlowBuilder("x").through(encoder()).using(size="x"),
            ["encoder: Graph: expected 1 input (x), got an unknown size"],
        ),
        (
            FlowBuilder().through(FlowBuilder("x").input("mask").through(Masked()).using("mask").build()),
            ["graph_0: Graph: expected 2 inputs (x, mask), got no value for mask"],
        ),
    ],
    ids=lambda value: value[0][:60] if isinstance(value, list) else "",
)
def test_each_fault(builder, expected):
    assert faults(builder) == expected


def test_all_faults_are_told_at_once():
    builder = (
        FlowBuilder()
        .input("unused", "unused")
        .through(Plus())
        .using("later", "nowhere")
        .fork(nn.Tanh())
        .through(nn.Tanh())
        .tag("later")
        .through(3)
        .split([linear(), linear()])
        .through(Plus())
        .using("loop")
        .tag("loop")
    )
    told = faults(builder)
    assert told == [
        "through: expected a Module, got 3",
        "through: expected merge(...) first, got a split that is open",
        "unused: expected a name of its own, got that of input for input too",
        "plus_0: expected to use one of the tags and inputs 'input', 'unused', 'later', 'loop', got 'nowhere'",
        "plus_0: expected no cycle, got plus_0 -> later -> plus_0",
        "loop: expected no cycle, got loop -> loop",
        "unused: expected an input that is used, got one that no node reads",
        "unused': expected an input that is used, got one that no node reads",
        "tanh_0: expected a path to the output, or a tag, got neither: its value is lost",
    ]
    assert faults(builder) == told


def test_a_flow_is_built_once():
    builder = FlowBuilder().through(linear())
    builder.build()
    with pytest.raises(ArgumentError, match=r"FlowBuilder.build: expected to be called once, got a second call"):
        builder.build()
