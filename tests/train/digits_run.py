"""The digits, trained by one line wherever ranks live. As a script it is a rank of the launcher or of mpirun."""

import sys

from minigrad import Tensor, nn, no_grad, optim
from minigrad.data import digits
from minigrad.train import Trainer

LOSS = nn.CrossEntropyLoss()


def make_model(device):
    layers = nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)
    return nn.Sequential(*layers).to(device)


def make_optimizer(params):
    return optim.SGD(params, lr=0.4, momentum=0.9)


def train_fn(model, batch):
    images, labels = batch
    return LOSS(model(images), labels)


def train(**place):
    """The accuracy on the test set, and the loss of each epoch."""
    run = Trainer.start(
        make_model, make_optimizer, train_fn, digits("train"), batch_size=60, epochs=12, seed=0, **place
    )
    losses = [metrics.loss for metrics in run.metrics()]
    trained, model = run.join(), make_model("cpu")
    model.load_state_dict({**trained.params, **trained.buffers})
    images, labels = map(Tensor, digits("test").arrays)
    with no_grad():
        right = (model(images).argmax(dim=1) == labels).to("float64")
    return float(right.mean().item()), losses


if __name__ == "__main__":
    accuracy, losses = train()
    sys.stdout.write(f"{accuracy:.6f} {losses[-1]:.17g}\n")
