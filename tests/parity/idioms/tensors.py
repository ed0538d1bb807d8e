"""Making tensors, asking them what they are, printing them, and what they become outside."""

from tests.parity.idioms.idiom import read

IDIOMS = read(
    r"""
## a tensor of a list
result = torch.tensor([[1, 2], [3, 4]])

## a tensor of floats
result = torch.tensor([1.0, 2.5, -3.0])

## a tensor of a scalar
x = torch.tensor(3.14)
result = (x.shape, x.ndim, x.item())

## dtype at creation
result = torch.tensor([1, 2, 3], dtype=torch.float32)

## zeros, ones and full
result = [torch.zeros(2, 3), torch.ones(4), torch.full((2, 2), 7.0)]

## zeros of a tuple of lengths
result = torch.zeros((2, 3), dtype=torch.int64)

## zeros like another
x = torch.rand(2, 3)
result = [torch.zeros_like(x), torch.ones_like(x), torch.full_like(x, 0.5)]

## the shape of empty memory
result = torch.empty(3, 5).shape

## arange
result = [torch.arange(5), torch.arange(2, 8), torch.arange(0, 1, 0.25)]

## arange of floats, cut to whole numbers
result = torch.arange(3.1, dtype=torch.int64)

## linspace
result = torch.linspace(0, 1, steps=5)

## logspace
result = torch.logspace(0, 2, 3)

## identity matrix
result = torch.eye(3)

## a tensor from numpy
import numpy as np
a = np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32)
result = torch.from_numpy(a)

## numpy and the tensor share memory
import numpy as np
a = np.zeros(3, dtype=np.float32)
t = torch.from_numpy(a)
a[0] = 5
result = t

## a tensor of a double array stays double
import numpy as np
result = torch.tensor(np.arange(3) * 0.5).dtype

## back to numpy
result = (torch.ones(2, 2) * 3).numpy()

## detach, cpu, numpy
x = torch.ones(3, requires_grad=True)
y = x * 2
result = y.detach().cpu().numpy()

## as_tensor
result = torch.as_tensor([1, 2, 3])

## the shape and its entries
x = torch.zeros(4, 5, 6)
b, t, c = x.shape
result = (b, t, c, x.size(), x.size(0), x.size(-1), len(x))

## dim and numel
x = torch.zeros(4, 5)
result = (x.dim(), x.ndim, x.numel())

## the dtype of a tensor
x = torch.zeros(2)
result = [str(x.dtype).split(".")[-1], x.dtype == torch.float32]

## casting by method
x = torch.tensor([1.7, -2.2])
result = [x.int(), x.long(), x.double(), x.half(), x.bool(), x.float()]

## casting with to
x = torch.tensor([0, 1, 2])
result = [x.to(torch.float32), x.to(torch.uint8), x.type(torch.float64)]

## type_as and to another tensor
x = torch.ones(2, dtype=torch.float64)
y = torch.zeros(2)
result = [y.type_as(x), y.to(x)]

## ints promote to floats
result = torch.arange(3) + 0.5

## bool arithmetic
result = (torch.tensor([True, False, True])).float().mean()

## is it floating point
x = torch.zeros(2)
result = [torch.is_tensor(x), x.is_floating_point(), torch.is_tensor([1])]

## device of a cpu tensor
x = torch.zeros(2, device="cpu")
result = [str(x.device), x.device.type]

## device where there may be a gpu
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
x = torch.ones(2, 3).to(device)
result = x * 2

## device string where there may be a gpu
device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.zeros(2, device=device)
y = torch.ones(2).to(device)
result = (x + y).cpu()

## device of a module's parameters
model = nn.Linear(2, 2)
device = next(model.parameters()).device
result = torch.zeros(3, device=device)

## number of gpus is a number
result = isinstance(torch.cuda.device_count(), int)

## seed all devices
torch.manual_seed(42)
if torch.cuda.is_available():
    torch.cuda.manual_seed_all(42)
result = torch.rand(2).shape

## item of a loss
loss = torch.tensor([1.0, 2.0, 3.0]).mean()
result = loss.item()

## tolist
x = torch.tensor([[1, 2], [3, 4]])
result = [x.tolist(), x[0, 1].tolist()]

## float and int of a tensor
x = torch.tensor(2.5)
result = [float(x), int(x), bool(x > 0)]

## printing a tensor
x = torch.arange(3)
print(x)
result = "0, 1, 2" in str(x)

## printing a loss
loss = torch.tensor(0.123456)
epoch = 3
result = f"epoch {epoch}: loss {loss:.4f}, {loss.item():.2f}"

## printing shape and type
x = torch.zeros(2, 3)
print(f"Shape of tensor: {x.shape}")
print(f"Datatype of tensor: {x.dtype}")
print(f"Device tensor is stored on: {x.device}")
result = tuple(x.shape)

## clone does not share
x = torch.zeros(3)
y = x.clone()
y[0] = 1
result = [x, y]

## plain assignment shares
x = torch.zeros(3)
y = x
y[0] = 1
result = [x, x is y]

## copy.deepcopy of a tensor
import copy
x = torch.ones(2)
y = copy.deepcopy(x)
y += 1
result = [x, y]

## new tensors of the kind of another
x = torch.ones(2, dtype=torch.float64)
result = [x.new_zeros(3), x.new_ones(2, 2), x.new_full((2,), 7.0), x.new_tensor([1, 2])]

## infinity and nan
x = torch.tensor([float("inf"), float("nan"), 1.0])
result = [torch.isnan(x), torch.isinf(x), torch.isfinite(x)]

## machine limits
result = [torch.finfo(torch.float32).eps, torch.iinfo(torch.int64).max, torch.finfo(torch.float16).min]

## old names of tensor types
result = [torch.FloatTensor([1, 2]), torch.LongTensor([3, 4])]

## the default dtype
result = str(torch.get_default_dtype()).split(".")[-1]

## shape as arguments
x = torch.zeros(3, 4)
result = [torch.ones(x.shape), torch.zeros(x.size()), torch.randn(*x.shape).shape, torch.rand(x.size(0), 2).shape]

## iterating over a tensor
total = 0
for row in torch.arange(6).reshape(3, 2):
    total += row.sum().item()
result = total

## a tensor in a condition
x = torch.tensor([1.0])
result = "positive" if x > 0 else "negative"

## contains
result = [2 in torch.tensor([1, 2, 3]), 5 in torch.tensor([1, 2, 3])]

## triangular masks
result = [torch.tril(torch.ones(3, 3)), torch.triu(torch.ones(3, 3), diagonal=1)]

## stack of python list of tensors
xs = [torch.tensor([i, i + 1]) for i in range(3)]
result = torch.stack(xs)

## element size and bytes
x = torch.zeros(10)
result = [x.element_size(), x.nelement() * x.element_size()]
"""
)
