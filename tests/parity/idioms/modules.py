"""Modules: written, walked through, changed, frozen, hooked, saved in a dict of state."""

from tests.parity.idioms.idiom import read

IDIOMS = read(
    r"""
## a module of one's own
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(4, 8)
        self.fc2 = nn.Linear(8, 2)

    def forward(self, x):
        x = F.relu(self.fc1(x))
        return self.fc2(x)

result = fixed(Net())(torch.ones(2, 4))

## super with arguments
class Net(nn.Module):
    def __init__(self, hidden):
        super(Net, self).__init__()
        self.layers = nn.Sequential(nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def forward(self, x):
        return self.layers(x)

result = fixed(Net(3))(torch.ones(2, 2))

## printing a model
model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
print(model)
result = str(model)

## counting parameters
model = nn.Sequential(nn.Linear(10, 5), nn.ReLU(), nn.Linear(5, 1))
total = sum(p.numel() for p in model.parameters())
trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
result = [total, trainable]

## named parameters
model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
result = [(name, param.shape) for name, param in model.named_parameters()]

## freezing all parameters
model = nn.Linear(2, 2)
for param in model.parameters():
    param.requires_grad = False
result = [p.requires_grad for p in model.parameters()]

## a new head on a frozen body
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 10))
for p in model.parameters():
    p.requires_grad = False
model[2] = nn.Linear(4, 2)
result = [name for name, p in model.named_parameters() if p.requires_grad]

## requires_grad_ of a module
model = nn.Linear(2, 2).requires_grad_(False)
result = [p.requires_grad for p in model.parameters()]

## replacing an attribute of a model
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 3)
        self.fc = nn.Linear(3, 10)

    def forward(self, x):
        return self.fc(self.body(x))

net = Net()
net.fc = nn.Linear(net.fc.in_features, 2)
result = net(torch.zeros(1, 3)).shape

## a parameter of one's own
class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3) * 2)

    def forward(self, x):
        return x * self.weight

m = Scale()
result = [m(torch.arange(3.0)), [n for n, _ in m.named_parameters()], m.weight.requires_grad]

## a parameter of a draw
class Linear(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(o, i))
        self.bias = nn.Parameter(torch.zeros(o), requires_grad=False)

    def forward(self, x):
        return x @ self.weight.t() + self.bias

result = Linear(3, 2)(torch.ones(5, 3)).shape

## register_buffer
class Mask(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.register_buffer("tril", torch.tril(torch.ones(size, size)))

    def forward(self, x):
        return x.masked_fill(self.tril == 0, float("-inf"))

m = Mask(2)
result = [m(torch.zeros(2, 2)), list(m.state_dict()), [n for n, _ in m.named_buffers()], len(list(m.parameters()))]

## a buffer that is not saved
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(2), persistent=False)

result = [list(M().state_dict()), len(list(M().buffers()))]

## register_parameter
class M(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.register_parameter("w", nn.Parameter(torch.ones(2)))
        self.register_parameter("b", None)

m = M(False)
result = [[n for n, _ in m.named_parameters()], m.b is None]

## a list of modules
class Net(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3) for _ in range(depth)])
        self.layers.append(nn.Linear(3, 1))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x

net = fixed(Net(2))
result = [net(torch.ones(1, 3)), len(net.layers), [n for n, _ in net.named_parameters()]]

## a dict of modules
heads = nn.ModuleDict({"a": nn.Linear(2, 1), "b": nn.Linear(2, 3)})
heads["c"] = nn.Identity()
result = [list(heads.keys()), heads["b"](torch.ones(1, 2)).shape, "a" in heads]

## a list of parameters
params = nn.ParameterList([nn.Parameter(torch.ones(i + 1)) for i in range(2)])
result = [len(params), [p.shape for p in params], len(list(params.parameters()))]

## a sequential of names
from collections import OrderedDict
model = nn.Sequential(OrderedDict([("fc1", nn.Linear(2, 3)), ("act", nn.ReLU()), ("fc2", nn.Linear(3, 1))]))
result = [model.fc1.weight.shape, [n for n, _ in model.named_children()]]

## a sequential of a list
layers = []
sizes = [4, 8, 8, 2]
for i in range(len(sizes) - 1):
    layers.append(nn.Linear(sizes[i], sizes[i + 1]))
    if i < len(sizes) - 2:
        layers.append(nn.ReLU())
model = fixed(nn.Sequential(*layers))
result = [model(torch.ones(1, 4)), len(model)]

## slicing a sequential
model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
body = model[:-1]
result = [len(body), body(torch.zeros(1, 2)).shape, model[0].out_features]

## add_module
model = nn.Sequential()
model.add_module("fc", nn.Linear(2, 2))
model.append(nn.ReLU())
result = [n for n, _ in model.named_children()]

## children and modules
model = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.ReLU(), nn.Linear(3, 1)))
result = [len(list(model.children())), len(list(model.modules())), [n for n, _ in model.named_modules()]]

## only the layers of one kind
model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 4, 3))
result = [m.out_channels for m in model.modules() if isinstance(m, nn.Conv2d)]

## apply an init
def init_weights(m):
    if isinstance(m, nn.Linear):
        torch.nn.init.xavier_uniform_(m.weight)
        m.bias.data.fill_(0.01)

model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
model.apply(init_weights)
result = [model[0].bias, model[2].bias]

## apply by type and class name
def weights_init(m):
    classname = m.__class__.__name__
    if classname.find("BatchNorm") != -1:
        nn.init.normal_(m.weight.data, 1.0, 0.0)
        nn.init.constant_(m.bias.data, 0.5)

model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
model.apply(weights_init)
result = [model[1].weight, model[1].bias]

## init in the loop of modules
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.fc = nn.Linear(2, 2)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight)
                if m.bias is not None:
                    nn.init.zeros_(m.bias)
            elif isinstance(m, nn.Linear):
                nn.init.constant_(m.weight, 0.5)

net = Net()
result = [net.conv.bias, net.fc.weight]

## train and eval
model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.9))
model.eval()
a = [model.training, model[1].training]
model.train()
result = [a, model.training, torch.equal(model.eval()(torch.ones(1, 2)), model(torch.ones(1, 2)))]

## batch norm stays frozen
model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2))
model.train()
for m in model.modules():
    if isinstance(m, nn.BatchNorm2d):
        m.eval()
result = [m.training for m in model]

## keys of the state
model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
result = [(k, tuple(v.shape)) for k, v in model.state_dict().items()]

## loading a state into another model
a, b = fixed(nn.Linear(2, 2)), nn.Linear(2, 2)
b.load_state_dict(a.state_dict())
result = b(torch.ones(1, 2))

## what load_state_dict answers
m = nn.Linear(2, 2)
result = str(m.load_state_dict(m.state_dict()))

## loading what fits
model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3))
state = fixed(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))).state_dict()
state = {k: v for k, v in state.items() if k.startswith("0.")}
missing, unexpected = model.load_state_dict(state, strict=False)
result = [sorted(missing), unexpected, model[0].weight]

## removing module. from names
state = {"module." + k: v for k, v in fixed(nn.Linear(2, 2)).state_dict().items()}
model = nn.Linear(2, 2)
model.load_state_dict({k.replace("module.", ""): v for k, v in state.items()})
result = model.weight

## copying weights under no_grad
a, b = fixed(nn.Linear(2, 2)), nn.Linear(2, 2)
with torch.no_grad():
    b.weight.copy_(a.weight)
    b.bias.fill_(0.5)
result = [b.weight, b.bias]

## a target network by soft updates
net, target = fixed(nn.Linear(2, 2)), nn.Linear(2, 2)
with torch.no_grad():
    for p in target.parameters():
        p.fill_(1.0)
tau = 0.1
for t, p in zip(target.parameters(), net.parameters()):
    t.data.copy_(tau * p.data + (1 - tau) * t.data)
result = list(target.parameters())

## a deep copy of a model
import copy
model = fixed(nn.Linear(2, 2))
best = copy.deepcopy(model)
with torch.no_grad():
    model.weight.zero_()
result = [best.weight, model.weight]

## best weights by deepcopy of the state
import copy
model = fixed(nn.Linear(2, 2))
best = copy.deepcopy(model.state_dict())
with torch.no_grad():
    model.weight.zero_()
model.load_state_dict(best)
result = model.weight

## a forward hook
activations = {}
def hook(name):
    def fn(module, input, output):
        activations[name] = output.detach()
    return fn

model = fixed(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)))
handle = model[1].register_forward_hook(hook("relu"))
model(torch.ones(1, 2))
handle.remove()
activations2 = dict(activations)
model(torch.zeros(1, 2))
result = activations2

## a forward pre-hook
seen = []
m = nn.Linear(2, 2)
m.register_forward_pre_hook(lambda module, args: seen.append(args[0].shape))
m(torch.zeros(3, 2))
result = seen

## to a device and back to floats
model = nn.Linear(2, 2).to("cpu").double()
a = model.weight.dtype
model = model.float()
result = [a, model.weight.dtype, model.to(torch.float64)(torch.ones(1, 2, dtype=torch.float64)).dtype]

## zero_grad of a model
model = nn.Linear(2, 1)
model(torch.ones(1, 2)).sum().backward()
model.zero_grad()
result = [p.grad is None for p in model.parameters()]

## weight tying
class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, i):
        return self.head(self.emb(i))

m = fixed(LM())
result = [m(torch.tensor([1])), len(list(m.parameters()))]

## getattr by name
model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
result = [getattr(model, "0").out_features, model.get_parameter("0.weight").shape, model.get_submodule("1") is model[1]]

## extra lines of a module's repr
class M(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.n = n

    def extra_repr(self):
        return f"n={self.n}"

result = str(M(3))

## deleting a layer
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(2, 2)
        self.b = nn.Linear(2, 2)

net = Net()
del net.b
net.a = nn.Identity()
result = [n for n, _ in net.named_children()]

## weight norm of parameters
model = fixed(nn.Linear(2, 2))
l2 = sum(p.pow(2).sum() for p in model.parameters())
l1 = sum(p.abs().sum() for p in model.parameters())
result = [l2, l1]

## parameters as one vector
model = fixed(nn.Linear(2, 2))
vec = nn.utils.parameters_to_vector(model.parameters())
result = [vec, torch.cat([p.view(-1) for p in model.parameters()])]

## half of a model
m = nn.Linear(2, 2).half()
result = [p.dtype for p in m.parameters()]

## mistake: a model before super
class Net(nn.Module):
    def __init__(self):
        self.fc = nn.Linear(2, 2)

result = Net()

## mistake: a state with missing keys
model = nn.Linear(2, 2)
result = model.load_state_dict({"weight": torch.zeros(2, 2)})

## mistake: a state of other shapes
result = nn.Linear(2, 2).load_state_dict(nn.Linear(3, 2).state_dict())

## mistake: a module without forward
class Net(nn.Module):
    pass

result = Net()(torch.ones(1))
"""
)
