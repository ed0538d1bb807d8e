"""A second set of every kind, written after the others and before it was known what of it runs."""

from tests.parity.idioms.idiom import read

IDIOMS = read(
    r"""
## a tensor of mixed numbers
result = torch.tensor([1, 2.5, True])

## a scalar tensor on the left of numpy
import numpy as np
x = torch.ones(2, 3)
result = np.mean(x.numpy(), axis=1).tolist()

## numpy of a stack of items
import numpy as np
losses = [torch.tensor(1.0), torch.tensor(3.0)]
result = float(np.mean([l.item() for l in losses]))

## linspace and unsqueeze for a curve
x = torch.unsqueeze(torch.linspace(-1, 1, 5), dim=1)
y = x.pow(2) + 0.2 * torch.zeros(x.size())
result = [x.shape, y]

## half to save memory
x = torch.randn(4).half()
result = [x.dtype, (x * 2).dtype, x.float().dtype]

## comparing dtypes
x = torch.zeros(2, dtype=torch.long)
y = torch.tensor([1.0])
result = [x.dtype == torch.int64, torch.float is torch.float32, y.dtype in (torch.float16, torch.float32)]

## range of a python list to long
result = torch.tensor(range(4))

## zeros of a device and a dtype and a gradient
w = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True, device="cpu")
result = [w.dtype, w.requires_grad]

## is a tensor on the gpu
x = torch.zeros(1)
result = [x.is_cuda, x.requires_grad, x.grad]

## normalising pixels
img = torch.arange(12, dtype=torch.uint8).view(3, 2, 2)
mean, std = torch.tensor([0.5, 0.5, 0.5]), torch.tensor([0.2, 0.2, 0.2])
result = (img.float() / 255.0 - mean[:, None, None]) / std[:, None, None]

## channels last of an array
x = torch.arange(12).view(3, 2, 2)
result = x.permute(1, 2, 0).numpy()

## every other row backwards
x = torch.arange(10)
result = x.flip(0)[::3]

## columns by a list
x = torch.arange(12).view(3, 4)
result = x[:, [0, 2]]

## rows where a column is large
x = torch.tensor([[1.0, 9.0], [2.0, 3.0], [4.0, 8.0]])
result = x[x[:, 1] > 5]

## the largest in each row as a mask
x = torch.tensor([[1.0, 9.0], [5.0, 3.0]])
result = x == x.max(dim=1, keepdim=True)[0]

## setting where another is zero
x, y = torch.arange(4.0), torch.tensor([0, 1, 0, 1])
x[y == 0] = float("nan")
result = [x, torch.isnan(x).sum().item()]

## boolean mask to indices to list
x = torch.tensor([0.2, 0.9, 0.7])
result = (x > 0.5).nonzero().flatten().tolist()

## sorted by another tensor
keys, values = torch.tensor([3, 1, 2]), torch.tensor([30.0, 10.0, 20.0])
order = torch.argsort(keys)
result = values[order]

## padded lengths to a mask
lengths = torch.tensor([1, 3])
mask = torch.arange(3)[None, :] < lengths[:, None]
result = [mask, mask.long().sum(1)]

## mean of what is not masked
x = torch.arange(6.0).view(2, 3)
mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
result = (x * mask).sum(1) / mask.sum(1)

## mean over tokens with a mask of floats
h = torch.arange(12.0).view(1, 3, 4)
mask = torch.tensor([[1, 1, 0]])
m = mask.unsqueeze(-1).expand(h.size()).float()
result = torch.sum(h * m, 1) / torch.clamp(m.sum(1), min=1e-9)

## cosine similarity of all pairs
x = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
xn = x / x.norm(dim=-1, keepdim=True).clamp(min=1e-8)
result = torch.mm(xn, xn.transpose(0, 1))

## entropy of a distribution
p = torch.tensor([0.5, 0.25, 0.25])
result = -(p * p.log()).sum()

## perplexity
loss = torch.tensor(2.0)
result = [torch.exp(loss).item(), loss.exp().item()]

## running mean by cumsum
x = torch.tensor([1.0, 2.0, 6.0])
result = x.cumsum(0) / torch.arange(1, 4)

## first differences
x = torch.tensor([1.0, 4.0, 9.0])
result = x[1:] - x[:-1]

## histogram by comparison
x = torch.tensor([0.1, 0.4, 0.6, 0.9])
edges = torch.linspace(0, 1, 3)
result = [((x >= a) & (x < b)).sum().item() for a, b in zip(edges[:-1], edges[1:])]

## a softmax with temperature
logits = torch.tensor([1.0, 2.0, 3.0])
result = [F.softmax(logits / t, dim=0) for t in (0.5, 1.0, 2.0)]

## label smoothing by hand
logits, y = torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0])
t = torch.full_like(logits, 0.1 / 2)
t.scatter_(1, y.unsqueeze(1), 0.9)
result = torch.sum(-t * F.log_softmax(logits, dim=-1), dim=-1).mean()

## dice loss
p, t = torch.tensor([0.8, 0.3, 0.9]), torch.tensor([1.0, 0.0, 1.0])
inter = (p * t).sum()
result = 1 - (2.0 * inter + 1) / (p.sum() + t.sum() + 1)

## total variation
x = torch.arange(9.0).view(1, 1, 3, 3) ** 2
result = (x[:, :, 1:, :] - x[:, :, :-1, :]).abs().mean() + (x[:, :, :, 1:] - x[:, :, :, :-1]).abs().mean()

## gram matrix
f = torch.arange(8.0).view(1, 2, 2, 2)
b, c, h, w = f.size()
features = f.view(b * c, h * w)
result = torch.mm(features, features.t()).div(b * c * h * w)

## conditional expectation by outer sums
a, b = torch.arange(3.0), torch.arange(2.0)
result = (a.unsqueeze(1) + b.unsqueeze(0)).mean(dim=1)

## the gradient of a norm
x = torch.tensor([3.0, 4.0], requires_grad=True)
x.norm().backward()
result = x.grad

## two backward passes over one body
body, a, b = fixed(nn.Linear(2, 2)), fixed(nn.Linear(2, 1)), fixed(nn.Linear(2, 1))
h = body(torch.ones(1, 2))
(a(h).sum() + 2 * b(h).sum()).backward()
result = body.weight.grad

## gradient penalty by finite steps
D = fixed(nn.Linear(2, 1))
x = torch.ones(1, 2, requires_grad=True)
D(x).sum().backward()
result = (x.grad.norm(2, dim=1) - 1) ** 2

## gradients of what is frozen stay none
model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
model[0].weight.requires_grad_(False)
model(torch.ones(1, 2)).sum().backward()
result = [p.grad is not None for p in model.parameters()]

## dropout is random in training alone
m = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
m.eval()
with torch.no_grad():
    a, b = m(torch.ones(1, 4)), m(torch.ones(1, 4))
result = (a == b).all().item()

## mc dropout keeps one layer in training
m = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
m.eval()
for layer in m.modules():
    if layer.__class__.__name__.startswith("Dropout"):
        layer.train()
result = [m.training, m[1].training]

## a module with options for an activation
class MLP(nn.Module):
    def __init__(self, dims, act=nn.ReLU, dropout=0.0):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in zip(dims[:-1], dims[1:]))
        self.act = act()
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if i < len(self.layers) - 1:
                x = self.drop(self.act(x))
        return x

result = fixed(MLP([2, 3, 1], act=nn.GELU))(torch.ones(2, 2))

## layer norm by hand as a module
class LayerNorm(nn.Module):
    def __init__(self, ndim, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(ndim))
        self.bias = nn.Parameter(torch.zeros(ndim)) if bias else None

    def forward(self, input):
        return F.layer_norm(input, self.weight.shape, self.weight, self.bias, 1e-5)

result = LayerNorm(4, bias=False)(torch.arange(4.0))

## rms norm by hand
class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight

result = RMSNorm(3)(torch.tensor([[1.0, 2.0, 3.0]]))

## a block of a transformer by hand
class Block(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.ln = nn.LayerNorm(n)
        self.mlp = nn.Sequential(nn.Linear(n, 4 * n), nn.GELU(), nn.Linear(4 * n, n), nn.Dropout(0.0))

    def forward(self, x):
        return x + self.mlp(self.ln(x))

result = fixed(Block(2))(torch.tensor([[1.0, 2.0]]))

## rotary positions
x = torch.arange(8.0).view(1, 2, 4)
t = torch.arange(2).float()
inv = 1.0 / (100 ** (torch.arange(0, 4, 2).float() / 4))
freqs = torch.outer(t, inv)
cos, sin = freqs.cos(), freqs.sin()
x1, x2 = x[..., ::2], x[..., 1::2]
result = torch.stack((x1 * cos - x2 * sin, x1 * sin + x2 * cos), dim=-1).flatten(-2)

## patch embedding
conv = fixed(nn.Conv2d(3, 4, kernel_size=2, stride=2))
x = conv(torch.ones(1, 3, 4, 4)).flatten(2).transpose(1, 2)
cls = nn.Parameter(torch.zeros(1, 1, 4))
x = torch.cat((cls.expand(x.shape[0], -1, -1), x), dim=1)
result = x

## depthwise separable
net = fixed(nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.Conv2d(4, 2, 1)))
result = net(torch.ones(1, 4, 3, 3)).mean()

## a unet-like skip
x = torch.arange(16.0).view(1, 1, 4, 4)
down = F.max_pool2d(x, 2)
up = down.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
result = torch.cat([x, up], dim=1)

## shapes printed by a hook
shapes = []
model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
hooks = [m.register_forward_hook(lambda m, i, o: shapes.append((m.__class__.__name__, tuple(o.shape)))) for m in model]
model(torch.zeros(1, 1, 4, 4))
for h in hooks:
    h.remove()
result = shapes

## the rate of an epoch by formula
opt = optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
def adjust_learning_rate(optimizer, epoch, lr):
    lr = lr * (0.1 ** (epoch // 30))
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr
adjust_learning_rate(opt, 65, 0.1)
result = opt.param_groups[0]["lr"]

## a schedule that is printed
opt = optim.Adam(nn.Linear(1, 1).parameters(), lr=0.01)
sched = optim.lr_scheduler.CosineAnnealingLR(opt, 10)
msgs = []
for epoch in range(2):
    opt.step()
    sched.step()
    msgs.append(f"{epoch}: {sched.get_last_lr()[0]:.5f}")
result = msgs

## l-1 norm as a penalty of a layer
model = fixed(nn.Linear(3, 1))
loss = F.mse_loss(model(torch.ones(2, 3)), torch.zeros(2, 1)) + 1e-2 * torch.norm(model.weight, p=1)
loss.backward()
result = [loss, model.weight.grad]

## moving a batch to the device
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
loader = data.DataLoader(data.TensorDataset(torch.ones(4, 2), torch.zeros(4)), batch_size=2)
total = 0
for x, y in loader:
    x, y = x.to(device, non_blocking=True), y.to(device)
    total += x.sum().item()
result = total

## a loader of two tensors zipped
X, y = torch.arange(4.0).view(4, 1), torch.arange(4)
ds = list(zip(X, y))
xb, yb = next(iter(data.DataLoader(ds, batch_size=4)))
result = [xb, yb]

## an endless loader
def cycle(dl):
    while True:
        yield from dl
it = cycle(data.DataLoader(data.TensorDataset(torch.arange(3)), batch_size=2))
result = [next(it)[0] for _ in range(3)]

## train and validation by indices
import numpy as np
indices = np.random.RandomState(0).permutation(10)
ds = data.TensorDataset(torch.arange(10))
train = data.DataLoader(data.Subset(ds, indices[:8].tolist()), batch_size=8)
result = sorted(next(iter(train))[0].tolist() + indices[8:].tolist())

## resume from a checkpoint
path = folder / "ckpt.pt"
net = fixed(nn.Linear(2, 1))
opt = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
net(torch.ones(1, 2)).sum().backward()
opt.step()
torch.save({"net": net.state_dict(), "opt": opt.state_dict(), "epoch": 1}, path)
net2 = nn.Linear(2, 1)
opt2 = optim.SGD(net2.parameters(), lr=0.5, momentum=0.9)
ck = torch.load(path)
net2.load_state_dict(ck["net"])
opt2.load_state_dict(ck["opt"])
net2(torch.ones(1, 2)).sum().backward()
opt2.step()
result = [ck["epoch"], net2.weight, opt2.param_groups[0]["momentum"]]

## the norm of every gradient by name
model = fixed(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)))
model(torch.ones(1, 2)).sum().backward()
result = {n: p.grad.norm().item() for n, p in model.named_parameters() if p.grad is not None}

## a size in megabytes
model = nn.Linear(10, 10)
size = sum(p.nelement() * p.element_size() for p in model.parameters())
size += sum(b.nelement() * b.element_size() for b in model.buffers())
result = size / 1024**2

## seeding everything
import random
import numpy as np
def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
seed_everything(0)
result = random.random()

## a model compiled where it can be
model = fixed(nn.Linear(2, 1))
compile = False
if compile:
    model = torch.compile(model)
result = model(torch.ones(1, 2))

## parallel where there are several gpus
model = fixed(nn.Linear(2, 1))
if torch.cuda.device_count() > 1:
    model = nn.DataParallel(model)
result = (model.module if hasattr(model, "module") else model)(torch.ones(1, 2))

## mistake: labels one too large
result = F.one_hot(torch.tensor([0, 3]), num_classes=3)

## mistake: stack of other shapes
result = torch.stack([torch.zeros(2), torch.zeros(3)])

## mistake: an unknown reduction
result = nn.MSELoss(reduction="average")(torch.zeros(2), torch.zeros(2))

## mistake: a sequence of no tensors
result = torch.cat([])

## mistake: a probability above one
result = nn.Dropout(p=1.5)

## mistake: channels that groups do not divide
result = nn.Conv2d(3, 4, 3, groups=2)
"""
)
