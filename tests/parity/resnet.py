"""ResNet-18 with torchvision's names: He et al., "Deep residual learning for image recognition", 2016."""

import numpy as np

from tests.parity.streams import as_arrays, stream

SHAPE, CLASSES = (3, 3, 33, 33), 10
WHOLE = {"evaluated", "output"}


def make(nn):
    """The network, of the layers of this package."""

    def conv3x3(inputs, outputs, stride=1):
        return nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)

    class BasicBlock(nn.Module):
        def __init__(self, inputs, outputs, stride=1):
            super().__init__()
            self.conv1 = conv3x3(inputs, outputs, stride)
            self.bn1 = nn.BatchNorm2d(outputs)
            self.relu = nn.ReLU()
            self.conv2 = conv3x3(outputs, outputs)
            self.bn2 = nn.BatchNorm2d(outputs)
            self.downsample = None
            if stride != 1 or inputs != outputs:
                self.downsample = nn.Sequential(
                    nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
                )

        def forward(self, x):
            identity = x if self.downsample is None else self.downsample(x)
            out = self.relu(self.bn1(self.conv1(x)))
            out = self.bn2(self.conv2(out))
            out += identity
            return self.relu(out)

    class ResNet(nn.Module):
        def __init__(self, layers, num_classes):
            super().__init__()
            self.inputs = 64
            self.conv1 = nn.Conv2d(3, 64, kernel_size=7, stride=2, padding=3, bias=False)
            self.bn1 = nn.BatchNorm2d(64)
            self.relu = nn.ReLU()
            self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
            self.layer1 = self._make_layer(64, layers[0])
            self.layer2 = self._make_layer(128, layers[1], stride=2)
            self.layer3 = self._make_layer(256, layers[2], stride=2)
            self.layer4 = self._make_layer(512, layers[3], stride=2)
            self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
            self.fc = nn.Linear(512, num_classes)

        def _make_layer(self, outputs, blocks, stride=1):
            made = [BasicBlock(self.inputs, outputs, stride)]
            self.inputs = outputs
            made += [BasicBlock(outputs, outputs) for _ in range(1, blocks)]
            return nn.Sequential(*made)

        def forward(self, x):
            x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
            x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
            return self.fc(self.avgpool(x).flatten(1))

    return ResNet([2, 2, 2, 2], CLASSES)


def state_value(name, shape):
    """What a tensor of the state_dict holds."""
    rng = stream(name)
    if name.endswith("num_batches_tracked"):
        return np.array(rng.integers(1, 9))
    drawn = rng.standard_normal(shape, np.float32)
    if len(shape) > 1:
        return drawn * np.float32(np.sqrt(2.0 / np.prod(shape[1:])))
    return np.exp(0.1 * drawn) if name.endswith(("weight", "running_var")) else 0.1 * drawn


def batch():
    """Images and labels."""
    return stream("images").standard_normal(SHAPE, np.float32), stream("labels").integers(0, CLASSES, SHAPE[0])


def run(package, model, as_tensor):
    """What a model computes: evaluated, output, loss, gradients of input and parameters, and buffers afterwards.

    Args:
        package: torch or minigrad.
        as_tensor: An array as a tensor of the model's dtype, or of integers.
    """
    images, labels = (as_tensor(array) for array in batch())
    with package.no_grad():
        evaluated = model.eval()(images)
    model.train()
    images.requires_grad_()
    output = model(images)
    loss = package.nn.CrossEntropyLoss()(output, labels)
    loss.backward()
    found = {"evaluated": evaluated, "output": output.detach(), "loss": loss.detach(), "gradient/input": images.grad}
    return as_arrays(found, model)
