"""The hash of a structure: what changes it, and what does not."""

import pytest

from minigrad import FlowBuilder, nn
from tests.unit.graph.nets import Plus, classifier, encoder


def base(bias=True):
    last = nn.Linear(4, 2, bias=bias)
    return FlowBuilder("x").through(nn.Linear(3, 4)).tag("a").through(nn.Dropout(0.1)).through(last)


def test_equal_structures_have_equal_hashes():
    assert classifier(seed=0).structure_hash() == classifier(seed=1).structure_hash()
    assert len(base().build().structure_hash()) == 64


def test_values_dtypes_and_state_do_not_count():
    graph, other = base().build(), base().build()
    expected = graph.structure_hash()
    other.double().eval().freeze("a")
    assert other.structure_hash() == expected
    again = FlowBuilder("x").through(other).build()
    assert again.structure_hash() == FlowBuilder("x").through(graph).build().structure_hash()


def test_the_label_of_the_whole_does_not_count_but_that_of_a_part_does():
    assert base().label("net").build().structure_hash() == base().build().structure_hash()
    parts = [FlowBuilder().through(encoder(label)).build().structure_hash() for label in ("left", "right")]
    assert parts[0] != parts[1]


@pytest.mark.parametrize(
    "other",
    [
        FlowBuilder("y").through(nn.Linear(3, 4)).tag("a").through(nn.Dropout(0.1)).through(nn.Linear(4, 2)),
        FlowBuilder("x").through(nn.Linear(3, 4)).tag("b").through(nn.Dropout(0.1)).through(nn.Linear(4, 2)),
        FlowBuilder("x").through(nn.Linear(3, 4)).through(nn.Dropout(0.1)).through(nn.Linear(4, 2)),
        FlowBuilder("x").through(nn.Linear(3, 5)).tag("a").through(nn.Dropout(0.1)).through(nn.Linear(5, 2)),
        FlowBuilder("x").through(nn.Linear(3, 4)).tag("a").through(nn.Dropout(0.2)).through(nn.Linear(4, 2)),
        FlowBuilder("x").through(nn.Linear(3, 4)).tag("a").through(nn.Dropout2d(0.1)).through(nn.Linear(4, 2)),
        base(bias=False),
        FlowBuilder("x").through(nn.Linear(3, 4)).tag("a").through(nn.Linear(4, 2)).through(nn.Dropout(0.1)),
        FlowBuilder("x").through(nn.Linear(3, 4)).tag("a").also(nn.Dropout(0.1)).through(nn.Linear(4, 2)),
        base().fork(nn.Linear(2, 2)).tag("aside"),
    ],
    ids=["input", "tag", "no tag", "sizes", "setting", "class", "bias", "order", "residual", "fork"],
)
def test_what_changes_the_hash(other):
    assert other.build().structure_hash() != base().build().structure_hash()


def test_the_merge_counts():
    def merged(how, dim=None):
        return FlowBuilder().split([nn.Linear(3, 3), nn.Linear(3, 3)]).merge(how, dim).build().structure_hash()

    assert len({merged("add"), merged("mean"), merged("cat"), merged("cat", 0)}) == 4
    assert merged("cat") == merged("cat", 1)


def test_the_order_of_side_branches_and_keywords_does_not_count():
    def build(first, second, names):
        builder = FlowBuilder().through(nn.Linear(3, 3))
        builder.fork(nn.Linear(3, first)).tag(f"to_{first}").fork(nn.Linear(3, second)).tag(f"to_{second}")
        return builder.fork(nn.Linear(3, 3)).tag("a").fork(nn.Tanh()).tag("b").through(Plus()).using(*names).build()

    one, other = build(4, 5, ("a", "b")), build(5, 4, ("b", "a"))
    assert one.structure_hash() == other.structure_hash()
    assert {name: p.shape for name, p in one.named_parameters()} == {
        name: p.shape for name, p in other.named_parameters()
    }


def test_what_a_keyword_is_given_counts():
    def build(tag):
        builder = FlowBuilder("x").through(nn.Tanh()).tag("a").through(nn.ReLU()).tag("b").through(Plus())
        return builder.using(other=tag).build().structure_hash()

    assert build("a") != build("b")


def test_the_order_of_the_inputs_counts():
    def build(*names):
        return FlowBuilder("x").input(*names).through(Plus()).using("a", "b").build().structure_hash()

    assert build("a", "b") != build("b", "a")


def test_shared_parameters_count_shared_functions_do_not():
    def build(first, second):
        return FlowBuilder().through(first).through(nn.Tanh()).through(second).build().structure_hash()

    def linear():
        return nn.Linear(3, 3)

    shared, tied = linear(), linear()
    tied.weight = shared.weight
    assert len({build(linear(), linear()), build(shared, shared), build(shared, tied)}) == 3
    relu = nn.ReLU()
    assert build(relu, relu) == build(nn.ReLU(), nn.ReLU())


def test_a_graph_within_a_plain_module_counts_with_its_structure():
    def build(width):
        inner = FlowBuilder().through(nn.Linear(3, 4)).also_with(nn.Identity(), nn.Tanh()).build()
        other = FlowBuilder().through(nn.Linear(3, 4)).split([nn.Identity(), nn.Tanh()]).merge("mean").build()
        return FlowBuilder().through(nn.Sequential(inner if width else other, nn.ReLU())).build().structure_hash()

    assert build(0) != build(1)


def test_the_order_of_side_branches_does_not_count_within_a_plain_module_either():
    def build(*widths):
        inner = FlowBuilder("x")
        for width in widths:
            inner.fork(nn.Linear(3, width)).tag(f"to_{width}")
        return FlowBuilder().through(nn.Sequential(inner.through(nn.Tanh()).build())).build().structure_hash()

    assert build(4, 5) == build(5, 4)


def test_modules_that_are_repeated_within_a_module_count():
    relu = nn.ReLU()
    hashes = [FlowBuilder().through(nn.Sequential(*[relu] * n)).build().structure_hash() for n in (1, 2)]
    assert hashes[0] != hashes[1]
