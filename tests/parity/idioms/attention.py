"""Attention, encoders and small GPTs, as people write and use them."""

from tests.parity.idioms.idiom import read

IDIOMS = read(
    r"""
## a causal attention with the library's function
q = torch.arange(2 * 2 * 4 * 3.0).reshape(2, 2, 4, 3).sin().requires_grad_()
y = F.scaled_dot_product_attention(q, q.detach() * 2, q.detach() + 1, attn_mask=None, dropout_p=0.0, is_causal=True)
y.sum().backward()
result = [y, q.grad]

## a classifier like bert with a padding mask
class Classifier(nn.Module):
    def __init__(self, vocab, d, heads, layers, classes, max_len=32):
        super().__init__()
        self.tok = nn.Embedding(vocab, d, padding_idx=0)
        self.pos = nn.Embedding(max_len, d)
        layer = nn.TransformerEncoderLayer(d_model=d, nhead=heads, dim_feedforward=2 * d, dropout=0.0,
                                           activation="gelu", batch_first=True, norm_first=False)
        self.encoder = nn.TransformerEncoder(layer, num_layers=layers, enable_nested_tensor=False)
        self.head = nn.Linear(d, classes)

    def forward(self, ids):
        mask = ids == 0
        x = self.tok(ids) + self.pos(torch.arange(ids.size(1), device=ids.device))[None]
        x = self.encoder(x, src_key_padding_mask=mask)
        x = x.masked_fill(mask.unsqueeze(-1), 0.0).sum(1) / (~mask).sum(1, keepdim=True)
        return self.head(x)

model = fixed(Classifier(10, 8, 2, 2, 3))
ids = torch.tensor([[1, 2, 3, 0], [4, 5, 0, 0]])
loss = F.cross_entropy(model(ids), torch.tensor([0, 2]))
loss.backward()
attn = model.encoder.layers[0].self_attn
result = [loss, attn.in_proj_weight.grad, model.tok.weight.grad, sorted(model.state_dict())]

## a transformer of a time series with a causal mask
class TimeSeries(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.src_mask = None
        self.inp = nn.Linear(1, d)
        self.encoder_layer = nn.TransformerEncoderLayer(d_model=d, nhead=2, dim_feedforward=16, dropout=0.0)
        self.transformer_encoder = nn.TransformerEncoder(self.encoder_layer, num_layers=1)
        self.decoder = nn.Linear(d, 1)

    def forward(self, src):
        if self.src_mask is None or self.src_mask.size(0) != len(src):
            self.src_mask = self._generate_square_subsequent_mask(len(src)).to(src.device)
        x = self.transformer_encoder(self.inp(src), self.src_mask)
        return self.decoder(x)

    def _generate_square_subsequent_mask(self, sz):
        mask = (torch.triu(torch.ones(sz, sz)) == 1).transpose(0, 1)
        return mask.float().masked_fill(mask == 0, float("-inf")).masked_fill(mask == 1, float(0.0))

m = fixed(TimeSeries())
x = torch.arange(5 * 2.0).reshape(5, 2, 1).sin()
loss = F.mse_loss(m(x), x)
loss.backward()
result = [m(x), loss, m.inp.weight.grad]

## multihead attention with weights
mha = fixed(nn.MultiheadAttention(embed_dim=4, num_heads=2))
x = torch.arange(3 * 2 * 4.0).reshape(3, 2, 4).sin()
out, weights = mha(x, x, x)
result = [out, weights, mha.in_proj_weight.shape, mha.out_proj.weight.shape, list(mha.state_dict())]

## multihead attention batch first without weights
mha = fixed(nn.MultiheadAttention(4, 2, dropout=0.0, bias=True, batch_first=True))
q = torch.arange(2 * 3 * 4.0).reshape(2, 3, 4).sin()
kv = torch.arange(2 * 5 * 4.0).reshape(2, 5, 4).cos()
out, w = mha(q, kv, kv, need_weights=False)
out2, w2 = mha(q, kv, kv, average_attn_weights=False)
result = [out, w, out2, w2]

## multihead attention with key padding and causal masks
mha = fixed(nn.MultiheadAttention(4, 2, batch_first=True))
x = torch.arange(2 * 3 * 4.0).reshape(2, 3, 4).sin()
pad = torch.tensor([[False, False, True], [False, False, False]])
causal = torch.triu(torch.ones(3, 3, dtype=torch.bool), diagonal=1)
out, w = mha(x, x, x, key_padding_mask=pad, attn_mask=causal)
out2, _ = mha(x, x, x, attn_mask=torch.full((3, 3), float("-inf")).triu(1), is_causal=True)
result = [out, w, out2]

## a causal mask from the transformer
mask = nn.Transformer.generate_square_subsequent_mask(3)
result = mask

## multihead attention with a float mask
mha = fixed(nn.MultiheadAttention(4, 2, batch_first=True))
x = torch.arange(2 * 3 * 4.0).reshape(2, 3, 4).sin()
mask = torch.zeros(3, 3)
mask[0, 2] = float("-inf")
mask[1, 0] = -1.0
result = mha(x, x, x, attn_mask=mask)[0]

## multihead attention with keys and values of other widths
mha = fixed(nn.MultiheadAttention(4, 2, kdim=3, vdim=5, batch_first=True))
q, k, v = (torch.arange(2 * 3 * n * 1.0).reshape(2, 3, n).sin() for n in (4, 3, 5))
out, w = mha(q, k, v)
result = [out, w, sorted(mha.state_dict())]

## multihead attention of one sequence
mha = fixed(nn.MultiheadAttention(4, 1))
x = torch.arange(12.0).reshape(3, 4).sin()
out, w = mha(x, x, x)
result = [out, w]

## rms norm of the library
norm = nn.RMSNorm(4)
x = torch.arange(8.0).reshape(2, 4).requires_grad_()
y = norm(x)
(y * y.detach()).sum().backward()
result = [y, x.grad, norm.weight.grad, F.rms_norm(x, (4,), eps=1e-6)]

## rms norm by hand as in llama
class RMSNorm(torch.nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        output = self._norm(x.float()).type_as(x)
        return output * self.weight

x = torch.arange(8.0).reshape(2, 4)
result = RMSNorm(4)(x)

## grouped heads
q = torch.arange(1 * 4 * 3 * 2.0).reshape(1, 4, 3, 2).sin()
k = torch.arange(1 * 2 * 3 * 2.0).reshape(1, 2, 3, 2).cos()
v = k * 2
a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
b = F.scaled_dot_product_attention(q, k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1), is_causal=True)
result = [a, (a - b).abs().max().item() < 1e-6]

## repeat_kv of llama
def repeat_kv(x, n_rep):
    bs, slen, n_kv_heads, head_dim = x.shape
    if n_rep == 1:
        return x
    return (
        x[:, :, :, None, :]
        .expand(bs, slen, n_kv_heads, n_rep, head_dim)
        .reshape(bs, slen, n_kv_heads * n_rep, head_dim)
    )

result = repeat_kv(torch.arange(8.0).reshape(1, 2, 2, 2), 2)

## positional encodings by sine as in the tutorial
import math

class PositionalEncoding(nn.Module):
    def __init__(self, d_model, dropout=0.1, max_len=5000):
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, 1, d_model)
        pe[:, 0, 0::2] = torch.sin(position * div_term)
        pe[:, 0, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe)

    def forward(self, x):
        x = x + self.pe[:x.size(0)]
        return self.dropout(x)

enc = PositionalEncoding(6, 0.0, 20)
result = [enc(torch.zeros(4, 2, 6)), list(enc.state_dict())]

## rotary embeddings by halves
def rotate_half(x):
    x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)

class Rotary(nn.Module):
    def __init__(self, dim, base=10000):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(self, x, seq_dim=1):
        t = torch.arange(x.shape[seq_dim], device=x.device).type_as(self.inv_freq)
        freqs = torch.einsum("i,j->ij", t, self.inv_freq)
        emb = torch.cat((freqs, freqs), dim=-1).to(x.device)
        return emb.cos()[None, :, None, :], emb.sin()[None, :, None, :]

q = torch.arange(1 * 3 * 2 * 4.0).reshape(1, 3, 2, 4).sin()
rot = Rotary(4)
cos, sin = rot(q)
result = [(q * cos) + (rotate_half(q) * sin), list(rot.state_dict())]

## rotary embeddings by pairs
def precompute(dim, end, theta=10000.0):
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2)[: (dim // 2)].float() / dim))
    freqs = torch.outer(torch.arange(end), freqs).float()
    return torch.stack([freqs.cos(), freqs.sin()], dim=-1)

def apply_rotary(x, freqs_cis):
    xs = x.float().reshape(*x.shape[:-1], -1, 2)
    f = freqs_cis.view(1, xs.size(1), 1, xs.size(3), 2)
    out = torch.stack([xs[..., 0] * f[..., 0] - xs[..., 1] * f[..., 1],
                       xs[..., 1] * f[..., 0] + xs[..., 0] * f[..., 1]], -1)
    return out.flatten(3).type_as(x)

x = torch.arange(1 * 3 * 2 * 4.0).reshape(1, 3, 2, 4).sin().requires_grad_()
y = apply_rotary(x, precompute(4, 3))
y.sum().backward()
result = [y, x.grad]

## alibi
def slopes(n):
    start = 2 ** (-(2 ** -(torch.log2(torch.tensor(float(n))) - 3)))
    return torch.pow(start, torch.arange(1, n + 1))

def alibi(n, T):
    pos = torch.arange(T)
    return -(pos[:, None] - pos[None, :]).abs()[None] * slopes(n)[:, None, None]

bias = alibi(4, 3) + torch.full((3, 3), float("-inf")).triu(1)
q = torch.arange(2 * 4 * 3 * 2.0).reshape(2, 4, 3, 2).sin()
result = [bias, F.scaled_dot_product_attention(q, q, q, attn_mask=bias)]

## generation with a cache of keys and values
class Attention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.qkv = nn.Linear(d, 3 * d)
        self.heads = heads

    def forward(self, x, cache=None):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        if cache is not None:
            pk, pv = cache
            k = torch.cat([pk, k], dim=-2)
            v = torch.cat([pv, v], dim=-2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        return y.transpose(1, 2).reshape(B, T, C), (k, v)

m = fixed(Attention(4, 2)).eval()
x = torch.arange(20.0).reshape(1, 5, 4).sin()
with torch.inference_mode():
    whole, _ = m(x)
    cache, steps = None, []
    for t in range(5):
        y, cache = m(x[:, t : t + 1], cache)
        steps.append(y)
result = [whole, torch.cat(steps, 1), torch.allclose(whole, torch.cat(steps, 1), atol=1e-6)]

## a preallocated cache
k_cache = torch.zeros(1, 2, 6, 3)
k = torch.arange(6.0).reshape(1, 2, 1, 3)
pos = torch.tensor([2])
k_cache[:, :, pos] = k
k_cache[:, :, 3:4, :] = k * 2
k_cache.index_copy_(2, torch.tensor([5]), k * 3) if hasattr(k_cache, "index_copy_") else k_cache[:, :, 5:6].copy_(k * 3)
result = k_cache

## a vision transformer
class ViT(nn.Module):
    def __init__(self, image=8, patch=4, d=8, classes=3):
        super().__init__()
        self.patch = nn.Conv2d(3, d, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, d))
        self.pos = nn.Parameter(torch.zeros(1, (image // patch) ** 2 + 1, d))
        layer = nn.TransformerEncoderLayer(d, 2, 16, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(d))
        self.head = nn.Linear(d, classes)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.pos
        return self.head(self.blocks(x)[:, 0])

m = fixed(ViT())
y = m(torch.arange(2 * 3 * 64.0).reshape(2, 3, 8, 8).sin())
y.sum().backward()
result = [y, m.cls.grad]

## a learned query attends to a sequence
class Pool(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q = nn.Parameter(torch.randn(1, 1, d))
        self.attn = nn.MultiheadAttention(d, 1, batch_first=True)

    def forward(self, x, mask=None):
        q = self.q.repeat(x.shape[0], 1, 1)
        out, w = self.attn(q, x, x, key_padding_mask=mask)
        return out.squeeze(1), w

m = fixed(Pool(4))
x = torch.arange(24.0).reshape(2, 3, 4).sin()
out, w = m(x, torch.tensor([[False, False, True], [False, True, True]]))
out.sum().backward()
result = [out, w, m.q.grad]

## sliding window attention by a mask
T, window = 5, 2
i = torch.arange(T)
mask = (i[None, :] <= i[:, None]) & (i[None, :] > i[:, None] - window)
x = torch.arange(T * 2.0).reshape(1, 1, T, 2).sin()
result = F.scaled_dot_product_attention(x, x, x, attn_mask=mask, scale=0.5)

## a layer of the encoder called by names
layer = nn.TransformerEncoderLayer(4, nhead=2, dim_feedforward=8, dropout=0.0, activation=F.gelu, batch_first=True)
layer = fixed(layer)
x = torch.arange(24.0).reshape(2, 3, 4).sin()
y = layer(src=x, src_mask=torch.zeros(3, 3), src_key_padding_mask=torch.zeros(2, 3, dtype=torch.bool))
result = [y, sum(p.numel() for p in layer.parameters()), [n for n, _ in layer.named_parameters()]]

## freezing all but the head of an encoder
layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
model = fixed(nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(4, 2)))
for p in model[0].parameters():
    p.requires_grad = False
opt = optim.AdamW(filter(lambda p: p.requires_grad, model.parameters()), lr=0.1)
model(torch.arange(24.0).reshape(2, 3, 4).sin())[:, 0].sum().backward()
opt.step()
result = [model[1].weight, model[0].layers[1].linear1.weight.grad is None]

## mistake: heads that do not divide the width
nn.MultiheadAttention(5, 2)
result = 0

## mistake: a query of another width
mha = nn.MultiheadAttention(4, 2, batch_first=True)
x = torch.zeros(2, 3, 6)
result = mha(x, x, x)
"""
)
