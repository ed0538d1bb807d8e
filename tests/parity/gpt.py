"""A small GPT: blocks of causal attention and two affine maps, whose last layer has the weight of the first.

Radford et al., "Language models are unsupervised multitask learners", 2019; one weight for words that go in and come
out: Press and Wolf, "Using the output embedding to improve language models", 2017.
"""

import numpy as np

from tests.parity.streams import as_arrays, stream

WORDS, FEATURES, HEADS, LONGEST, SHAPE = 24, 16, 4, 12, (3, 10)
WHOLE = {"evaluated"}


def make(nn):
    """The network, of the layers of this package."""
    F = nn.functional

    class CausalSelfAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.c_attn = nn.Linear(FEATURES, 3 * FEATURES)
            self.c_proj = nn.Linear(FEATURES, FEATURES)

        def forward(self, x):
            B, T, C = x.size()
            q, k, v = self.c_attn(x).split(FEATURES, dim=2)
            q, k, v = (part.view(B, T, HEADS, C // HEADS).transpose(1, 2) for part in (q, k, v))
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=True)
            return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1 = nn.LayerNorm(FEATURES)
            self.attn = CausalSelfAttention()
            self.ln_2 = nn.LayerNorm(FEATURES)
            self.mlp = nn.Sequential(
                nn.Linear(FEATURES, 4 * FEATURES), nn.GELU(approximate="tanh"), nn.Linear(4 * FEATURES, FEATURES)
            )

        def forward(self, x):
            x = x + self.attn(self.ln_1(x))
            return x + self.mlp(self.ln_2(x))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.transformer = nn.ModuleDict(
                {
                    "wte": nn.Embedding(WORDS, FEATURES),
                    "wpe": nn.Embedding(LONGEST, FEATURES),
                    "h": nn.ModuleList([Block() for _ in range(2)]),
                    "ln_f": nn.LayerNorm(FEATURES),
                }
            )
            self.lm_head = nn.Linear(FEATURES, WORDS, bias=False)
            self.transformer["wte"].weight = self.lm_head.weight

        def forward(self, words):
            parts = self.transformer
            x = parts["wte"](words) + parts["wpe"].weight[: words.shape[1]]
            for block in parts["h"]:
                x = block(x)
            return self.lm_head(parts["ln_f"](x))

    return Gpt()


def state_value(name, shape):
    """What a tensor of the state_dict holds: the one that is there twice, the same under both names."""
    drawn = stream("gpt words" if name in ("transformer.wte.weight", "lm_head.weight") else f"gpt {name}")
    values = drawn.standard_normal(shape, np.float32)
    return np.exp(np.float32(0.1) * values) if ".ln_" in name and "weight" in name else values * np.float32(0.3)


def run(package, model, as_tensor):
    """What a model computes: output evaluated, loss, and gradients of parameters.

    Args:
        package: torch or minigrad.
        as_tensor: An array as a tensor of the model's dtype, or of integers.
    """
    words = stream("a text").integers(0, WORDS, (SHAPE[0], SHAPE[1] + 1))
    before, after = as_tensor(words[:, :-1]), as_tensor(words[:, 1:])
    with package.no_grad():
        evaluated = model.eval()(before)
    loss = package.nn.functional.cross_entropy(model.train()(before).view(-1, WORDS), after.reshape(-1))
    loss.backward()
    return as_arrays({"evaluated": evaluated, "loss": loss.detach()}, model)
