"""A network written down as a graph: its picture, its parts by name, and its training on the handwritten digits.

    python examples/03_graph.py
    python examples/03_graph.py --dot graph.dot && dot -Tsvg graph.dot > graph.svg
    python -m minigrad.distributed.launch -n 2 examples/03_graph.py                     two processes
    python -m minigrad.distributed.launch -n 2 examples/03_graph.py --device cuda       one process a GPU

It prints the graph, trains it with an auxiliary head, freezes a part for the last epoch, shows what each node took,
saves a checkpoint and loads it into a second graph. It exits with 1 below its target, or where a promise is broken.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

import minigrad
from minigrad import FlowBuilder, Graph, distributed, nn, optim
from minigrad.data import ArrayDataset, DataLoader, DistributedSampler, digits
from minigrad.distributed import DDP, Communicator
from minigrad.errors import WiringError

BATCH_SIZE = 64  # of all ranks together
TARGET_ACCURACY = 0.965
AUXILIARY_WEIGHT = 0.3


def residual(channels: int, label: str) -> Graph:
    """Two convolutions around which the input takes a short way: (N, C, H, W) -> (N, C, H, W)."""
    body = nn.Sequential(
        nn.Conv2d(channels, channels, 3, padding=1),
        nn.GroupNorm(4, channels),
        nn.ReLU(),
        nn.Conv2d(channels, channels, 3, padding=1),
    )
    return FlowBuilder("x").also(body).through(nn.ReLU()).label(label).build()


def make_model() -> Graph:
    """A stem, a residual block, an auxiliary head, two kinds of pooling, a head: (N, 1, 8, 8) -> (N, 10)."""
    minigrad.manual_seed(0)
    auxiliary = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    return (
        FlowBuilder("image")
        .through(nn.Conv2d(1, 16, 3, padding=1))
        .tag("stem")
        .through(nn.ReLU())
        .through(residual(16, "block"))
        .fork(auxiliary)
        .tag("auxiliary")
        .split([nn.AvgPool2d(2), nn.MaxPool2d(2)])
        .merge("cat")
        .through(nn.Flatten())
        .through(nn.Linear(2 * 16 * 4 * 4, 10))
        .tag("logits")
        .label("digits")
        .build()
    )


def show_faults(say: Callable[..., None]) -> bool:
    """What a wiring with several faults is told; whether all of them were."""
    try:
        FlowBuilder("image").split([nn.Tanh(), nn.ReLU()]).tag("branches").input("unused").build()
    except WiringError as error:
        say(error, end="\n\n")
        return len(error.faults) == 3
    return False


def train_epoch(graph: Graph, ddp: DDP, loader: DataLoader, optimizer: optim.Optimizer, bar: tqdm) -> float:
    """The mean loss of an epoch, over the samples of all ranks."""
    loss_fn, count = nn.CrossEntropyLoss(), 0
    total = minigrad.zeros(dtype="float64", device=ddp.comm.device)  # there, so that nothing waits for a GPU
    for images, labels in loader:
        optimizer.zero_grad()
        output = ddp(images)
        loss = loss_fn(output, labels) + AUXILIARY_WEIGHT * loss_fn(graph.tagged("auxiliary"), labels)
        loss.backward()
        optimizer.step()
        total, count = total + loss.detach().to("float64") * len(labels), count + len(labels)
        bar.update()
    totals, counts = zip(*ddp.comm.all_gather_object([total.item(), count]))
    return float(sum(totals) / sum(counts))


def accuracy(graph: Graph, test: ArrayDataset) -> float:
    """The share of the test set that is classified right."""
    images, labels = (minigrad.Tensor(array).to(graph.devices[0]) for array in test.arrays)
    with minigrad.no_grad():
        output = graph.forward_batch((images, labels))  # takes its inputs, and leaves the labels
        return float((output.argmax(dim=1) == labels).sum().item()) / len(labels)


def values(x: minigrad.Tensor) -> Any:
    """A copy of the array, in host memory."""
    return x.detach().cpu().numpy().copy()


def train(graph: Graph, comm: Communicator, epochs: int, say: Callable[..., None]) -> bool:
    """Train, the last epoch with a frozen stem; whether that stayed as it was."""
    data, test = digits("train"), digits("test")
    sampler = DistributedSampler(data, rank=comm.rank, world_size=comm.world_size)
    loader = DataLoader(data, BATCH_SIZE // comm.world_size, sampler=sampler, device=comm.device)
    ddp = DDP(graph, comm)
    optimizer = optim.AdamW(graph.parameters(), lr=3e-3)
    graph.enable_profiling()
    before = np.zeros(0)
    with tqdm(total=epochs * len(loader), leave=False, disable=None if comm.rank == 0 else True) as bar:
        for epoch in range(epochs):
            if epoch == epochs - 1:
                graph.freeze("stem")
                before = values(graph.get_parameter("stem.weight"))
            loss = train_epoch(graph, ddp, loader, optimizer, bar)
            with tqdm.external_write_mode():
                say(f"epoch {epoch + 1}: loss {loss:.4f}, accuracy {accuracy(graph, test):.4f}", flush=True)
    return bool((values(graph.get_parameter("stem.weight")) == before).all())


def show_times(graph: Graph, say: Callable[..., None]) -> None:
    """The slowest nodes first."""
    times = sorted(graph.node_times().items(), key=lambda item: -item[1].total_s)
    say("\nnode                      runs   mean ms")
    for name, time in times[:6]:
        say(f"{name:24} {time.count:5} {time.mean_s * 1e3:9.3f}")


def same_after_a_checkpoint(graph: Graph, images: minigrad.Tensor, say: Callable[..., None]) -> bool:
    """Whether a second graph computes the same bits once it has loaded what the first one saved."""
    twin = make_model().to(images.device)
    with tempfile.TemporaryDirectory() as folder:
        graph.save_checkpoint(Path(folder) / "digits.safetensors")
        report = twin.load_checkpoint(Path(folder) / "digits.safetensors")
    say(f"\ncheckpoint: {len(report.loaded)} loaded, {len(report.skipped)} skipped, {len(report.missing)} missing")
    with minigrad.no_grad():
        return bool((values(twin(images)) == values(graph(images))).all())


def body(comm: Communicator, options: argparse.Namespace) -> bool:
    """What every rank runs; whether it reached the target."""
    if BATCH_SIZE % comm.world_size:
        raise SystemExit(f"expected a number of ranks that divides {BATCH_SIZE}, got {comm.world_size}")
    say = print if comm.rank == 0 else lambda *words, **kept: None
    epochs, target = (2, 0.8) if options.smoke else (options.epochs, TARGET_ACCURACY)
    told = show_faults(say)
    graph = make_model().to(comm.device)
    say(graph.to_text(), end="\n\n")
    say(graph.to_dot(), end="\n\n")
    stayed = train(graph, comm, epochs, say)
    say()
    say(graph.summary())
    show_times(graph, say)
    if options.dot is not None and comm.rank == 0:
        options.dot.write_text(graph.to_dot(graph.node_times()) + "\n")
    test = digits("test")
    same = same_after_a_checkpoint(graph, minigrad.Tensor(test.arrays[0]).to(comm.device), say)
    reached = accuracy(graph, test)
    say(f"faults of a wiring told at once: {told}; frozen part unchanged: {stayed}; same after a checkpoint: {same}")
    say(f"test accuracy: {reached:.4f} (target {target})")
    return told and stayed and same and reached >= target


def main() -> int:
    """Read the command line, show the graph, train it as the rank that the launcher started, or alone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="cpu by default; cuda: the GPU of each process that the launcher starts")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--dot", type=Path, help="write the picture for Graphviz here, coloured by time")
    parser.add_argument("--smoke", action="store_true", help="two epochs, a lower target: takes seconds")
    options = parser.parse_args()
    return 0 if body(distributed.init(device=options.device), options) else 1


if __name__ == "__main__":
    sys.exit(main())
