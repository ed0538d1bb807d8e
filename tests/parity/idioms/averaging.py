"""Training that combines parameters now and then, and figures of all ranks, as people write them; for several ranks."""

from tests.parity.idioms.idiom import read

IDIOMS = read(
    r"""
## local sgd by hand
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = fixed(nn.Linear(2, 1))
opt = optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    opt.zero_grad()
    model(torch.full((4, 2), 0.5 * (rank + step))).pow(2).mean().backward()
    opt.step()
    if (step + 1) % 3 == 0:
        with torch.no_grad():
            for p in model.parameters():
                dist.all_reduce(p, op=dist.ReduceOp.SUM)
                p /= world
result = list(model.parameters())

## diloco by hand
import copy
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = fixed(nn.Linear(2, 1))
outer = copy.deepcopy(model)
inner_opt = optim.AdamW(model.parameters(), lr=0.05)
outer_opt = optim.SGD(outer.parameters(), lr=0.7, momentum=0.9, nesterov=True)
for step in range(4):
    inner_opt.zero_grad()
    model(torch.full((4, 2), 0.5 * (rank + step))).pow(2).mean().backward()
    inner_opt.step()
    if (step + 1) % 2 == 0:
        for p, q in zip(model.parameters(), outer.parameters()):
            delta = (q - p).detach()
            dist.all_reduce(delta)
            q.grad = delta / world
        outer_opt.step()
        model.load_state_dict(outer.state_dict())
result = list(model.parameters())

## an average weighted by samples by hand
dist.init_process_group("gloo")
rank = dist.get_rank()
model = fixed(nn.Linear(2, 1))
n = torch.tensor(float(1 + 2 * rank))
total = n.clone()
dist.all_reduce(total)
with torch.no_grad():
    for p in model.parameters():
        p += rank
        p *= n / total
        dist.all_reduce(p)
result = list(model.parameters())

## an ema of the parameters beside ddp
dist.init_process_group("gloo")
model = DDP(fixed(nn.Linear(2, 1)))
ema = optim.swa_utils.AveragedModel(model.module, multi_avg_fn=optim.swa_utils.get_ema_multi_avg_fn(0.9))
opt = optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    opt.zero_grad()
    model(torch.full((2, 2), 1.0 + dist.get_rank())).pow(2).mean().backward()
    opt.step()
    ema.update_parameters(model.module)
result = list(ema.module.parameters())

## whether replicas are equal by hand
dist.init_process_group("gloo")
model = fixed(nn.Linear(2, 1))
flat = nn.utils.parameters_to_vector(model.parameters()).detach()
low, high = flat.clone(), flat.clone()
dist.all_reduce(low, op=dist.ReduceOp.MIN)
dist.all_reduce(high, op=dist.ReduceOp.MAX)
result = torch.equal(low, high)

## how far ranks drifted by hand
dist.init_process_group("gloo")
mine = torch.tensor([1.0, 2.0, 3.0]) * (1 + dist.get_rank())
mean = mine.clone()
dist.all_reduce(mean)
mean /= dist.get_world_size()
result = [((mine - mean).norm() / mean.norm()).item(), torch.cosine_similarity(mine, mean, dim=0).item()]

## a meter of the loss over an epoch
class AverageMeter:
    def __init__(self):
        self.reset()

    def reset(self):
        self.sum = 0
        self.count = 0
        self.avg = 0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count

    def all_reduce(self):
        total = torch.tensor([self.sum, self.count], dtype=torch.float32)
        dist.all_reduce(total, dist.ReduceOp.SUM, async_op=False)
        self.sum, self.count = total.tolist()
        self.avg = self.sum / self.count

dist.init_process_group("gloo")
losses = AverageMeter()
for n in ((4, 4, 2) if dist.get_rank() else (4, 3)):
    losses.update(torch.ones(n).mean().item() * n, n)
losses.all_reduce()
result = losses.avg

## predictions of all ranks at the root
dist.init_process_group("gloo")
box = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
dist.gather_object({"rank": dist.get_rank(), "right": 3}, box, dst=0)
result = sum(each["right"] for each in box) if dist.get_rank() == 0 else None

## a periodic model averager
import importlib
averagers = importlib.import_module(torch.__name__ + ".distributed.algorithms.model_averaging.averagers")
dist.init_process_group("gloo")
model = fixed(nn.Linear(2, 1))
model(torch.ones(1, 2)).sum().backward()
averager = averagers.PeriodicModelAverager(period=2, warmup_steps=0)
with torch.no_grad():
    model.weight += dist.get_rank()
averager.average_parameters(model.parameters())
result = model.weight

## a post-local sgd optimizer
import importlib
result = importlib.import_module(torch.__name__ + ".distributed.optim").PostLocalSGDOptimizer.__name__

## a post-local sgd hook
import importlib
hooks = importlib.import_module(torch.__name__ + ".distributed.algorithms.ddp_comm_hooks.post_localSGD_hook")
result = hooks.post_localSGD_hook.__name__

## the join of several things
import importlib
result = importlib.import_module(torch.__name__ + ".distributed.algorithms.join").Join.__name__

## a monitored barrier
dist.init_process_group("gloo")
dist.monitored_barrier()
result = "there"
"""
)
