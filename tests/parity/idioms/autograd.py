"""Gradients: backward, what is recorded and what is not, hooks."""

from tests.parity.idioms.idiom import read

IDIOMS = read(
    r"""
## the first gradient
x = torch.tensor(3.0, requires_grad=True)
y = x ** 2
y.backward()
result = x.grad

## the gradient of a line
x = torch.ones(5)
y = torch.zeros(3)
w = torch.full((5, 3), 0.5, requires_grad=True)
b = torch.zeros(3, requires_grad=True)
z = torch.matmul(x, w) + b
loss = torch.nn.functional.binary_cross_entropy_with_logits(z, y)
loss.backward()
result = [loss, w.grad, b.grad]

## the polynomial of the autograd tutorial
a = torch.tensor([2., 3.], requires_grad=True)
b = torch.tensor([6., 4.], requires_grad=True)
Q = 3*a**3 - b**2
external_grad = torch.tensor([1., 1.])
Q.backward(gradient=external_grad)
result = [9*a**2 == a.grad, -2*b == b.grad]

## requires_grad is passed on
x = torch.ones(2)
w = torch.ones(2, requires_grad=True)
y = (w * x).sum()
result = [x.requires_grad, w.requires_grad, y.requires_grad, w.is_leaf, y.is_leaf]

## requires_grad_ later
x = torch.ones(2)
x.requires_grad_()
(x * 3).sum().backward()
result = x.grad

## requires_grad by attribute
x = torch.ones(2)
x.requires_grad = True
(x ** 2).sum().backward()
result = x.grad

## requires_grad_(True) of a normal draw
w = torch.normal(0, 0.01, size=(2, 1)).requires_grad_(True)
result = [w.requires_grad, w.shape]

## there is a grad_fn
x = torch.ones(2, requires_grad=True)
y = x * 2
result = [x.grad_fn is None, y.grad_fn is not None]

## no_grad
w = torch.ones(2, requires_grad=True)
with torch.no_grad():
    y = w * 2
result = [y.requires_grad, y]

## no_grad as a decorator
@torch.no_grad()
def evaluate(w):
    return w * 2
w = torch.ones(2, requires_grad=True)
result = evaluate(w).requires_grad

## inference_mode
w = torch.ones(2, requires_grad=True)
with torch.inference_mode():
    y = w * 2
result = y.requires_grad

## set_grad_enabled
w = torch.ones(2, requires_grad=True)
found = []
for phase in ["train", "val"]:
    with torch.set_grad_enabled(phase == "train"):
        found.append((w * 2).requires_grad)
result = found

## enable_grad within no_grad
w = torch.ones(2, requires_grad=True)
with torch.no_grad():
    with torch.enable_grad():
        y = w * 2
result = [y.requires_grad, torch.is_grad_enabled()]

## detach
x = torch.ones(2, requires_grad=True)
y = (x * 2).detach()
z = (x * 3 + y).sum()
z.backward()
result = [y.requires_grad, x.grad]

## data of a tensor
x = torch.ones(2, requires_grad=True)
y = x.data
result = [y.requires_grad, y]

## gradients add up
x = torch.tensor([1.0, 2.0], requires_grad=True)
for _ in range(3):
    (x * x).sum().backward()
result = x.grad

## zeroing a gradient
x = torch.tensor([1.0, 2.0], requires_grad=True)
(x * x).sum().backward()
x.grad.zero_()
x.sum().backward()
result = x.grad

## grad to none
x = torch.tensor([1.0], requires_grad=True)
(x * x).sum().backward()
x.grad = None
result = x.grad is None

## gradient descent by hand with data
w = torch.tensor([5.0], requires_grad=True)
for _ in range(10):
    loss = (w - 2).pow(2).sum()
    loss.backward()
    w.data -= 0.1 * w.grad
    w.grad.zero_()
result = w

## gradient descent by hand under no_grad
w = torch.tensor([5.0], requires_grad=True)
for _ in range(10):
    loss = ((w - 2) ** 2).sum()
    loss.backward()
    with torch.no_grad():
        w -= 0.1 * w.grad
        w.grad = None
result = [w, w.requires_grad]

## retain_graph
x = torch.tensor(2.0, requires_grad=True)
y = x ** 3
y.backward(retain_graph=True)
y.backward()
result = x.grad

## retain_grad of what is in between
x = torch.tensor([1.0, 2.0], requires_grad=True)
h = x * 3
h.retain_grad()
(h * h).sum().backward()
result = [h.grad, x.grad]

## a hook on a tensor
seen = []
x = torch.tensor([1.0, 2.0], requires_grad=True)
x.register_hook(lambda g: seen.append(g.clone()))
(x * 4).sum().backward()
result = seen

## a hook that changes the gradient
x = torch.tensor([1.0, 2.0], requires_grad=True)
handle = x.register_hook(lambda grad: grad * 2)
(x * 4).sum().backward()
handle.remove()
(x * 4).sum().backward()
result = x.grad

## a hook on what is in between
seen = []
x = torch.tensor([1.0, 2.0], requires_grad=True)
y = x * 2
y.register_hook(lambda g: seen.append(g))
y.sum().backward()
result = seen

## control flow
def f(a):
    b = a * 2
    while b.norm() < 1000:
        b = b * 2
    return b
a = torch.tensor(3.0, requires_grad=True)
d = f(a)
d.backward()
result = a.grad == d / a

## gradient of an indexed element
x = torch.arange(4.0, requires_grad=True)
(x[1:3] * torch.tensor([10.0, 20.0])).sum().backward()
result = x.grad

## gradient of a max
x = torch.tensor([1.0, 5.0, 2.0], requires_grad=True)
x.max().backward()
result = x.grad

## gradient of an input image
model = fixed(nn.Linear(3, 2))
img = torch.ones(1, 3, requires_grad=True)
score = model(img)[0, 1]
score.backward()
result = img.grad.abs()

## fast gradient sign
x = torch.tensor([[0.2, 0.8]], requires_grad=True)
model = fixed(nn.Linear(2, 2))
loss = F.cross_entropy(model(x), torch.tensor([1]))
loss.backward()
result = torch.clamp(x + 0.1 * x.grad.sign(), 0, 1)

## gradient norm of all parameters
model = fixed(nn.Linear(3, 2))
model(torch.ones(4, 3)).sum().backward()
total = 0
for p in model.parameters():
    total += p.grad.data.norm(2).item() ** 2
result = total ** 0.5

## sum of two losses
x = torch.tensor([1.0, 2.0], requires_grad=True)
loss = F.mse_loss(x, torch.zeros(2)) + 0.1 * x.abs().sum()
loss.backward()
result = [loss, x.grad]

## weights without a gradient
model = nn.Linear(2, 2)
result = [p.grad is None for p in model.parameters()]

## the straight-through estimator
x = torch.tensor([0.3, 0.7], requires_grad=True)
y = x + (x.round() - x).detach()
(y * torch.tensor([1.0, 2.0])).sum().backward()
result = [y, x.grad]

## backward of a vector with ones
x = torch.tensor([1.0, 2.0], requires_grad=True)
y = x ** 2
y.backward(torch.ones_like(y))
result = x.grad

## autograd.grad
x = torch.tensor([1.0, 2.0], requires_grad=True)
y = (x ** 2).sum()
result = torch.autograd.grad(y, x)[0]

## a finite difference
def f(x):
    return (x ** 3).sum()
x = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
f(x).backward()
eps = 1e-6
with torch.no_grad():
    e = torch.zeros_like(x)
    e[0] = eps
    numeric = (f(x + e) - f(x - e)) / (2 * eps)
result = (numeric - x.grad[0]).abs().item() < 1e-6

## a float tensor of ints that requires grad
x = torch.arange(3, dtype=torch.float32, requires_grad=True)
(2 * x.dot(x)).backward()
result = x.grad == 4 * x

## detached in the middle of a sequence
h = torch.zeros(2)
w = torch.ones(2, requires_grad=True)
losses = []
for t in range(3):
    h = h.detach()
    h = torch.tanh(w * (h + t))
    loss = h.sum()
    loss.backward()
    losses.append(loss.item())
result = [losses, w.grad]

## mistake: backward twice
x = torch.tensor(2.0, requires_grad=True)
y = x ** 2
y.backward()
y.backward()
result = x.grad

## mistake: backward of a vector
x = torch.ones(2, requires_grad=True)
(x * 2).backward()
result = x.grad

## mistake: backward where nothing requires grad
x = torch.ones(2)
x.sum().backward()
result = x.grad

## mistake: a leaf changed in place
x = torch.ones(2, requires_grad=True)
x += 1
result = x

## mistake: a saved value changed in place
x = torch.ones(2, requires_grad=True)
y = x.exp()
y += 1
y.sum().backward()
result = x.grad

## mistake: numpy of a tensor that requires grad
x = torch.ones(2, requires_grad=True)
result = x.numpy()

## mistake: ints that require grad
result = torch.tensor([1, 2], requires_grad=True)
"""
)
