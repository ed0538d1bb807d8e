"""Scripts for several ranks, as torchrun starts them; `result` is a list, of each rank's."""

from tests.parity.idioms.idiom import read

IDIOMS = read(
    r"""
## rank and world size
dist.init_process_group(backend="gloo")
result = (dist.get_rank(), dist.get_world_size())
dist.destroy_process_group()

## whether it is initialised
dist.init_process_group("gloo")
result = [dist.is_available(), dist.is_initialized()]

## rank and world size from the environment
import os
dist.init_process_group(backend="gloo", init_method="env://")
rank = dist.get_rank()
local_rank = int(os.environ.get("LOCAL_RANK", 0))
result = rank < dist.get_world_size()

## the sum over ranks
dist.init_process_group("gloo")
t = torch.tensor([1.0 + dist.get_rank()])
dist.all_reduce(t, op=dist.ReduceOp.SUM)
result = t

## the mean of a metric
dist.init_process_group("gloo")
loss = torch.tensor(float(dist.get_rank()))
dist.all_reduce(loss)
loss /= dist.get_world_size()
result = loss.item()

## max and min over ranks
dist.init_process_group("gloo")
a, b = torch.tensor([float(dist.get_rank())]), torch.tensor([float(dist.get_rank())])
dist.all_reduce(a, op=dist.ReduceOp.MAX)
dist.all_reduce(b, op=dist.ReduceOp.MIN)
result = [a, b]

## an asynchronous all_reduce
dist.init_process_group("gloo")
t = torch.ones(3) * dist.get_rank()
work = dist.all_reduce(t, async_op=True)
work.wait()
result = t

## broadcast
dist.init_process_group("gloo")
t = torch.arange(3.0) if dist.get_rank() == 0 else torch.zeros(3)
dist.broadcast(t, src=0)
result = t

## all_gather
dist.init_process_group("gloo")
t = torch.tensor([dist.get_rank() * 1.0])
out = [torch.zeros(1) for _ in range(dist.get_world_size())]
dist.all_gather(out, t)
result = torch.cat(out)

## all_gather_object
dist.init_process_group("gloo")
out = [None] * dist.get_world_size()
dist.all_gather_object(out, {"rank": dist.get_rank()})
result = out

## broadcast of objects
dist.init_process_group("gloo")
things = ["run", 3] if dist.get_rank() == 0 else [None, None]
dist.broadcast_object_list(things, src=0)
result = things

## reduce to a root
dist.init_process_group("gloo")
t = torch.ones(2)
dist.reduce(t, dst=0)
result = t if dist.get_rank() == 0 else None

## gather to a root
dist.init_process_group("gloo")
t = torch.tensor([float(dist.get_rank())])
out = [torch.zeros(1) for _ in range(dist.get_world_size())] if dist.get_rank() == 0 else None
dist.gather(t, gather_list=out, dst=0)
result = out

## scatter from a root
dist.init_process_group("gloo")
out = torch.zeros(2)
parts = [torch.full((2,), float(r)) for r in range(dist.get_world_size())] if dist.get_rank() == 0 else None
dist.scatter(out, scatter_list=parts, src=0)
result = out

## gather and scatter of objects
dist.init_process_group("gloo")
out = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
dist.gather_object({"rank": dist.get_rank()}, out, dst=0)
mine = [None]
dist.scatter_object_list(mine, ["a", "b"] if dist.get_rank() == 0 else [None, None], src=0)
result = out, mine

## all_to_all of equal parts
dist.init_process_group("gloo")
x = torch.arange(2.0 * dist.get_world_size()) + 10 * dist.get_rank()
out = torch.empty_like(x)
dist.all_to_all_single(out, x)
result = out

## all_to_all of uneven parts
dist.init_process_group("gloo")
rank = dist.get_rank()
x = torch.arange(3.0).unsqueeze(1) + 10 * rank
out = torch.empty(2 * (rank + 1), 1)
dist.all_to_all_single(out, x, output_split_sizes=[rank + 1] * 2, input_split_sizes=[1, 2])
result = out

## barrier
dist.init_process_group("gloo")
dist.barrier()
result = "there"

## send and recv
dist.init_process_group("gloo")
t = torch.zeros(1)
if dist.get_rank() == 0:
    t += 1
    dist.send(tensor=t, dst=1)
else:
    dist.recv(tensor=t, src=0)
result = t

## only rank 0 prints
dist.init_process_group("gloo")
def is_main_process():
    return not dist.is_initialized() or dist.get_rank() == 0
if is_main_process():
    print("epoch 1")
result = is_main_process()

## the gradients of ddp
dist.init_process_group("gloo")
rank = dist.get_rank()
model = fixed(nn.Linear(2, 1))
ddp = DDP(model)
x = torch.full((2, 2), 1.0 + rank)
ddp(x).pow(2).mean().backward()
result = [p.grad for p in model.parameters()]

## a training step of ddp
dist.init_process_group("gloo")
rank = dist.get_rank()
model = DDP(fixed(nn.Linear(2, 1)), device_ids=None)
opt = optim.SGD(model.parameters(), lr=0.1)
loss_fn = nn.MSELoss()
for step in range(3):
    opt.zero_grad()
    outputs = model(torch.full((4, 2), 0.5 * (rank + step)))
    loss_fn(outputs, torch.zeros(4, 1)).backward()
    opt.step()
result = list(model.module.parameters())

## ddp with the options of old scripts
dist.init_process_group("gloo")
model = DDP(
    fixed(nn.Linear(2, 1)),
    find_unused_parameters=True,
    broadcast_buffers=False,
    bucket_cap_mb=25,
    gradient_as_bucket_view=True,
)
model(torch.ones(2, 2)).mean().backward()
result = model.module.weight.grad

## device ids where there may be a gpu
import os
dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
local_rank = int(os.environ.get("LOCAL_RANK", 0))
device = torch.device(f"cuda:{local_rank}" if torch.cuda.is_available() else "cpu")
model = fixed(nn.Linear(2, 1)).to(device)
model = DDP(model, device_ids=[local_rank] if torch.cuda.is_available() else None)
model(torch.ones(2, 2, device=device)).mean().backward()
result = model.module.weight.grad

## the parameters are those of rank 0
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = DDP(nn.Linear(2, 1))
w = model.module.weight.detach().clone()
other = w.clone()
dist.broadcast(other, src=0)
result = torch.equal(w, other)

## the sampler of a rank
dist.init_process_group("gloo")
ds = data.TensorDataset(torch.arange(8.0))
sampler = data.DistributedSampler(ds, shuffle=False)
loader = data.DataLoader(ds, batch_size=2, sampler=sampler)
result = [b[0] for b in loader]

## set_epoch
dist.init_process_group("gloo")
ds = data.TensorDataset(torch.arange(8))
sampler = data.DistributedSampler(ds, num_replicas=dist.get_world_size(), rank=dist.get_rank(), shuffle=True)
loader = data.DataLoader(ds, batch_size=4, sampler=sampler)
seen = []
for epoch in range(2):
    sampler.set_epoch(epoch)
    for (x,) in loader:
        out = [torch.zeros_like(x) for _ in range(2)]
        dist.all_gather(out, x)
        seen.append(torch.cat(out).sum())
result = seen

## no_sync for accumulation
dist.init_process_group("gloo")
rank = dist.get_rank()
model = DDP(fixed(nn.Linear(2, 1)))
x = torch.ones(2, 2) * (rank + 1)
with model.no_sync():
    model(x).mean().backward()
model(x).mean().backward()
result = model.module.weight.grad

## the state of ddp.module
dist.init_process_group("gloo")
ddp = DDP(fixed(nn.Linear(2, 1)))
plain = nn.Linear(2, 1)
plain.load_state_dict(ddp.module.state_dict())
result = plain.weight

## the state of ddp without the word module
dist.init_process_group("gloo")
ddp = DDP(fixed(nn.Linear(2, 1)))
plain = nn.Linear(2, 1)
plain.load_state_dict({k.replace("module.", ""): v for k, v in ddp.state_dict().items()})
result = plain.weight

## rank 0 saves and all load
dist.init_process_group("gloo")
model = DDP(fixed(nn.Linear(2, 1)))
state = model.module.state_dict() if dist.get_rank() == 0 else None
box = [state is not None]
dist.barrier()
result = [box, sorted(model.module.state_dict())]

## batch norm over all ranks
dist.init_process_group("gloo")
model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
result = [type(m).__name__ for m in model]

## gradients averaged by hand
dist.init_process_group("gloo")
def average_gradients(model):
    size = float(dist.get_world_size())
    for param in model.parameters():
        dist.all_reduce(param.grad.data, op=dist.ReduceOp.SUM)
        param.grad.data /= size
model = fixed(nn.Linear(2, 1))
model(torch.ones(1, 2) * (1 + dist.get_rank())).sum().backward()
average_gradients(model)
result = model.weight.grad

## gradients averaged by hand without data
dist.init_process_group("gloo")
model = fixed(nn.Linear(2, 1))
model(torch.ones(1, 2) * (1 + dist.get_rank())).sum().backward()
for p in model.parameters():
    dist.all_reduce(p.grad)
    p.grad /= dist.get_world_size()
result = model.weight.grad

## parameters broadcast by hand
dist.init_process_group("gloo")
model = nn.Linear(2, 1)
with torch.no_grad():
    model.weight.fill_(dist.get_rank() + 1.0)
    for p in model.parameters():
        dist.broadcast(p, 0)
result = model.weight

## accuracy over all ranks
dist.init_process_group("gloo")
correct = torch.tensor(3 + dist.get_rank())
total = torch.tensor(5)
dist.all_reduce(correct, op=dist.ReduceOp.SUM)
dist.all_reduce(total, op=dist.ReduceOp.SUM)
result = correct.item() / total.item()

## features gathered for a contrastive loss
dist.init_process_group("gloo")
z = torch.tensor([[1.0, float(dist.get_rank())]])
out = [torch.zeros_like(z) for _ in range(dist.get_world_size())]
dist.all_gather(out, z)
every = torch.cat(out)
result = z @ every.t()

## a group of one's own
dist.init_process_group("gloo")
group = dist.new_group([0, 1])
t = torch.ones(1)
dist.all_reduce(t, group=group)
result = t

## isend and irecv around a ring
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
mine, other = torch.full((2,), float(rank)), torch.zeros(2)
req = dist.isend(tensor=mine, dst=(rank + 1) % size)
dist.irecv(tensor=other, src=(rank - 1) % size).wait()
req.wait()
result = other

## a batch of messages
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
mine, other = torch.arange(2.0) + 2.0 * rank, torch.zeros(2)
ops = [
    dist.P2POp(dist.isend, mine, (rank + 1) % size),
    dist.P2POp(dist.irecv, other, (rank - 1 + size) % size),
]
for req in dist.batch_isend_irecv(ops):
    req.wait()
result = other

## the ring all-reduce of the tutorial
dist.init_process_group("gloo")
def allreduce(send, recv):
    rank = dist.get_rank()
    size = dist.get_world_size()
    send_buff = send.clone()
    recv_buff = send.clone()
    accum = send.clone()

    left = ((rank - 1) + size) % size
    right = (rank + 1) % size

    for i in range(size - 1):
        if i % 2 == 0:
            send_req = dist.isend(send_buff, right)
            dist.recv(recv_buff, left)
            accum[:] += recv_buff[:]
        else:
            send_req = dist.isend(recv_buff, right)
            dist.recv(send_buff, left)
            accum[:] += send_buff[:]
        send_req.wait()
    recv[:] = accum[:]

t, total = torch.ones(2) * (1 + dist.get_rank()), torch.zeros(2)
allreduce(t, total)
result = total

## messages told apart by their tags
dist.init_process_group("gloo")
a, b = torch.ones(1), torch.ones(1) * 2
if dist.get_rank() == 0:
    first, second = dist.isend(a, 1, tag=7), dist.isend(b, 1, tag=8)
    first.wait(), second.wait()
else:
    second, first = dist.irecv(b.zero_(), src=0, tag=8), dist.irecv(a.zero_(), src=0, tag=7)
    second.wait(), first.wait()
result = [a, b]

## a group of one rank
dist.init_process_group("gloo")
group = dist.new_group([1])
t = torch.ones(1)
if dist.get_rank() == 1:
    dist.all_reduce(t, group=group)
result = [t, dist.get_rank(group)]

## ranks of a group
dist.init_process_group("gloo")
group = dist.new_group(ranks=[0, 1])
result = [dist.get_process_group_ranks(group), dist.get_group_rank(group, 1), dist.get_global_rank(group, 0)]

## a clipped step of ddp
dist.init_process_group("gloo")
model = DDP(fixed(nn.Linear(2, 1)))
opt = optim.AdamW(model.parameters(), lr=0.1)
(model(torch.ones(2, 2) * (1 + dist.get_rank())) * 10).mean().backward()
norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
opt.step()
result = [norm, model.module.weight]

## the main of a script
def setup():
    dist.init_process_group("gloo")
    return dist.get_rank(), dist.get_world_size()

def cleanup():
    dist.destroy_process_group()

class ToyModel(nn.Module):
    def __init__(self):
        super(ToyModel, self).__init__()
        self.net1 = nn.Linear(10, 10)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(10, 5)

    def forward(self, x):
        return self.net2(self.relu(self.net1(x)))

def main():
    rank, world_size = setup()
    model = fixed(ToyModel())
    ddp_model = DDP(model)
    loss_fn = nn.MSELoss()
    optimizer = optim.SGD(ddp_model.parameters(), lr=0.001)
    optimizer.zero_grad()
    outputs = ddp_model(torch.ones(20, 10) * (rank + 1))
    labels = torch.zeros(20, 5)
    loss_fn(outputs, labels).backward()
    optimizer.step()
    return model.net2.bias

result = main()
cleanup()

## mistake: an unknown backend
dist.init_process_group("carrier pigeon")
result = None
"""
)
