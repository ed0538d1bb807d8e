"""The models, batches and optimizers that the benchmarks train, written once for minigrad.nn and torch.nn.

a: MLP 64-64-10, batch 32, SGD with momentum; so small that it measures what an operation costs beside its arithmetic.
b: MLP 784-512-512-10, batch 128, Adam.
c: CNN on 3 x 32 x 32, batch 64, SGD with momentum: conv3x3 - batch norm - ReLU - max pool of 3 -> 32 -> 64 channels, a
   residual block of 64, the mean over pixels, an affine layer.
d: GPT of 2 layers, 128 wide, 4 heads, 64 tokens of 65 kinds, batch 16, AdamW: norms first, GELU by tanh, learned
   positions, a head of its own, no dropout.
e: MLP 784-2048-2048-2048-2048-10, batch 256, Adam at 1e-4: products and memory.
f: LSTM of 128 over 64 tokens of 65 kinds, embedded in 64, batch 32, Adam.
digits: CNN with group norm on 1 x 8 x 8, batch 128, Adam.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

TOKENS, LENGTH = 65, 64
Library = Any  # minigrad.nn or torch.nn; for optimizers minigrad.optim or torch.optim


# -------------------------------------------------------------------------------------------------------- models


def mlp(n: Library, *widths: int) -> Any:
    """Affine layers of these widths, ReLU between them."""
    layers = [part for inputs, outputs in zip(widths, widths[1:]) for part in (n.Linear(inputs, outputs), n.ReLU())]
    return n.Sequential(*layers[:-1])


def digits(n: Library) -> Any:
    """A CNN with group norm for images of 8 x 8."""
    return n.Sequential(
        *(n.Conv2d(1, 16, 3, padding=1), n.GroupNorm(4, 16), n.ReLU()),
        *(n.Conv2d(16, 32, 3, padding=1), n.GroupNorm(4, 32), n.ReLU(), n.MaxPool2d(2)),
        *(n.Flatten(), n.Linear(512, 64), n.ReLU(), n.Linear(64, 10)),
    )


def residual(n: Library, bias: bool = False) -> Any:
    """Two blocks of convolution, batch norm, ReLU and pooling, a residual block of 64 channels, and a head."""

    class Residual(n.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.blocks = n.Sequential(*stage(3, 32), n.MaxPool2d(2), *stage(32, 64), n.MaxPool2d(2))
            self.residual = n.Sequential(*stage(64, 64))
            self.head = n.Linear(64, 10)

        def forward(self, x: Any) -> Any:
            x = self.blocks(x)
            x = x + self.residual(x)
            return self.head(x.mean((2, 3)))

    def stage(inputs: int, outputs: int) -> list[Any]:
        return [n.Conv2d(inputs, outputs, 3, padding=1, bias=bias), n.BatchNorm2d(outputs), n.ReLU()]

    return Residual()


def gpt(n: Library, width: int = 128, heads: int = 4, layers: int = 2) -> Any:
    """A decoder of characters; out come the scores of the next one at each place, as rows."""

    class Block(n.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.before, self.after = n.LayerNorm(width), n.LayerNorm(width)
            self.joint, self.out = n.Linear(width, 3 * width), n.Linear(width, width)
            self.mlp = n.Sequential(n.Linear(width, 4 * width), n.GELU("tanh"), n.Linear(4 * width, width))

        def forward(self, x: Any) -> Any:
            batch, length, _ = x.shape
            joint = self.joint(self.before(x)).reshape(batch, length, 3, heads, width // heads)
            query, key, value = joint.permute(2, 0, 3, 1, 4).unbind(0)
            seen = n.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
            return x + self.mlp(self.after(x))

    class Gpt(n.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.positions = n.Embedding(TOKENS, width), n.Embedding(LENGTH, width)
            self.blocks = n.Sequential(*[Block() for _ in range(layers)])
            self.norm, self.head = n.LayerNorm(width), n.Linear(width, TOKENS, bias=False)

        def forward(self, tokens: Any) -> Any:
            x = self.blocks(self.tokens(tokens) + self.positions.weight)
            return self.head(self.norm(x)).reshape(-1, TOKENS)

    return Gpt()


def lstm(n: Library) -> Any:
    """An LSTM over characters; out come the scores of the next one at each place, as rows."""

    class Characters(n.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.memory = n.Embedding(TOKENS, 64), n.LSTM(64, 128, batch_first=True)
            self.head = n.Linear(128, TOKENS)

        def forward(self, tokens: Any) -> Any:
            return self.head(self.memory(self.tokens(tokens))[0]).reshape(-1, TOKENS)

    return Characters()


# ------------------------------------------------------------------------------------------------------- training


@dataclass(frozen=True)
class Training:
    """A model with its batch and optimizer.

    Attributes:
        build: Takes minigrad.nn or torch.nn.
        shape: Of the batch of inputs; of integers where the model takes tokens.
        optimizer: Takes minigrad.optim or torch.optim, parameters, and options of the framework.
    """

    build: Callable[[Library], Any]
    shape: tuple[int, ...]
    optimizer: Callable[..., Any]
    takes_tokens: bool = False

    def batch(self, samples: int | None = None) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Inputs and int64 labels from one seed."""
        rng = np.random.default_rng(0)
        shape = (samples or self.shape[0], *self.shape[1:])
        if self.takes_tokens:
            tokens = rng.integers(0, TOKENS, (shape[0], shape[1] + 1))
            return np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:]).reshape(-1)
        return rng.standard_normal(shape, np.float32), rng.integers(0, 10, shape[0])

    def weights(self) -> dict[str, np.ndarray[Any, Any]]:
        """A start for both frameworks, by the names of the state."""
        import minigrad

        minigrad.manual_seed(0)
        return {key: value.detach().numpy() for key, value in self.build(minigrad.nn).state_dict().items()}


def train_step(model: Any, optimizer: Any, criterion: Any, x: Any, labels: Any) -> Any:
    """One step of training, of either framework; its loss."""
    optimizer.zero_grad()
    loss = criterion(model(x), labels)
    loss.backward()
    optimizer.step()
    return loss.detach()


def momentum(library: Library, params: Any, **options: Any) -> Any:
    """SGD with momentum."""
    return library.SGD(params, lr=0.02, momentum=0.9, **options)


def adam(library: Library, params: Any, lr: float = 1e-3, **options: Any) -> Any:
    """Adam."""
    return library.Adam(params, lr=lr, **options)


def slow_adam(library: Library, params: Any, **options: Any) -> Any:
    """Adam at 1e-4, for wide layers."""
    return adam(library, params, 1e-4, **options)


def adamw(library: Library, params: Any, **options: Any) -> Any:
    """AdamW."""
    return library.AdamW(params, lr=3e-4, weight_decay=0.01, **options)


TRAININGS = {
    "a": Training(lambda n: mlp(n, 64, 64, 10), (32, 64), momentum),
    "b": Training(lambda n: mlp(n, 784, 512, 512, 10), (128, 784), adam),
    "c": Training(residual, (64, 3, 32, 32), momentum),
    "d": Training(gpt, (16, LENGTH), adamw, takes_tokens=True),
    "e": Training(lambda n: mlp(n, 784, 2048, 2048, 2048, 2048, 10), (256, 784), slow_adam),
    "f": Training(lstm, (32, LENGTH), adam, takes_tokens=True),
    "digits": Training(digits, (128, 1, 8, 8), adam),
}
