"""The gradient of several devices on inputs so small that it can be checked by head."""

import numpy as np
import pytest

import minigrad
from minigrad import FlowBuilder, nn, optim
from minigrad.distributed import DdpConfig, LocalDevices
from minigrad.errors import ArgumentError, AutogradError
from minigrad.train.batches import Round
from tests.distributed.models import Counting
from tests.train.graphs import assert_trained, loss_fn, make_batch, make_graph, replica, trained_alone


def scalar_graph(device=None):
    """w · x for x (N, 1), w = 1, so that the gradient of a mean of outputs is the mean of x."""
    layer = nn.Linear(1, 1, bias=False, dtype=minigrad.float64)
    layer.weight.data[...] = 1.0
    return FlowBuilder.from_(layer).build()


def column(*numbers):
    return minigrad.tensor(np.array(numbers, np.float64).reshape(-1, 1))


def on(world_size, **options):
    graph = scalar_graph()
    graph.distribute(scalar_graph, ["cpu"] * world_size, **options)
    graph.set_optimizer(lambda params: optim.SGD(params, lr=1.0))
    graph.set_loss_fn(lambda model, batch: model(batch).mean())
    return graph


def combined(graph):
    """The gradient on each replica, once combined."""
    graph.distributed.all_reduce_gradients()
    return [float(next(one.parameters()).grad_array.item()) for one in graph.replicas]


def weights(graph):
    """The weight of each replica."""
    return [float(param.data.item()) for one in graph.replicas for param in one.parameters()]


@pytest.mark.parametrize("numbers, mean", [((1, 3), 2.0), ((1, 1, 1, 9), 3.0), ((2, 2, 2, 2), 2.0)])
def test_a_mean_over_gathered_outputs_is_not_divided_again(numbers, mean):
    graph = on(2)
    graph(column(*numbers)).mean().backward()
    assert combined(graph) == [mean] * 2
    graph = on(4)
    graph(column(*numbers)).mean().backward()
    assert combined(graph) == [mean] * 4


def test_uneven_shards_are_not_weighted_twice():
    graph = on(2, config=DdpConfig(speed_hint=(1, 3.0)))
    graph(column(1, 1, 1, 9)).mean().backward()
    assert graph.shard_sizes == (3, 1) and combined(graph) == [3.0, 3.0]


def test_eleven_samples_on_two_devices_count_alike():
    graph = on(2)
    graph(column(*range(11))).mean().backward()
    assert sorted(graph.shard_sizes) == [5, 6] and not graph.distributed.is_balanced()
    assert combined(graph) == [5.0, 5.0]


@pytest.mark.parametrize("samples, world_size", [(1, 2), (1, 3), (2, 4), (2, 3), (3, 4)])
def test_a_batch_smaller_than_the_number_of_devices(samples, world_size):
    graph = on(world_size)
    graph(column(*range(1, samples + 1))).mean().backward()
    assert sum(graph.shard_sizes) == samples and set(graph.shard_sizes) <= {0, 1}
    assert combined(graph) == [(samples + 1) / 2] * world_size
    graph.step()
    assert len(set(weights(graph))) == 1


def test_an_empty_batch_has_an_empty_output():
    graph = on(3)
    assert graph(minigrad.zeros(0, 1, dtype=minigrad.float64)).shape == (0, 1)
    assert graph.shard_sizes == (0, 0, 0)


def window(*batches):
    """What El Che runs in one round: these batches of each device."""
    return Round(tuple(map(tuple, batches)))


def test_the_mean_over_el_che_batches_is_divided_once():
    """Every batch has the gradient 1: 20 on one device and 10 on the other make 1."""
    graph = on(2, el_che=True)
    loss = graph.backward_batch(window([column(1, 1)] * 20, [column(1, 1)] * 10))
    assert combined(graph) == pytest.approx([1.0, 1.0]) and float(loss.item()) == pytest.approx(1.0)


@pytest.mark.parametrize("counts", [(0, 5), (3, 0)])
def test_a_device_without_batches_steps_with_the_others(counts):
    graph = on(2, el_che=True)
    graph.backward_batch(window(*([column(4.0)] * count for count in counts)))
    graph.step()
    assert weights(graph) == pytest.approx([-3.0, -3.0])


def test_an_empty_batch_of_el_che_adds_nothing():
    graph, empty = on(2, el_che=True), minigrad.zeros(0, 1, dtype=minigrad.float64)
    graph.backward_batch(window([column(1.0), empty], [empty]))
    assert combined(graph) == [1.0, 1.0]
    graph.step()
    with pytest.raises(ArgumentError, match="expected batches with samples, got none"):
        graph.backward_batch(window([empty], [empty]))


def test_a_loss_of_el_che_calls_the_replica_that_it_is_given():
    """Calling the graph itself would leave the work of all devices to the first."""
    graph = on(2, el_che=True)
    graph.set_loss_fn(lambda model, batch: graph(batch).mean())
    graph.backward_batch(window([column(1.0)], []))
    with pytest.raises(ArgumentError, match="to call the model that it is given, a replica on another device"):
        graph.backward_batch(window([], [column(1.0)]))


def test_batches_count_by_their_samples():
    graph = on(2, el_che=True)
    graph.backward_batch(window([column(*[1.0] * 64)], [column(66.0)]))
    assert combined(graph) == pytest.approx([2.0, 2.0])  # (64 · 1 + 66) / 65, not (1 + 66) / 2


@pytest.mark.parametrize("counts", [(2, 1), (3, 2), (1, 1, 3)])
def test_each_output_of_el_che_meets_its_own_target(counts):
    seen = []
    graph = on(len(counts), el_che=True)

    def keep(model, batch):
        output = model(batch[0])
        seen.append((output.detach().tolist(), batch[1].tolist()))
        return (output * 0.0).mean() + batch[1].mean() * 0.0

    graph.set_loss_fn(keep)
    total = sum(counts)
    batches = [(column(number), column(number)) for number in range(total)]
    edges = np.cumsum([0, *counts])
    graph.backward_batch(window(*(batches[a:b] for a, b in zip(edges, edges[1:]))))
    assert all(output == target for output, target in seen)
    assert sorted(target[0][0] for _, target in seen) == list(range(total))


def test_clipping_el_che_is_about_the_mean_and_not_about_the_sum():
    """Gradients of norm 1 under a limit of 1 are left alone, however many batches make them."""
    graph = on(2, config=DdpConfig(max_grad_norm=1.0), el_che=True)
    graph.backward_batch(window([column(1.0)] * 20, [column(1.0)] * 10))
    graph.step()
    assert [param.data.item() for param in graph.parameters()] == pytest.approx([0.0], abs=1e-5)


def test_clipping_is_about_the_combined_gradient():
    """Parts of 100 and -100 have the norm 0 together; parts of 100 and 100 become 1 on all replicas."""
    for numbers, moved in (((200, -200), 0.0), ((200, 200), 1.0)):
        graph = on(2, config=DdpConfig(max_grad_norm=1.0))
        graph(column(*numbers)).mean().backward()
        graph.step()
        assert weights(graph) == pytest.approx([1 - moved] * 2, abs=1e-7)


def test_a_part_of_a_gradient_is_neither_clipped_nor_stepped_by():
    """Between backward and step the first replica has a part: neither its norm nor a step by it is right."""
    graph = on(2)
    graph(column(200, 200)).mean().backward()
    with pytest.raises(AutogradError, match=r"SGD.step: expected a whole gradient, got a part, .*: call graph.step"):
        graph.optimizers[0].step()
    for clip in (optim.clip_grad_norm_, optim.clip_grad_value_):
        with pytest.raises(AutogradError, match="expected a whole gradient, got a part, that of one of 2 replicas"):
            clip(graph.parameters(), 1.0)
    with pytest.raises(AutogradError, match=r"GradScaler.unscale_: expected a whole gradient, got a part, that of"):
        optim.GradScaler(2.0).unscale_(graph.optimizers[0])
    graph.distributed.all_reduce_gradients()
    for one in graph.replicas:
        assert float(optim.clip_grad_norm_(one.parameters(), 1.0).item()) == 200.0
    graph.step()
    assert weights(graph) == pytest.approx([0.0, 0.0], abs=1e-7)
    alone = on(1)
    alone(column(2.0)).mean().backward()
    assert float(optim.clip_grad_norm_(alone.parameters(), 1.0).item()) == 2.0


def test_a_norm_that_is_no_number_shows_on_all_replicas():
    graph = on(2, config=DdpConfig(max_grad_norm=1.0))
    graph(column(1.0, np.nan)).mean().backward()
    graph.step()
    assert all(np.isnan(p.data).all() for one in graph.replicas for p in one.parameters())


def test_gradients_are_combined_once():
    graph = on(2)
    graph(column(1, 3)).mean().backward()
    assert combined(graph) == [2.0, 2.0]
    with pytest.raises(AutogradError, match="expected gradients to combine, got those that are"):
        graph.distributed.all_reduce_gradients()
    with pytest.raises(AutogradError, match=r"expected step\(\) or zero_grad\(\) once gradients are combined"):
        graph(column(1, 3)).mean().backward()
    graph.step()
    assert weights(graph) == [-1.0, -1.0]
    graph(column(1, 3)).mean().backward()
    graph.distributed.all_reduce_gradients()
    graph.zero_grad()
    graph(column(1, 3)).mean().backward()
    assert combined(graph) == [2.0, 2.0]


def test_what_lies_in_the_place_of_a_missing_gradient_does_not_count():
    graph = on(3)
    next(graph.replicas[2].parameters()).grad_view[...] = np.nan
    graph(column(1, 3)).mean().backward()
    assert combined(graph) == [2.0, 2.0, 2.0]


def test_a_kept_gradient_outlives_the_step():
    graph = on(2)
    graph(column(1, 3)).mean().backward()
    graph.distributed.all_reduce_gradients()
    kept = [param.grad for one in graph.replicas for param in one.parameters()]
    graph.step()
    graph(column(5, 7)).mean().backward()
    assert combined(graph) == [6.0, 6.0] and [grad.item() for grad in kept] == [2.0, 2.0]


def test_successive_backwards_add_up():
    graph = on(2)
    for _ in range(2):
        graph(column(1, 3)).mean().backward()
    assert combined(graph) == [4.0, 4.0]


def test_two_ways_to_go_backward_do_not_mix():
    graph = on(2)
    graph.backward_batch(column(1, 3))
    with pytest.raises(AutogradError, match=r"expected backward_batch\(\) alone between two steps, got backward\(\)"):
        graph(column(1, 3)).mean().backward()
    graph.step()
    graph(column(1, 3)).mean().backward()
    with pytest.raises(AutogradError, match=r"expected backward\(\) alone"):
        graph.backward_batch(column(1, 3))


def test_a_branch_that_one_replica_takes():
    """A parameter that only some samples reach gets what they give it; the others' part is zero."""

    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Parameter(np.ones(1))
            self.b = nn.Parameter(np.ones(1))

        def forward(self, x):
            return x * (self.a if x.data.max() > 0 else self.b)

    for numbers, expected in (((4.0, -2.0), (2.0, -1.0)), ((-2.0, 4.0), (2.0, -1.0)), ((2.0, 2.0), (2.0, None))):
        graph = FlowBuilder.from_(Branch()).build()
        graph.distribute(lambda device: FlowBuilder.from_(Branch()).build(), ["cpu", "cpu"])
        graph(column(*numbers)).mean().backward()
        graph.distributed.all_reduce_gradients()
        for one in graph.replicas:
            found = [None if p.grad_array is None else float(p.grad_array.item()) for p in one.parameters()]
            assert found == list(expected)


def test_means_over_each_shard_are_weighted_by_the_shards():
    graph = on(2, config=DdpConfig(speed_hint=(1, 3.0)))
    with pytest.raises(ArgumentError, match="expected the samples of the last pass, none"):
        graph.distributed.weighted_all_reduce_gradients(0)
    graph(column(1, 1, 1, 9)).mean().backward()
    graph.zero_grad()
    for one, part in zip(graph.replicas, (column(1, 1, 1), column(9))):
        one.run([part]).mean().backward()
    with pytest.raises(ArgumentError, match=r"\(3, 1\), to add up to batch_size > 0, got 5"):
        graph.distributed.weighted_all_reduce_gradients(5)
    graph.distributed.weighted_all_reduce_gradients(4)
    assert [float(next(one.parameters()).grad_array.item()) for one in graph.replicas] == [3.0, 3.0]


def test_half_precision_batches_of_many_samples_do_not_overflow():
    graph = make_graph(dtype=minigrad.float16)
    graph.distribute(lambda device: make_graph(dtype=minigrad.float16), ["cpu", "cpu"], el_che=True)
    graph.set_optimizer(lambda params: optim.SGD(params, lr=0.1))
    graph.set_loss_fn(lambda model, batch: model.forward_batch(batch).mean())
    batch = make_batch(8, dtype=np.float16)
    graph.backward_batch(window([batch] * 3, [batch]))
    graph.step()
    assert all(np.isfinite(p.data).all() for p in graph.parameters())


def test_one_collective_a_bucket_and_not_one_a_parameter():
    graph, counting = make_graph(), Counting()
    graph.distribute(replica, LocalDevices(["cpu"] * 3, collectives=counting))
    graph.set_optimizer(lambda params: optim.SGD(params, lr=0.05))
    batch = make_batch(7)
    loss_fn(graph, batch).backward()
    graph.step()
    assert len(counting.reduced) == 1
    assert_trained(graph, trained_alone([batch], lambda params: optim.SGD(params, lr=0.05)))
