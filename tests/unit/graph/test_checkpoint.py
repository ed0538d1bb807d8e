"""Checkpoints: what was saved comes back, into the same structure only unless asked otherwise."""

import json
import os
import re

import numpy as np
import pytest
import safetensors.numpy

from minigrad import FlowBuilder, nn
from minigrad.errors import ArgumentError, StateDictError
from minigrad.testing import assert_close
from tests.unit.graph.nets import batch, classifier, encoder


@pytest.fixture
def file(tmp_path):
    return tmp_path / "net.safetensors"


def values(graph):
    return {name: x.numpy().copy() for name, x in graph.state_dict().items()}


def chain(**modules):
    """One module after the other, each with its name as tag."""
    builder = FlowBuilder()
    for name, module in modules.items():
        builder.through(module).tag(name)
    return builder.build()


def assert_same(graph, expected):
    assert list(graph.state_dict()) == list(expected)
    for name, x in graph.state_dict().items():
        assert_close(x, expected[name], tolerance=0, what=name)


def test_round_trip(file):
    graph, other = classifier(0), classifier(1)
    graph.forward_batch(batch())  # moves the statistics of the batch norm
    graph.save_checkpoint(file)
    report = other.load_checkpoint(file)
    assert_same(other, values(graph))
    assert report.loaded == tuple(graph.state_dict()) and not report.skipped and not report.missing
    assert os.listdir(file.parent) == [file.name]


def test_it_is_a_safetensors_file_with_json_in_it(file):
    graph = classifier()
    graph.save_checkpoint(str(file))
    assert sorted(safetensors.numpy.load_file(file)) == sorted(graph.state_dict())
    with safetensors.safe_open(file, framework="np") as opened:
        found = json.loads(opened.metadata()["minigrad.graph"])
    assert found["format"] == 1 and found["structure_hash"] == graph.structure_hash()
    assert found["nodes"]["encoder.hidden"] == "Linear(in_features=3, out_features=4, bias=True) <- x"


def test_replicas_are_loaded_too(file):
    classifier(1).save_checkpoint(file)
    graph = classifier(0)
    graph.attach(graph.replicate("cpu"))
    graph.load_checkpoint(file)
    for replica in graph.replicas:
        assert_same(replica, values(classifier(1)))


def test_a_part(file):
    trained, graph = classifier(1), classifier(0)
    before = values(graph)
    trained.save_checkpoint(file, "encoder")
    report = graph.load_checkpoint(file, "encoder")
    assert "hidden.weight" in report.loaded
    assert_same(graph.encoder, values(trained.encoder))
    assert_close(graph.linear_2.weight, before["linear_2.weight"], tolerance=0)
    alone = encoder("other")
    alone.load_checkpoint(file)
    assert_same(alone, values(trained.encoder))


def test_another_structure_is_refused_and_told_apart(file):
    FlowBuilder("x").through(nn.Linear(3, 4)).tag("hidden").through(nn.ReLU()).build().save_checkpoint(file)
    graph = FlowBuilder("x").through(nn.Linear(3, 5)).tag("hidden").through(nn.Tanh()).build()
    before = values(graph)
    with pytest.raises(StateDictError) as caught:
        graph.load_checkpoint(file)
    assert str(caught.value).splitlines()[1:] == [
        "  hidden: expected Linear(in_features=3, out_features=5, bias=True) <- x, "
        "got Linear(in_features=3, out_features=4, bias=True) <- x",
        "  tanh_0: expected Tanh() <- hidden, got no such node",
        "  relu_0: expected no such node, got ReLU() <- hidden",
        "strict=False takes every tensor that fits by name, shape and dtype",
    ]
    assert_same(graph, before)


def test_what_fits_is_loaded_and_the_rest_is_told(file):
    old = chain(a=nn.Linear(3, 4), b=nn.Linear(4, 4), c=nn.Linear(4, 1))
    old.save_checkpoint(file)
    new = chain(a=nn.Linear(3, 4), b=nn.Linear(4, 2), d=nn.Linear(2, 2))
    before = values(new)
    report = new.load_checkpoint(file, strict=False)
    assert report.loaded == ("a.weight", "a.bias")
    assert dict(report.skipped) == {
        "b.bias": "expected float32 (2,), got float32 (4,)",
        "b.weight": "expected float32 (2, 4), got float32 (4, 4)",
        "c.bias": "the graph has no tensor of this name",
        "c.weight": "the graph has no tensor of this name",
    }
    assert report.missing == ("d.weight", "d.bias")
    assert_same(new, {**before, "a.weight": old.a.weight.data, "a.bias": old.a.bias.data})


def test_another_dtype_is_refused_or_told(file):
    encoder().save_checkpoint(file)
    graph = encoder().double()
    with pytest.raises(StateDictError, match=re.escape("hidden.weight: expected float64 (4, 3), got float32 (4, 3)")):
        graph.load_checkpoint(file)
    assert "hidden.weight" in graph.load_checkpoint(file, strict=False).skipped


@pytest.mark.parametrize("text", [None, "not json", "[]", '{"format": 2}'])
def test_a_file_without_a_structure(file, text):
    graph = encoder()
    nn.save_file(graph.state_dict(), file, {} if text is None else {"minigrad.graph": text})
    with pytest.raises(StateDictError, match="expected a file with the structure of a Graph, format 1, got .* without"):
        graph.load_checkpoint(file)
    assert graph.load_checkpoint(file, strict=False).loaded == tuple(graph.state_dict())


def test_an_absent_and_a_broken_file(file):
    with pytest.raises(FileNotFoundError):
        encoder().load_checkpoint(file)
    file.write_bytes(b"nothing")
    with pytest.raises(StateDictError, match="load_file"):
        encoder().load_checkpoint(file)


def test_strict_is_yes_or_no(file):
    encoder().save_checkpoint(file)
    with pytest.raises(ArgumentError, match="load_checkpoint: expected strict to be True or False, got 'no'"):
        encoder().load_checkpoint(file, strict="no")


def test_shared_parameters_are_stored_once(file):
    shared = nn.Linear(3, 3)
    graph = FlowBuilder().through(shared).through(nn.Tanh()).through(shared).build()
    graph.save_checkpoint(file)
    expected = values(graph)
    shared.weight.data[...] = 0
    graph.load_checkpoint(file)
    assert_same(graph, expected)
    assert len(safetensors.numpy.load_file(file)) == 2 and not np.all(shared.weight.data == 0)
