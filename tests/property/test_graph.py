"""Random graphs: they compute what the same code by hand does, in a valid order, and equal wirings hash alike."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

import minigrad
from minigrad import FlowBuilder, Graph, Tensor, nn
from minigrad.errors import WiringError
from minigrad.graph import Wiring, WiringNode
from minigrad.graph.wiring import checked
from minigrad.testing import assert_close
from tests.unit.graph.nets import Plus


WIDTH = 3
SEEDS = st.integers(0, 2**32 - 1)


# ------------------------------------------------------------------------------------------- verbs, and them by hand


class ByHand:
    """Says each verb to a FlowBuilder, and keeps the function that plain code would be."""

    def __init__(self, rng, depth=0):
        self.rng, self.depth = rng, depth
        self.builder = FlowBuilder("x")
        self.steps = []  # functions of the dict of all values; "" is the stream
        self.tags = ["x"]

    def layer(self):
        """A module of one input, sometimes a graph made of random verbs."""
        kind = self.rng.integers(4 if self.depth < 2 else 3)
        if kind == 3:
            inner = ByHand(self.rng, self.depth + 1)
            inner.say(int(self.rng.integers(1, 5)))
            return inner.builder.build(), inner.by_hand
        module = nn.Linear(WIDTH, WIDTH, dtype="float64") if kind else nn.Tanh()
        return module, module

    def step(self, function):
        self.steps.append(function)

    def by_hand(self, x):
        values = {"": x, "x": x}
        for step in self.steps:
            step(values)
        self.values = values
        return values[""]

    def say(self, count):
        verbs = [self.through, self.fork, self.also, self.also_with, self.split, self.using, self.early]
        for _ in range(count):
            verbs[self.rng.integers(len(verbs))]()
        self.through()  # so that there is a node on the stream

    def new_tag(self):
        self.tags.append(f"t{len(self.tags)}")
        return self.tags[-1]

    def through(self):
        module, f = self.layer()
        self.builder.through(module)
        self.step(lambda v: v.update({"": f(v[""])}))
        if self.rng.integers(2):
            tag = self.new_tag()
            self.builder.tag(tag)
            self.step(lambda v: v.update({tag: v[""]}))

    def fork(self):
        (module, f), tag = self.layer(), self.new_tag()
        self.builder.fork(module).tag(tag)
        self.step(lambda v: v.update({tag: f(v[""])}))

    def also(self):
        module, f = self.layer()
        self.builder.also(module)
        self.step(lambda v: v.update({"": v[""] + f(v[""])}))

    def also_with(self):
        (skip, f), (main, g) = self.layer(), self.layer()
        self.builder.also_with(skip, main)
        self.step(lambda v: v.update({"": f(v[""]) + g(v[""])}))

    def split(self):
        layers = [self.layer() for _ in range(self.rng.integers(2, 5))]
        how = ["add", "mean", "cat"][self.rng.integers(3)]
        self.builder.split([module for module, _ in layers]).merge(how)
        if how == "cat":
            narrow = nn.Linear(WIDTH * len(layers), WIDTH, dtype="float64")
            self.builder.through(narrow)
            self.step(lambda v: v.update({"": narrow(minigrad.cat([f(v[""]) for _, f in layers], 1))}))
        else:
            share = len(layers) if how == "mean" else 1
            self.step(lambda v: v.update({"": sum(f(v[""]) for _, f in layers) / share}))

    def using(self):
        tags = [str(tag) for tag in self.rng.permutation(self.tags)[: self.rng.integers(1, 3)]]
        self.builder.through(Plus()).using(*tags)
        self.step(lambda v: v.update({"": v[""] + sum(v[tag] for tag in sorted(tags))}))

    def early(self):
        """A side branch that uses a tag before it is written."""
        (module, f), late, early = self.layer(), self.new_tag(), self.new_tag()
        self.builder.fork(Plus()).using(late).tag(early).fork(module).tag(late)
        self.step(lambda v: v.update({late: f(v[""]), early: v[""] + f(v[""])}))


@given(seed=SEEDS, count=st.integers(0, 8))
def test_the_output_is_that_of_the_same_code_by_hand(seed, count):
    minigrad.manual_seed(0)
    flow = ByHand(np.random.default_rng(seed))
    flow.say(count)
    graph = flow.builder.build()
    x = Tensor(np.random.default_rng(seed).standard_normal((4, WIDTH)), requires_grad=True)
    expected = flow.by_hand(x)
    (expected * expected).sum().backward()
    gradients = {name: param.grad for name, param in graph.named_parameters()}
    wanted, x.grad = x.grad, None
    graph.zero_grad()
    output = graph(x)
    assert_close(output, expected, tolerance=1e-12)
    assert set(graph.tagged_values()) == set(flow.tags) - {"x"}
    for tag, value in graph.tagged_values().items():
        assert_close(value, flow.values[tag], tolerance=1e-12, what=tag)
    (output * output).sum().backward()
    assert_close(x.grad, wanted, tolerance=1e-10)
    for name, param in graph.named_parameters():
        assert (param.grad is None) == (gradients[name] is None), name
        if param.grad is not None:
            assert_close(param.grad, gradients[name], tolerance=1e-10, what=name)


# ------------------------------------------------------------------------------------------------------------- wirings


def random_wiring(rng, count):
    """A wiring of nodes that are all tagged, so that none can be exchanged with another."""
    nodes = []
    for i in range(count):
        known = ["x", *(node.name for node in nodes)]
        inputs = tuple(str(name) for name in rng.choice(known, rng.integers(1, 4)))
        named = tuple((f"k{j}", str(rng.choice(known))) for j in range(rng.integers(3)))
        op = "module" if len(inputs) == 1 else str(rng.choice(["add", "mean"]))
        nodes.append(WiringNode(f"n{i}", op, inputs, named if op == "module" else (), tag=f"n{i}"))
    if not any("x" in node.sources for node in nodes):
        nodes[0] = dataclasses.replace(nodes[0], inputs=("x",))
    return Wiring(("x",), tuple(nodes), nodes[-1].name)


def shuffled(rng, wiring):
    return dataclasses.replace(wiring, nodes=tuple(wiring.nodes[i] for i in rng.permutation(len(wiring.nodes))))


def modules_of(wiring):
    return {node.name: Plus() for node in wiring.nodes if node.op == "module"}


WIRINGS = st.builds(lambda seed, count: (np.random.default_rng(seed), count), SEEDS, st.integers(1, 20))


@given(WIRINGS)
def test_each_node_comes_after_what_it_reads(drawn):
    rng, count = drawn
    wiring = shuffled(rng, random_wiring(rng, count))
    done = set(wiring.inputs)
    for node in checked(wiring, "test").nodes:
        assert done.issuperset(node.sources)
        done.add(node.name)
    assert done == {"x", *(node.name for node in wiring.nodes)}


@given(WIRINGS)
def test_an_order_that_is_valid_is_kept(drawn):
    rng, count = drawn
    wiring = random_wiring(rng, count)
    assert checked(wiring, "test") == wiring


@given(WIRINGS)
def test_an_edge_back_is_a_cycle_that_is_told(drawn):
    rng, count = drawn
    wiring = random_wiring(rng, count)
    start = int(rng.integers(count))
    reached = {wiring.nodes[start].name}
    for node in wiring.nodes[start:]:
        reached |= {node.name} if reached & set(node.sources) else set()
    back = str(rng.choice(sorted(reached)))
    first = wiring.nodes[start]
    looped = dataclasses.replace(first, inputs=(*first.inputs, back))
    nodes = tuple(looped if node is first else node for node in wiring.nodes)
    with pytest.raises(WiringError) as caught:
        checked(shuffled(rng, dataclasses.replace(wiring, nodes=nodes)), "test")
    [fault] = [fault for fault in caught.value.faults if "cycle" in fault]
    cycle = fault.partition(", got ")[2].split(" -> ")
    assert cycle[0] == cycle[-1] and {first.name, back} <= set(cycle)
    sources = {node.name: node.sources for node in nodes}
    assert all(before in sources[after] for before, after in zip(cycle, cycle[1:]))


@given(WIRINGS)
def test_the_hash_does_not_depend_on_the_order_of_construction(drawn):
    rng, count = drawn
    wiring = random_wiring(rng, count)
    other = shuffled(rng, wiring)
    assert Graph(wiring, modules_of(wiring)).structure_hash() == Graph(other, modules_of(other)).structure_hash()


@given(WIRINGS)
def test_the_hash_depends_on_every_edge_and_operation(drawn):
    rng, count = drawn
    wiring = random_wiring(rng, count)
    i = int(rng.integers(count))
    node = wiring.nodes[i]
    known = ["x", *(other.name for other in wiring.nodes[:i])]
    changed = dataclasses.replace(node, inputs=(str(rng.choice(known)), *node.inputs[1:]))
    if changed == node and node.op != "module":
        changed = dataclasses.replace(node, op="mean" if node.op == "add" else "add")
    elif changed == node:
        changed = dataclasses.replace(node, named=(*node.named, ("extra", "x")))
    other = dataclasses.replace(wiring, nodes=tuple(changed if n is node else n for n in wiring.nodes))
    try:
        rewired = Graph(other, modules_of(other))
    except WiringError:
        reject()  # nothing reads the input any more
    assert rewired.structure_hash() != Graph(wiring, modules_of(wiring)).structure_hash()
