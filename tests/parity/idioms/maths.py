"""Maths element by element, reductions, comparisons."""

from tests.parity.idioms.idiom import read

IDIOMS = read(
    r"""
## the four operations
a, b = torch.tensor([1.0, 2.0]), torch.tensor([4.0, 5.0])
result = [a + b, a - b, a * b, a / b, -a, a ** 2]

## the four operations by function
a, b = torch.tensor([1.0, 2.0]), torch.tensor([4.0, 5.0])
result = [torch.add(a, b), torch.sub(a, b), torch.mul(a, b), torch.div(a, b), a.add(b), a.mul(2)]

## add with alpha
a, b = torch.tensor([1.0, 2.0]), torch.tensor([4.0, 5.0])
result = [torch.add(a, b, alpha=10), a.sub(b, alpha=2)]

## numbers on the left
x = torch.tensor([1.0, 2.0])
result = [1 - x, 2 / x, 3 * x, 2 ** x]

## division of ints
x = torch.tensor([7, -7])
result = [x / 2, x // 2, x % 2, torch.div(x, 2, rounding_mode="trunc"), torch.div(x, 2, rounding_mode="floor")]

## exp and log
x = torch.tensor([1.0, 2.0])
result = [torch.exp(x), torch.log(x), x.exp().log(), torch.log1p(x), torch.expm1(x), torch.log2(x), torch.log10(x)]

## roots and powers
x = torch.tensor([1.0, 4.0])
result = [torch.sqrt(x), x.sqrt(), torch.rsqrt(x), torch.pow(x, 3), x.pow(2), torch.square(x), x.reciprocal()]

## trigonometry
import math
x = torch.tensor([0.0, 0.5])
result = [torch.sin(x), torch.cos(x), torch.tan(x), torch.sin(x * math.pi)]

## absolute value and sign
x = torch.tensor([-1.5, 0.0, 2.0])
result = [torch.abs(x), x.abs(), torch.sign(x), abs(x), torch.neg(x)]

## rounding
x = torch.tensor([-1.5, 0.4, 2.5])
result = [torch.round(x), torch.floor(x), torch.ceil(x), x.trunc()]

## rounding to decimals
result = torch.round(torch.tensor([1.2345]), decimals=2)

## clamp
x = torch.tensor([-2.0, 0.5, 3.0])
result = [torch.clamp(x, 0, 1), x.clamp(min=0), x.clamp(max=1.0), torch.clip(x, -1, 1)]

## clamp with tensors
x = torch.tensor([-2.0, 0.5, 3.0])
result = torch.clamp(x, min=torch.tensor([0.0, 1.0, 0.0]), max=torch.tensor([1.0, 2.0, 2.0]))

## maximum and minimum of two
a, b = torch.tensor([1.0, 5.0]), torch.tensor([3.0, 2.0])
result = [torch.maximum(a, b), torch.minimum(a, b), torch.max(a, b), torch.min(a, b)]

## iou of two boxes
a, b = torch.tensor([0.0, 0.0, 2.0, 2.0]), torch.tensor([1.0, 1.0, 3.0, 3.0])
lt, rb = torch.max(a[:2], b[:2]), torch.min(a[2:], b[2:])
inter = (rb - lt).clamp(min=0).prod()
result = inter / (4 + 4 - inter)

## sums
x = torch.arange(6.0).view(2, 3)
result = [x.sum(), torch.sum(x, 0), x.sum(dim=1), x.sum(1, keepdim=True), x.sum(dim=(0, 1))]

## means
x = torch.arange(6.0).view(2, 3)
result = [x.mean(), torch.mean(x, dim=0), x.mean(-1), x.mean(dim=1, keepdim=True)]

## numpy's words for a reduction
x = torch.arange(6.0).view(2, 3)
result = [x.sum(axis=0), torch.mean(x, axis=1), x.sum(axis=1, keepdims=True)]

## standard deviation and variance
x = torch.tensor([[1.0, 2.0, 4.0], [2.0, 2.0, 8.0]])
result = [x.std(), x.var(), x.std(dim=0), torch.var(x, dim=1, unbiased=False), x.var(1, correction=0)]

## var_mean and std_mean
x = torch.tensor([[1.0, 2.0, 4.0], [2.0, 2.0, 8.0]])
result = [torch.var_mean(x, dim=1), torch.std_mean(x)]

## standardising a batch
x = torch.tensor([[1.0, 2.0], [3.0, 6.0], [5.0, 10.0]])
result = (x - x.mean(0)) / (x.std(0) + 1e-7)

## max of all and of each row
x = torch.tensor([[1.0, 5.0], [7.0, 3.0]])
values, indices = torch.max(x, dim=1)
result = [x.max(), values, indices, x.min(dim=0).values, x.max(1)[1]]

## predictions by torch.max of data
outputs = torch.tensor([[0.1, 0.9], [0.8, 0.2]])
_, predicted = torch.max(outputs.data, 1)
result = predicted

## argmax
x = torch.tensor([[1.0, 5.0], [7.0, 3.0]])
result = [x.argmax(), x.argmax(dim=1), torch.argmax(x, dim=-1, keepdim=True), torch.argmin(x, 0)]

## amax and amin
x = torch.tensor([[1.0, 5.0], [7.0, 3.0]])
result = [x.amax(dim=1), torch.amin(x, dim=(0, 1)), torch.aminmax(x)]

## products
x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
result = [x.prod(), torch.prod(x, dim=0)]

## cumulative sums and products
x = torch.tensor([1.0, 2.0, 3.0])
result = [torch.cumsum(x, dim=0), x.cumsum(0), torch.cumprod(x, dim=0)]

## noise schedule of a diffusion model
betas = torch.linspace(1e-4, 0.02, 5)
alphas = 1.0 - betas
result = torch.cumprod(alphas, dim=0)

## norms
x = torch.tensor([[3.0, 4.0], [6.0, 8.0]])
result = [x.norm(), x.norm(dim=1), torch.norm(x, p=1), x.norm(p=2, dim=0, keepdim=True)]

## unit vectors
x = torch.tensor([[3.0, 4.0]])
result = [x / x.norm(dim=1, keepdim=True), F.normalize(x, dim=-1), F.normalize(x)]

## softmax by hand
x = torch.tensor([[1.0, 2.0, 3.0]])
e = torch.exp(x - x.max(dim=1, keepdim=True).values)
result = e / e.sum(dim=1, keepdim=True)

## softmax and log_softmax
x = torch.tensor([[1.0, 2.0, 3.0]])
result = [torch.softmax(x, dim=1), x.softmax(-1), F.log_softmax(x, dim=1), F.softmax(x, 1), torch.log_softmax(x, 1)]

## logsumexp
result = torch.logsumexp(torch.tensor([[1.0, 2.0], [100.0, 100.0]]), dim=1)

## sigmoid and tanh and relu
x = torch.tensor([-1.0, 0.0, 2.0])
result = [torch.sigmoid(x), torch.tanh(x), torch.relu(x), x.sigmoid(), x.tanh(), x.relu()]

## sigmoid of extremes
result = torch.sigmoid(torch.tensor([-1000.0, 1000.0, float("-inf")]))

## comparisons
a, b = torch.tensor([1, 2, 3]), torch.tensor([3, 2, 1])
result = [a == b, a != b, a < b, a >= b, torch.eq(a, b), a.gt(b), torch.le(a, b), a.ne(2)]

## accuracy
pred = torch.tensor([1, 0, 2, 1])
y = torch.tensor([1, 1, 2, 1])
correct = (pred == y).sum().item()
result = [correct, 100 * correct / len(y), (pred == y).float().mean().item(), pred.eq(y).sum().item()]

## accuracy with view_as
output = torch.tensor([[0.1, 0.9], [0.8, 0.2]])
target = torch.tensor([1, 1])
pred = output.argmax(dim=1, keepdim=True)
result = pred.eq(target.view_as(pred)).sum().item()

## correct of the tutorial
pred, y = torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1])
result = (pred.argmax(1) == y).type(torch.float).sum().item()

## any and all
x = torch.tensor([[True, False], [True, True]])
result = [x.any(), x.all(), torch.any(x, dim=1), x.all(dim=1), (torch.tensor([1, 2]) > 0).all().item()]

## logical operations
a, b = torch.tensor([True, False]), torch.tensor([True, True])
result = [a & b, a | b, ~a, a ^ b, torch.logical_and(a, b), torch.logical_not(a), torch.logical_or(a, b)]

## allclose and equal
a = torch.tensor([1.0, 2.0])
result = [torch.allclose(a, a + 1e-9), torch.equal(a, a.clone()), torch.isclose(a, a + 1)]
result.append(torch.allclose(a, a + 1, atol=2))

## median and quantiles
x = torch.tensor([1.0, 3.0, 2.0, 9.0])
result = [x.median(), torch.median(x.view(2, 2), dim=1).values]

## lerp as moving average
a, b = torch.tensor([0.0, 10.0]), torch.tensor([1.0, 20.0])
result = [torch.lerp(a, b, 0.1), a * 0.9 + b * 0.1]

## nan_to_num
result = torch.nan_to_num(torch.tensor([float("nan"), 1.0]))

## counting zeros
result = torch.count_nonzero(torch.tensor([0, 1, 2, 0]))

## mean of ints as floats
x = torch.tensor([1, 2, 4])
result = x.float().mean()

## sum of bools is an int
result = torch.tensor([True, True, False]).sum()

## keywords of the manual
x, y = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
result = [torch.add(input=x, other=y), torch.mul(x, other=y), torch.pow(input=x, exponent=2), torch.sum(input=x)]

## dtype of a sum
result = torch.sum(torch.tensor([1, 2], dtype=torch.uint8), dtype=torch.int32)

## covariance by hand
x = torch.tensor([[1.0, 2.0], [3.0, 5.0], [4.0, 4.0]])
c = x - x.mean(dim=0)
result = c.T @ c / (len(x) - 1)

## heaviside by float
x = torch.tensor([-1.0, 1.0])
result = (x > 0).float()

## erf and gelu by hand
x = torch.tensor([-1.0, 0.0, 1.0])
result = [torch.erf(x), 0.5 * x * (1 + torch.erf(x / 2 ** 0.5))]

## mistake: the mean of ints
result = torch.tensor([1, 2, 4]).mean()

## mistake: adding shapes that do not fit
result = torch.ones(2, 3) + torch.ones(2, 4)

## mistake: a reduction over no such dimension
result = torch.ones(2, 3).sum(dim=2)

## mistake: truth of several elements
result = 1 if torch.tensor([1.0, 2.0]) > 0 else 0

## mistake: item of several elements
result = torch.tensor([1.0, 2.0]).item()
"""
)
