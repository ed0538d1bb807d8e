"""Whole small networks and models by hand, as in tutorials and books."""

from tests.parity.idioms.idiom import read

IDIOMS = read(
    r"""
## linear regression from scratch
def synthetic_data(w, b, n):
    X = torch.linspace(-1, 1, n * len(w)).reshape(n, len(w)) ** 3
    X[:, 1] = torch.cos(torch.arange(n) * 1.0)
    y = torch.matmul(X, w) + b
    return X, y.reshape((-1, 1))

true_w = torch.tensor([2, -3.4])
features, labels = synthetic_data(true_w, 4.2, 20)
w = torch.zeros((2, 1), requires_grad=True)
b = torch.zeros(1, requires_grad=True)

def squared_loss(y_hat, y):
    return (y_hat - y.reshape(y_hat.shape)) ** 2 / 2

for epoch in range(5):
    loss = squared_loss(torch.matmul(features, w) + b, labels)
    loss.sum().backward()
    with torch.no_grad():
        for param in [w, b]:
            param -= 0.03 * param.grad
            param.grad.zero_()
result = [w, b, squared_loss(features @ w + b, labels).mean().item()]

## linear regression with a layer
x = torch.linspace(0, 1, 10).unsqueeze(1)
y = 2 * x + 1
model = fixed(nn.Linear(1, 1))
opt = optim.SGD(model.parameters(), lr=0.5)
for _ in range(50):
    loss = F.mse_loss(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
result = [model.weight.item(), model.bias.item(), loss.item()]

## a polynomial fitted to a sine
import math
x = torch.linspace(-math.pi, math.pi, 50)
y = torch.sin(x)
a = torch.full((), 0.1, requires_grad=True)
b = torch.full((), 0.2, requires_grad=True)
for t in range(20):
    y_pred = a + b * x
    loss = (y_pred - y).pow(2).sum()
    loss.backward()
    with torch.no_grad():
        a -= 1e-4 * a.grad
        b -= 1e-4 * b.grad
        a.grad = None
        b.grad = None
result = [a.item(), b.item()]

## a polynomial by sequential and flatten
import math
x = torch.linspace(-math.pi, math.pi, 50)
y = torch.sin(x)
p = torch.tensor([1, 2, 3])
xx = x.unsqueeze(-1).pow(p)
model = fixed(torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Flatten(0, 1)))
loss_fn = torch.nn.MSELoss(reduction="sum")
for t in range(3):
    loss = loss_fn(model(xx), y)
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for param in model.parameters():
            param -= 1e-6 * param.grad
result = [loss, model[0].weight]

## logistic regression
X = torch.tensor([[0.0, 1.0], [1.0, 0.0], [2.0, 1.0], [3.0, 0.5]])
y = torch.tensor([[0.0], [0.0], [1.0], [1.0]])
model = fixed(nn.Sequential(nn.Linear(2, 1), nn.Sigmoid()))
opt = optim.Adam(model.parameters(), lr=0.1)
for _ in range(20):
    p = model(X)
    loss = -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
result = [loss, (model(X) > 0.5).float()]

## softmax regression from scratch
def softmax(X):
    X_exp = torch.exp(X)
    partition = X_exp.sum(1, keepdim=True)
    return X_exp / partition

def cross_entropy(y_hat, y):
    return -torch.log(y_hat[range(len(y_hat)), y])

W = torch.full((4, 3), 0.1, requires_grad=True)
b = torch.zeros(3, requires_grad=True)
X = torch.arange(12.0).reshape(3, 2, 2) / 12
y = torch.tensor([0, 2, 1])
loss = cross_entropy(softmax(torch.matmul(X.reshape((-1, W.shape[0])), W) + b), y).mean()
loss.backward()
result = [loss, W.grad, b.grad]

## xor by an mlp
X = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
Y = torch.tensor([[0.0], [1.0], [1.0], [0.0]])
model = fixed(nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1), nn.Sigmoid()))
opt = optim.Adam(model.parameters(), lr=0.1)
loss_fn = nn.BCELoss()
for _ in range(100):
    opt.zero_grad()
    loss = loss_fn(model(X), Y)
    loss.backward()
    opt.step()
result = (model(X) > 0.5).long().flatten()

## lenet
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        x = self.fc3(x)
        return x

net = Net()
result = [net(torch.zeros(2, 3, 32, 32)).shape, sum(p.numel() for p in net.parameters())]

## the mnist example
class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, 1)
        self.conv2 = nn.Conv2d(4, 8, 3, 1)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(128, 16)
        self.fc2 = nn.Linear(16, 10)

    def forward(self, x):
        x = self.conv1(x)
        x = F.relu(x)
        x = self.conv2(x)
        x = F.relu(x)
        x = F.max_pool2d(x, 2)
        x = self.dropout1(x)
        x = torch.flatten(x, 1)
        x = self.fc1(x)
        x = F.relu(x)
        x = self.dropout2(x)
        x = self.fc2(x)
        output = F.log_softmax(x, dim=1)
        return output

model = fixed(Net())
model.eval()
output = model(torch.linspace(-1, 1, 2 * 144).view(2, 1, 12, 12))
result = [output, F.nll_loss(output, torch.tensor([3, 4]))]

## a residual block
class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, in_planes, planes, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(in_planes, planes, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, kernel_size=3, stride=1, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_planes != planes:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_planes, planes, kernel_size=1, stride=stride, bias=False),
                nn.BatchNorm2d(planes),
            )

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return self.relu(out)

block = fixed(BasicBlock(2, 4, stride=2))
out = block(torch.linspace(-1, 1, 64).view(2, 2, 4, 4))
out.sum().backward()
result = [out.shape, out.mean(), block.bn1.running_mean, block.conv2.weight.grad.abs().sum()]

## stages of blocks
def make_layer(inp, out, n):
    layers = [nn.Conv2d(inp, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]
    for _ in range(1, n):
        layers += [nn.Conv2d(out, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]
    layers.append(nn.MaxPool2d(2, 2))
    return nn.Sequential(*layers)

net = nn.Sequential(make_layer(3, 4, 1), make_layer(4, 8, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
result = [net(torch.zeros(1, 3, 8, 8)).shape, len(net)]

## an inception by cat
class Inception(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.b1 = nn.Conv2d(c, 2, 1)
        self.b2 = nn.Sequential(nn.Conv2d(c, 2, 1), nn.ReLU(), nn.Conv2d(2, 3, 3, padding=1))
        self.b3 = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), nn.Conv2d(c, 1, 1))

    def forward(self, x):
        return torch.cat((self.b1(x), self.b2(x), self.b3(x)), dim=1)

result = fixed(Inception(3))(torch.ones(1, 3, 2, 2))

## squeeze and excitation
class SE(nn.Module):
    def __init__(self, c, r=2):
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Sequential(
            nn.Linear(c, c // r, bias=False),
            nn.ReLU(inplace=True),
            nn.Linear(c // r, c, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, x):
        b, c, _, _ = x.size()
        y = self.pool(x).view(b, c)
        y = self.fc(y).view(b, c, 1, 1)
        return x * y.expand_as(x)

result = fixed(SE(4))(torch.arange(16.0).view(1, 4, 2, 2))

## an autoencoder
class AE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 4), nn.ReLU(True), nn.Linear(4, 2))
        self.decoder = nn.Sequential(nn.Linear(2, 4), nn.ReLU(True), nn.Linear(4, 8), nn.Sigmoid())

    def forward(self, x):
        return self.decoder(self.encoder(x))

model = fixed(AE())
x = torch.linspace(0, 1, 16).view(2, 8)
opt = optim.Adam(model.parameters(), lr=0.05)
first = None
for _ in range(20):
    loss = F.mse_loss(model(x), x)
    first = first or loss.item()
    opt.zero_grad()
    loss.backward()
    opt.step()
result = [first, loss.item() < first]

## a variational autoencoder
class VAE(nn.Module):
    def __init__(self):
        super(VAE, self).__init__()
        self.fc1 = nn.Linear(6, 4)
        self.fc21 = nn.Linear(4, 2)
        self.fc22 = nn.Linear(4, 2)
        self.fc3 = nn.Linear(2, 4)
        self.fc4 = nn.Linear(4, 6)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5*logvar)
        eps = torch.randn_like(std)
        return mu + eps*std

    def decode(self, z):
        h3 = F.relu(self.fc3(z))
        return torch.sigmoid(self.fc4(h3))

    def forward(self, x):
        mu, logvar = self.encode(x.view(-1, 6))
        z = self.reparameterize(mu, logvar)
        return self.decode(z), mu, logvar

def loss_function(recon_x, x, mu, logvar):
    BCE = F.binary_cross_entropy(recon_x, x.view(-1, 6), reduction='sum')
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return BCE + KLD, KLD

model = fixed(VAE())
x = torch.linspace(0, 1, 12).view(2, 1, 2, 3)
recon, mu, logvar = model(x)
loss, kld = loss_function(recon, x, mu, logvar)
loss.backward()
result = [recon.shape, mu, kld, model.fc1.weight.grad is not None]

## a step of a gan
G = nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(0.2, inplace=True), nn.Linear(8, 3), nn.Tanh())
D = nn.Sequential(nn.Linear(3, 8), nn.LeakyReLU(0.2, inplace=True), nn.Linear(8, 1), nn.Sigmoid())
optG = optim.Adam(G.parameters(), lr=2e-4, betas=(0.5, 0.999))
optD = optim.Adam(D.parameters(), lr=2e-4, betas=(0.5, 0.999))
criterion = nn.BCELoss()
real = torch.zeros(4, 3)
label = torch.full((4, 1), 1.0)
D.zero_grad()
errD_real = criterion(D(real), label)
errD_real.backward()
fake = G(torch.randn(4, 2))
label.fill_(0.0)
errD_fake = criterion(D(fake.detach()), label)
errD_fake.backward()
optD.step()
before = [p.grad is None for p in G.parameters()]
G.zero_grad()
label.fill_(1.0)
errG = criterion(D(fake), label)
errG.backward()
optG.step()
result = [all(before), fake.shape, errG.item() > 0]

## word2vec with negative samples
class SkipGram(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.u = nn.Embedding(vocab, dim)
        self.v = nn.Embedding(vocab, dim)

    def forward(self, center, context, negatives):
        u = self.u(center)
        pos = F.logsigmoid((u * self.v(context)).sum(dim=1))
        neg = F.logsigmoid(-torch.bmm(self.v(negatives), u.unsqueeze(2)).squeeze(2)).sum(1)
        return -(pos + neg).mean()

model = fixed(SkipGram(10, 4))
loss = model(torch.tensor([1, 2]), torch.tensor([3, 4]), torch.tensor([[5, 6], [7, 8]]))
loss.backward()
result = [loss, model.u.weight.grad]

## a model of bags of words
class CBOW(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.embeddings = nn.Embedding(vocab, dim)
        self.linear = nn.Linear(dim, vocab)

    def forward(self, inputs):
        embeds = self.embeddings(inputs).mean(dim=1)
        return F.log_softmax(self.linear(embeds), dim=1)

model = fixed(CBOW(6, 3))
result = F.nll_loss(model(torch.tensor([[0, 1, 3, 4]])), torch.tensor([2]))

## a language model of n-grams
class NGram(nn.Module):
    def __init__(self, vocab_size, embedding_dim, context_size):
        super(NGram, self).__init__()
        self.embeddings = nn.Embedding(vocab_size, embedding_dim)
        self.linear1 = nn.Linear(context_size * embedding_dim, 16)
        self.linear2 = nn.Linear(16, vocab_size)

    def forward(self, inputs):
        embeds = self.embeddings(inputs).view((1, -1))
        out = F.relu(self.linear1(embeds))
        return F.log_softmax(self.linear2(out), dim=1)

model = fixed(NGram(5, 3, 2))
result = model(torch.tensor([1, 4], dtype=torch.long))

## bigrams of characters counted
words = ["emma", "ava"]
chars = sorted(set("".join(words)))
stoi = {s: i + 1 for i, s in enumerate(chars)}
stoi["."] = 0
N = torch.zeros((len(stoi), len(stoi)), dtype=torch.int32)
for w in words:
    chs = ["."] + list(w) + ["."]
    for ch1, ch2 in zip(chs, chs[1:]):
        N[stoi[ch1], stoi[ch2]] += 1
P = (N + 1).float()
P /= P.sum(1, keepdims=True)
nll = 0.0
for ch1, ch2 in [(".", "e"), ("e", "m")]:
    nll += -torch.log(P[stoi[ch1], stoi[ch2]])
result = [N, P, nll]

## bigrams of characters by one neuron each
xs, ys = torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0])
xenc = F.one_hot(xs, num_classes=3).float()
W = torch.linspace(-1, 1, 9).view(3, 3).requires_grad_()
for k in range(3):
    logits = xenc @ W
    counts = logits.exp()
    probs = counts / counts.sum(1, keepdims=True)
    loss = -probs[torch.arange(3), ys].log().mean() + 0.01 * (W**2).mean()
    W.grad = None
    loss.backward()
    W.data += -1 * W.grad
result = loss

## a character model by hand
block_size, vocab = 3, 5
C = torch.linspace(-1, 1, 10).view(5, 2)
W1 = torch.linspace(-1, 1, 24).view(6, 4)
b1 = torch.zeros(4)
W2 = torch.linspace(-1, 1, 20).view(4, 5)
b2 = torch.zeros(5)
parameters = [C, W1, b1, W2, b2]
for p in parameters:
    p.requires_grad = True
X, Y = torch.tensor([[0, 0, 1], [0, 1, 2]]), torch.tensor([2, 3])
for i in range(4):
    emb = C[X]
    h = torch.tanh(emb.view(-1, 6) @ W1 + b1)
    logits = h @ W2 + b2
    loss = F.cross_entropy(logits, Y)
    for p in parameters:
        p.grad = None
    loss.backward()
    with torch.no_grad():
        for p in parameters:
            p -= 0.1 * p.grad
result = [loss, sum(p.nelement() for p in parameters)]

## batch norm by hand
hpreact = torch.arange(12.0).view(4, 3) ** 2
bngain, bnbias = torch.ones((1, 3)), torch.zeros((1, 3))
bnmeani = hpreact.mean(0, keepdim=True)
bnstdi = hpreact.std(0, keepdim=True)
result = bngain * (hpreact - bnmeani) / bnstdi + bnbias

## sampling names from a model
probs = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
g = torch.Generator().manual_seed(2147483647)
out, ix = [], 0
while True:
    ix = torch.multinomial(probs[ix], num_samples=1, replacement=True, generator=g).item()
    if ix == 0:
        break
    out.append(ix)
result = out

## self attention of one head
class Head(nn.Module):
    def __init__(self, n_embd, head_size, block_size):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))
        self.dropout = nn.Dropout(0.0)

    def forward(self, x):
        B, T, C = x.shape
        k = self.key(x)
        q = self.query(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1]**-0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        wei = F.softmax(wei, dim=-1)
        wei = self.dropout(wei)
        return wei @ self.value(x)

head = fixed(Head(4, 2, 8))
out = head(torch.linspace(-1, 1, 24).view(2, 3, 4))
out.sum().backward()
result = [out, head.key.weight.grad]

## attention of several heads by hand
class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head, block_size):
        super().__init__()
        assert n_embd % n_head == 0
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.n_head, self.n_embd = n_head, n_embd
        self.register_buffer("bias", torch.tril(torch.ones(block_size, block_size)).view(1, 1, block_size, block_size))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / k.size(-1) ** 0.5)
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        y = (att @ v).transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)

result = fixed(CausalSelfAttention(4, 2, 8))(torch.linspace(-1, 1, 12).view(1, 3, 4))

## positions by sines
max_len, d = 5, 4
position = torch.arange(max_len).unsqueeze(1)
div_term = torch.exp(torch.arange(0, d, 2) * (-9.210340371976184 / d))
pe = torch.zeros(max_len, 1, d)
pe[:, 0, 0::2] = torch.sin(position * div_term)
pe[:, 0, 1::2] = torch.cos(position * div_term)
result = pe

## a recurrent cell by hand
class RNN(nn.Module):
    def __init__(self, input_size, hidden_size, output_size):
        super().__init__()
        self.hidden_size = hidden_size
        self.i2h = nn.Linear(input_size + hidden_size, hidden_size)
        self.h2o = nn.Linear(hidden_size, output_size)

    def forward(self, input, hidden):
        combined = torch.cat((input, hidden), 1)
        hidden = torch.tanh(self.i2h(combined))
        return F.log_softmax(self.h2o(hidden), dim=1), hidden

    def initHidden(self):
        return torch.zeros(1, self.hidden_size)

rnn = fixed(RNN(3, 4, 2))
hidden = rnn.initHidden()
for x in torch.eye(3):
    output, hidden = rnn(x.unsqueeze(0), hidden)
loss = F.nll_loss(output, torch.tensor([1]))
loss.backward()
result = [output, hidden, rnn.i2h.bias.grad]

## a gated cell by hand
H, I = 3, 2
x, h = torch.tensor([[1.0, -1.0]]), torch.zeros(1, 3)
Wz, Wr, Wh = (torch.linspace(-1, 1, 15).view(5, 3) * s for s in (1.0, 0.5, -1.0))
z = torch.sigmoid(torch.cat([x, h], 1) @ Wz)
r = torch.sigmoid(torch.cat([x, h], 1) @ Wr)
n = torch.tanh(torch.cat([x, r * h], 1) @ Wh)
result = (1 - z) * n + z * h

## k-means
x = torch.tensor([[0.0, 0.0], [0.1, 0.0], [5.0, 5.0], [5.1, 5.0]])
centers = x[[0, 2]].clone()
for _ in range(3):
    d = ((x[:, None] - centers[None]) ** 2).sum(-1)
    assign = d.argmin(dim=1)
    centers = torch.stack([x[assign == k].mean(0) for k in range(2)])
result = [centers, assign]

## k-means by scatter_add and bincount
x = torch.tensor([[0.0, 0.0], [0.1, 0.0], [5.0, 5.0], [5.1, 5.0]])
a = torch.tensor([0, 0, 1, 1])
sums = torch.zeros(2, 2).scatter_add_(0, a.view(-1, 1).repeat(1, 2), x)
counts = torch.zeros(2).scatter_add_(0, a, torch.ones(4))
result = sums / counts.unsqueeze(1)

## nearest neighbours
train, labels = torch.tensor([[0.0], [1.0], [10.0]]), torch.tensor([0, 0, 1])
q = torch.tensor([[0.4], [9.0]])
d = (q - train.T).abs()
_, idx = d.topk(1, dim=1, largest=False)
result = labels[idx.squeeze(1)]

## power iteration
A = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
v = torch.ones(2)
for _ in range(30):
    v = A @ v
    v = v / v.norm()
result = [v, v @ A @ v]

## policy gradient by hand
policy = fixed(nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2), nn.Softmax(dim=-1)))
states = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
actions = torch.tensor([0, 1])
rewards = [1.0, 2.0]
returns, R = [], 0.0
for r in rewards[::-1]:
    R = r + 0.9 * R
    returns.insert(0, R)
returns = torch.tensor(returns)
returns = (returns - returns.mean()) / (returns.std() + 1e-9)
logp = torch.log(policy(states).gather(1, actions.view(-1, 1)).squeeze(1))
loss = -(logp * returns).sum()
loss.backward()
result = [loss, policy[0].weight.grad]

## deep q learning, one step
q, target = fixed(nn.Linear(3, 2)), fixed(nn.Linear(3, 2))
s, s2 = torch.ones(4, 3), torch.zeros(4, 3)
a, r = torch.tensor([0, 1, 1, 0]), torch.tensor([1.0, 0.0, 0.5, 1.0])
done = torch.tensor([False, False, True, False])
with torch.no_grad():
    y = r + 0.99 * target(s2).max(1)[0] * (1 - done.float())
loss = nn.SmoothL1Loss()(q(s).gather(1, a.unsqueeze(1)), y.unsqueeze(1))
loss.backward()
result = [loss, q.weight.grad]

## noise added as in diffusion
T = 10
betas = torch.linspace(0.0001, 0.02, T)
alphas_cumprod = torch.cumprod(1.0 - betas, dim=0)
x0, noise, t = torch.ones(2, 1, 2, 2), torch.zeros(2, 1, 2, 2), torch.tensor([0, 9])
a = alphas_cumprod[t].sqrt().view(-1, 1, 1, 1)
b = (1 - alphas_cumprod[t]).sqrt()[:, None, None, None]
result = a * x0 + b * noise

## matrix factorisation
U, V = nn.Embedding(3, 2), nn.Embedding(4, 2)
fixed(U), fixed(V)
opt = optim.SGD(list(U.parameters()) + list(V.parameters()), lr=0.1)
u, v, r = torch.tensor([0, 1]), torch.tensor([2, 3]), torch.tensor([1.0, 0.0])
loss = ((U(u) * V(v)).sum(1) - r).pow(2).mean()
loss.backward()
opt.step()
result = [loss, U.weight]

## early stopping
class EarlyStopping:
    def __init__(self, patience=2):
        self.patience, self.best, self.count = patience, None, 0

    def __call__(self, loss):
        if self.best is None or loss < self.best:
            self.best, self.count = loss, 0
        else:
            self.count += 1
        return self.count >= self.patience

stop = EarlyStopping()
stopped = None
for epoch, loss in enumerate([torch.tensor(1.0), torch.tensor(0.5), torch.tensor(0.6), torch.tensor(0.7)]):
    if stop(loss.item()):
        stopped = epoch
        break
result = stopped

## a confusion matrix
pred, y = torch.tensor([0, 1, 1, 2]), torch.tensor([0, 1, 2, 2])
cm = torch.zeros(3, 3, dtype=torch.int64)
for t, p in zip(y.view(-1), pred.view(-1)):
    cm[t.long(), p.long()] += 1
result = [cm, cm.diag().float() / cm.sum(1)]

## top-k accuracy
def accuracy(output, target, topk=(1,)):
    with torch.no_grad():
        maxk = max(topk)
        batch_size = target.size(0)
        _, pred = output.topk(maxk, 1, True, True)
        pred = pred.t()
        correct = pred.eq(target.view(1, -1).expand_as(pred))
        res = []
        for k in topk:
            correct_k = correct[:k].reshape(-1).float().sum(0, keepdim=True)
            res.append(correct_k.mul_(100.0 / batch_size))
        return res

output = torch.tensor([[0.1, 0.5, 0.4], [0.6, 0.3, 0.1]])
result = accuracy(output, torch.tensor([2, 0]), topk=(1, 2))

## generating tokens with temperature and top-k
def generate(logits_of, idx, n, temperature=1.0, top_k=None):
    for _ in range(n):
        logits = logits_of(idx)[:, -1, :] / temperature
        if top_k is not None:
            v, _ = torch.topk(logits, min(top_k, logits.size(-1)))
            logits[logits < v[:, [-1]]] = -float("Inf")
        probs = F.softmax(logits, dim=-1)
        idx_next = torch.multinomial(probs, num_samples=1)
        idx = torch.cat((idx, idx_next), dim=1)
    return idx

table = torch.eye(4).roll(1, dims=1) * 50
with torch.no_grad():
    out = generate(lambda i: table[i], torch.zeros((1, 1), dtype=torch.long), 5, top_k=1)
result = out[0].tolist()

## an lstm of the library
lstm = nn.LSTM(2, 3, batch_first=True)
out, (h, c) = lstm(torch.zeros(1, 4, 2))
result = [out.shape, h.shape]

## a transposed convolution
up = nn.ConvTranspose2d(2, 1, kernel_size=2, stride=2)
result = up(torch.zeros(1, 2, 3, 3)).shape
"""
)
