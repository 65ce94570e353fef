"""Networks and real images to export."""

from functools import lru_cache

import torch
import torch.nn.functional as F

import splinenets as sn

RESNET_SPECS = ["D(5)-C-R4", "D(5)-C-R3", "H(5)-C-R3", "D(5)-D-R4", "H(5)-D-R4", "D(5)-D-R3", "H(5)-D-R3"]
LENET_SPECS = [f"{kind}({knots})-D-R3" for kind in "DH" for knots in (2, 3, 4, 5)]


@lru_cache(maxsize=2)
def images(channels=1, count=1000):
    """Real test images: grey of 28 x 28 pixels, or made as large as colour images are and shown in three channels."""
    grey = (sn.data.load("embedded").test.images[:count].float() - 73) / 90
    return grey if channels == 1 else F.interpolate(grey, (32, 32), mode="bilinear").repeat(1, 3, 1, 1)


def network(name, spec=None, count=64):
    """A network whose batch norms know the images, and whose knots lie apart."""
    torch.manual_seed(0)
    some = images(3 if name.startswith("resnet") else 1)[:count]
    net = sn.models.build(name, in_channels=some.shape[1], image_size=some.shape[2])
    with torch.no_grad():
        for _ in range(20):
            net(some)
    if spec is not None:
        net = sn.convert(net, spec, example=some, spread=0.02)
    return net.eval(), some
