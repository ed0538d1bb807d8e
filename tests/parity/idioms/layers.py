"""Layers, activations and losses, as modules and as functions; initial weights."""

from tests.parity.idioms.idiom import read

IDIOMS = read(
    r"""
## a linear layer
layer = fixed(nn.Linear(3, 2))
result = [layer(torch.ones(4, 3)), layer.weight.shape, layer.bias.shape]

## a linear layer without bias
layer = fixed(nn.Linear(in_features=3, out_features=2, bias=False))
result = [layer(torch.ones(1, 3)), layer.bias is None]

## the sizes of a layer
layer = nn.Linear(3, 2)
result = [layer.in_features, layer.out_features]

## a sequential network
model = fixed(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
result = model(torch.ones(3, 4))

## a convolution
conv = fixed(nn.Conv2d(1, 2, kernel_size=3, padding=1))
result = [conv(torch.arange(16.0).view(1, 1, 4, 4)), conv.weight.shape]

## shapes after convolutions
x = torch.zeros(2, 3, 32, 32)
result = [
    nn.Conv2d(3, 6, 5)(x).shape,
    nn.Conv2d(3, 8, 3, stride=2, padding=1)(x).shape,
    nn.Conv2d(3, 6, kernel_size=(3, 5), padding=(1, 2), bias=False)(x).shape,
    nn.Conv2d(3, 6, 3, groups=3, padding="same")(x).shape,
    nn.Conv2d(3, 6, 3, dilation=2)(x).shape,
]

## a convolution of one dimension
conv = fixed(nn.Conv1d(2, 3, 3))
result = conv(torch.arange(10.0).view(1, 2, 5))

## pooling
x = torch.arange(16.0).view(1, 1, 4, 4)
result = [nn.MaxPool2d(2)(x), nn.MaxPool2d(kernel_size=2, stride=2)(x), nn.AvgPool2d(2)(x), F.max_pool2d(x, 2)]

## pooling with overlap
x = torch.arange(25.0).view(1, 1, 5, 5)
result = [nn.MaxPool2d(3, stride=2, padding=1)(x), F.avg_pool2d(x, 3, 2)]

## global pooling
x = torch.arange(32.0).view(1, 2, 4, 4)
result = [nn.AdaptiveAvgPool2d((1, 1))(x), nn.AdaptiveAvgPool2d(1)(x).flatten(1), x.mean(dim=[2, 3])]

## batch norm in training
bn = nn.BatchNorm1d(2)
x = torch.tensor([[1.0, 2.0], [3.0, 6.0]])
y = bn(x)
result = [y, bn.running_mean, bn.running_var]

## batch norm in evaluation
bn = nn.BatchNorm2d(2)
bn.eval()
result = bn(torch.arange(8.0).view(1, 2, 2, 2))

## batch norm counts its batches
bn = nn.BatchNorm2d(3)
bn(torch.zeros(2, 3, 4, 4))
result = [sorted(bn.state_dict()), int(bn.num_batches_tracked)]

## layer norm
ln = nn.LayerNorm(4)
result = [ln(torch.arange(8.0).view(2, 4)), F.layer_norm(torch.arange(8.0).view(2, 4), (4,))]

## group norm
gn = nn.GroupNorm(num_groups=2, num_channels=4)
result = gn(torch.arange(16.0).view(1, 4, 2, 2))

## dropout in training and evaluation
drop = nn.Dropout(p=0.5)
x = torch.ones(1000)
y = drop(x)
drop.eval()
result = [sorted(set(y.tolist())), torch.equal(drop(x), x)]

## functional dropout
x = torch.ones(100)
result = [torch.equal(F.dropout(x, p=0.5, training=False), x), F.dropout(x, 0.5, True).shape, F.dropout(x, p=0.0)[:2]]

## dropout of channels
y = nn.Dropout2d(0.5)(torch.ones(4, 8, 3, 3))
result = [y.shape, len(torch.unique(y)) <= 2]

## an embedding
emb = fixed(nn.Embedding(10, 3))
result = [emb(torch.tensor([[1, 2], [4, 1]])), emb.weight.shape]

## an embedding with padding
emb = nn.Embedding(5, 3, padding_idx=0)
result = emb(torch.tensor([0, 0]))

## an embedding of given vectors
weight = torch.tensor([[1.0, 2.3], [4.0, 5.1]])
emb = nn.Embedding.from_pretrained(weight)
result = [emb(torch.tensor([1])), emb.weight.requires_grad]

## activations as modules
x = torch.tensor([-2.0, -0.5, 0.0, 1.0])
result = [m(x) for m in (nn.ReLU(), nn.Sigmoid(), nn.Tanh(), nn.GELU(), nn.SiLU(), nn.LeakyReLU(0.1), nn.ELU())]

## more activations as modules
x = torch.tensor([-2.0, -0.5, 0.0, 1.0])
result = [m(x) for m in (nn.Softplus(), nn.ReLU6(), nn.Hardswish(), nn.Mish(), nn.SELU(), nn.PReLU(), nn.Identity())]

## activations as functions
x = torch.tensor([-2.0, -0.5, 0.0, 1.0])
result = [F.relu(x), F.gelu(x), F.silu(x), F.leaky_relu(x, 0.2), F.elu(x), F.softplus(x), F.tanh(x), F.sigmoid(x)]

## gelu by tanh
x = torch.tensor([-2.0, -0.5, 0.0, 1.0])
result = [F.gelu(x, approximate="tanh"), nn.GELU(approximate="tanh")(x)]

## activations in place
x = torch.tensor([-2.0, 1.0])
result = [nn.ReLU(inplace=True)(x.clone()), nn.ReLU(True)(x.clone()), nn.LeakyReLU(0.2, inplace=True)(x.clone())]

## softmax as modules
x = torch.tensor([[1.0, 2.0]])
result = [nn.Softmax(dim=1)(x), nn.LogSoftmax(dim=1)(x)]

## log-sigmoid
x = torch.tensor([-1.0, 1.0])
result = [F.logsigmoid(x), nn.LogSigmoid()(x)]

## gated linear unit
x = torch.arange(4.0).view(1, 4)
result = [F.glu(x, dim=-1), nn.GLU()(x)]

## flatten as a module
x = torch.zeros(2, 3, 4)
result = [nn.Flatten()(x).shape, nn.Flatten(0)(x).shape, nn.Unflatten(1, (3, 1))(torch.zeros(2, 3)).shape]

## upsampling by nearest neighbours
x = torch.arange(4.0).view(1, 1, 2, 2)
result = nn.Upsample(scale_factor=2)(x)

## cross entropy
logits = torch.tensor([[2.0, 0.5, 0.1], [0.1, 0.2, 3.0]])
target = torch.tensor([0, 2])
criterion = nn.CrossEntropyLoss()
result = [criterion(logits, target), F.cross_entropy(logits, target), F.cross_entropy(logits, target, reduction="sum")]

## cross entropy with weights, smoothing, ignored
logits = torch.tensor([[2.0, 0.5, 0.1], [0.1, 0.2, 3.0]])
target = torch.tensor([0, 2])
w = torch.tensor([1.0, 1.0, 0.5])
result = [
    nn.CrossEntropyLoss(weight=w)(logits, target),
    nn.CrossEntropyLoss(label_smoothing=0.1)(logits, target),
    F.cross_entropy(logits, torch.tensor([0, -100]), ignore_index=-100),
    F.cross_entropy(logits, target, reduction="none"),
]

## cross entropy by hand
logits = torch.tensor([[2.0, 0.5, 0.1], [0.1, 0.2, 3.0]])
target = torch.tensor([0, 2])
lsm = F.log_softmax(logits, dim=-1)
result = [-lsm[range(len(target)), target].mean(), F.nll_loss(lsm, target), nn.NLLLoss()(lsm, target)]

## cross entropy of a sequence
logits = torch.arange(12.0).view(1, 3, 4)
targets = torch.tensor([[1, 0, 3]])
loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
loss2 = F.cross_entropy(logits.transpose(1, 2), targets)
result = [loss, loss2]

## cross entropy with probabilities as targets
logits = torch.tensor([[2.0, 0.5]])
result = F.cross_entropy(logits, torch.tensor([[0.3, 0.7]]))

## mean squared error
a, b = torch.tensor([1.0, 2.0]), torch.tensor([0.0, 4.0])
result = [nn.MSELoss()(a, b), F.mse_loss(a, b), nn.MSELoss(reduction="sum")(a, b), ((a - b) ** 2).mean()]

## absolute errors
a, b = torch.tensor([1.0, 2.0]), torch.tensor([0.0, 4.0])
result = [nn.L1Loss()(a, b), F.l1_loss(a, b),
          F.smooth_l1_loss(a, b, beta=0.5), nn.SmoothL1Loss()(a, b), nn.HuberLoss()(a, b)]

## binary cross entropy
p, y = torch.tensor([0.9, 0.2]), torch.tensor([1.0, 0.0])
result = [nn.BCELoss()(p, y), F.binary_cross_entropy(p, y), nn.BCELoss(reduction="none")(p, y)]

## binary cross entropy of logits
z, y = torch.tensor([2.0, -1.0]), torch.tensor([1.0, 0.0])
result = [
    nn.BCEWithLogitsLoss()(z, y),
    F.binary_cross_entropy_with_logits(z, y),
    nn.BCEWithLogitsLoss(pos_weight=torch.tensor([2.0, 3.0]))(z, y),
]

## kl divergence
p, q = torch.tensor([[0.4, 0.6]]), torch.tensor([[0.5, 0.5]])
result = [F.kl_div(q.log(), p, reduction="batchmean"), nn.KLDivLoss(reduction="sum")(q.log(), p)]

## distillation
s, t, T = torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 1.0]]), 2.0
loss = nn.KLDivLoss(reduction="batchmean")(F.log_softmax(s / T, dim=1), F.softmax(t / T, dim=1)) * T * T
result = loss

## triplet loss
a, p, n = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 2.0]]), torch.tensor([[0.5, 1.0]])
result = [nn.TripletMarginLoss(margin=1.0)(a, p, n), F.triplet_margin_loss(a, p, n, margin=0.5)]

## contrastive by cosines
a, b = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 1.0]])
same = torch.tensor([1.0])
result = [F.cosine_similarity(a, b), nn.CosineSimilarity(dim=1)(a, b), nn.CosineEmbeddingLoss()(a, b, same)]

## ranking losses
a, b, y = torch.tensor([1.0]), torch.tensor([2.0]), torch.tensor([1.0])
result = [nn.MarginRankingLoss(margin=0.1)(a, b, y), nn.HingeEmbeddingLoss()(a, -y)]

## the info-nce loss
z1, z2 = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.9, 0.1], [0.2, 0.8]])
z1, z2 = F.normalize(z1, dim=1), F.normalize(z2, dim=1)
logits = z1 @ z2.t() / 0.1
result = F.cross_entropy(logits, torch.arange(2))

## focal loss by hand
z, y = torch.tensor([2.0, -1.0]), torch.tensor([1.0, 0.0])
bce = F.binary_cross_entropy_with_logits(z, y, reduction="none")
pt = torch.exp(-bce)
result = (0.25 * (1 - pt) ** 2 * bce).mean()

## negative log likelihood of a gaussian by hand
mu, logvar, x = torch.tensor([0.0]), torch.tensor([0.1]), torch.tensor([1.0])
result = 0.5 * (logvar + (x - mu) ** 2 / logvar.exp()).mean()

## functional layers
x = torch.ones(1, 3)
w, b = torch.arange(6.0).view(2, 3), torch.zeros(2)
img, kernel = torch.ones(1, 1, 3, 3), torch.ones(1, 1, 2, 2)
result = [F.linear(x, w, b), F.conv2d(img, kernel), F.embedding(torch.tensor([1]), w)]

## init of weights
w = torch.empty(64, 32)
nn.init.xavier_uniform_(w)
a = w.abs().max().item() <= (6 / 96) ** 0.5
nn.init.kaiming_normal_(w, mode="fan_out", nonlinearity="relu")
nn.init.normal_(w, mean=0.0, std=0.02)
b = round(w.std().item(), 2)
nn.init.constant_(w, 3.0)
result = [a, b, w.mean()]

## init of a layer
layer = nn.Linear(3, 2)
nn.init.zeros_(layer.bias)
nn.init.ones_(layer.weight)
result = layer(torch.ones(1, 3))

## init orthogonal and truncated
w = nn.init.orthogonal_(torch.empty(3, 3))
t = nn.init.trunc_normal_(torch.empty(100), std=0.02)
result = [torch.allclose(w @ w.T, torch.eye(3), atol=1e-5), t.abs().max().item() < 2.1]

## init uniform and eye
layer = nn.Linear(2, 2)
nn.init.uniform_(layer.weight, -0.1, 0.1)
nn.init.kaiming_uniform_(layer.weight, a=5 ** 0.5)
nn.init.xavier_normal_(layer.weight, gain=nn.init.calculate_gain("relu"))
result = [layer.weight.shape, nn.init.eye_(torch.empty(2, 2))]

## init through data
layer = nn.Linear(3, 2)
layer.weight.data.normal_(0.0, 0.02)
layer.bias.data.zero_()
result = layer.bias

## init through fill_ of data
layer = nn.Linear(3, 2)
layer.weight.data.fill_(0.01)
layer.bias.data.fill_(1.0)
result = layer(torch.ones(1, 3))

## bilinear upsampling by interpolate
x = torch.arange(4.0).view(1, 1, 2, 2)
result = F.interpolate(x, scale_factor=2, mode="nearest")

## attention in one call
q = torch.arange(8.0).view(1, 1, 4, 2) / 8
result = F.scaled_dot_product_attention(q, q, q, is_causal=True)

## flattening an image by view
torch.manual_seed(0)
conv, x = nn.Conv2d(3, 4, 3), torch.arange(216.0).view(2, 3, 6, 6) / 216
nn.init.constant_(conv.weight, 0.1), nn.init.zeros_(conv.bias)
y = F.max_pool2d(F.relu(conv(x)), 2)
flat = y.view(y.size(0), -1)
flat.sum().backward()
result = [flat, conv.weight.grad, F.relu(conv(x)).view(-1, 4 * 4 * 4).shape]

## the kind of device
a = torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else "cpu"
b = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
result = [a, b]

## mistake: a layer of another width
result = nn.Linear(3, 2)(torch.ones(4, 5))

## mistake: labels out of range
result = F.cross_entropy(torch.zeros(2, 3), torch.tensor([0, 3]))

## mistake: float labels of classes
result = F.cross_entropy(torch.zeros(2, 3), torch.tensor([0.0, 1.0]))

## mistake: an index beyond the vocabulary
result = nn.Embedding(10, 3)(torch.tensor([10]))

## mistake: an image without channels
result = nn.Conv2d(3, 6, 3)(torch.zeros(2, 1, 8, 8))

## mistake: doubles into a layer of floats
import numpy as np
result = nn.Linear(2, 1)(torch.from_numpy(np.ones((3, 2))))

## mistake: targets of another shape
result = nn.BCELoss()(torch.rand(4, 1), torch.ones(4))

## mistake: batch norm of one sample
result = nn.BatchNorm1d(3)(torch.ones(1, 3))
"""
)
