"""Language models on characters, sampling from them, and batches of texts."""

from tests.parity.idioms.idiom import read

IDIOMS = read(
    r"""
## estimate of the loss
@torch.no_grad()
def estimate_loss(model, splits):
    out = {}
    model.eval()
    for split, (x, y) in splits.items():
        losses = torch.zeros(3)
        for k in range(3):
            losses[k] = F.cross_entropy(model(x + k), y).item()
        out[split] = losses.mean()
    model.train()
    return out

model = fixed(nn.Linear(2, 3))
y = torch.tensor([0, 2])
result = estimate_loss(model, {"train": (torch.ones(2, 2), y), "val": (torch.zeros(2, 2), y)})

## tied weights
class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, x):
        return self.head(self.emb(x))

m = fixed(LM())
ids = torch.tensor([[0, 1, 1, 4]])
F.cross_entropy(m(ids).flatten(0, 1), ids.flatten()).backward()
result = [m.emb.weight.grad, m.head.weight is m.emb.weight, len(list(m.parameters())), sorted(m.state_dict())]

## top-k sampling
logits = torch.tensor([[1.0, 3.0, 2.0, 0.5], [0.0, -1.0, 4.0, 3.9]])
top_k = 2
indices_to_remove = logits < torch.topk(logits, top_k)[0][..., -1, None]
logits[indices_to_remove] = float("-inf")
probs = F.softmax(logits / 0.7, dim=-1)
draw = torch.multinomial(probs, 1)
result = [probs, bool((probs.gather(-1, draw) > 0).all())]

## nucleus sampling
def top_p_filter(logits, top_p, filter_value=-float("Inf")):
    sorted_logits, sorted_indices = torch.sort(logits, descending=True)
    cumulative_probs = torch.cumsum(F.softmax(sorted_logits, dim=-1), dim=-1)
    sorted_indices_to_remove = cumulative_probs > top_p
    sorted_indices_to_remove[..., 1:] = sorted_indices_to_remove[..., :-1].clone()
    sorted_indices_to_remove[..., 0] = 0
    indices_to_remove = sorted_indices_to_remove.scatter(-1, sorted_indices, sorted_indices_to_remove)
    return logits.masked_fill(indices_to_remove, filter_value)

def top_p_flat(logits, p):
    sorted_logits, sorted_indices = torch.sort(logits, descending=True)
    remove = torch.cumsum(F.softmax(sorted_logits, dim=-1), dim=-1) > p
    remove[1:] = remove[:-1].clone()
    remove[0] = False
    logits = logits.clone()
    logits[sorted_indices[remove]] = -float("inf")
    return logits

logits = torch.tensor([[1.0, 3.0, 2.0, 0.5], [0.0, -1.0, 4.0, 3.9]])
result = [top_p_filter(logits, 0.8), top_p_flat(logits[0], 0.5)]

## nucleus sampling as in llama
def sample_top_p(probs, p):
    probs_sort, probs_idx = torch.sort(probs, dim=-1, descending=True)
    probs_sum = torch.cumsum(probs_sort, dim=-1)
    mask = probs_sum - probs_sort > p
    probs_sort[mask] = 0.0
    probs_sort.div_(probs_sort.sum(dim=-1, keepdim=True))
    next_token = torch.multinomial(probs_sort, num_samples=1)
    next_token = torch.gather(probs_idx, -1, next_token)
    return probs_sort, next_token

p, t = sample_top_p(torch.tensor([[0.5, 0.3, 0.15, 0.05]]), 0.4)
result = [p, t]

## sampling by the gumbel trick
logits = torch.tensor([[0.0, 100.0, 0.0], [100.0, 0.0, 0.0]])
u = torch.rand_like(logits)
g = -torch.log(-torch.log(u + 1e-9) + 1e-9)
result = [(logits + g).argmax(-1), F.gumbel_softmax(logits, tau=1.0, hard=True)]

## sampling by exponentials as in gpt-fast
def multinomial_sample_one_no_sync(probs_sort):
    q = torch.empty_like(probs_sort).exponential_(1)
    return torch.argmax(probs_sort / q, dim=-1, keepdim=True).to(dtype=torch.int)

result = multinomial_sample_one_no_sync(torch.tensor([[0.0, 1.0, 0.0]]))

## a penalty of repetition
logits = torch.tensor([[1.0, -2.0, 3.0]])
ids = torch.tensor([[0, 1]])
score = torch.gather(logits, 1, ids)
score = torch.where(score < 0, score * 1.2, score / 1.2)
logits.scatter_(1, ids, score)
result = logits

## beam search
logp = torch.log(torch.tensor([[0.1, 0.6, 0.3], [0.4, 0.2, 0.4], [0.3, 0.3, 0.4]]))
beams = [([0], 0.0)]
for _ in range(3):
    nxt = []
    for seq, score in beams:
        values, idx = logp[seq[-1]].topk(2)
        for v, i in zip(values.tolist(), idx.tolist()):
            nxt.append((seq + [i], score + v))
    beams = sorted(nxt, key=lambda b: -b[1])[:2]
result = beams

## a greedy generation until the end
emb = torch.eye(4)
W = torch.tensor([[0.0, 1.0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0]])
ids = torch.zeros(2, 1, dtype=torch.long)
ids[1, 0] = 2
done = torch.zeros(2, dtype=torch.bool)
for _ in range(5):
    nxt = (emb[ids[:, -1]] @ W).argmax(-1)
    nxt = torch.where(done, torch.zeros_like(nxt), nxt)
    done |= nxt == 3
    ids = torch.cat([ids, nxt[:, None]], -1)
    if done.all():
        break
result = ids

## a loss over tokens that are not padded
logits = torch.arange(2 * 3 * 4.0).reshape(2, 3, 4).sin().requires_grad_()
targets = torch.tensor([[1, 2, -100], [3, -100, -100]])
loss = F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=-100)
mask = (targets != -100).float()
per = F.cross_entropy(logits.view(-1, 4), targets.view(-1), reduction="none").view_as(targets)
loss2 = (per * mask).sum() / mask.sum()
loss.backward()
result = [loss, loss2, loss2.exp(), logits.grad]

## masking for a masked language model
ids = torch.arange(12).reshape(2, 6)
labels = ids.clone()
prob = torch.full(labels.shape, 0.15)
special = torch.tensor([[1, 0, 0, 0, 0, 1]] * 2, dtype=torch.bool)
prob.masked_fill_(special, value=0.0)
masked = torch.bernoulli(prob).bool()
masked = (torch.arange(12).reshape(2, 6) % 5 == 1) & ~special
labels[~masked] = -100
ids[masked] = 99
result = [labels, ids]

## a batch of texts padded by hand
texts = [[1, 2, 3], [4], [5, 6]]
m = max(len(t) for t in texts)
ids = torch.zeros(len(texts), m, dtype=torch.long)
mask = torch.zeros(len(texts), m)
for i, t in enumerate(texts):
    ids[i, : len(t)] = torch.tensor(t)
    mask[i, : len(t)] = 1
emb = fixed(nn.Embedding(7, 2, padding_idx=0))
h = (emb(ids) * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
h.sum().backward()
result = [h, emb.weight.grad]

## a mean by scatter of words into sentences
emb = fixed(nn.Embedding(6, 2))
ids = torch.tensor([0, 1, 1, 5, 3])
seg = torch.tensor([0, 0, 1, 1, 1])
out = torch.zeros(2, 2).index_add_(0, seg, emb(ids))
out = out / torch.bincount(seg).unsqueeze(1)
out.sum().backward()
result = [out, emb.weight.grad]

## embedding from pretrained vectors
vectors = torch.arange(6.0).reshape(3, 2)
emb = nn.Embedding.from_pretrained(vectors, freeze=True)
result = [emb(torch.tensor([2, 0])), emb.weight.requires_grad, F.embedding(torch.tensor([[1]]), vectors)]

## cosine warmup of the learning rate by hand
import math

def get_lr(it, warmup=2, decay=6, lr=1.0, min_lr=0.1):
    if it < warmup:
        return lr * (it + 1) / (warmup + 1)
    if it > decay:
        return min_lr
    ratio = (it - warmup) / (decay - warmup)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (lr - min_lr)

opt = optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
lrs = []
for it in range(8):
    for g in opt.param_groups:
        g["lr"] = get_lr(it)
    lrs.append(opt.param_groups[0]["lr"])
result = lrs

## perplexity over a stream of blocks
model = fixed(nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5)))
ids = torch.arange(20) % 5
nll, n = 0.0, 0
with torch.no_grad():
    for i in range(0, len(ids) - 1, 4):
        x, y = ids[i : i + 4], ids[i + 1 : i + 5]
        x = x[: len(y)]
        nll += F.cross_entropy(model(x), y, reduction="sum").item()
        n += y.numel()
result = [nll / n, n]

## an entropy of predictions
p = F.softmax(torch.arange(6.0).reshape(2, 3), -1)
ent = -(p * p.log()).sum(-1)
result = ent
"""
)
