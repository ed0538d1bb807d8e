"""Graph: its inputs, tagged values, dotted paths, replicas and copies."""

import copy
import gc
import re
import weakref

import numpy as np
import pytest

from minigrad import FlowBuilder, Graph, Tensor, nn, no_grad
from minigrad.distributed import Ddp, SoloCommunicator, SyncBatchNorm, convert_sync_batchnorm
from minigrad.errors import ArgumentError, DtypeError, ShapeError, WiringError
from minigrad.graph import FlowBuilder as Flow, GraphModule, Wiring, WiringNode
from minigrad.testing import assert_close
from tests.unit.graph.nets import Masked, batch, classifier, encoder


@pytest.fixture
def graph():
    return classifier()


def raises(error, message):
    return pytest.raises(error, match=re.escape(message))


# ---------------------------------------------------------------------------------------------------------- inputs


def test_every_way_to_call_it(graph):
    graph.eval()
    given = batch()
    image, mask = given["image"], given["mask"]
    expected = graph(image, mask)
    assert expected.shape == (5, 2)
    target = np.zeros(5)
    for output in (
        graph(mask=mask, image=image),
        graph(image, mask=mask),
        graph.forward_multi([image, mask]),
        graph.forward_batch({"label": target, **given}),
        graph.forward_batch((image, mask, target)),
        graph.forward_batch([image, mask]),
    ):
        assert_close(output, expected, tolerance=0)


def test_one_input_as_a_batch():
    net = encoder().eval()
    x = batch()["image"]
    for given in (x, (x,), {"x": x}):
        assert_close(net.forward_batch(given), net(x), tolerance=0)


@pytest.mark.parametrize(
    "args, named, message",
    [
        ((1, 2, 3), {}, "Graph: expected 2 inputs (image, mask), got 3"),
        ((1,), {}, "Graph: expected 2 inputs (image, mask), got no value for mask"),
        ((), {}, "Graph: expected 2 inputs (image, mask), got no value for image, mask"),
        ((1,), {"image": 2}, "Graph: expected 2 inputs (image, mask), got two values for image"),
        ((1,), {"musk": 2}, "Graph: expected 2 inputs (image, mask), got an unknown musk"),
    ],
)
def test_wrong_inputs(graph, args, named, message):
    with raises(ArgumentError, message):
        graph(*args, **named)


@pytest.mark.parametrize(
    "given, error, message",
    [
        ({"image": 1}, ArgumentError, "expected image, mask in the batch, got no mask among image"),
        ((1,), ArgumentError, "expected a batch that begins with image, mask, got 1 field(s)"),
        (Tensor(np.ones(1)), ArgumentError, "expected a batch that begins with image, mask, got 1 field(s)"),
        (np.ones((2, 3)), DtypeError, "expected a mapping, a tuple or a tensor, got ndarray"),
    ],
    ids=["mapping", "tuple", "tensor", "array"],
)
def test_wrong_batches(graph, given, error, message):
    with raises(error, f"Graph.forward_batch: {message}"):
        graph.forward_batch(given)


def test_an_error_names_the_node_on_every_level(graph):
    with pytest.raises(ShapeError, match="^node encoder: node hidden: "):
        graph(Tensor(np.ones((2, 7), np.float32)), batch()["mask"])


def test_merges_do_not_broadcast():
    net = FlowBuilder().also(nn.Linear(3, 1)).build()
    with raises(ShapeError, "node add_0: merge: expected outputs of one shape, got (2, 3) from input, (2, 1) from"):
        net(Tensor(np.ones((2, 3), np.float32)))


def test_merges_take_tensors():
    with raises(DtypeError, "node add_0: merge: expected tensors, got tuple from input"):
        FlowBuilder().also(nn.Identity()).build()((1, 2))


# ----------------------------------------------------------------------------------------------------------- values


def test_tagged_values(graph):
    out = graph.forward_batch(batch())
    assert set(graph.tagged_values()) == {"aux", "sum"}
    hidden = graph.get_submodule("encoder.hidden")
    assert_close(graph.tagged("encoder.hidden"), hidden(batch()["image"]), tolerance=0)
    assert_close(out, graph.linear_2(graph.tagged("sum")), tolerance=0)
    (out.mean() + graph.tagged("aux").mean()).backward()
    assert all(param.grad is not None for param in graph.parameters())


def test_wrong_tags(graph):
    with raises(ArgumentError, "Graph.tagged: expected a forward before, got 'aux' asked for without one"):
        graph.tagged("aux")
    assert graph.tagged_values() == {}
    with raises(ArgumentError, "Graph.tagged: expected one of the tags ['aux', 'sum'], got 'linear_2'"):
        graph.tagged("linear_2")
    with raises(ArgumentError, "Graph.subgraph: expected one of the graphs ['encoder'], got 'linear_2', a Linear"):
        graph.tagged("linear_2.x")


def test_a_failed_forward_leaves_no_old_values(graph):
    graph.forward_batch(batch())
    with pytest.raises(ShapeError):
        graph(Tensor(np.ones((2, 7), np.float32)), batch()["mask"])
    assert graph.tagged_values() == {}


class Watched(nn.Module):
    """Counts the outputs of its that are alive when it is called."""

    def __init__(self, alive):
        super().__init__()
        self.alive, self.seen = alive, []

    def forward(self, x):
        self.seen.append(len(self.alive))
        y = x + 1.0
        self.alive.add(y)
        return y


def test_a_value_is_dropped_after_its_last_use():
    watched = Watched(weakref.WeakSet())
    builder = FlowBuilder()
    for _ in range(5):
        builder.through(watched)
    gc.disable()
    try:
        with no_grad():
            builder.build()(Tensor(np.ones(2)))
    finally:
        gc.enable()
    assert watched.seen == [0, 1, 1, 1, 1]


# ------------------------------------------------------------------------------------------------------------- state


def test_freeze_and_thaw_by_path(graph):
    graph.freeze("encoder.hidden", "linear_2")
    frozen = [name for name, param in graph.named_parameters() if not param.requires_grad]
    assert frozen == ["encoder.hidden.weight", "encoder.hidden.bias", "linear_2.weight", "linear_2.bias"]
    assert graph.is_frozen("linear_2") and not graph.is_frozen("encoder") and not graph.is_frozen()
    graph.thaw("linear_2")
    assert not graph.is_frozen("linear_2") and graph.is_frozen("encoder.hidden")
    graph.freeze()
    assert graph.is_frozen() and not any(param.requires_grad for param in graph.parameters())


def test_a_wrong_path_freezes_nothing(graph):
    with raises(ArgumentError, "got 'heads'"):
        graph.freeze("encoder", "heads")
    assert not graph.is_frozen("encoder")
    with raises(ArgumentError, "got 'heads'"):
        graph.eval("heads")


@pytest.mark.parametrize("path", [["encoder"], 3, None])
def test_a_path_is_text(graph, path):
    for call in (graph.freeze, graph.thaw, graph.eval, graph.is_frozen, graph.subgraph):
        with raises(ArgumentError, "Graph: expected the dotted name of a module, got "):
            call(path)
    with raises(ArgumentError, "Graph.tagged: expected one of the tags ['aux', 'sum'], got "):
        graph.tagged(path)


def test_train_and_eval_by_path(graph):
    assert graph.eval("encoder") is graph
    assert graph.training and graph.linear_2.training
    assert not any(module.training for module in graph.subgraph("encoder").modules())
    graph.eval()
    graph.train(path="encoder.batchnorm1d_0")
    assert [name for name, module in graph.named_modules() if module.training] == ["encoder.batchnorm1d_0"]


def test_replicas_follow(graph):
    others = [graph.replicate("cpu") for _ in range(2)]
    graph.attach(*others)
    assert graph.replicas == (graph, *others)
    graph.freeze("encoder")
    graph.eval("encoder")
    for replica in graph.replicas:
        assert replica.is_frozen("encoder") and not replica.is_frozen()
        assert not replica.encoder.hidden.training and replica.training
    graph.requires_grad_()
    graph.train()
    state = {name: x.numpy() + 1 for name, x in graph.state_dict().items()}
    graph.load_state_dict(state)
    for replica in graph.replicas:
        assert not any(replica.is_frozen(name) for name in ("encoder", "aux"))
        assert all(module.training for module in replica.modules())
        for name, x in replica.state_dict().items():
            assert_close(x, state[name], tolerance=0, what=name)
        replica.forward_batch(batch()).mean().backward()
    graph.zero_grad()
    assert all(param.grad is None for replica in graph.replicas for param in replica.parameters())


def test_replicas_of_a_sub_graph_follow_it(graph):
    graph.attach(*[graph.replicate("cpu") for _ in range(2)])
    part = graph.subgraph("encoder")
    part.freeze("hidden")
    part.eval()
    saved = {name: x.numpy() + 1 for name, x in part.state_dict().items()}
    part.load_state_dict(saved)
    for replica in graph.replicas:
        assert replica.is_frozen("encoder.hidden") and not replica.encoder.hidden.training and replica.training
        for name, x in replica.encoder.state_dict().items():
            assert_close(x, saved[name], tolerance=0, what=name)
    twin = copy.deepcopy(graph)
    assert twin.subgraph("encoder").replicas == (twin.encoder,)


def test_replicas_are_combined_by_ddp(graph):
    """Half a batch each, weighted, gives the gradient of the whole; frozen alike, they stay alike."""
    graph.eval()  # in training, the batch norm of each replica would see statistics of its own
    alone, twin = copy.deepcopy(graph), graph.replicate("cpu")
    graph.attach(twin)
    graph.freeze("encoder.hidden")
    alone.freeze("encoder.hidden")
    ddp = Ddp.wrap(graph.replicas, ["cpu", "cpu"])
    whole = batch(5)
    for replica, part in zip(graph.replicas, (slice(0, 3), slice(3, 5))):
        output = replica.forward_batch({name: x[part] for name, x in whole.items()})
        (output.mean() + replica.tagged("aux").mean()).backward()
    ddp.weighted_all_reduce_gradients([3, 2])
    (alone.forward_batch(whole).mean() + alone.tagged("aux").mean()).backward()
    for (name, param), expected in zip(twin.named_parameters(), alone.parameters()):
        if name.startswith("encoder.hidden"):
            assert param.grad is None and expected.grad is None
        else:
            assert_close(param.grad, expected.grad, tolerance=1e-6, what=name)


def test_what_can_not_be_a_replica(graph):
    with raises(ArgumentError, "Graph.attach: expected another Graph as replica 1, got Graph("):
        graph.attach(graph)
    with raises(ArgumentError, "Graph.attach: expected another Graph as replica 1, got ReLU()"):
        graph.attach(nn.ReLU())
    with raises(ArgumentError, "as replica 2"):
        graph.attach(graph.replicate("cpu"), encoder())
    assert graph.replicas == (graph,)


def test_a_copy_is_a_graph_of_its_own(graph):
    graph.enable_profiling()
    graph.forward_batch(batch())
    graph.attach(graph.replicate("cpu"))
    twin = copy.deepcopy(graph)
    assert twin.wiring is graph.wiring and twin.structure_hash() == graph.structure_hash()
    assert twin.tagged_values() == {} and twin.node_times() == {} and twin.replicas == (twin,)
    mine = {id(x) for _, x in (*graph.named_parameters(), *graph.named_buffers())}
    assert not mine & {id(x) for _, x in (*twin.named_parameters(), *twin.named_buffers())}
    graph.eval(), twin.eval()
    assert_close(twin.forward_batch(batch()), graph.forward_batch(batch()), tolerance=0)


def test_a_layer_can_be_replaced(graph):
    """As SyncBatchNorm does; the structure is that which was built."""
    before = graph.structure_hash()
    convert_sync_batchnorm(graph, SoloCommunicator())
    assert isinstance(graph.encoder.batchnorm1d_0, SyncBatchNorm)
    calls = []
    graph.encoder.batchnorm1d_0.register_forward_hook(lambda *args: calls.append(args))
    graph.forward_batch(batch())
    assert len(calls) == 1 and graph.structure_hash() == before


# ----------------------------------------------------------------------------------------------------- by hand, tree


def test_the_tree():
    inner = encoder("block", width=3)
    middle = FlowBuilder().through(inner).through(nn.Linear(3, 3)).label("middle").build()
    outer = FlowBuilder().through(middle).through(nn.Sequential(encoder("loose"))).build()
    assert list(outer.subgraphs()) == ["middle", "middle.block", "sequential_0.0"]
    assert outer.subgraph("middle.block") is inner and outer.subgraph("") is outer
    assert [graph.label for graph in outer.subgraphs().values()] == ["middle", "block", "loose"]
    assert "middle.block.hidden.weight" in outer.state_dict()


def test_a_wiring_written_by_hand():
    wiring = Wiring(
        ("x",),
        (WiringNode("sum", "add", ("a", "x")), WiringNode("a", "module", ("x",))),
        "sum",
    )
    layer = nn.Linear(2, 2)
    graph = Graph(wiring, {"a": layer})
    x = Tensor(np.ones((1, 2), np.float32))
    assert_close(graph(x), layer(x) + x, tolerance=0)
    assert [node.name for node in graph.wiring.nodes] == ["a", "sum"]
    with raises(ArgumentError, "Graph: expected modules for a, got b"):
        Graph(wiring, {"b": layer})
    with raises(ArgumentError, "Graph: expected names that it does not have for itself, got 'run'"):
        Graph(Wiring(("x",), (WiringNode("run", "module", ("x",)),), "run"), {"run": layer})


def test_a_faulty_wiring_written_by_hand():
    nodes = (WiringNode("a", "module", ("x", "y")), WiringNode("a", "module", ("x",)))
    with pytest.raises(WiringError) as caught:
        Graph(Wiring(("x",), nodes, "b"), {"a": nn.ReLU()})
    assert caught.value.faults == (
        "a: expected a name of its own, got one of 2 nodes",
        "a: expected to read nodes of the wiring, got 'y', which is none",
        "output: expected a node of the wiring, got 'b'",
        "a: expected a path to the output, or a tag, got neither: its value is lost",
    )


def test_hooks_run_on_every_way_to_call_it(graph):
    seen = []
    graph.register_forward_hook(lambda module, args, output: seen.append(len(args)))
    graph.forward_batch(batch())
    graph.forward_multi(list(batch().values()))
    assert seen == [2, 2]


def test_a_sub_graph_with_a_keyword_input():
    inner = FlowBuilder("x").input("mask").through(Masked()).using("mask").label("inner").build()
    outer = FlowBuilder("x").input("weights").through(inner).using(mask="weights").build()
    x = Tensor(np.ones((2, 3), np.float32))
    assert_close(outer(x, x + 1), 4 * x.numpy(), tolerance=0)


def test_a_graph_that_does_not_train(tmp_path):
    """The same nodes, names and structure without what trains them; in a Graph it is a part like any other."""
    plain, graph = (
        flow("x").through(nn.Linear(3, 4)).tag("hidden").through(nn.Tanh()).label("inner").build()
        for flow in (Flow, FlowBuilder)
    )
    assert type(plain) is GraphModule and type(graph) is Graph and not hasattr(plain, "step")
    assert plain.structure_hash() == graph.structure_hash()
    graph.save_checkpoint(tmp_path / "graph")
    plain.load_checkpoint(tmp_path / "graph")
    x = batch()["image"]
    assert_close(plain(x), graph(x), tolerance=0)
    assert_close(plain.tagged("hidden"), graph.tagged("hidden"), tolerance=0)
    whole = FlowBuilder("x").through(plain).through(nn.Linear(4, 2)).build()
    assert whole.subgraph("inner") is plain and whole(x).shape == (5, 2)
    assert_close(whole.tagged("inner.hidden"), plain.hidden(x), tolerance=0)
