"""Functions with a backward of their own, autograd.grad, hooks on tensors and checkpoints."""

from tests.parity.idioms.idiom import read

IDIOMS = read(
    r"""
## a function of one's own: relu of the tutorial
class MyReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input):
        ctx.save_for_backward(input)
        return input.clamp(min=0)

    @staticmethod
    def backward(ctx, grad_output):
        (input,) = ctx.saved_tensors
        grad_input = grad_output.clone()
        grad_input[input < 0] = 0
        return grad_input

x = torch.tensor([-1.0, 2.0, -3.0, 4.0], requires_grad=True)
y = MyReLU.apply(x)
(y * 3).sum().backward()
result = [y, x.grad]

## a legendre polynomial of the tutorial
import math

class LegendrePolynomial3(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input):
        ctx.save_for_backward(input)
        return 0.5 * (5 * input ** 3 - 3 * input)

    @staticmethod
    def backward(ctx, grad_output):
        input, = ctx.saved_tensors
        return grad_output * 1.5 * (5 * input ** 2 - 1)

x = torch.linspace(-math.pi, math.pi, 20)
y = torch.sin(x)
a, b = torch.full((), 0.0, requires_grad=True), torch.full((), -1.0, requires_grad=True)
c, d = torch.full((), 0.0, requires_grad=True), torch.full((), 0.3, requires_grad=True)
for t in range(3):
    P3 = LegendrePolynomial3.apply
    y_pred = a + b * P3(c + d * x)
    loss = (y_pred - y).pow(2).sum()
    loss.backward()
    with torch.no_grad():
        for p in (a, b, c, d):
            p -= 5e-6 * p.grad
            p.grad = None
result = [loss, a, b, c, d]

## swish with a custom backward
class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, i):
        result = i * torch.sigmoid(i)
        ctx.save_for_backward(i)
        return result

    @staticmethod
    def backward(ctx, grad_output):
        i = ctx.saved_tensors[0]
        sigmoid_i = torch.sigmoid(i)
        return grad_output * (sigmoid_i * (1 + i * (1 - sigmoid_i)))

class MemoryEfficientSwish(nn.Module):
    def forward(self, x):
        return Swish.apply(x)

m = nn.Sequential(fixed(nn.Linear(2, 3)), MemoryEfficientSwish())
m(torch.ones(2, 2)).sum().backward()
result = m[0].weight.grad

## a straight through estimator
class STE(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input):
        return (input > 0).float()

    @staticmethod
    def backward(ctx, grad_output):
        return F.hardtanh(grad_output)

class StraightThrough(nn.Module):
    def forward(self, x):
        return STE.apply(x)

x = torch.tensor([-0.5, 0.5, 2.0], requires_grad=True)
y = StraightThrough()(x)
(y * torch.tensor([0.5, 3.0, -2.0])).sum().backward()
result = [y, x.grad]

## rounding with a straight through gradient
class RoundSTE(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.round(x)

    @staticmethod
    def backward(ctx, g):
        return g

x = torch.tensor([0.2, 0.7], requires_grad=True)
RoundSTE.apply(x).sum().backward()
y = x + (x.round() - x).detach()
result = [x.grad, y]

## gradient reversal
class GradReverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.neg() * ctx.alpha, None

def grad_reverse(x, alpha=1.0):
    return GradReverse.apply(x, alpha)

feat = fixed(nn.Linear(2, 2))
domain = fixed(nn.Linear(2, 1))
h = feat(torch.ones(3, 2))
domain(grad_reverse(h, 0.5)).sum().backward()
result = [feat.weight.grad, domain.weight.grad]

## a function with two results and one that is not differentiable
class SortIt(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y, idx = x.sort()
        ctx.mark_non_differentiable(idx)
        ctx.save_for_backward(idx)
        return y, idx

    @staticmethod
    def backward(ctx, g1, g2):
        (idx,) = ctx.saved_tensors
        grad = torch.zeros_like(g1)
        grad[idx] = g1
        return grad

x = torch.tensor([3.0, 1.0, 2.0], requires_grad=True)
y, idx = SortIt.apply(x)
(y * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
result = [y, idx, x.grad, idx.requires_grad]

## autograd.grad with respect to one input
x = torch.tensor([1.0, 2.0], requires_grad=True)
y = (x ** 3).sum()
(g,) = torch.autograd.grad(y, x)
result = [g, x.grad is None]

## autograd.grad of a vector with grad_outputs
x = torch.tensor([1.0, 2.0], requires_grad=True)
y = x * x
g = torch.autograd.grad(outputs=y, inputs=x, grad_outputs=torch.ones_like(y), create_graph=False, retain_graph=True)[0]
h = torch.autograd.grad(y, [x], torch.tensor([1.0, 0.5]))[0]
result = [g, h]

## autograd.grad with what is unused
x = torch.ones(2, requires_grad=True)
z = torch.ones(2, requires_grad=True)
g = torch.autograd.grad((x * 2).sum(), (x, z), allow_unused=True)
result = [g[0], g[1]]

## autograd.grad of what lies between
x = torch.tensor([1.0, 2.0], requires_grad=True)
h = x * 2
y = (h ** 2).sum()
gh, = torch.autograd.grad(y, h, retain_graph=True)
y.backward()
result = [gh, x.grad]

## a saliency map
model = fixed(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)))
model.eval()
for p in model.parameters():
    p.requires_grad_(False)
x = torch.arange(16.0).reshape(1, 1, 4, 4).sin().requires_grad_()
scores = model(x)
score_max_index = scores.argmax()
scores[0, score_max_index].backward()
saliency, _ = torch.max(x.grad.abs(), dim=1)
result = [saliency, model[0].weight.grad is None]

## fgsm
def fgsm_attack(image, epsilon, data_grad):
    return torch.clamp(image + epsilon * data_grad.sign(), 0, 1)

model = fixed(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)))
x = torch.linspace(0, 1, 8).reshape(2, 1, 2, 2)
x.requires_grad = True
loss = F.nll_loss(F.log_softmax(model(x), dim=1), torch.tensor([0, 1]))
model.zero_grad()
loss.backward()
result = fgsm_attack(x.detach(), 0.1, x.grad.detach())

## maml of first order
def forward(x, w):
    h = F.relu(F.linear(x, w[0], w[1]))
    return F.linear(h, w[2], w[3])

net = fixed(nn.Sequential(nn.Linear(1, 3), nn.ReLU(), nn.Linear(3, 1)))
params = list(net.parameters())
meta = optim.SGD(params, lr=0.1)
x = torch.linspace(-1, 1, 6).unsqueeze(1)
meta.zero_grad()
for shift in (0.0, 0.5):
    y = torch.sin(x + shift)
    fast = params
    for _ in range(2):
        loss = F.mse_loss(forward(x, fast), y)
        grads = torch.autograd.grad(loss, fast)
        fast = [p - 0.1 * g for p, g in zip(fast, grads)]
    F.mse_loss(forward(x, fast), y).backward()
meta.step()
result = params

## reptile of parameters
net = fixed(nn.Linear(1, 1))
before = {k: v.clone() for k, v in net.state_dict().items()}
opt = optim.SGD(net.parameters(), lr=0.1)
x = torch.linspace(-1, 1, 5).unsqueeze(1)
for _ in range(3):
    opt.zero_grad()
    F.mse_loss(net(x), 2 * x).backward()
    opt.step()
after = net.state_dict()
net.load_state_dict({k: before[k] + (after[k] - before[k]) * 0.5 for k in before})
result = [net.weight, net.bias]

## a hook that keeps a gradient
x = torch.tensor([1.0, 2.0], requires_grad=True)
y = x * 2
grads = []
y.register_hook(lambda g: grads.append(g.clone()))
(y ** 2).sum().backward()
result = [grads, x.grad]

## a hook that changes a gradient
v = torch.tensor([0.0, 0.0, 0.0], requires_grad=True)
h = v.register_hook(lambda grad: grad * 2)
v.backward(torch.tensor([1.0, 2.0, 3.0]))
first = v.grad.clone()
h.remove()
v.backward(torch.tensor([1.0, 2.0, 3.0]))
result = [first, v.grad]

## gradients kept by name with a hook for each
grads = {}

def save_grad(name):
    def hook(grad):
        grads[name] = grad
    return hook

x = torch.tensor([3.0], requires_grad=True)
y = x * x
z = y * 4
y.register_hook(save_grad("y"))
z.register_hook(save_grad("z"))
z.backward()
result = [grads["y"], grads["z"]]

## clipping by a hook of each parameter
model = fixed(nn.Linear(2, 2))
for p in model.parameters():
    p.register_hook(lambda grad: torch.clamp(grad, -0.5, 0.5))
(model(torch.ones(3, 2)) * 10).sum().backward()
result = [model.weight.grad, model.bias.grad]

## a mask of gradients by a hook
emb = fixed(nn.Embedding(4, 2))
mask = torch.tensor([[1.0], [0.0], [1.0], [0.0]])
emb.weight.register_hook(lambda g: g * mask)
emb(torch.tensor([0, 1, 2])).sum().backward()
result = emb.weight.grad

## retain_grad
x = torch.ones(2, requires_grad=True)
y = x * 3
y.retain_grad()
z = (y * y).sum()
z.backward()
result = [y.grad, y.is_leaf, y.retains_grad, x.grad]

## grad-cam
class GradCAM:
    def __init__(self, model, layer):
        self.model = model
        self.gradients = None
        self.activations = None
        layer.register_forward_hook(self.save_activation)
        layer.register_full_backward_hook(self.save_gradient)

    def save_activation(self, module, input, output):
        self.activations = output.detach()

    def save_gradient(self, module, grad_input, grad_output):
        self.gradients = grad_output[0].detach()

    def __call__(self, x, class_idx=None):
        out = self.model(x)
        if class_idx is None:
            class_idx = out.argmax(dim=1).item()
        self.model.zero_grad()
        out[0, class_idx].backward()
        weights = self.gradients.mean(dim=(2, 3), keepdim=True)
        cam = F.relu((weights * self.activations).sum(dim=1))
        return cam / (cam.max() + 1e-8)

head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 3)]
model = fixed(nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), *head))
result = GradCAM(model, model[0])(torch.arange(16.0).reshape(1, 1, 4, 4).sin())

## grad-cam by a hook on the features
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Conv2d(1, 2, 3)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(2, 2)
        self.gradients = None

    def activations_hook(self, grad):
        self.gradients = grad

    def forward(self, x):
        x = self.features(x)
        h = x.register_hook(self.activations_hook)
        return self.fc(self.pool(x).view(x.shape[0], -1))

net = fixed(Net())
pred = net(torch.arange(16.0).reshape(1, 1, 4, 4).sin())
pred[:, pred.argmax(dim=1)].backward()
result = [net.gradients, torch.mean(net.gradients, dim=[0, 2, 3])]

## features by forward hooks
activation = {}

def get_activation(name):
    def hook(model, input, output):
        activation[name] = output.detach()
    return hook

model = fixed(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)))
handles = [m.register_forward_hook(get_activation(n)) for n, m in model.named_children()]
model(torch.ones(1, 2))
for h in handles:
    h.remove()
result = activation

## a checkpoint of one block
checkpoint = torch.utils.checkpoint.checkpoint
block = fixed(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)))
x = torch.arange(6.0).reshape(2, 3).requires_grad_()
y = checkpoint(block, x, use_reentrant=False)
y.pow(2).sum().backward()
result = [y, x.grad, block[0].weight.grad]

## checkpoint with dropout and keyword arguments
cp = torch.utils.checkpoint
def f(x, scale=1.0, mask=None):
    return F.dropout(x, 0.5) * scale if mask is None else x * mask

x = torch.ones(100, requires_grad=True)
y = cp.checkpoint(f, x, use_reentrant=False, scale=2.0, preserve_rng_state=True)
y.sum().backward()
result = [torch.equal(x.grad, y.detach()), set(y.detach().tolist()) == {0.0, 4.0}]

## checkpoint_sequential
checkpoint_sequential = torch.utils.checkpoint.checkpoint_sequential
model = fixed(nn.Sequential(*[nn.Linear(3, 3) for _ in range(4)]))
x = torch.ones(2, 3, requires_grad=True)
y = checkpoint_sequential(model, 2, x, use_reentrant=False)
y.sum().backward()
result = [y, x.grad, model[0].weight.grad]

## a checkpointed residual block with batch norm
checkpoint = torch.utils.checkpoint.checkpoint
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)) + x)

b = fixed(Block())
x = torch.arange(2 * 2 * 9.0).reshape(2, 2, 3, 3).sin().requires_grad_()
checkpoint(b, x, use_reentrant=False).sum().backward()
result = [x.grad, b.conv.weight.grad]

## a gradient penalty
D = fixed(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)))
x = torch.ones(4, 2, requires_grad=True)
d = D(x)
g = torch.autograd.grad(outputs=d, inputs=x, grad_outputs=torch.ones_like(d), create_graph=True, retain_graph=True)[0]
penalty = ((g.norm(2, dim=1) - 1) ** 2).mean()
penalty.backward()
result = D[0].weight.grad

## a hessian vector product
x = torch.tensor([1.0, 2.0], requires_grad=True)
y = (x ** 3).sum()
g, = torch.autograd.grad(y, x, create_graph=True)
hv, = torch.autograd.grad(g, x, torch.ones(2))
result = hv

## the jacobian row by row
x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
y = torch.stack([x.sum(), (x ** 2).sum()])
J = torch.stack([torch.autograd.grad(y[i], x, retain_graph=True)[0] for i in range(2)])
result = J

## gradients of several losses apart
model = fixed(nn.Linear(2, 2))
y = model(torch.ones(1, 2))
norms = []
for i in range(2):
    g = torch.autograd.grad(y[0, i], model.parameters(), retain_graph=True)
    norms.append(torch.stack([t.norm() for t in g]))
result = [norms, model.weight.grad]

## langevin sampling by the gradient of an energy
net = fixed(nn.Sequential(nn.Linear(2, 3), nn.Softplus(), nn.Linear(3, 1)))
x = torch.ones(3, 2)
for _ in range(3):
    x = x.detach().requires_grad_(True)
    e = net(x).sum()
    x = x - 0.1 * torch.autograd.grad(e, [x])[0]
result = x

## dreaming: the input is optimized
net = fixed(nn.Linear(4, 3))
img = torch.zeros(1, 4, requires_grad=True)
opt = optim.Adam([img], lr=0.1)
for _ in range(3):
    opt.zero_grad()
    loss = -net(img)[0, 1]
    loss.backward()
    opt.step()
result = img

## ctx keeps a tensor and a number, some inputs need no gradient
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale, mode="mul"):
        ctx.scale, ctx.mode = scale, mode
        ctx.set_materialize_grads(False)
        return x * scale

    @staticmethod
    def backward(ctx, g):
        return g * ctx.scale, None, None

x = torch.ones(2, requires_grad=True)
w = torch.tensor([2.0, 3.0])
Scale.apply(x, w).sum().backward()
result = [x.grad, Scale.apply(torch.ones(2), w).requires_grad]

## a function with setup_context
class Exp(torch.autograd.Function):
    @staticmethod
    def forward(i):
        return i.exp()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y

x = torch.ones(2, requires_grad=True)
Exp.apply(x).sum().backward()
result = x.grad

## mistake: backward gives too few gradients
class Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return x + y

    @staticmethod
    def backward(ctx, g):
        return g

x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
Add.apply(x, y).sum().backward()
result = x.grad

## mistake: a function without backward
class Id(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

x = torch.ones(2, requires_grad=True)
Id.apply(x).sum().backward()
result = x.grad

## mistake: a function is made and called
class Id(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return g

result = Id()(torch.ones(2))

## mistake: grad of what has no path
x, z = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
result = torch.autograd.grad((x * 2).sum(), z)

## mistake: grad of a vector without grad_outputs
x = torch.ones(2, requires_grad=True)
result = torch.autograd.grad(x * 2, x)

## mistake: a hook on what needs no gradient
torch.ones(2).register_hook(lambda g: g)
result = 0

## mistake: grad twice without retain_graph
x = torch.ones(2, requires_grad=True)
y = (x * x).sum()
torch.autograd.grad(y, x)
result = torch.autograd.grad(y, x)

## mistake: a hook that gives another shape
x = torch.ones(2, requires_grad=True)
x.register_hook(lambda g: g.sum())
(x * 2).sum().backward()
result = x.grad
"""
)
