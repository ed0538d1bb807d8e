"""Linear algebra, random numbers, and what changes a tensor in place."""

from tests.parity.idioms.idiom import read

IDIOMS = read(
    r"""
## matrix product
a, b = torch.arange(6.0).view(2, 3), torch.arange(6.0).view(3, 2)
result = [a @ b, torch.matmul(a, b), a.matmul(b), torch.mm(a, b), a.mm(b)]

## matrix times vector
a, v = torch.arange(6.0).view(2, 3), torch.tensor([1.0, 0.0, -1.0])
result = [a @ v, torch.mv(a, v), torch.matmul(a, v)]

## dot product
a, b = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0])
result = [torch.dot(a, b), a @ b, (a * b).sum(), a.dot(b)]

## products of a batch
a, b = torch.arange(12.0).view(2, 2, 3), torch.ones(2, 3, 2)
result = [torch.bmm(a, b), a @ b, a.bmm(b)]

## products that broadcast
a, b = torch.ones(2, 1, 3, 4), torch.ones(5, 4, 2)
result = (a @ b).shape

## outer product
result = torch.outer(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0, 5.0]))

## einsum of a product
a, b = torch.arange(6.0).view(2, 3), torch.arange(6.0).view(3, 2)
result = [torch.einsum("ij,jk->ik", a, b), torch.einsum("ij->ji", a), torch.einsum("ij->", a)]

## einsum of attention
q, k = torch.arange(12.0).view(1, 2, 2, 3), torch.ones(1, 2, 2, 3)
result = torch.einsum("bhqd,bhkd->bhqk", q, k)

## einsum of a batch and a diagonal sum
a, b = torch.arange(12.0).view(2, 2, 3), torch.ones(2, 3, 2)
result = [torch.einsum("bij,bjk->bik", [a, b]), torch.einsum("bij,bij->b", a, a)]

## einsum with dots
a = torch.arange(6.0).view(1, 2, 3)
result = torch.einsum("...d,ed->...e", a, torch.ones(4, 3))

## norms by linalg
x = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
result = [torch.linalg.norm(x), torch.linalg.norm(x, dim=1)]

## trace
x = torch.arange(9.0).view(3, 3)
result = [torch.trace(x), x.diagonal().sum()]

## normal equations
X = torch.tensor([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
y = torch.tensor([[1.0], [2.0], [3.0]])
result = torch.linalg.solve(X.T @ X, X.T @ y)

## inverse and determinant
a = torch.tensor([[2.0, 0.0], [0.0, 4.0]])
result = [torch.inverse(a), torch.linalg.det(a)]

## distances of all pairs by broadcasting
x, y = torch.tensor([[0.0, 0.0], [3.0, 4.0]]), torch.tensor([[0.0, 0.0]])
result = ((x[:, None, :] - y[None, :, :]) ** 2).sum(-1).sqrt()

## cdist
x, y = torch.tensor([[0.0, 0.0], [3.0, 4.0]]), torch.tensor([[0.0, 0.0]])
result = torch.cdist(x, y)

## a quadratic form
x, a = torch.tensor([1.0, 2.0]), torch.tensor([[1.0, 0.0], [0.0, 3.0]])
result = x @ a @ x

## addmm
b, x, w = torch.ones(2), torch.arange(6.0).view(2, 3), torch.ones(3, 2)
result = torch.addmm(b, x, w)

## shapes of draws
torch.manual_seed(0)
result = [torch.rand(2, 3).shape, torch.randn(4).shape, torch.randint(0, 10, (2, 2)).shape, torch.randperm(5).shape]

## draws of the shape of another
x = torch.zeros(2, 3)
result = [torch.rand_like(x).shape, torch.randn_like(x).shape, torch.randint_like(x, 5).shape]

## the same seed, the same draws
torch.manual_seed(1)
a = torch.rand(3)
torch.manual_seed(1)
b = torch.rand(3)
result = torch.equal(a, b)

## moments of many draws
torch.manual_seed(0)
x = torch.randn(20000)
u = torch.rand(20000)
result = [round(x.mean().item(), 1) + 0.0, round(x.std().item(), 1), round(u.mean().item(), 1)]

## normal with a mean and a deviation
x = torch.normal(mean=5.0, std=0.01, size=(1000,))
result = [x.shape, round(x.mean().item(), 1)]

## uniform in a range
x = (1 - 3) * torch.rand(100) + 3
y = torch.empty(100).uniform_(-2, -1)
result = [bool((x >= 1).all() and (x <= 3).all()), y.min().item() >= -2, y.max().item() <= -1]

## bernoulli and dropout masks
p = torch.tensor([0.0, 1.0, 1.0])
result = [torch.bernoulli(p), (torch.rand(10) < 2).float()]

## a sample of a distribution
probs = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
result = torch.multinomial(probs, num_samples=1)

## samples with and without replacement
w = torch.ones(5)
a = torch.multinomial(w, 5)
b = torch.multinomial(w, 20, replacement=True)
result = [torch.sort(a).values, b.shape]

## a generator of one's own
g = torch.Generator().manual_seed(2147483647)
x = torch.randn((2, 3), generator=g)
result = x.shape

## randint with one bound
x = torch.randint(3, (50,))
result = [x.min().item() >= 0, x.max().item() < 3, x.dtype]

## gumbel noise by hand
u = torch.rand(4).clamp(1e-6, 1 - 1e-6)
g = -torch.log(-torch.log(u))
result = torch.isfinite(g).all()

## saving and restoring the random state
state = torch.get_rng_state()
a = torch.rand(2)
torch.set_rng_state(state)
result = torch.equal(a, torch.rand(2))

## in place by method
x = torch.ones(3)
x.add_(1).mul_(3).sub_(1).div_(5)
result = x

## in place by operator
x = torch.ones(3)
x += 2
x *= 3
x -= 1
x /= 4
result = x

## in place functions
x = torch.tensor([-1.0, 4.0])
y = x.clone()
result = [x.abs_(), y.clamp_(min=0), torch.tensor([4.0]).sqrt_(), torch.tensor([1.0]).exp_(), torch.ones(2).neg_()]

## in place relu
x = torch.tensor([-1.0, 4.0])
torch.relu_(x)
result = [x, F.relu(torch.tensor([-1.0, 2.0]), inplace=True)]

## fill_ and zero_
x = torch.empty(2, 2)
result = [x.fill_(3.0).clone(), x.zero_()]

## copy_
x = torch.zeros(2, 2)
x.copy_(torch.tensor([1.0, 2.0]))
result = x

## masked_fill_
x = torch.arange(4.0)
x.masked_fill_(x > 2, 0.0)
result = x

## normal_ and uniform_
x = torch.zeros(1000).normal_(mean=3, std=0.1)
result = round(x.mean().item())

## unsqueeze_ and squeeze_ and t_
x = torch.zeros(3)
result = [x.unsqueeze_(0).shape, x.squeeze_().shape]

## addcmul_ and addcdiv_ of an optimizer by hand
m, v, g = torch.zeros(2), torch.zeros(2), torch.tensor([1.0, 2.0])
m.mul_(0.9).add_(g, alpha=0.1)
v.mul_(0.99).addcmul_(g, g, value=0.01)
p = torch.ones(2)
p.addcdiv_(m, v.sqrt().add_(1e-8), value=-0.1)
result = [m, v, p]

## lerp_ of an average
ema, new = torch.zeros(2), torch.ones(2)
ema.lerp_(new, 0.1)
result = ema

## mistake: a product of shapes that do not fit
result = torch.ones(2, 3) @ torch.ones(2, 3)

## mistake: mm of three dimensions
result = torch.mm(torch.ones(2, 2, 2), torch.ones(2, 2))

## mistake: a product of floats and doubles
result = torch.ones(2, 2) @ torch.ones(2, 2, dtype=torch.float64)

## mistake: in place to another shape
x = torch.ones(2)
x += torch.ones(3, 2)
result = x
"""
)
