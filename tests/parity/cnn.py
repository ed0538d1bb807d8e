"""One convolutional network, written once for `torch.nn` and for `minigrad.nn`."""

from collections import OrderedDict

SHAPE = (6, 1, 12, 12)
CLASSES = 10


def build(nn):
    """The network, of the layers of this package."""
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, 4, 3, padding=1, bias=False),
            norm1=nn.BatchNorm2d(4),
            act1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(4, 8, (3, 2), stride=(1, 2), padding=1, groups=2),
            norm2=nn.GroupNorm(2, 8),
            act2=nn.SiLU(),
            conv3=nn.Conv2d(8, 8, 3, padding="same", dilation=2),
            act3=nn.GELU(),
            pool3=nn.AvgPool2d(2),
            pool4=nn.AdaptiveAvgPool2d((2, None)),
            flatten=nn.Flatten(),
            fc1=nn.Linear(32, 16),
            norm3=nn.BatchNorm1d(16, momentum=None),
            drop=nn.Dropout(0.0),
            act4=nn.LeakyReLU(),
            norm4=nn.LayerNorm(16),
            fc2=nn.Linear(16, CLASSES),
        )
    )


def loss_of(nn):
    """The loss function that is trained."""
    return nn.CrossEntropyLoss(label_smoothing=0.1)
