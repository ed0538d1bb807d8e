"""What PyTorch computes with the network of `cnn.py`."""

import torch

from tests.parity.cnn import CLASSES, SHAPE, build, loss_of


def make_model(seed):
    """A network in training that has seen a batch, so that its running statistics are not the first ones."""
    torch.manual_seed(seed)
    model = build(torch.nn)
    with torch.no_grad():
        for param in model.parameters():
            param.add_(0.1 * torch.randn_like(param))
        model(torch.randn(SHAPE))
    return model


def run(model, seed):
    """Input, target, output in training, loss, gradients and buffers after it, and output in evaluation."""
    torch.manual_seed(seed)
    dtype = next(model.parameters()).dtype
    x = torch.randn(SHAPE, dtype=dtype)
    target = torch.randint(CLASSES, SHAPE[:1])
    model.zero_grad()
    output = model(x)
    loss = loss_of(torch.nn)(output, target)
    loss.backward()
    values = {"input": x, "target": target, "output": output, "loss": loss}
    values |= {f"gradient/{name}": param.grad for name, param in model.named_parameters()}
    values |= {f"buffer/{name}": buffer.clone() for name, buffer in model.named_buffers()}
    with torch.no_grad():
        values["evaluated"] = model.eval()(x)
    model.train()
    return {name: value.detach().contiguous() for name, value in values.items()}
