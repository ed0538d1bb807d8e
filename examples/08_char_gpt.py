"""Train a small GPT on the characters of Python's own reference, on one rank or several.

    python examples/08_char_gpt.py --ranks 2                                          two threads
    python -m minigrad.distributed.launch -n 2 examples/08_char_gpt.py                two processes, shared memory
    mpirun -n 2 python -m mpi4py examples/08_char_gpt.py                              two processes, MPI
    python -m minigrad.distributed.launch -n 2 examples/08_char_gpt.py --device cuda  one process a GPU, NCCL

A global batch is 32 sequences of 64 characters. The last sequence of a topic is filled up, so that the ranks' parts of
some batches have unequal numbers of characters, by which their gradients are weighed. Two optimizers share the
parameters: Muon has the matrices of the blocks, AdamW the rest.

It prints the loss on topics that were held out, in nats per character, beside that of the best tables of counts: what
followed the last n characters. Then a text that the network makes up, whether the replicas ended with the same bits,
and how far they were from one rank's parameters after some steps on the same global batches. It exits with 1 where the
network is not better than its target, or less than 0.1 better than the best table.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

import minigrad
from minigrad import Tensor, distributed, nn, optim
from minigrad.data import DataLoader, DistributedSampler, Sequences, Text, text
from minigrad.distributed import Communicator, DistributedDataParallel, SoloCommunicator
from minigrad.nn import functional as F

CONTEXT = 64  # characters that a prediction is made from, at most
GLOBAL_BATCH = 32  # sequences; divides among 1, 2, 4, ... ranks
IGNORED = -100  # the target of a place that has none
COMPARED_STEPS = 10
ALLOWED_DIFFERENCE = {"float32": 1e-4, "float64": 1e-10}
LONGEST_TABLE = 6
LEAD = 0.1  # nats per character, over the best table


# ---------------------------------------------------------------------------------------------------- the network


def turned(x: Tensor) -> Tensor:
    """Queries or keys, turned by angles that grow with the place, so that their products tell how far apart they are.

    Source: Su et al., "RoFormer: Enhanced transformer with rotary position embedding", 2021.

    Shapes:
        (..., T, D) -> (..., T, D): element i and element i + D/2 are a point in a plane
    """
    length, width = x.shape[-2:]
    speeds = 10_000.0 ** -(np.arange(0, width, 2) / width)
    angles = minigrad.tensor(np.outer(np.arange(length), speeds), dtype=x.dtype, device=x.device)
    cos, sin = angles.cos(), angles.sin()
    a, b = x.chunk(2, -1)
    return minigrad.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Block(nn.Module):
    """Each character looks back at those before it, then thinks for itself: x + attention(x), x + mlp(x)."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.mix = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, width) -> (N, T, width)"""
        n, length, width = x.shape
        heads = self.query_key_value(self.norm1(x)).reshape(n, length, 3, self.heads, width // self.heads)
        heads = heads.permute(2, 0, 3, 1, 4)  # three times (N, heads, T, width of a head)
        query, key = turned(F.rms_norm(heads[:2], heads.shape[-1:]))
        value = heads[2]
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.mix(seen.transpose(1, 2).reshape(n, length, width)))
        out: Tensor = x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)), "tanh")))
        return out


class GPT(nn.Module):
    """Predicts the next character at each place of a sequence, (N, T) -> (N, T, characters).

    One matrix says what a character means, where it comes in, and how well it fits, where it comes out.
    """

    def __init__(self, characters: int, width: int, layers: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*[Block(width, heads, dropout) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters, bias=False)
        self.head.weight = self.embedding.weight
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                last = name.endswith(("mix.weight", "down.weight"))  # whose outputs all layers add up
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers) if last else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """The score of each character to be the next, at each place."""
        scores: Tensor = self.head(self.norm(self.blocks(self.dropout(self.embedding(tokens)))))
        return scores


# --------------------------------------------------------------------------------------------------- the training


class Training:
    """One rank's replica, its part of the data and its two optimizers."""

    def __init__(self, comm: Communicator, book: Text, options: argparse.Namespace, dropout: float) -> None:
        self.comm, self.options = comm, options
        minigrad.manual_seed(options.seed)  # the same weights on every rank, another noise on each
        model = GPT(len(book.vocabulary), options.width, options.layers, options.heads, dropout)
        self.ddp = DistributedDataParallel(model.to(options.dtype).to(comm.device), comm)
        sequences = Sequences(book.train, CONTEXT, stride=4)
        # every rank's batches are its share of the global ones, so that W ranks see what one rank sees
        sampler = DistributedSampler(sequences, rank=comm.rank, world_size=comm.world_size, seed=options.seed)
        each = GLOBAL_BATCH // comm.world_size
        self.loader = DataLoader(sequences, each, sampler=sampler, drop_last=True, device=comm.device)
        matrices = [parameter for parameter in model.blocks.parameters() if parameter.ndim == 2]
        others = [parameter for parameter in model.parameters() if all(parameter is not other for other in matrices)]
        self.optimizers = [optim.Muon(matrices, lr=0.04), optim.AdamW(others, lr=4e-3, betas=(0.9, 0.99))]
        rate = optim.warmup(optim.CosineAnnealing(options.steps), min(100, 1 + options.steps // 10), start_factor=0.01)
        self.schedules = [optim.LRScheduler(optimizer, rate) for optimizer in self.optimizers]

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch after the other."""
        while True:
            yield from self.loader

    def train(self, steps: int, progress: tqdm | None = None) -> Iterator[float]:
        """The mean loss of each step, over the characters of all ranks."""
        for (tokens, targets), _ in zip(self.batches(), range(steps)):
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            characters = int((targets != IGNORED).sum().item())
            loss = F.cross_entropy(self.ddp(tokens).flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
            with self.ddp.samples(characters):  # what this rank's mean is over
                loss.backward()
            nn.utils.clip_grad_norm_(self.ddp.module.parameters(), 1.0)  # of the mean over all ranks
            for optimizer, schedule in zip(self.optimizers, self.schedules):
                optimizer.step()
                schedule.step()
            if progress is not None:
                progress.update()
            yield self.mean(loss.item() * characters, characters)

    def mean(self, total: float, count: int) -> float:
        """A sum over this rank's characters, as the mean over those of all ranks."""
        both = minigrad.tensor([total, count], dtype="float64", device=self.comm.device)
        self.comm.all_reduce(both.data).wait()
        return float(both[0].item() / both[1].item())

    def loss_on(self, documents: Any, stride: int) -> float:
        """Nats per character: each is predicted once, from the CONTEXT - stride before it or more, where there are."""
        sequences = Sequences(documents, CONTEXT, stride, once=True)
        total, characters = 0.0, 0
        self.ddp.eval()
        with minigrad.no_grad():
            for start in range(self.comm.rank * GLOBAL_BATCH, len(sequences), self.comm.world_size * GLOBAL_BATCH):
                rows = range(start, min(start + GLOBAL_BATCH, len(sequences)))
                tokens, targets = (Tensor(part).to(self.comm.device) for part in sequences.read(rows))
                scores = self.ddp.module(tokens).flatten(0, 1)
                total += F.cross_entropy(scores, targets.flatten(), ignore_index=IGNORED, reduction="sum").item()
                characters += int((targets != IGNORED).sum().item())
        self.ddp.train()
        return self.mean(total, characters)

    def write(self, book: Text, beginning: str, length: int, top_k: int) -> str:
        """A text that goes on as the network predicts, each character drawn among the top_k that fit best."""
        codes = book.encode(beginning).tolist()
        rng = np.random.default_rng(self.options.seed)
        self.ddp.eval()
        with minigrad.no_grad():
            while len(codes) < length:
                tokens = minigrad.tensor([codes[-CONTEXT:]], device=self.comm.device)
                scores = self.ddp.module(tokens)[0, -1]
                best = scores.topk(min(top_k, len(scores)))
                codes.append(int(best.indices[minigrad.multinomial(best.values.softmax(0), 1, rng=rng)].item()))
        self.ddp.train()
        return book.decode(codes)

    def parameters(self) -> dict[str, np.ndarray[Any, Any]]:
        """A copy of every parameter."""
        return {name: p.detach().cpu().numpy().copy() for name, p in self.ddp.module.named_parameters()}

    def digests(self) -> list[str]:
        """A digest of the bits of all parameters, on every rank."""
        bits = b"".join(value.tobytes() for value in self.parameters().values())
        return self.comm.all_gather_object(hashlib.sha256(bits).hexdigest()[:16])


def difference_to_one_rank(comm: Communicator, book: Text, options: argparse.Namespace) -> float:
    """The largest difference of a parameter to one rank's, after the first steps on the same global batches.

    Without dropout, for each rank draws its own noise.
    """
    found = []
    for ranks in (comm, SoloCommunicator(comm.device)):
        training = Training(ranks, book, options, dropout=0.0)
        list(training.train(COMPARED_STEPS))
        found.append(training.parameters())
    several, alone = found
    return max(float(np.abs(value - alone[name]).max()) for name, value in several.items())


# ------------------------------------------------------------------------------------------------ tables of counts


def count_tables(train: Sequence[Any], held_out: Sequence[Any], characters: int, longest: int) -> list[float]:
    """The held-out loss, in nats per character, of tables that know what followed the last 1, 2, ... characters.

    A table that has not seen a context much asks the one of one character less: interpolated Kneser-Ney, in which the
    shorter ones count after how many different characters something stood, instead of how often (Chen and Goodman,
    "An empirical study of smoothing techniques for language modeling", 1999).
    """
    base = characters + 1
    losses: list[float] = []
    shorter = np.full(sum(len(document) - 1 for document in held_out), 1 / characters)
    for n in range(longest + 1):
        seen, asked = grams(train, n, base), grams(held_out, n, base)
        losses.append(float(-np.log(probabilities(seen, asked, shorter, base)).mean()))
        different = np.unique(grams(train, n + 1, base)) % base ** (n + 1)  # once for each character before
        shorter = probabilities(different, asked, shorter, base)
    return losses[1:]


def grams(documents: Sequence[Any], n: int, base: int) -> Any:
    """Each character but the first of a document and the n before it, as one number; blanks come before a document."""
    powers = base ** np.arange(n, -1, -1)
    rows = [np.concatenate([np.full(n, base - 1), document]) for document in documents]
    return np.concatenate([np.lib.stride_tricks.sliding_window_view(row, n + 1)[1:] @ powers for row in rows])


def probabilities(seen: Any, asked: Any, shorter: Any, base: int) -> Any:
    """Of the last character of each gram asked for: its count less a discount, which goes to the shorter table."""
    kinds, counts = np.unique(seen, return_counts=True)
    contexts, starts = np.unique(kinds // base, return_index=True)
    totals, followers = np.add.reduceat(counts, starts), np.diff(np.append(starts, len(kinds)))
    once, twice = (np.count_nonzero(counts == times) for times in (1, 2))
    discount = once / max(once + 2 * twice, 1)
    place = np.searchsorted(kinds, asked).clip(max=len(kinds) - 1)
    count = np.where(kinds[place] == asked, counts[place], 0)
    context = np.searchsorted(contexts, asked // base).clip(max=len(contexts) - 1)
    found = (np.maximum(count - discount, 0) + discount * followers[context] * shorter) / totals[context]
    return np.where(contexts[context] == asked // base, found, shorter)


# ------------------------------------------------------------------------------------------------------- the report


def body(comm: Communicator, options: argparse.Namespace) -> bool:
    """What every rank runs; whether it reached the target."""
    if GLOBAL_BATCH % comm.world_size:
        raise SystemExit(f"expected a number of ranks that divides {GLOBAL_BATCH}, got {comm.world_size}")
    say = print if comm.rank == 0 else lambda *words, **kept: None
    book = text()
    training = Training(comm, book, options, options.dropout)
    size = sum(parameter.numel() for parameter in training.ddp.module.parameters())
    say(f"{comm.world_size} rank(s), {options.dtype}, {size} parameters\n{book}")
    say("  step    loss      s")
    started, losses = time.perf_counter(), list[float]()
    hidden = None if comm.rank == 0 else True  # None: shown on a terminal only
    with tqdm(total=options.steps, leave=False, disable=hidden) as bar:
        for step, loss in enumerate(training.train(options.steps, bar), start=1):
            losses.append(loss)
            if step % options.every == 0 or step == options.steps:
                mean = sum(losses[-options.every :]) / len(losses[-options.every :])
                with tqdm.external_write_mode():
                    say(f"{step:6} {mean:7.4f} {time.perf_counter() - started:6.1f}", flush=True)
    held_out = training.loss_on(book.held_out, options.stride)
    tables = [math.inf]
    if comm.rank == 0:
        train, rest = (list(part.values()) for part in (book.train, book.held_out))
        tables = count_tables(train, rest, len(book.vocabulary), options.tables)
    tables = comm.all_gather_object(tables)[0]
    digests = training.digests()
    equal = len(set(digests)) == 1
    difference = difference_to_one_rank(comm, book, options)
    if comm.rank == 0:
        say(training.write(book, "The ", options.length, options.top_k))
        say("\nheld-out loss, nats per character:")
        for n, loss in enumerate(tables, start=1):
            say(f"  counts after {n} character(s) {loss:7.4f}")
    lead = min(tables) - held_out
    say(f"  the network              {held_out:7.4f} (target {options.target}), {lead:.4f} below the best table")
    say(f"replicas: {'bit-equal' if equal else 'DIFFERENT'}, parameters {' '.join(sorted(set(digests)))}")
    say(f"largest parameter difference to one rank after {COMPARED_STEPS} step(s): {difference:.2e}")
    reached = held_out <= options.target and lead >= options.lead
    return reached and equal and difference < ALLOWED_DIFFERENCE[options.dtype]


def main() -> int:
    """Read the command line, and run as the ranks that it asks for, or that the launcher started."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1, help="thread ranks; a launcher's processes come instead")
    parser.add_argument("--device", help="cpu by default; cuda: the GPU of each process that the launcher starts")
    parser.add_argument("--dtype", choices=sorted(ALLOWED_DIFFERENCE), default="float32")
    parser.add_argument("--steps", type=int, default=4500)
    parser.add_argument("--every", type=int, default=250, help="steps from one line of the report to the next")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--dropout", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", type=float, default=1.45, help="held-out nats per character")
    parser.add_argument("--lead", type=float, default=LEAD, help="nats per character below the best table")
    parser.add_argument("--tables", type=int, default=LONGEST_TABLE, help="characters of the longest table")
    parser.add_argument("--stride", type=int, default=8, help="characters from one held-out sequence to the next")
    parser.add_argument("--top-k", type=int, default=10)
    parser.add_argument("--length", type=int, default=400, help="characters to write in the end")
    parser.add_argument("--smoke", action="store_true", help="a tiny network and a lower target: takes seconds")
    if parser.parse_args().smoke:
        parser.set_defaults(steps=60, every=20, width=32, heads=2, layers=1, target=3.4, lead=-math.inf)
        parser.set_defaults(tables=1, stride=CONTEXT, length=40)
    options = parser.parse_args()
    for name in ("ranks", "steps", "every", "width", "layers", "heads", "tables", "stride", "top_k"):
        if getattr(options, name) < 1:
            parser.error(f"expected --{name.replace('_', '-')} of at least 1, got {getattr(options, name)}")
    if options.stride > CONTEXT:
        parser.error(f"expected --stride of at most {CONTEXT}, got {options.stride}")
    if options.width % (2 * options.heads):  # a head turns pairs of its elements
        parser.error(f"expected --width to be a multiple of twice --heads, got {options.width} and {options.heads}")
    if GLOBAL_BATCH % options.ranks:
        parser.error(f"expected --ranks to divide {GLOBAL_BATCH}, got {options.ranks}")
    if options.ranks > 1 and options.device not in (None, "cpu"):
        parser.error(f"expected the CPU for thread ranks, got --device {options.device}: start a process for each GPU")
    minigrad.keep_freed_memory()  # a step needs the same arrays again and again
    if options.ranks > 1:
        return 0 if all(distributed.run(body, options.ranks, options)) else 1
    return 0 if body(distributed.init(device=options.device), options) else 1


if __name__ == "__main__":
    sys.exit(main())
