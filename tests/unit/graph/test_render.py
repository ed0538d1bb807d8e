"""Pictures of a graph, as text and in DOT."""

import re

from minigrad import FlowBuilder, nn
from minigrad.graph import NodeTime
from tests.unit.graph.nets import batch, classifier


def test_text():
    first, *lines = classifier().to_text().splitlines()
    assert re.fullmatch(r"classifier\(image, mask\) -> linear_2, structure [0-9a-f]{8}, 65 parameters", first)
    assert [re.sub(r" +", " ", re.sub(r"Graph [0-9a-f]{8}", "Graph", line.strip())) for line in lines] == [
        "encoder Graph <- image",
        "hidden Linear(in_features=3, out_features=4, bias=True) <- x",
        "tanh_0 Tanh() <- hidden",
        "batchnorm1d_0 BatchNorm1d(4, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True) <- tanh_0",
        "aux Linear(in_features=4, out_features=2, bias=True) <- encoder",
        "masked_0 Masked[ParameterList] <- encoder, mask=mask",
        "linear_1 Linear(in_features=4, out_features=4, bias=True) <- masked_0",
        "sum merge add <- masked_0, linear_1",
        "linear_2 Linear(in_features=4, out_features=2, bias=True) <- sum",
    ]
    assert [line for line in lines if line.startswith("  ")] == lines[1:4]


def test_the_summary_tells_what_is_trained():
    graph = classifier()
    graph.freeze("encoder.hidden", "linear_2")
    _, header, *lines = graph.summary().splitlines()
    assert header.split() == ["node", "what", "reads", "parameters", "trained"]
    rows = {line.split()[0]: line for line in lines}
    assert rows["encoder"].endswith(" in part") and " 24 " in rows["encoder"]
    assert rows["hidden"].endswith(" 16          no")
    assert rows["linear_1"].endswith(" 20          yes")
    assert rows["sum"].endswith(" 0           -") and rows["tanh_0"].endswith(" 0           -")


def edges(dot):
    return {tuple(found) for found in re.findall(r'^ *"([^"]*)" -> "([^"]*)"', dot, re.MULTILINE)}


def test_dot_has_every_edge_through_sub_graphs():
    dot = classifier().to_dot()
    assert edges(dot) == {
        ("image", "encoder.x"),
        ("encoder.x", "encoder.hidden"),
        ("encoder.hidden", "encoder.tanh_0"),
        ("encoder.tanh_0", "encoder.batchnorm1d_0"),
        ("encoder.batchnorm1d_0", "aux"),
        ("encoder.batchnorm1d_0", "masked_0"),
        ("mask", "masked_0"),
        ("masked_0", "linear_1"),
        ("masked_0", "sum"),
        ("linear_1", "sum"),
        ("sum", "linear_2"),
        ("linear_2", "output"),
    }
    assert '"mask" -> "masked_0" [label="mask"]' in dot
    assert dot.count("{") == dot.count("}") == 2
    named = set(re.findall(r'^ *"([^"]*)" \[', dot, re.MULTILINE))
    assert {name for edge in edges(dot) for name in edge} <= named


class Odd(nn.Module):
    """Its settings have what DOT needs escaped."""

    def forward(self, x):
        return x

    def extra_repr(self):
        return 'path="C:\\data"'


def test_dot_escapes_texts():
    dot = FlowBuilder().through(Odd()).build().to_dot()
    assert '[label="odd_0\\nOdd(path=\\"C:\\\\data\\")"]' in dot


def test_dot_shows_times():
    graph = classifier()
    graph.forward_batch(batch())
    dot = graph.to_dot({"linear_1": NodeTime(2, 4.0), "sum": NodeTime(2, 1.0)})
    assert 'fillcolor="0.000 1.000 1.000", tooltip="2000.000 ms"' in dot
    assert 'fillcolor="0.000 0.250 1.000", tooltip="500.000 ms"' in dot
    assert dot.count("fillcolor") == 2
