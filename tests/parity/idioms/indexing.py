"""Picking and setting elements: indices, slices, masks, gather and scatter."""

from tests.parity.idioms.idiom import read

IDIOMS = read(
    r"""
## rows and columns
x = torch.arange(12).reshape(3, 4)
result = [x[0], x[:, 0], x[-1], x[..., -1], x[1, 2]]

## slices and steps
x = torch.arange(10)
result = [x[2:5], x[::2], x[:-3], x[5:]]

## slices of a matrix
x = torch.arange(20).view(4, 5)
result = x[1:3, ::2]

## none adds a dimension
x = torch.arange(3)
result = [x[None].shape, x[:, None].shape, x[None, :, None].shape]

## ellipsis
x = torch.zeros(2, 3, 4, 5)
result = [x[..., 0].shape, x[0, ...].shape, x[:, ..., 1:3].shape]

## a list of rows
x = torch.arange(12).view(4, 3)
result = x[[0, 2]]

## a tensor of rows
x = torch.arange(12.0).view(4, 3)
idx = torch.tensor([3, 0, 0])
result = x[idx]

## shuffling rows by a permutation
x = torch.arange(6.0).view(3, 2)
perm = torch.randperm(x.size(0))
y = x[perm]
result = [y.shape, y.sum(), torch.sort(perm).values]

## the element of each row
logits = torch.arange(6.0).view(3, 2)
target = torch.tensor([1, 0, 1])
result = logits[torch.arange(3), target]

## pairs of indices
x = torch.arange(9).view(3, 3)
result = x[[0, 1, 2], [2, 1, 0]]

## nested lists as an index of two axes
x = torch.arange(4).view(2, 2) * 10
result = x[[0, 1], [1, 0]]

## an index of two dimensions
table = torch.arange(10.0).view(5, 2)
words = torch.tensor([[0, 1], [4, 4]])
result = table[words]

## a boolean mask
x = torch.tensor([1.0, -2.0, 3.0, -4.0])
result = [x[x > 0], x[~(x > 0)]]

## a mask of two conditions
x = torch.arange(10)
result = [x[(x > 2) & (x < 7)], x[(x < 2) | (x > 8)]]

## a mask of rows
x = torch.arange(6.0).view(3, 2)
keep = torch.tensor([True, False, True])
result = x[keep]

## setting by a mask
x = torch.arange(5.0)
x[x < 2] = -1
result = x

## setting a column
x = torch.zeros(3, 2)
x[:, 1] = torch.tensor([1.0, 2.0, 3.0])
result = x

## setting a block
x = torch.zeros(4, 4)
x[1:3, 1:3] = 1
result = x

## setting a diagonal by indices
x = torch.zeros(3, 3)
i = torch.arange(3)
x[i, i] = 1.0
result = x

## adding to a slice
x = torch.ones(3, 3)
x[0] += 5
x[:, 2] *= 2
result = x

## where of three
x = torch.tensor([-1.0, 2.0, -3.0])
result = torch.where(x > 0, x, torch.zeros_like(x))

## where with a number
x = torch.tensor([-1.0, 2.0, -3.0])
result = torch.where(x > 0, x, 0.0)

## where of a condition alone
x = torch.tensor([0, 1, 0, 1])
result = torch.where(x == 1)

## masked_fill for attention
scores = torch.zeros(3, 3)
mask = torch.tril(torch.ones(3, 3))
result = scores.masked_fill(mask == 0, float("-inf"))

## masked_select
x = torch.arange(6).view(2, 3)
result = torch.masked_select(x, x % 2 == 0)

## gather along a dimension
x = torch.arange(6.0).view(2, 3)
index = torch.tensor([[0, 2], [1, 1]])
result = torch.gather(x, 1, index)

## the q values of the actions taken
q = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
actions = torch.tensor([1, 0])
result = q.gather(1, actions.unsqueeze(1)).squeeze(1)

## one hot by scatter_
labels = torch.tensor([2, 0, 1])
onehot = torch.zeros(3, 4)
onehot.scatter_(1, labels.unsqueeze(1), 1)
result = onehot

## one hot by scatter_ of ones
labels = torch.tensor([[1], [0]])
result = torch.zeros(2, 3).scatter_(1, labels, torch.ones(2, 1))

## one hot by F.one_hot
result = [F.one_hot(torch.tensor([0, 2, 1])), F.one_hot(torch.tensor([1]), num_classes=4).float()]

## one hot by rows of eye
result = torch.eye(4)[torch.tensor([3, 1])]

## scatter_add counts
index = torch.tensor([0, 1, 1, 3])
result = torch.zeros(4).scatter_add(0, index, torch.ones(4))

## scatter_add_ sums of groups
values = torch.tensor([1.0, 2.0, 3.0, 4.0])
group = torch.tensor([0, 0, 1, 1])
sums = torch.zeros(2)
sums.scatter_add_(0, group, values)
result = sums

## index_add_
x = torch.zeros(3, 2)
x.index_add_(0, torch.tensor([0, 2, 0]), torch.ones(3, 2))
result = x

## index_select
x = torch.arange(12).view(3, 4)
result = torch.index_select(x, 1, torch.tensor([0, 3]))

## take_along_dim of argsort
x = torch.tensor([[3.0, 1.0, 2.0]])
result = torch.take_along_dim(x, x.argsort(dim=1), dim=1)

## nonzero
x = torch.tensor([[0, 1], [2, 0]])
result = [torch.nonzero(x), x.nonzero().shape]

## nonzero as a tuple
x = torch.tensor([0.0, 1.0, 0.0, 2.0])
result = torch.nonzero(x, as_tuple=True)

## the indices where it is true
labels = torch.tensor([1, 0, 1])
result = (labels == 1).nonzero(as_tuple=True)[0]

## topk
x = torch.tensor([1.0, 5.0, 3.0, 4.0])
values, indices = torch.topk(x, k=2)
result = [values, indices]

## topk of each row by name
x = torch.tensor([[1.0, 5.0, 3.0], [9.0, 8.0, 7.0]])
top = x.topk(2, dim=1, largest=True, sorted=True)
result = [top.values, top.indices]

## sorting
x = torch.tensor([3, 1, 2])
values, indices = torch.sort(x, descending=True)
result = [values, indices, x.sort().values, x.argsort()]

## top-k filtering of logits
logits = torch.tensor([[1.0, 5.0, 3.0, 4.0]])
v, _ = torch.topk(logits, 2)
logits[logits < v[:, [-1]]] = -float("Inf")
result = F.softmax(logits, dim=-1)

## unique values
x = torch.tensor([3, 1, 3, 2])
result = torch.unique(x)

## bincount
result = torch.bincount(torch.tensor([0, 1, 1, 3]))

## narrow and select
x = torch.arange(12).view(3, 4)
result = [x.narrow(1, 1, 2), x.select(0, 1)]

## swapping two rows
x = torch.arange(6).view(3, 2)
x[[0, 1]] = x[[1, 0]]
result = x

## item of an indexed element
x = torch.tensor([[1.5, 2.5]])
result = x[0, 1].item()

## splitting train and test by hand
X = torch.arange(10.0)
split = int(0.8 * len(X))
X_train, X_test = X[:split], X[split:]
result = [X_train, X_test]

## batches by slices
X = torch.arange(7)
result = [X[i:i + 3] for i in range(0, len(X), 3)]

## random batches of a text
text = torch.arange(20)
block = 4
ix = torch.randint(len(text) - block, (3,))
x = torch.stack([text[i:i + block] for i in ix])
y = torch.stack([text[i + 1:i + block + 1] for i in ix])
result = [x.shape, (y - x)]

## flip
x = torch.arange(6).view(2, 3)
result = [torch.flip(x, [1]), x.flip(0), torch.roll(x, 1, dims=1)]

## mistake: an index out of range
x = torch.arange(3)
result = x[5]

## mistake: too many indices
x = torch.arange(3)
result = x[0, 0]

## mistake: nested lists as one index
x = torch.arange(4) * 10
result = x[[[0, 1], [1, 0]]]

## mistake: a mask of another length
x = torch.arange(3)
result = x[torch.tensor([True, False])]

## mistake: a float tensor as an index
x = torch.arange(3)
result = x[torch.tensor([0.0, 1.0])]
"""
)
