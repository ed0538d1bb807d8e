"""Streams of samples, optimizers of matrices, averages of weights."""

from tests.parity.idioms.idiom import read

IDIOMS = read(
    r"""
## muon and adamw share the parameters
model = fixed(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)))
hidden = [p for p in model.parameters() if p.ndim == 2]
other = [p for p in model.parameters() if p.ndim != 2]
opts = [torch.optim.Muon(hidden, lr=0.02, momentum=0.95, weight_decay=0.1), torch.optim.AdamW(other, lr=1e-2)]
x, y = torch.arange(20.0).reshape(5, 4).sin(), torch.arange(15.0).reshape(5, 3).cos()
for _ in range(3):
    loss = F.mse_loss(model(x), y)
    for opt in opts:
        opt.zero_grad()
    loss.backward()
    for opt in opts:
        opt.step()
result = [round(loss.item(), 2), [p.shape for o in opts for p in o.param_groups[0]["params"]]]

## muon with its defaults
w = torch.arange(12.0).reshape(3, 4).sin().requires_grad_()
opt = optim.Muon([w])
(w ** 2).sum().backward()
opt.step()
result = [w.round(decimals=2), opt.param_groups[0]["lr"], opt.param_groups[0]["nesterov"]]

## muon with the learning rate matched to adam's
w = torch.arange(12.0).reshape(3, 4).cos().requires_grad_()
opt = optim.Muon([w], lr=1e-2, weight_decay=0.0, nesterov=False, ns_steps=3, adjust_lr_fn="match_rms_adamw")
for _ in range(2):
    opt.zero_grad()
    (w ** 3).sum().backward()
    opt.step()
result = (w * 10).round()

## schedules of two optimizers
model = fixed(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1)))
opts = [optim.Muon([model[0].weight], lr=0.1), optim.AdamW([model[0].bias, *model[1].parameters()], lr=0.01)]
scheds = [optim.lr_scheduler.LambdaLR(o, lambda s: 1 / (s + 1)) for o in opts]
for _ in range(3):
    model(torch.ones(2, 3)).sum().backward()
    for o, s in zip(opts, scheds):
        o.step()
        s.step()
        o.zero_grad(set_to_none=True)
result = [[o.param_groups[0]["lr"] for o in opts], model[0].weight.grad is None]

## the state of muon saved and loaded
def run(stop):
    w = torch.arange(6.0).reshape(2, 3).sin().requires_grad_()
    opt = optim.Muon([w], lr=0.1)
    for i in range(4):
        opt.zero_grad()
        (w ** 2).sum().backward()
        opt.step()
        if i == stop:
            state = opt.state_dict()
            opt = optim.Muon([w], lr=0.5)
            opt.load_state_dict(state)
    return w

result = torch.equal(run(9), run(1))

## a stream of numbers
class Stream(data.IterableDataset):
    def __init__(self, start, end):
        super().__init__()
        assert end > start
        self.start, self.end = start, end

    def __iter__(self):
        return iter(range(self.start, self.end))

whole = list(data.DataLoader(Stream(0, 5), batch_size=2, drop_last=True))
result = [list(Stream(3, 7)), [b for b in data.DataLoader(Stream(0, 7), batch_size=3)], whole]

## a stream of a file by lines
path = folder / "train.txt"
path.write_text("1 2 3\n4 5 6\n7 8 9\n")

class Lines(data.IterableDataset):
    def __init__(self, path):
        self.path = path

    def __iter__(self):
        with open(self.path) as f:
            for line in f:
                ids = torch.tensor([int(t) for t in line.split()])
                yield ids[:-1], ids[1:]

loader = data.DataLoader(Lines(path), batch_size=2)
result = [[x, y] for x, y in loader]

## a stream that asks which worker it is
class Stream(data.IterableDataset):
    def __iter__(self):
        info = data.get_worker_info()
        if info is None:
            return iter(range(4))
        return iter(range(info.id, 4, info.num_workers))

result = list(data.DataLoader(Stream(), batch_size=2, num_workers=0))

## a stream packs texts into blocks
class Packed(torch.utils.data.IterableDataset):
    def __init__(self, docs, block):
        self.docs, self.block = docs, block

    def __iter__(self):
        buffer = []
        for doc in self.docs:
            buffer.extend(doc + [0])
            while len(buffer) >= self.block + 1:
                chunk = torch.tensor(buffer[: self.block + 1], dtype=torch.long)
                buffer = buffer[self.block:]
                yield {"input_ids": chunk[:-1], "labels": chunk[1:]}

ds = Packed([[1, 2, 3], [4, 5], [6, 7, 8, 9]], 3)
result = [[b["input_ids"], b["labels"]] for b in torch.utils.data.DataLoader(ds, batch_size=2)]

## a stream shuffled by a buffer
import random

class ShuffleBuffer(data.IterableDataset):
    def __init__(self, source, size):
        self.source, self.size = source, size

    def __iter__(self):
        rng = random.Random(0)
        buffer = []
        for x in self.source:
            if len(buffer) < self.size:
                buffer.append(x)
            else:
                i = rng.randrange(self.size)
                yield buffer[i]
                buffer[i] = x
        rng.shuffle(buffer)
        yield from buffer

result = torch.cat(list(data.DataLoader(ShuffleBuffer(range(8), 3), batch_size=4)))

## a stream with a length
class Stream(data.IterableDataset):
    def __iter__(self):
        return iter(range(5))

    def __len__(self):
        return 5

loader = data.DataLoader(Stream(), batch_size=2)
result = [len(loader), [x for x in loader]]

## a stream with a collate function
class Stream(data.IterableDataset):
    def __iter__(self):
        for n in (1, 3, 2):
            yield list(range(n))

def collate(batch):
    return nn.utils.rnn.pad_sequence([torch.tensor(b) for b in batch], batch_first=True, padding_value=-1)

result = list(data.DataLoader(Stream(), batch_size=3, collate_fn=collate))

## steps by next over an endless stream
class Endless(data.IterableDataset):
    def __iter__(self):
        i = 0
        while True:
            yield i
            i += 1

it = iter(data.DataLoader(Endless(), batch_size=2))
result = [next(it) for _ in range(3)]
del it

## random blocks as in nanogpt
import numpy as np
np.arange(50, dtype=np.uint16).tofile(folder / "train.bin")
arr = np.memmap(folder / "train.bin", dtype=np.uint16, mode="r")
ix = torch.tensor([0, 10, 20])
block_size = 4
x = torch.stack([torch.from_numpy((arr[i : i + block_size]).astype(np.int64)) for i in ix])
y = torch.stack([torch.from_numpy((arr[i + 1 : i + 1 + block_size]).astype(np.int64)) for i in ix])
result = [x, y]

## an exponential average by deepcopy and lerp
import copy
model = fixed(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
ema = copy.deepcopy(model).eval().requires_grad_(False)
opt = optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    F.mse_loss(model(torch.arange(6.0).reshape(3, 2)), torch.zeros(3, 2)).backward()
    opt.step()
    opt.zero_grad()
    with torch.no_grad():
        for e, p in zip(ema.parameters(), model.parameters()):
            e.lerp_(p, 0.1)
        for e, b in zip(ema.buffers(), model.buffers()):
            e.copy_(b)
result = [list(ema.parameters()), list(ema.buffers())]

## accumulation of gradients to the end
model = fixed(nn.Linear(2, 1))
opt = optim.AdamW(model.parameters(), lr=0.1)
loader = data.DataLoader(data.TensorDataset(torch.arange(12.0).reshape(6, 2), torch.ones(6, 1)), batch_size=1)
accum_iter = 3
for i, (x, y) in enumerate(loader):
    loss = F.mse_loss(model(x), y) / accum_iter
    loss.backward()
    if (i + 1) % accum_iter == 0 or i + 1 == len(loader):
        opt.step()
        opt.zero_grad()
result = list(model.parameters())

## mistake: muon on a vector
optim.Muon([nn.Parameter(torch.zeros(3))])
result = 0

## mistake: a stream that is shuffled
class Stream(data.IterableDataset):
    def __iter__(self):
        return iter(range(3))

data.DataLoader(Stream(), shuffle=True)
result = 0

## mistake: the length of a stream
class Stream(data.IterableDataset):
    def __iter__(self):
        return iter(range(3))

result = len(data.DataLoader(Stream()))

## mistake: a stream with a sampler
class Stream(data.IterableDataset):
    def __iter__(self):
        return iter(range(3))

data.DataLoader(Stream(), sampler=[0, 1])
result = 0
"""
)
