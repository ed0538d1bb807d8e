"""Convolution along one axis and turned round, upsampling and norms, in audio, GANs, U-Nets and style transfer."""

from tests.parity.idioms.idiom import read

IDIOMS = read(
    r"""
## conv1d on sound
conv = fixed(nn.Conv1d(1, 4, kernel_size=5, stride=2, padding=2))
x = torch.arange(2 * 16.0).reshape(2, 1, 16).sin().requires_grad_()
y = F.max_pool1d(F.relu(conv(x)), 2)
y.sum().backward()
result = [y, x.grad, conv.weight.grad, conv.weight.shape]

## a network for keywords in sound
class M5(nn.Module):
    def __init__(self, n_input=1, n_output=3, stride=4, n_channel=4):
        super().__init__()
        self.conv1 = nn.Conv1d(n_input, n_channel, kernel_size=8, stride=stride)
        self.bn1 = nn.BatchNorm1d(n_channel)
        self.pool1 = nn.MaxPool1d(2)
        self.conv2 = nn.Conv1d(n_channel, 2 * n_channel, kernel_size=3)
        self.bn2 = nn.BatchNorm1d(2 * n_channel)
        self.pool2 = nn.MaxPool1d(2)
        self.fc1 = nn.Linear(2 * n_channel, n_output)

    def forward(self, x):
        x = self.pool1(F.relu(self.bn1(self.conv1(x))))
        x = self.pool2(F.relu(self.bn2(self.conv2(x))))
        x = F.avg_pool1d(x, x.shape[-1])
        x = x.permute(0, 2, 1)
        x = self.fc1(x)
        return F.log_softmax(x, dim=2)

model = fixed(M5())
x = torch.arange(2 * 64.0).reshape(2, 1, 64).sin()
out = model(x)
loss = F.nll_loss(out.squeeze(), torch.tensor([0, 2]))
loss.backward()
result = [out, loss, model.conv1.weight.grad]

## a causal convolution by padding
conv = fixed(nn.Conv1d(2, 2, 3, dilation=2))
x = torch.arange(12.0).reshape(1, 2, 6)
result = conv(F.pad(x, (4, 0)))

## convolution in groups and depthwise in one dimension
dw = fixed(nn.Conv1d(4, 4, 3, padding="same", groups=4, bias=False))
pw = fixed(nn.Conv1d(4, 2, 1))
x = torch.arange(2 * 4 * 5.0).reshape(2, 4, 5).cos()
result = [pw(dw(x)), F.conv1d(x, torch.ones(2, 2, 3), None, 1, 1, 1, 2)]

## a text classifier by convolutions
class TextCNN(nn.Module):
    def __init__(self, vocab=12, d=4, n=3, sizes=(2, 3), classes=2):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.convs = nn.ModuleList([nn.Conv1d(d, n, k) for k in sizes])
        self.fc = nn.Linear(n * len(sizes), classes)

    def forward(self, x):
        x = self.embed(x).permute(0, 2, 1)
        x = [F.max_pool1d(F.relu(c(x)), c(x).size(2)).squeeze(2) for c in self.convs]
        return self.fc(torch.cat(x, 1))

m = fixed(TextCNN())
ids = torch.arange(12).reshape(2, 6)
loss = F.cross_entropy(m(ids), torch.tensor([0, 1]))
loss.backward()
result = [m(ids), m.embed.weight.grad]

## adaptive pooling of one dimension
x = torch.arange(14.0).reshape(1, 2, 7)
result = [nn.AdaptiveAvgPool1d(1)(x), F.adaptive_avg_pool1d(x, 3), nn.AvgPool1d(2)(x), nn.MaxPool1d(3, 2)(x)]

## a transposed convolution with output padding
up = fixed(nn.ConvTranspose2d(3, 2, 3, stride=2, padding=1, output_padding=1))
x = torch.arange(2 * 3 * 9.0).reshape(2, 3, 3, 3).sin().requires_grad_()
y = up(x)
y.sum().backward()
result = [y, x.grad, up.weight.grad, up.bias.grad]

## a transposed convolution with a size
up = fixed(nn.ConvTranspose2d(1, 1, 3, stride=2, padding=1))
x = torch.arange(9.0).reshape(1, 1, 3, 3)
result = [up(x, output_size=(6, 6)), up(x).shape]

## transposed convolutions by functions
x = torch.arange(12.0).reshape(1, 2, 6).sin()
w = torch.arange(12.0).reshape(2, 2, 3)
y1 = F.conv_transpose1d(x, w, stride=2, padding=1)
y2 = F.conv_transpose2d(x.unsqueeze(2), w.unsqueeze(2), None, (1, 2), (0, 1), 0, 1, (1, 1))
result = [y1, y2, nn.ConvTranspose1d(2, 4, 3, groups=2).weight.shape]

## interpolate in several ways
x = torch.arange(16.0).reshape(1, 1, 4, 4)
result = [
    F.interpolate(x, scale_factor=2, mode="nearest"),
    F.interpolate(x, size=(6, 5), mode="bilinear", align_corners=False),
    F.interpolate(x, size=7, mode="bilinear", align_corners=True),
    F.interpolate(x, scale_factor=0.5),
    F.interpolate(x, (8, 8)),
]

## upsampling in a decoder
dec = fixed(nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(2, 1, 3, padding=1), nn.Upsample(scale_factor=2)))
x = torch.arange(8.0).reshape(1, 2, 2, 2).requires_grad_()
y = dec(x)
y.sum().backward()
result = [y, x.grad, nn.UpsamplingBilinear2d(scale_factor=2)(x)]

## interpolate of one dimension
x = torch.arange(4.0).reshape(1, 1, 4)
result = [F.interpolate(x, scale_factor=2, mode="linear"), F.interpolate(x, size=6)]

## a feature pyramid
lat = nn.ModuleList([fixed(nn.Conv2d(c, 2, 1)) for c in (2, 3)])
c2, c3 = torch.arange(2 * 36.0).reshape(1, 2, 6, 6), torch.arange(3 * 9.0).reshape(1, 3, 3, 3)
p3 = lat[1](c3)
p2 = lat[0](c2) + F.interpolate(p3, size=c2.shape[-2:], mode="nearest")
result = [p2, p3]

## a head of segmentation upsampled to its input
feat = fixed(nn.Conv2d(3, 2, 1))(torch.arange(3 * 4.0).reshape(1, 3, 2, 2))
logits = F.interpolate(feat, size=(5, 5), mode="bilinear", align_corners=False)
result = [logits.argmax(1), F.cross_entropy(logits, torch.ones(1, 5, 5, dtype=torch.long))]

## gram matrices of features
def gram_matrix(y):
    (b, ch, h, w) = y.size()
    features = y.view(b, ch, w * h)
    features_t = features.transpose(1, 2)
    return features.bmm(features_t) / (ch * h * w)

result = gram_matrix(torch.arange(16.0).reshape(2, 2, 2, 2))

## instance norm with and without statistics
x = torch.arange(2 * 3 * 4.0).reshape(2, 3, 2, 2).sin()
a = nn.InstanceNorm2d(3)
b = nn.InstanceNorm2d(3, affine=True, track_running_stats=True)
y = b(x)
result = [a(x), y, b.running_mean, b.eval()(x), list(a.state_dict()), list(b.state_dict()), F.instance_norm(x),
          nn.InstanceNorm1d(3)(x.flatten(2))]

## adaptive instance norm
def adain(content, style, eps=1e-5):
    mean_c, std_c = content.mean([2, 3], keepdim=True), content.std([2, 3], keepdim=True) + eps
    mean_s, std_s = style.mean([2, 3], keepdim=True), style.std([2, 3], keepdim=True) + eps
    return (content - mean_c) / std_c * std_s + mean_s

result = adain(torch.arange(8.0).reshape(1, 2, 2, 2).sin(), torch.arange(8.0).reshape(1, 2, 2, 2).cos())

## super resolution by pixel shuffle
class SuperResolutionNet(nn.Module):
    def __init__(self, upscale_factor, inplace=False):
        super().__init__()
        self.relu = nn.ReLU(inplace=inplace)
        self.conv1 = nn.Conv2d(1, 4, (5, 5), (1, 1), (2, 2))
        self.conv4 = nn.Conv2d(4, upscale_factor ** 2, (3, 3), (1, 1), (1, 1))
        self.pixel_shuffle = nn.PixelShuffle(upscale_factor)
        self._initialize_weights()

    def forward(self, x):
        return self.pixel_shuffle(self.conv4(self.relu(self.conv1(x))))

    def _initialize_weights(self):
        torch.nn.init.orthogonal_(self.conv1.weight, torch.nn.init.calculate_gain("relu"))
        torch.nn.init.orthogonal_(self.conv4.weight)

net = fixed(SuperResolutionNet(3))
y = net(torch.arange(16.0).reshape(1, 1, 4, 4).sin())
y.sum().backward()
result = [y, net.conv1.weight.grad, F.pixel_unshuffle(y, 3).shape]

## cutting patches by unfold
x = torch.arange(16.0).reshape(1, 1, 4, 4)
patches = x.unfold(2, 2, 2).unfold(3, 2, 2)
result = patches.contiguous().view(1, 1, -1, 2, 2)

## the two optimizers of a gan with linear layers
G = fixed(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3)))
D = fixed(nn.Sequential(nn.Linear(3, 4), nn.LeakyReLU(0.2), nn.Linear(4, 1)))
g_opt, d_opt = optim.Adam(G.parameters(), 1e-2), optim.Adam(D.parameters(), 1e-2)
bce = nn.BCEWithLogitsLoss()
real, z = torch.arange(12.0).reshape(4, 3).sin(), torch.arange(8.0).reshape(4, 2).cos()
for _ in range(3):
    d_loss = bce(D(real), torch.ones(4, 1)) + bce(D(G(z).detach()), torch.zeros(4, 1))
    d_opt.zero_grad()
    d_loss.backward()
    d_opt.step()
    g_loss = bce(D(G(z)), torch.ones(4, 1))
    g_opt.zero_grad()
    g_loss.backward()
    g_opt.step()
result = [d_loss, g_loss]

## mistake: a sequence with another number of channels
result = nn.Conv1d(2, 3, 3)(torch.zeros(1, 4, 8))

## mistake: an unknown way to interpolate
result = F.interpolate(torch.zeros(1, 1, 2, 2), scale_factor=2, mode="quadratic")

## mistake: interpolate without a size
result = F.interpolate(torch.zeros(1, 1, 2, 2))

## mistake: corners are aligned for nearest
result = F.interpolate(torch.zeros(1, 1, 2, 2), scale_factor=2, mode="nearest", align_corners=True)
"""
)
