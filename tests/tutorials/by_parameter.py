"""After backward, each gradient in turn is added up over the ranks, and divided by their number."""

import minigrad as torch
import minigrad.distributed as dist
import minigrad.nn as nn
import minigrad.nn.functional as F
import minigrad.optim as optim


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(4, 8)
        self.fc2 = nn.Linear(8, 3)

    def forward(self, x):
        x = F.relu(self.fc1(x))
        return F.log_softmax(self.fc2(x), dim=1)


def average_gradients(model):
    size = float(dist.get_world_size())
    for param in model.parameters():
        dist.all_reduce(param.grad.data, op=dist.ReduceOp.SUM)
        param.grad.data /= size


def train(model, batches, loss_fn=F.nll_loss, optimizer_class=optim.SGD, lr=0.1):
    optimizer = optimizer_class(model.parameters(), lr=lr)
    total = torch.zeros(1)
    for data, target in batches:
        optimizer.zero_grad()
        output = model(data)
        loss = loss_fn(output, target)
        loss.backward()
        average_gradients(model)
        optimizer.step()
        total += loss.detach()
    dist.all_reduce(total)
    return total.item() / len(batches) / dist.get_world_size()
