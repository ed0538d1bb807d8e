"""Small training scripts in which planted bugs show: each is right, as long as minigrad is."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from minigrad import data, distributed, nn, optim
from minigrad.backend.random import manual_seed
from minigrad.distributed import DDP
from minigrad.distributed.average import EveryK, SlowMo
from minigrad.ops.precision import autocast
from minigrad.ops.sampling import randn
from minigrad.recording import no_grad
from minigrad.tensor import Tensor
from minigrad.testing.mutants.careless import CARELESS
from minigrad.testing.mutants.nets import Net, Plain
from minigrad.testing.mutants.watch import Program, Onlooker

_CAP = 64  # bytes of a bucket, so that so small a model has several


def _loss(model: Any, batch: Any) -> Tensor:
    return model(batch[0]).sub(batch[1]).square().mean()  # type: ignore[no-any-return]


def _sum(model: Any, batch: Any) -> Tensor:
    return model(batch[0]).sub(batch[1]).square().sum()  # type: ignore[no-any-return]


def _batch(n: int) -> tuple[Tensor, Tensor]:
    x = randn(n, 3)
    return x, Tensor(np.tanh(x.numpy() @ np.ones((3, 4), np.float32)))


def _samples(rank: int, step: int) -> int:
    return 1 + (2 + 3 * rank + step) % 6


def unequal(comm: Any, watch: Onlooker) -> None:
    """Batches of other sizes on each rank, one of them empty, and clipped gradients."""
    manual_seed(watch.seed)
    ddp = DDP(Net(), comm, bucket_cap_bytes=_CAP, timeline=watch.timeline)
    optimizer = optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9, weight_decay=0.5)
    schedule = optim.lr_scheduler.StepLR(optimizer, 2, 0.5)

    def clip(module: nn.Module) -> Any:
        return nn.utils.clip_grad_norm_(module.parameters(), 0.5)

    watch.begin(ddp, optimizer, _loss, before_step=clip)
    for step in range(4):
        n = 0 if step == 2 and comm.rank == 1 else _samples(comm.rank, step)
        batch = _batch(n)
        optimizer.zero_grad()
        loss = _loss(ddp, batch)
        loss.backward()
        clip(ddp.module)
        optimizer.step()
        watch.step(batch, loss)
        schedule.step()


def accumulated(comm: Any, watch: Onlooker) -> None:
    """Two batches a step, the first under no_sync; gradients are zeroed, not dropped, and evaluated in between."""
    manual_seed(watch.seed)
    ddp = DDP(Net(), comm, bucket_cap_bytes=_CAP, timeline=watch.timeline)
    optimizer = optim.Adam(ddp.parameters(), lr=0.05)
    watch.begin(ddp, optimizer, _loss)
    for step in range(3):
        optimizer.zero_grad(set_to_none=False)
        for k in range(2):
            batch = _batch(_samples(comm.rank, step + 2 * k * comm.rank))
            with contextlib.nullcontext() if k else ddp.no_sync():
                loss = _loss(ddp, batch)
                _loss(ddp, _batch(1 + 5 * comm.rank))  # looked at, and left
                loss.backward()
            if not k:
                watch.accumulate(batch)
        optimizer.step()
        watch.step(batch, loss)
        with no_grad():
            ddp(_batch(2)[0])


def dropped(comm: Any, watch: Onlooker) -> None:
    """A batch comes to nothing: its gradients are dropped before the next one."""
    manual_seed(watch.seed)
    ddp = DDP(Net(), comm, bucket_cap_bytes=_CAP, timeline=watch.timeline)
    optimizer = optim.SGD(ddp.parameters(), lr=0.1)
    watch.begin(ddp, optimizer, _loss)
    for step in range(2):
        with ddp.no_sync():
            _loss(ddp, _batch(1 + 6 * comm.rank)).backward()
        optimizer.zero_grad()
        batch = _batch(_samples(comm.rank, step))
        loss = _loss(ddp, batch)
        loss.backward()
        optimizer.step()
        watch.step(batch, loss)


def unused(comm: Any, watch: Onlooker) -> None:
    """Some ranks leave out a layer in some steps; later a weight is frozen."""
    manual_seed(watch.seed)
    ddp: Any = DDP(Net(), comm, bucket_cap_bytes=_CAP, find_unused_parameters=True, timeline=watch.timeline)
    optimizer = optim.AdamW(ddp.parameters(), lr=0.05, weight_decay=2.0)

    def loss_fn(model: Any, batch: Any) -> Tensor:
        return model(batch[0], bool(batch[2])).sub(batch[1]).square().mean()  # type: ignore[no-any-return]

    watch.begin(ddp, optimizer, loss_fn)
    for step in range(4):
        optimizer.zero_grad()
        if step == 2:
            ddp.module.first.bias.requires_grad_(False)
        batch = (*_batch(_samples(comm.rank, step)), not (step == 3 or (step and comm.rank == step)))
        loss = loss_fn(ddp, batch)
        loss.backward()
        optimizer.step()
        watch.step(batch, loss)


def frozen(comm: Any, watch: Onlooker) -> None:
    """A frozen weight lies between trained ones, and one weight is used twice."""
    manual_seed(watch.seed)
    net: Any = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    net[3].weight = net[1].weight
    net[0].bias.requires_grad_(False)
    ddp = DDP(net, comm, bucket_cap_bytes=200, timeline=watch.timeline)
    optimizer = optim.SGD(ddp.parameters(), lr=0.1)
    watch.begin(ddp, optimizer, _loss)
    for step in range(4):
        optimizer.zero_grad()
        if step == 2:
            net[1].bias.requires_grad_(False)
        batch = _batch(_samples(comm.rank, step))
        loss = _loss(ddp, batch)
        loss.backward()
        optimizer.step()
        watch.step(batch, loss)


def statistics(comm: Any, watch: Onlooker) -> None:
    """Batch norm, whose running statistics are those of rank 0, and dropout, which is each rank's own."""
    manual_seed(watch.seed)
    ddp = DDP(Net(nn.BatchNorm1d(4), 0.2), comm, bucket_cap_bytes=_CAP, timeline=watch.timeline)
    optimizer = optim.SGD(ddp.parameters(), lr=0.1)
    watch.begin(ddp, optimizer, _loss)
    for step in range(3):
        optimizer.zero_grad()
        batch = _batch(2 + _samples(comm.rank, step))
        loss = _loss(ddp, batch)
        loss.backward()
        optimizer.step()
        watch.step(batch, loss)


def averaged_statistics(comm: Any, watch: Onlooker) -> None:
    """Batch norm, whose running statistics are averaged every second step."""
    manual_seed(watch.seed)
    net = Net(nn.BatchNorm1d(4))
    ddp = DDP(net, comm, broadcast_buffers="mean", buffer_cadence=2, timeline=watch.timeline)
    optimizer = optim.SGD(ddp.parameters(), lr=0.1)
    watch.begin(ddp, optimizer, _loss)
    for step in range(4):
        optimizer.zero_grad()
        batch = _batch(2 + _samples(comm.rank, step))
        loss = _loss(ddp, batch)
        loss.backward()
        optimizer.step()
        watch.step(batch, loss, alike=bool(step % 2))


def synchronised(comm: Any, watch: Onlooker) -> None:
    """Batch norm over the samples of all ranks."""
    manual_seed(watch.seed)
    net = distributed.convert_sync_batchnorm(Net(nn.BatchNorm1d(4)))
    ddp = DDP(net, comm, bucket_cap_bytes=_CAP, timeline=watch.timeline)
    optimizer = optim.SGD(ddp.parameters(), lr=0.1)
    watch.begin(ddp)
    for step in range(3):
        optimizer.zero_grad()
        batch = _batch(2 + _samples(comm.rank, step))
        loss = _loss(ddp, batch)
        loss.backward()
        optimizer.step()
        watch.step(batch, loss)


def halves(comm: Any, watch: Onlooker) -> None:
    """Products in float16, and a loss that is scaled so that small gradients survive."""
    manual_seed(watch.seed)
    ddp = DDP(Net(), comm, bucket_cap_bytes=_CAP, timeline=watch.timeline)
    optimizer = optim.SGD(ddp.parameters(), lr=0.1)
    scaler = optim.GradScaler(2.0**16, growth_interval=2)

    def loss_fn(model: Any, batch: Any) -> Tensor:
        with autocast("float16"):
            return _loss(model, batch)

    watch.begin(ddp, optimizer, loss_fn, scaler=scaler, ulps=2.0**14)
    for step in range(4):
        optimizer.zero_grad()
        batch = _batch(_samples(comm.rank, step))
        if step == 1 and comm.rank == 1:
            batch = batch[0] * 1e4, batch[1]  # too large for float16
        loss = loss_fn(ddp, batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        watch.say(f"step {step + 1}: loss scale {scaler.get_scale():g}")
        watch.step(batch, loss)


def narrow(comm: Any, watch: Onlooker) -> None:
    """A model of 16 bits, some of whose gradients are too small for a sum in 16 bits."""
    manual_seed(watch.seed)
    ddp = DDP(Net().half(), comm, bucket_cap_bytes=_CAP, timeline=watch.timeline)
    optimizer = optim.SGD(ddp.parameters(), lr=0.1, master_weights=True)

    def loss_fn(model: Any, batch: Any) -> Tensor:
        return (model(batch[0].half()).sub(batch[1].half()).square().mean() * 2.0**-13).float()  # type: ignore

    watch.begin(ddp, optimizer, loss_fn, ulps=64.0)
    for step in range(3):
        optimizer.zero_grad()
        batch = _batch(_samples(comm.rank, step))
        loss = loss_fn(ddp, batch)
        loss.backward()
        optimizer.step()
        watch.step(batch, loss)


def predivided(comm: Any, watch: Onlooker) -> None:
    """Gradients travel in float16, divided before the sum and multiplied after it."""
    manual_seed(watch.seed)
    ddp = DDP(Net(), comm, bucket_cap_bytes=_CAP, timeline=watch.timeline)
    ddp.register_comm_hook(distributed.CompressionState(), distributed.fp16_predivide_hook)
    optimizer = optim.SGD(ddp.parameters(), lr=0.1)
    watch.begin(ddp, optimizer, _loss, ulps=2.0**14)
    for step in range(3):
        optimizer.zero_grad()
        batch = _batch(_samples(comm.rank, step))
        loss = _loss(ddp, batch)
        loss.backward()
        optimizer.step()
        watch.step(batch, loss)


def sums(comm: Any, watch: Onlooker) -> None:
    """Losses that are sums: gradients are added up, and nobody weights them."""
    manual_seed(watch.seed)
    ddp = DDP(Net(), comm, reduce="sum", bucket_cap_bytes=_CAP, timeline=watch.timeline)
    optimizer = optim.SGD(ddp.parameters(), lr=0.003)
    watch.begin(ddp, optimizer, _sum)
    for step in range(3):
        optimizer.zero_grad()
        batch = _batch(_samples(comm.rank, step))
        loss = _sum(ddp, batch)
        loss.backward()
        optimizer.step()
        watch.step(batch, loss)


def joined(comm: Any, watch: Onlooker) -> None:
    """Ranks run out of data one after the other, one of them with a batch that is not combined yet."""
    manual_seed(watch.seed)
    ddp = DDP(Net(nn.BatchNorm1d(4)), comm, bucket_cap_bytes=_CAP, timeline=watch.timeline)
    optimizer = optim.Adam(ddp.parameters(), lr=0.05)
    watch.begin(ddp)
    with ddp.join(also=[optimizer]):
        for step in range(2 + comm.rank):
            batch = _batch(2 + _samples(comm.rank, step))
            optimizer.zero_grad()
            loss = _loss(ddp, batch)
            loss.backward()
            optimizer.step()
            watch.step(batch, loss, alike=False)
        if comm.rank == 0:
            with ddp.no_sync():
                _loss(ddp, _batch(3)).backward()
    for _ in range(2):
        optimizer.zero_grad()
        batch = _batch(3)
        loss = _loss(ddp, batch)
        loss.backward()
        optimizer.step()
        watch.step(batch, loss)


def by_hand(comm: Any, watch: Onlooker) -> None:
    """Gradients are combined between backward and step, as users of MPI do."""
    manual_seed(watch.seed)
    ddp = DDP(Net(), comm, sync="manual", bucket_cap_bytes=_CAP, timeline=watch.timeline)
    optimizer = optim.SGD(ddp.parameters(), lr=0.1)
    watch.begin(ddp, optimizer, _loss)
    for step in range(4):
        optimizer.zero_grad()
        batch = _batch(_samples(comm.rank, step))
        loss = _loss(ddp, batch)
        loss.backward()
        ddp.sync_gradients() if step % 2 else ddp.overlapped_sync_gradients()
        optimizer.step()
        watch.step(batch, loss)


def without_wrapper(comm: Any, watch: Onlooker) -> None:
    """`average_gradients` between backward and step, and no wrapper."""
    manual_seed(watch.seed)
    model = Plain(comm)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    watch.begin(model, optimizer, _loss)
    for step in range(3):
        optimizer.zero_grad()
        batch = _batch(_samples(comm.rank, step))
        loss = _loss(model, batch)
        loss.backward()
        distributed.average_gradients(model.module.parameters(), comm, len(batch[0]))
        optimizer.step()
        watch.step(batch, loss)


def two_wrappers(comm: Any, watch: Onlooker) -> None:
    """One loss over two wrapped modules."""
    manual_seed(watch.seed)
    body = DDP(Net(), comm, bucket_cap_bytes=_CAP, timeline=watch.timeline)
    head = DDP(nn.Linear(4, 4), comm, bucket_cap_bytes=_CAP, timeline=watch.timeline)
    optimizer = optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
    watch.begin(body)
    for step in range(3):
        optimizer.zero_grad()
        batch = _batch(_samples(comm.rank, step))
        loss = head(body(batch[0])).sub(batch[1]).square().mean()
        loss.backward()
        optimizer.step()
        watch.step(batch, loss)


def bitwise(comm: Any, watch: Onlooker) -> None:
    """Eight shards a step, whatever the number of ranks that they are divided among."""
    manual_seed(watch.seed)
    ddp = DDP(Net(drop=0.2), comm, bucket_cap_bytes=_CAP, timeline=watch.timeline)
    optimizer = optim.SGD(ddp.parameters(), lr=0.1)
    watch.begin(ddp)
    order = np.random.default_rng(watch.seed)
    for _ in range(3):
        optimizer.zero_grad()
        x, y = (order.standard_normal((16, k)).astype(np.float32) for k in (3, 4))
        rows = np.arange(16).reshape(comm.world_size, -1, 2)[comm.rank]
        shards = [(Tensor(x[each]), Tensor(y[each])) for each in rows]
        loss = ddp.backward_shards(lambda x, y: _loss(ddp, (x, y)), shards)
        optimizer.step()
        watch.step(None, float(np.mean([float(each) for each in np.ravel(loss)])) if loss is not None else 0.0)


def data_order(comm: Any, watch: Onlooker) -> None:
    """Two epochs of a small set of data, another order in each, each rank its part."""
    manual_seed(watch.seed)
    rng = np.random.default_rng(watch.seed)
    x = rng.standard_normal((25, 3)).astype(np.float32)
    y = np.tanh(x @ np.ones((3, 4), np.float32))
    sampler = data.DistributedSampler(25, rank=comm.rank, world_size=comm.world_size, seed=watch.seed)
    numbers = np.arange(25)
    loader = data.DataLoader(data.ArrayDataset(x, y, numbers), batch_size=3, sampler=sampler, drop_last=True)
    ddp = DDP(Net(), comm, bucket_cap_bytes=_CAP, timeline=watch.timeline)
    optimizer = optim.SGD(ddp.parameters(), lr=0.1)
    watch.begin(ddp, optimizer, _loss)
    for epoch in range(2):
        for inputs, targets, which in loader:
            watch.say(f"epoch {epoch}: samples {which.numpy().tolist()}")
            batch = Tensor(inputs.numpy()), Tensor(targets.numpy())
            optimizer.zero_grad()
            loss = _loss(ddp, batch)
            loss.backward()
            optimizer.step()
            watch.step(batch, loss)


def evaluated(comm: Any, watch: Onlooker) -> None:
    """Each sample counts once: an evaluation over parts of unequal length, and parts by speed."""
    sizes = []
    for mode, shares in (("drop", None), ("exact", None), ("exact", [1 / comm.world_size] * comm.world_size)):
        sampler = data.DistributedSampler(
            10, rank=comm.rank, world_size=comm.world_size, shuffle=False, mode=mode, shares=shares
        )
        watch.say(f"{mode}: {list(sampler)}")
        sizes.append(len(sampler))
    watch.say(f"sizes {sizes}")


def balanced(comm: Any, watch: Onlooker) -> None:
    """Ranks of unequal speed, each of which gets as much of a batch as it has time for."""
    manual_seed(watch.seed)
    config = distributed.BalanceConfig(calibration_steps=1, interval_steps=2)
    balancer = distributed.Balancer(comm, config)
    ddp = DDP(Net(), balancer.comm, bucket_cap_bytes=_CAP, timeline=watch.timeline)
    optimizer = optim.SGD(ddp.parameters(), lr=0.1)
    watch.begin(ddp, optimizer, _loss)
    rng = np.random.default_rng(watch.seed)
    for _ in range(6):
        x = rng.standard_normal((24, 3)).astype(np.float32)
        y = np.tanh(x @ np.ones((3, 4), np.float32))
        with balancer.step(24) as rows:
            optimizer.zero_grad()
            batch = Tensor(x[rows]), Tensor(y[rows])
            loss = _loss(ddp, batch)
            loss.backward()
            optimizer.step()
        watch.say(f"samples {len(x[rows])}")
        watch.step(batch, loss)


def local_steps(comm: Any, watch: Onlooker) -> None:
    """Ranks train on their own, and every second step their parameters are averaged, with momentum."""
    manual_seed(watch.seed)
    model = Plain(comm)
    outer = SlowMo(lr=1.0, momentum=0.5)
    averager = distributed.ParameterAverager(model.module, comm, EveryK(2), outer, timeline=watch.timeline)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    watch.begin(model)
    for step in range(6):
        optimizer.zero_grad()
        batch = _batch(_samples(comm.rank, step))
        loss = _loss(model, batch)
        loss.backward()
        optimizer.step()
        report = averager.step(len(batch[0]))
        watch.step(batch, loss, alike=report is not None)


_TRAINED = {
    "unequal": unequal,
    "accumulated": accumulated,
    "dropped": dropped,
    "unused": unused,
    "frozen": frozen,
    "statistics": statistics,
    "averaged statistics": averaged_statistics,
    "halves": halves,
    "narrow": narrow,
    "predivided": predivided,
    "sums": sums,
    "by hand": by_hand,
    "without wrapper": without_wrapper,
    "data order": data_order,
}
_ALONE = {  # no twin can follow these
    "synchronised": synchronised,
    "joined": joined,
    "two wrappers": two_wrappers,
    "evaluated": evaluated,
    "local steps": local_steps,
}


def _program(name: str, train: Any, **more: Any) -> Program:
    return Program(name, train, " ".join((train.__doc__ or "").split()), **more)


PROGRAMS = {name: _program(name, train) for name, train in _TRAINED.items()}
PROGRAMS |= {name: _program(name, train, twins=False) for name, train in _ALONE.items()}
PROGRAMS |= {name: _program(name, train, twins=False, refuses=True) for name, train in CARELESS.items()}
PROGRAMS["bitwise"] = _program("bitwise", bitwise, speeds=(1.0, 1.0), twins=False)
PROGRAMS["balanced"] = _program("balanced", balanced, speeds=(3.0, 2.0, 1.0))
