"""Optimizers, schedules, clipping, mixed precision, and the loops around them."""

from tests.parity.idioms.idiom import read

IDIOMS = read(
    r"""
## a step of sgd
model = fixed(nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss = model(torch.ones(3, 2)).pow(2).mean()
optimizer.zero_grad()
loss.backward()
optimizer.step()
result = [model.weight, model.bias]

## sgd with everything
model = fixed(nn.Linear(2, 1))
optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, nesterov=True)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(3, 2)).pow(2).mean().backward()
    optimizer.step()
result = model.weight

## adam
model = fixed(nn.Linear(2, 1))
optimizer = optim.Adam(model.parameters(), lr=1e-2, betas=(0.9, 0.99), eps=1e-8)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.ones(3, 2)).pow(2).mean().backward()
    optimizer.step()
result = model.weight

## adamw
model = fixed(nn.Linear(2, 1))
optimizer = optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
for _ in range(5):
    optimizer.zero_grad(set_to_none=True)
    model(torch.ones(3, 2)).pow(2).mean().backward()
    optimizer.step()
result = model.weight

## rmsprop
model = fixed(nn.Linear(2, 1))
optimizer = optim.RMSprop(model.parameters(), lr=0.01, alpha=0.9, momentum=0.5)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(3, 2)).pow(2).mean().backward()
    optimizer.step()
result = model.weight

## adam with amsgrad
w = nn.Parameter(torch.tensor([1.0, -2.0]))
optimizer = optim.Adam([w], lr=0.1, amsgrad=True)
for _ in range(3):
    optimizer.zero_grad()
    (w ** 2).sum().backward()
    optimizer.step()
result = w

## an optimizer of bare tensors
w = torch.zeros(2, requires_grad=True)
b = torch.zeros(1, requires_grad=True)
opt = torch.optim.SGD([w, b], lr=0.5)
((torch.ones(4, 2) @ w + b - 1) ** 2).mean().backward()
opt.step()
result = [w, b]

## groups of parameters
model = fixed(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)))
optimizer = optim.SGD([
    {"params": model[0].parameters()},
    {"params": model[1].parameters(), "lr": 1e-3},
], lr=1e-2, momentum=0.9)
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
result = [[g["lr"] for g in optimizer.param_groups], list(model.parameters())]

## decay for matrices alone
model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
decay = [p for p in model.parameters() if p.dim() >= 2]
nodecay = [p for p in model.parameters() if p.dim() < 2]
groups = [{"params": decay, "weight_decay": 0.1}, {"params": nodecay, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), fused=False)
result = [(len(g["params"]), g["weight_decay"]) for g in optimizer.param_groups]

## only what is trainable
model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
for p in model[0].parameters():
    p.requires_grad = False
optimizer = optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=0.001)
result = len(optimizer.param_groups[0]["params"])

## setting the rate by hand
model = nn.Linear(2, 1)
optimizer = optim.SGD(model.parameters(), lr=0.1)
for g in optimizer.param_groups:
    g["lr"] = g["lr"] * 0.5
result = optimizer.param_groups[0]["lr"]

## add_param_group
a, b = nn.Linear(2, 1), nn.Linear(2, 1)
optimizer = optim.SGD(a.parameters(), lr=0.1)
optimizer.add_param_group({"params": b.parameters(), "lr": 0.2})
result = [g["lr"] for g in optimizer.param_groups]

## the state of an optimizer
model = fixed(nn.Linear(2, 1))
opt = optim.Adam(model.parameters(), lr=0.1)
model(torch.ones(1, 2)).sum().backward()
opt.step()
state = opt.state_dict()
opt2 = optim.Adam(model.parameters(), lr=0.5)
opt2.load_state_dict(state)
opt2.step()
result = [opt2.param_groups[0]["lr"], model.weight]

## a closure
w = torch.tensor([1.0], requires_grad=True)
opt = optim.SGD([w], lr=0.1)
def closure():
    opt.zero_grad()
    loss = (w ** 2).sum()
    loss.backward()
    return loss
loss = opt.step(closure)
result = [loss, w]

## step lr
opt = optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
scheduler = optim.lr_scheduler.StepLR(opt, step_size=2, gamma=0.1)
lrs = []
for epoch in range(5):
    opt.step()
    scheduler.step()
    lrs.append(scheduler.get_last_lr()[0])
result = lrs

## cosine annealing
opt = optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=4, eta_min=0.001)
lrs = []
for epoch in range(4):
    opt.step()
    scheduler.step()
    lrs.append(opt.param_groups[0]["lr"])
result = lrs

## exponential and multistep
lrs = []
for make in (lambda o: optim.lr_scheduler.ExponentialLR(o, gamma=0.9),
             lambda o: optim.lr_scheduler.MultiStepLR(o, milestones=[1, 3], gamma=0.5)):
    opt = optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)
    scheduler = make(opt)
    for epoch in range(4):
        opt.step()
        scheduler.step()
    lrs.append(scheduler.get_last_lr())
result = lrs

## lambda lr with warmup
opt = optim.Adam(nn.Linear(1, 1).parameters(), lr=1.0)
scheduler = optim.lr_scheduler.LambdaLR(opt, lr_lambda=lambda step: min(1.0, (step + 1) / 4))
lrs = []
for _ in range(5):
    lrs.append(opt.param_groups[0]["lr"])
    opt.step()
    scheduler.step()
result = lrs

## one cycle
opt = optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1, momentum=0.9)
scheduler = optim.lr_scheduler.OneCycleLR(opt, max_lr=0.5, total_steps=6)
lrs = []
for _ in range(5):
    opt.step()
    scheduler.step()
    lrs.append(scheduler.get_last_lr()[0])
result = lrs

## one cycle of epochs and loaders
opt = optim.AdamW(nn.Linear(1, 1).parameters(), lr=0.1)
scheduler = optim.lr_scheduler.OneCycleLR(opt, max_lr=0.01, steps_per_epoch=3, epochs=2, pct_start=0.5)
lrs = []
for _ in range(5):
    opt.step()
    scheduler.step()
    lrs.append(opt.param_groups[0]["lr"])
result = lrs

## reduce on plateau
opt = optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
scheduler = optim.lr_scheduler.ReduceLROnPlateau(opt, mode="min", factor=0.5, patience=1)
lrs = []
for val_loss in [1.0, 0.9, 0.95, 0.96, 0.97, 0.98]:
    scheduler.step(val_loss)
    lrs.append(opt.param_groups[0]["lr"])
result = lrs

## warmup and then cosine
opt = optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)
warm = optim.lr_scheduler.LinearLR(opt, start_factor=0.1, total_iters=2)
cos = optim.lr_scheduler.CosineAnnealingLR(opt, T_max=3)
scheduler = optim.lr_scheduler.SequentialLR(opt, schedulers=[warm, cos], milestones=[2])
lrs = []
for _ in range(5):
    opt.step()
    scheduler.step()
    lrs.append(opt.param_groups[0]["lr"])
result = lrs

## warm restarts
opt = optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)
scheduler = optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=2, T_mult=2)
lrs = []
for _ in range(5):
    opt.step()
    scheduler.step()
    lrs.append(opt.param_groups[0]["lr"])
result = lrs

## the state of a schedule
opt = optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)
scheduler = optim.lr_scheduler.StepLR(opt, 2)
opt.step()
scheduler.step()
state = scheduler.state_dict()
opt2 = optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)
scheduler2 = optim.lr_scheduler.StepLR(opt2, 2)
scheduler2.load_state_dict(state)
opt2.step()
scheduler2.step()
result = scheduler2.get_last_lr()

## clipping by norm
model = fixed(nn.Linear(2, 1))
(model(torch.ones(4, 2)) * 100).sum().backward()
norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
result = [norm, model.weight.grad]

## clipping by value
model = fixed(nn.Linear(2, 1))
(model(torch.ones(4, 2)) * 100).sum().backward()
nn.utils.clip_grad_value_(model.parameters(), clip_value=0.5)
result = model.weight.grad

## clipping by hand
model = fixed(nn.Linear(2, 1))
(model(torch.ones(4, 2)) * 100).sum().backward()
norm = torch.sqrt(sum(torch.sum(p.grad ** 2) for p in model.parameters()))
if norm > 1:
    for p in model.parameters():
        p.grad[:] *= 1 / norm
result = model.bias.grad

## accumulation of gradients
model = fixed(nn.Linear(2, 1))
opt = optim.SGD(model.parameters(), lr=0.1)
accum = 2
x = torch.arange(8.0).view(4, 2)
for i in range(4):
    loss = model(x[i:i + 1]).pow(2).mean() / accum
    loss.backward()
    if (i + 1) % accum == 0:
        opt.step()
        opt.zero_grad()
result = model.weight

## penalty by hand
model = fixed(nn.Linear(2, 1))
x, y = torch.ones(3, 2), torch.zeros(3, 1)
loss = F.mse_loss(model(x), y) + 0.01 * sum((p ** 2).sum() for p in model.parameters())
loss.backward()
result = [loss, model.weight.grad]

## autocast of bfloat16 on the cpu
model = fixed(nn.Linear(2, 2))
with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
    y = model(torch.ones(1, 2))
result = [y.dtype, y]

## the scaler that does nothing here
model = fixed(nn.Linear(2, 1))
opt = optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda", enabled=False)
opt.zero_grad()
with torch.autocast(device_type="cuda", dtype=torch.float16, enabled=False):
    loss = model(torch.ones(3, 2)).mean()
scaler.scale(loss).backward()
scaler.step(opt)
scaler.update()
result = model.weight

## cuda.amp of older scripts
model = fixed(nn.Linear(2, 1))
opt = optim.SGD(model.parameters(), lr=0.1)
use_amp = False
scaler = torch.cuda.amp.GradScaler(enabled=use_amp)
with torch.cuda.amp.autocast(enabled=use_amp):
    loss = model(torch.ones(3, 2)).mean()
scaler.scale(loss).backward()
scaler.unscale_(opt)
nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.step(opt)
scaler.update()
result = model.weight

## an average of weights
model = fixed(nn.Linear(2, 1))
ema = optim.swa_utils.AveragedModel(model)
for _ in range(2):
    with torch.no_grad():
        model.weight.add_(1.0)
    ema.update_parameters(model)
result = ema.module.weight

## an exponential average by hand
model = fixed(nn.Linear(2, 1))
shadow = {n: p.clone().detach() for n, p in model.named_parameters()}
with torch.no_grad():
    model.weight.add_(1.0)
    for n, p in model.named_parameters():
        shadow[n].mul_(0.9).add_(p, alpha=0.1)
result = shadow

## sgd by hand over parameters
def sgd(params, lr, batch_size):
    with torch.no_grad():
        for param in params:
            param -= lr * param.grad / batch_size
            param.grad.zero_()
w = torch.tensor([1.0, 2.0], requires_grad=True)
(w * torch.tensor([3.0, 4.0])).sum().backward()
sgd([w], 0.1, 2)
result = [w, w.grad]

## the quickstart loop
def train(dataloader, model, loss_fn, optimizer):
    size = len(dataloader.dataset)
    model.train()
    for batch, (X, y) in enumerate(dataloader):
        pred = model(X)
        loss = loss_fn(pred, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if batch % 2 == 0:
            loss, current = loss.item(), (batch + 1) * len(X)
            print(f"loss: {loss:>7f}  [{current:>5d}/{size:>5d}]")

def test(dataloader, model, loss_fn):
    size = len(dataloader.dataset)
    num_batches = len(dataloader)
    model.eval()
    test_loss, correct = 0, 0
    with torch.no_grad():
        for X, y in dataloader:
            pred = model(X)
            test_loss += loss_fn(pred, y).item()
            correct += (pred.argmax(1) == y).type(torch.float).sum().item()
    return test_loss / num_batches, correct / size

X = torch.linspace(-1, 1, 24).view(12, 2)
y = (X[:, 0] > 0).long()
loader = data.DataLoader(data.TensorDataset(X, y), batch_size=4)
model = fixed(nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
loss_fn = nn.CrossEntropyLoss()
for t in range(5):
    train(loader, model, loss_fn, optimizer)
result = test(loader, model, loss_fn)

## the cifar loop
X = torch.linspace(-1, 1, 24).view(12, 2)
y = (X[:, 0] > 0).long()
trainloader = data.DataLoader(data.TensorDataset(X, y), batch_size=4, shuffle=True, num_workers=0)
net = fixed(nn.Linear(2, 2))
criterion = nn.CrossEntropyLoss()
optimizer = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
for epoch in range(10):
    running_loss = 0.0
    for i, data_ in enumerate(trainloader, 0):
        inputs, labels = data_
        optimizer.zero_grad()
        outputs = net(inputs)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
correct = total = 0
with torch.no_grad():
    for inputs, labels in trainloader:
        _, predicted = torch.max(net(inputs).data, 1)
        total += labels.size(0)
        correct += (predicted == labels).sum().item()
result = [total, correct / total > 0.8]

## the best loss so far
best = float("inf")
for loss in [torch.tensor(0.5), torch.tensor(0.3), torch.tensor(0.4)]:
    if loss < best:
        best = loss.item()
result = best

## a history of losses
losses = []
w = torch.tensor([4.0], requires_grad=True)
opt = optim.SGD([w], lr=0.25)
for i in range(4):
    loss = (w ** 2).mean()
    losses.append(loss.detach())
    opt.zero_grad()
    loss.backward()
    opt.step()
result = torch.stack(losses)

## mistake: a collective without a group
result = dist.all_reduce(torch.ones(1))

## mistake: an optimizer of nothing
result = optim.SGD([], lr=0.1)

## mistake: a rate below zero
result = optim.Adam(nn.Linear(1, 1).parameters(), lr=-1.0)

## mistake: the state of another optimizer
a = optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
b = optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1)
result = b.load_state_dict(a.state_dict())

## mistake: parameters that are no leaves
w = torch.ones(2, requires_grad=True) * 2
result = optim.SGD([w], lr=0.1)
"""
)
