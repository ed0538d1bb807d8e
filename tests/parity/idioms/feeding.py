"""Datasets, samplers, loaders, and what is kept in files."""

from tests.parity.idioms.idiom import read

IDIOMS = read(
    r"""
## a dataset of one's own
class Squares(data.Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return torch.tensor([float(i)]), torch.tensor([float(i * i)])

ds = Squares(5)
loader = data.DataLoader(ds, batch_size=2)
result = [len(ds), ds[2], len(loader), [x.shape for x, y in loader], next(iter(loader))]

## a dataset of tensors
X, y = torch.arange(6.0).view(3, 2), torch.tensor([0, 1, 0])
ds = data.TensorDataset(X, y)
result = [len(ds), ds[1]]

## a loader that shuffles
ds = data.TensorDataset(torch.arange(10))
loader = data.DataLoader(ds, batch_size=4, shuffle=True)
seen = torch.cat([b for (b,) in loader])
result = [seen.shape, torch.sort(seen).values]

## dropping the last batch
ds = data.TensorDataset(torch.arange(10))
loader = data.DataLoader(ds, batch_size=4, drop_last=True)
result = [len(loader), [b[0].shape for b in loader]]

## the first batch
ds = data.TensorDataset(torch.arange(6.0).view(3, 2), torch.tensor([0, 1, 2]))
features, labels = next(iter(data.DataLoader(ds, batch_size=3)))
result = [features.size(), labels.size(), labels]

## options of a loader
ds = data.TensorDataset(torch.arange(4.0))
loader = data.DataLoader(ds, batch_size=2, shuffle=False, num_workers=0, pin_memory=False)
result = [[b[0] for b in loader], loader.batch_size, len(loader.dataset)]

## numpy samples become tensors
import numpy as np
class D(data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return np.full(2, i, dtype=np.float32), i % 2

x, y = next(iter(data.DataLoader(D(), batch_size=4)))
result = [x, y]

## samples that are dicts
class D(data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, i):
        return {"x": torch.ones(2) * i, "label": i}

batch = next(iter(data.DataLoader(D(), batch_size=2)))
result = [batch["x"], batch["label"]]

## a list as a dataset
loader = data.DataLoader([1, 2, 3, 4], batch_size=2)
result = list(loader)

## a transform of samples
class D(data.Dataset):
    def __init__(self, transform=None):
        self.transform = transform

    def __len__(self):
        return 3

    def __getitem__(self, i):
        x = torch.tensor([float(i)])
        if self.transform:
            x = self.transform(x)
        return x

result = [D(transform=lambda x: x / 2)[i] for i in range(3)]

## a collate of one's own
def collate(batch):
    lengths = [len(x) for x in batch]
    out = torch.zeros(len(batch), max(lengths), dtype=torch.long)
    for i, x in enumerate(batch):
        out[i, :len(x)] = x
    return out, torch.tensor(lengths)

seqs = [torch.tensor([1, 2, 3]), torch.tensor([4])]
result = next(iter(data.DataLoader(seqs, batch_size=2, collate_fn=collate)))

## random_split
ds = data.TensorDataset(torch.arange(10))
train, val = data.random_split(ds, [8, 2])
result = [len(train), len(val), sorted(int(ds[i][0]) for i in list(train.indices) + list(val.indices))]

## random_split of fractions
ds = data.TensorDataset(torch.arange(10))
train, val = data.random_split(ds, [0.7, 0.3], generator=torch.Generator().manual_seed(42))
result = [len(train), len(val)]

## a subset
ds = data.TensorDataset(torch.arange(10))
sub = data.Subset(ds, [1, 3, 5])
result = [len(sub), sub[1], [b[0] for b in data.DataLoader(sub, batch_size=3)]]

## datasets joined
a, b = data.TensorDataset(torch.arange(2)), data.TensorDataset(torch.arange(5, 8))
both = data.ConcatDataset([a, b])
result = [len(both), both[3], len(a + b)]

## samples drawn by weight
ds = data.TensorDataset(torch.arange(4))
weights = [0.0, 1.0, 0.0, 0.0]
sampler = data.WeightedRandomSampler(weights, num_samples=3, replacement=True)
result = [b[0] for b in data.DataLoader(ds, batch_size=3, sampler=sampler)]

## balanced classes by weights
labels = torch.tensor([0, 0, 0, 1])
counts = torch.tensor([(labels == c).sum() for c in range(2)])
weights = 1.0 / counts[labels].float()
sampler = data.WeightedRandomSampler(weights, len(weights))
result = [weights, len(list(sampler))]

## samplers
ds = list(range(5))
batches = list(data.BatchSampler(data.SequentialSampler(ds), 2, False))
result = [list(data.SequentialSampler(ds)), sorted(data.RandomSampler(ds)), batches]

## a sampler in a loader
ds = data.TensorDataset(torch.arange(6))
loader = data.DataLoader(ds, batch_size=3, sampler=data.SequentialSampler(ds))
result = [b[0] for b in loader]

## a part of the indices at random
ds = data.TensorDataset(torch.arange(6))
loader = data.DataLoader(ds, batch_size=2, sampler=data.SubsetRandomSampler([1, 4]))
result = sorted(next(iter(loader))[0].tolist())

## the part of a rank
ds = data.TensorDataset(torch.arange(7))
sampler = data.DistributedSampler(ds, num_replicas=2, rank=1, shuffle=False)
result = [len(sampler), list(sampler)]

## the part of a rank, shuffled by epoch
ds = data.TensorDataset(torch.arange(8))
parts = []
for rank in range(2):
    sampler = data.DistributedSampler(ds, num_replicas=2, rank=rank, shuffle=True, seed=3)
    sampler.set_epoch(1)
    parts += list(sampler)
result = sorted(parts)

## a stream of samples
class Stream(data.IterableDataset):
    def __iter__(self):
        yield from range(5)

result = list(data.DataLoader(Stream(), batch_size=2))

## the same order by a generator
ds = data.TensorDataset(torch.arange(10))
orders = []
for _ in range(2):
    g = torch.Generator()
    g.manual_seed(0)
    orders.append(torch.cat([b[0] for b in data.DataLoader(ds, batch_size=5, shuffle=True, generator=g)]))
result = torch.equal(orders[0], orders[1])

## a loader by hand
def data_iter(batch_size, features, labels):
    num = len(features)
    indices = list(range(num))
    for i in range(0, num, batch_size):
        j = torch.tensor(indices[i:min(i + batch_size, num)])
        yield features[j], labels[j]

result = list(data_iter(2, torch.arange(6.0).view(3, 2), torch.tensor([0, 1, 2])))

## mean of a whole loader
loader = data.DataLoader(data.TensorDataset(torch.arange(10.0)), batch_size=3)
total, count = 0.0, 0
for (x,) in loader:
    total += x.sum().item()
    count += x.size(0)
result = total / count

## saving and loading a state
model = fixed(nn.Linear(2, 2))
path = folder / "model.pt"
torch.save(model.state_dict(), path)
other = nn.Linear(2, 2)
other.load_state_dict(torch.load(path, weights_only=True))
other.eval()
result = other.weight

## saving a tensor
path = folder / "tensor.pt"
torch.save(torch.arange(3.0), path)
result = torch.load(path)

## a checkpoint of everything
model = fixed(nn.Linear(2, 2))
optimizer = optim.Adam(model.parameters(), lr=0.1)
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
path = str(folder / "checkpoint.pt")
torch.save({
    "epoch": 3,
    "model_state_dict": model.state_dict(),
    "optimizer_state_dict": optimizer.state_dict(),
    "loss": 0.5,
}, path)
checkpoint = torch.load(path, map_location="cpu")
model.load_state_dict(checkpoint["model_state_dict"])
optimizer.load_state_dict(checkpoint["optimizer_state_dict"])
result = [checkpoint["epoch"], checkpoint["loss"], model.weight]

## saving a whole model
model = fixed(nn.Linear(2, 2))
torch.save(model, folder / "model.pth")
model = torch.load(folder / "model.pth", weights_only=False)
result = model(torch.ones(1, 2))

## mistake: tensors of other lengths in a dataset
result = data.TensorDataset(torch.zeros(3), torch.zeros(4))

## mistake: samples of other shapes in a batch
result = next(iter(data.DataLoader([torch.zeros(2), torch.zeros(3)], batch_size=2)))

## mistake: a batch of no samples
result = data.DataLoader([1, 2], batch_size=0)
"""
)
