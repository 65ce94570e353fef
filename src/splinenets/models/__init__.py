"""Plain networks of the paper; ``sn.convert`` makes SplineNets of them."""

from .lenet import LeNet, lenet
from .resnet import ResNet, resnet

__all__ = ["LeNet", "ResNet", "lenet", "resnet"]
