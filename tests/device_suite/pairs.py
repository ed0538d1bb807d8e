"""What must hold where one thread has two GPUs: on the stand-in (tests/unit/test_two_devices.py) and in tests/gpu.

Who imports these tests gives the fixtures `pair`, two Devices of which the second is current, and `nccl_devices`, NCCL
over both.
"""

import numpy as np
import pytest

import minigrad
from minigrad import Tensor, Trainer, nn
from minigrad.backend.device import device_of, to_device, to_host
from minigrad.distributed import Ddp, DdpConfig, LocalDevices
from tests.distributed.models import Mlp, assert_gradients_close, data, gradients, mean_loss
from tests.train.graphs import OPTIMIZERS, loss_fn, make_batch, make_graph, replica, trained_alone

HALVES = [slice(0, 3), slice(3, 6)]
LAYOUTS = {
    "as it is": lambda a: a,
    "transposed": lambda a: a.transpose(1, 0, 2),
    "every other column": lambda a: a[:, ::2],
    "backwards": lambda a: a[::-1, :, ::-2],
    "broadcast": lambda a: np.broadcast_to(a[:1], a.shape),
    "images": lambda a: a.transpose(2, 0, 1),
    "no axes": lambda a: a[0, 0, 0],
    "no elements": lambda a: a[:0].transpose(2, 1, 0),
}


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_moves_to_another_gpu(pair, layout, back):
    source, target = reversed(pair) if back else pair
    host = np.arange(60.0).reshape(3, 4, 5)
    with source.current():
        array = LAYOUTS[layout](to_device(host, source))
    moved = to_device(array, target)
    assert device_of(moved) is target
    assert (to_host(moved) == LAYOUTS[layout](host)).all() and moved.shape == LAYOUTS[layout](host).shape
    if layout in ("transposed", "images"):
        assert moved.strides == array.strides  # images keep the order that the next convolution wants


@pytest.mark.parametrize("layer", [nn.Conv2d(3, 4, 3, padding=1), nn.MaxPool2d(2)], ids=lambda m: type(m).__name__)
def test_images_move_to_another_gpu(pair, layer):
    first, second = pair
    x = minigrad.randn(2, 3, 6, 6)
    expected = layer(x).detach().numpy()
    with first.current():
        y = layer.to(first)(x.to(first))
    moved = y.to(second)
    assert moved.device is second and np.allclose(moved.detach().cpu().numpy(), expected, atol=1e-5)


def test_what_moves_is_what_was_there(pair):
    """Its source is overwritten as soon as the host can say so, and its target is read at once."""
    first, second = pair
    array = to_device(np.zeros(1 << 20), first)
    for number in range(10):
        with first.current():
            array[...] = number
        moved = to_device(array, second)
        with first.current():
            array[...] = -1.0
        assert float(moved.min()) == float(moved.max()) == number


def test_replicas_on_two_gpus_have_the_gradient_of_one_device(pair, nccl_devices):
    models, one = [Mlp(seed).to(device) for seed, device in enumerate(pair)], Mlp(0)
    ddp = Ddp.wrap(models, pair, collectives=nccl_devices)
    ddp.sync_params()
    (inputs, targets), cuts = data(8, 0), [slice(0, 3), slice(3, 8)]
    mean_loss(one(Tensor(inputs)), targets).backward()
    for model, device, cut in zip(models, pair, cuts):
        with device.current():
            error = model(Tensor(inputs[cut]).to(device)) - Tensor(targets[cut]).to(device)
            ((error * error).sum() / len(inputs[cut])).backward()
    ddp.weighted_all_reduce_gradients([3, 5])
    for model in models:
        assert_gradients_close({name: to_host(grad) for name, grad in gradients(model).items()}, gradients(one))


@pytest.mark.parametrize("el_che", [False, True])
def test_a_graph_on_two_gpus_trains_as_on_the_cpu(pair, nccl_devices, el_che):
    """Its first replica is on the device that is not current."""
    batches, make_optimizer = [make_batch(6, seed) for seed in range(8)], OPTIMIZERS["momentum"]
    graph = make_graph(device=pair[0])
    config = DdpConfig(max_grad_norm=0.5, max_anchor=1 if el_che else None)
    group = LocalDevices(pair, collectives=nccl_devices)
    Trainer.setup_with(graph, replica, make_optimizer, config, devices=group, el_che=el_che)
    graph.set_loss_fn(loss_fn)
    graph.set_data_loader(batches)
    together, taken = [], 0
    for batch in graph.epoch(0):
        loss = graph.backward_batch(batch)
        graph.step()
        count = sum(batch.counts) if el_che else 1
        together.append(tuple(minigrad.cat(fields, 0) for fields in zip(*batches[taken : taken + count])))
        taken += count
    assert taken == len(batches) and np.isfinite(loss.item())
    expected = trained_alone(together, make_optimizer, max_norm=0.5)
    for one in graph.replicas:
        for param, value in zip(one.parameters(), expected):
            np.testing.assert_allclose(to_host(param.data), value, rtol=0, atol=1e-9)


def test_what_comes_from_two_gpus_is_put_together_on_the_first(pair, nccl_devices):
    """Outputs, and the fields of a batch that came in shards; nobody has made the first device current."""
    x, mask, target = make_batch(6)
    graph = make_graph(device=pair[0])
    graph.distribute(replica, LocalDevices(pair, collectives=nccl_devices))
    output = graph(x, mask)
    assert output.device is pair[0] and graph.shard_sizes == (3, 3)
    np.testing.assert_allclose(to_host(output.data), make_graph()(x, mask).detach().numpy(), rtol=0, atol=1e-12)
    parts = [[tuple(field[rows].to(device) for field in (x, mask, target))] for rows, device in zip(HALVES, pair)]
    graph.set_data_loader(*parts)
    (batch,) = graph.epoch(0)
    for field, expected in zip(batch, (x, mask, target)):
        assert field.device is pair[0] and np.array_equal(to_host(field.data), expected.numpy())
