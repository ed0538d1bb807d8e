"""Saving and resuming a training, and looking into a model."""

from tests.parity.idioms.idiom import read

IDIOMS = read(
    r"""
## save and resume with a dictionary
def make():
    model = fixed(nn.Linear(2, 2))
    optimizer = optim.Adam(model.parameters(), lr=0.1)
    return model, optimizer

def train(model, optimizer, steps):
    for i in range(steps):
        optimizer.zero_grad()
        model(torch.ones(3, 2)).pow(2).sum().backward()
        optimizer.step()

model, optimizer = make()
train(model, optimizer, 2)
state = {"epoch": 2, "model_state_dict": model.state_dict(), "loss": 0.5}
state["optimizer_state_dict"] = optimizer.state_dict()
torch.save(state, folder / "ckpt.pt")
train(model, optimizer, 2)
model2, optimizer2 = make()
checkpoint = torch.load(folder / "ckpt.pt", weights_only=True)
model2.load_state_dict(checkpoint["model_state_dict"])
optimizer2.load_state_dict(checkpoint["optimizer_state_dict"])
train(model2, optimizer2, 2)
result = [checkpoint["epoch"], checkpoint["loss"], torch.equal(model.weight, model2.weight), model2.weight]

## save and resume of everything
model = fixed(nn.Linear(2, 2))
opt = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
sched = optim.lr_scheduler.CosineAnnealingLR(opt, T_max=10)
scaler = torch.amp.GradScaler("cpu", enabled=False)
for _ in range(3):
    model(torch.ones(1, 2)).sum().backward()
    opt.step()
    opt.zero_grad()
    sched.step()
state = {"model": model.state_dict(), "optimizer": opt.state_dict(), "scheduler": sched.state_dict(),
         "scaler": scaler.state_dict(), "rng": torch.get_rng_state(), "epoch": 3, "best": float("inf"),
         "args": {"lr": 0.1, "name": "run", "sizes": [1, 2]}}
torch.save(state, str(folder / "all.pth"))
loaded = torch.load(str(folder / "all.pth"), map_location="cpu", weights_only=False)
opt.load_state_dict(loaded["optimizer"])
sched.load_state_dict(loaded["scheduler"])
scaler.load_state_dict(loaded["scaler"])
torch.set_rng_state(loaded["rng"])
result = [loaded["epoch"], loaded["best"], loaded["args"], sched.get_last_lr(), opt.param_groups[0]["lr"]]

## the best model kept by a copy
import copy
model = fixed(nn.Linear(1, 1))
best, best_loss = None, float("inf")
opt = optim.SGD(model.parameters(), lr=0.3)
for epoch in range(3):
    loss = F.mse_loss(model(torch.ones(1, 1)), torch.ones(1, 1))
    if loss.item() < best_loss:
        best_loss, best = loss.item(), copy.deepcopy(model.state_dict())
    opt.zero_grad()
    loss.backward()
    opt.step()
model.load_state_dict(best)
result = [best_loss, model.weight]

## only rank zero saves
model = fixed(nn.Linear(1, 1))
rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
if rank == 0:
    torch.save(model.state_dict(), folder / "model.pt")
model.load_state_dict(torch.load(folder / "model.pt", map_location=torch.device("cpu")))
result = model.weight

## a checkpoint of a wrapped model
model = fixed(nn.Linear(1, 1))
state = {"module." + k: v for k, v in model.state_dict().items()}
torch.save({"state_dict": state}, folder / "ddp.pt")
sd = torch.load(folder / "ddp.pt")["state_dict"]
sd = {k.replace("module.", ""): v for k, v in sd.items()}
model.load_state_dict(sd, strict=True)
result = list(sd)

## a list of tensors and a nest saved
torch.save([torch.ones(2), {"a": torch.arange(3), "b": (1, "x", None, True)}], folder / "x.pt")
result = torch.load(folder / "x.pt")

## into memory
import io
buffer = io.BytesIO()
torch.save({"w": torch.arange(3.0)}, buffer)
buffer.seek(0)
result = torch.load(buffer)

## some weights of a checkpoint into another model
old = fixed(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4)))
new = fixed(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)))
state = new.state_dict()
fits = {k: v * 2 for k, v in old.state_dict().items() if k in state and v.shape == state[k].shape}
state.update(fits)
new.load_state_dict(state)
missing = new.load_state_dict({"0.weight": torch.zeros(3, 2), "x": torch.zeros(1)}, strict=False)
result = [sorted(fits), missing.missing_keys, missing.unexpected_keys, new[0].weight]

## the streams of random numbers
import random
import numpy as np
random.seed(1)
np.random.seed(1)
torch.manual_seed(1)
state = (random.getstate(), np.random.get_state(), torch.get_rng_state())
a = [random.random(), np.random.rand(), torch.rand(2)]
random.setstate(state[0])
np.random.set_state(state[1])
torch.set_rng_state(state[2])
b = [random.random(), np.random.rand(), torch.rand(2)]
result = [a[0] == b[0], a[1] == b[1], torch.equal(a[2], b[2])]

## resume from the last of several files
import os
import glob
model = fixed(nn.Linear(1, 1))
for epoch in range(3):
    torch.save({"epoch": epoch, "model": model.state_dict()}, os.path.join(folder, f"ckpt_{epoch:03d}.pt"))
last = sorted(glob.glob(os.path.join(folder, "ckpt_*.pt")))[-1]
ckpt = torch.load(last, map_location="cpu")
result = [os.path.basename(last), ckpt["epoch"]]

## count of parameters in a table
model = fixed(nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)))
rows = [[n, list(p.shape), p.numel(), p.requires_grad] for n, p in model.named_parameters()]
result = [rows, sum(r[2] for r in rows), sum(b.numel() for b in model.buffers())]

## shapes of outputs by hooks
model = fixed(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)))
rows = []
hooks = [m.register_forward_hook(lambda m, i, o: rows.append([m.__class__.__name__, list(i[0].shape), list(o.shape)]))
         for m in model.modules() if not list(m.children())]
with torch.no_grad():
    model(torch.zeros(1, 1, 4, 4))
[h.remove() for h in hooks]
result = rows

## early stopping by a class
class EarlyStopping:
    def __init__(self, patience, path):
        self.patience, self.path, self.best, self.count = patience, path, None, 0

    def __call__(self, loss, model):
        if self.best is None or loss < self.best:
            self.best, self.count = loss, 0
            torch.save(model.state_dict(), self.path)
        else:
            self.count += 1
        return self.count >= self.patience

stop = EarlyStopping(2, folder / "best.pt")
model = fixed(nn.Linear(1, 1))
result = [stop(x, model) for x in (3.0, 2.0, 2.5, 2.4)] + [stop.best]

## a loader with a generator resumes
def loader(seed):
    g = torch.Generator()
    g.manual_seed(seed)
    return data.DataLoader(data.TensorDataset(torch.arange(6)), batch_size=2, shuffle=True, generator=g)

a = [x for (x,) in loader(3)]
b = [x for (x,) in loader(3)]
result = all(torch.equal(x, y) for x, y in zip(a, b))
"""
)
