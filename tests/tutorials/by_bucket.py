"""Micro-batches are accumulated apart from .grad; with the last one, flat buckets go to the other ranks."""

import minigrad as torch
import minigrad.distributed as dist
import minigrad.nn as nn
import minigrad.nn.functional as F
import minigrad.optim as optim


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(4, 8)
        self.norm = nn.LayerNorm(8)
        self.fc2 = nn.Linear(8, 3, bias=False)

    def forward(self, x):
        return self.fc2(F.gelu(self.norm(self.fc1(x))))


class BucketedDDP:
    """
    Args:
        what: "accumulated" sends the sum of all micro-batches, "last" sends what the last one adds.
    """

    def __init__(self, model, what, bucket_size=40):
        self.what = what
        self.last = False
        self.main_grads = {param: torch.zeros_like(param) for param in model.parameters()}
        self.buckets = [[]]
        for param in reversed(list(model.parameters())):
            if sum(p.numel() for p in self.buckets[-1]) >= bucket_size:
                self.buckets.append([])
            self.buckets[-1].append(param)
            param.register_post_accumulate_grad_hook(self.hook)
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, 0)

    def hook(self, param):
        if not (self.last and self.what == "last"):
            self.main_grads[param] += param.grad
            param.grad = None

    def reduce(self):
        for bucket in self.buckets:
            grads = [self.main_grads[p] if self.what == "accumulated" else p.grad for p in bucket]
            flat = torch.cat([grad.reshape(-1) for grad in grads])
            dist.all_reduce(flat, op=dist.ReduceOp.SUM)
            flat /= dist.get_world_size()
            for param, part in zip(bucket, flat.split([p.numel() for p in bucket])):
                part = part.view(param.shape)
                param.grad = part if self.what == "accumulated" else self.main_grads[param] + part
        for grad in self.main_grads.values():
            grad.zero_()


def train(model, batches, loss_fn=F.cross_entropy, lr=0.1, micro_batches=2, what="accumulated"):
    ddp = BucketedDDP(model, what)
    optimizer = optim.SGD(model.parameters(), lr=lr)
    for x, y in batches:
        for i, (x_i, y_i) in enumerate(zip(x.chunk(micro_batches), y.chunk(micro_batches))):
            ddp.last = i == micro_batches - 1
            loss = loss_fn(model(x_i), y_i) / micro_batches
            loss.backward()
        ddp.reduce()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()
