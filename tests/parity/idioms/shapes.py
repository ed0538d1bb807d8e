"""Shapes and views: reshaping, moving axes, joining, splitting, stretching."""

from tests.parity.idioms.idiom import read

IDIOMS = read(
    r"""
## view and reshape
x = torch.arange(12)
result = [x.view(3, 4), x.reshape(2, -1), x.view(-1, 6)]

## a view shares memory
x = torch.zeros(4)
x.view(2, 2)[0, 0] = 9
result = x

## flattening images
x = torch.zeros(5, 1, 28, 28)
result = [x.view(x.size(0), -1).shape, x.view(-1, 28 * 28).shape, torch.flatten(x, 1).shape, x.flatten().shape]

## flatten from a dimension
x = torch.zeros(2, 3, 4, 5)
result = [x.flatten(start_dim=1).shape, x.flatten(1, 2).shape]

## unflatten
x = torch.arange(12)
result = x.unflatten(0, (3, 4))

## transpose of a matrix
x = torch.arange(6).view(2, 3)
result = [x.t(), x.T, x.transpose(0, 1), torch.transpose(x, 0, 1)]

## transpose of the last two
x = torch.zeros(2, 3, 4)
result = [x.transpose(-2, -1).shape, x.mT.shape, x.swapaxes(0, 2).shape]

## permute images
x = torch.zeros(2, 28, 20, 3)
result = [x.permute(0, 3, 1, 2).shape, torch.permute(x, (3, 0, 1, 2)).shape]

## contiguous before view
x = torch.arange(6).view(2, 3)
result = [x.t().is_contiguous(), x.t().contiguous().view(-1)]

## squeeze and unsqueeze
x = torch.zeros(1, 3, 1)
result = [x.squeeze().shape, x.squeeze(0).shape, x.squeeze(-1).shape, x.unsqueeze(0).shape, x.unsqueeze(-1).shape]

## unsqueeze by function
x = torch.arange(3)
result = [torch.unsqueeze(x, 0), torch.unsqueeze(x, dim=1), torch.squeeze(torch.zeros(1, 2)).shape]

## cat of rows and of columns
a, b = torch.zeros(2, 3), torch.ones(2, 3)
result = [torch.cat([a, b]), torch.cat((a, b), dim=1), torch.cat([a, b], -1).shape]

## cat that grows from an empty tensor
out = torch.tensor([])
for i in range(3):
    out = torch.cat([out, torch.tensor([float(i)])])
result = out

## concat and hstack
a, b = torch.arange(3), torch.arange(3, 6)
result = [torch.concat([a, b]), torch.hstack([a, b]), torch.vstack([a, b])]

## stack
a, b = torch.arange(3), torch.arange(3, 6)
result = [torch.stack([a, b]), torch.stack((a, b), dim=1)]

## stack of losses
losses = [torch.tensor(1.0), torch.tensor(2.0)]
result = torch.stack(losses).mean()

## split in equal parts
x = torch.arange(10)
result = [torch.split(x, 4), x.split([3, 7]), torch.chunk(x, 3)]

## q, k, v of one projection
qkv = torch.arange(24.0).view(1, 2, 12)
q, k, v = qkv.chunk(3, dim=-1)
q2, k2, v2 = qkv.split(4, dim=2)
result = [q, k, v, torch.equal(q, q2)]

## unbind
x = torch.arange(6).view(2, 3)
a, b = x.unbind(0)
result = [a, b, torch.unbind(x, dim=1)]

## expand a row
x = torch.tensor([[1], [2]])
result = [x.expand(2, 3), x.expand(-1, 2)]

## expand_as and broadcast_to
x = torch.tensor([1.0, 2.0])
y = torch.zeros(3, 2)
result = [x.expand_as(y), torch.broadcast_to(x, (2, 2))]

## repeat
x = torch.tensor([1, 2])
result = [x.repeat(2), x.repeat(2, 2), torch.tile(x, (3,))]

## repeat_interleave
x = torch.tensor([1, 2])
result = [x.repeat_interleave(2), torch.repeat_interleave(torch.tensor([[1, 2], [3, 4]]), 2, dim=0)]

## broadcasting a column against a row
a = torch.arange(3).view(3, 1)
b = torch.arange(2).view(1, 2)
result = a + b

## pairwise differences
x = torch.tensor([1.0, 3.0, 6.0])
result = x[:, None] - x[None, :]

## meshgrid
x, y = torch.meshgrid(torch.arange(2), torch.arange(3), indexing="ij")
result = [x, y]

## heads of attention
x = torch.zeros(2, 5, 12)
b, t, c = x.shape
h = x.view(b, t, 3, c // 3).transpose(1, 2)
back = h.transpose(1, 2).contiguous().view(b, t, c)
result = [h.shape, back.shape]

## view_as and reshape_as
x = torch.arange(6)
y = torch.zeros(2, 3)
result = [x.view_as(y), x.reshape_as(y)]

## padding the end of sequences
x = torch.tensor([[1, 2, 3]])
result = F.pad(x, (0, 2), value=0)

## padding an image
x = torch.arange(4.0).view(1, 1, 2, 2)
result = F.pad(x, (1, 1, 1, 1))

## reflecting an image's edge
x = torch.arange(9.0).view(1, 1, 3, 3)
result = [F.pad(x, (1, 1, 1, 1), mode="reflect"), F.pad(x, (1, 0, 0, 0), mode="replicate")]

## patches of an image
img = torch.arange(16.0).view(1, 1, 4, 4)
patches = img.unfold(2, 2, 2).unfold(3, 2, 2)
result = patches.contiguous().view(-1, 4)

## patches by reshape and permute
img = torch.arange(16.0).view(1, 4, 4)
result = img.reshape(1, 2, 2, 2, 2).permute(0, 1, 3, 2, 4).reshape(1, 4, 4)

## movedim
x = torch.zeros(2, 3, 4)
result = torch.movedim(x, -1, 0).shape

## pad a list of sequences
seqs = [torch.tensor([1, 2, 3]), torch.tensor([4])]
result = nn.utils.rnn.pad_sequence(seqs, batch_first=True)

## atleast_2d and outer by broadcasting
x = torch.arange(3)
result = [torch.atleast_2d(x).shape, torch.outer(x, x)]

## diagonal
x = torch.arange(9).view(3, 3)
result = [torch.diag(x), torch.diagonal(x), torch.diag(torch.tensor([1, 2]))]

## shapes that broadcast
result = torch.broadcast_shapes((3, 1), (1, 4))

## mistake: a view of a wrong size
result = torch.arange(6).view(4, 2)

## mistake: a view of a transposed tensor
result = torch.arange(6).view(2, 3).t().view(6)

## mistake: cat of shapes that do not fit
result = torch.cat([torch.zeros(2, 3), torch.zeros(2, 4)])

## mistake: a squeeze of no such dimension
result = torch.zeros(2, 1).squeeze(3)
"""
)
