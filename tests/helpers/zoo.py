"""Small random classifiers of the transformers package: networks that nobody here wrote."""

from __future__ import annotations

import torch
import transformers as t
from torch import nn

SIZE = 32  # images are 3 x SIZE x SIZE unless a network needs more

# class -> configuration, small enough to run in a moment
CONFIGS: dict[str, dict[str, object]] = {
    "ResNet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
    "RegNet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "groups_width": 4},
    "ConvNext": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "patch_size": 2},
    "ConvNextV2": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "patch_size": 2},
    "MobileNetV1": {"depth_multiplier": 0.25, "min_depth": 8, "image_size": SIZE},
    "MobileNetV2": {"depth_multiplier": 0.25, "image_size": SIZE},
    "EfficientNet": {"width_coefficient": 0.25, "depth_coefficient": 0.2, "image_size": SIZE, "hidden_dim": 320, "depth_divisor": 8},
    "Bit": {"embedding_size": 32, "hidden_sizes": [32, 32], "depths": [1, 1], "num_groups": 8},
    "Levit": {"hidden_sizes": [16, 16, 16], "num_attention_heads": [2, 2, 2], "depths": [1, 1, 1], "key_dim": [8, 8, 8], "image_size": 64},
    "PoolFormer": {"hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1]},
    "SwiftFormer": {"image_size": 64, "depths": [1, 1, 1, 1], "embed_dims": [8, 8, 8, 8]},
    "MobileViT": {"image_size": 64, "hidden_sizes": [16, 16, 16], "neck_hidden_sizes": [8, 8, 8, 8, 8, 8, 8]},
    "MobileViTV2": {"image_size": 64, "width_multiplier": 0.25},
    "Cvt": {"embed_dim": [8, 16, 16], "num_heads": [1, 2, 2], "depth": [1, 2, 3]},
    "Pvt": {"image_size": SIZE, "hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 1, 1]},
    "PvtV2": {"image_size": SIZE, "hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 1, 1]},
    "Segformer": {"hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 1, 1], "decoder_hidden_size": 8},
    "FocalNet": {"image_size": SIZE, "embed_dim": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "focal_levels": [1, 1], "focal_windows": [3, 3], "patch_size": 2},
    "HGNetV2": {"embedding_size": 8, "hidden_sizes": [16, 16, 16, 16], "stem_channels": [3, 8, 8], "stage_in_channels": [8, 16, 16, 16], "stage_mid_channels": [8, 8, 8, 8], "stage_out_channels": [16, 16, 16, 16], "stage_num_blocks": [1, 1, 1, 1], "stage_numb_of_layers": [2, 2, 2, 2], "depths": [1, 1, 1, 1]},
    "TextNet": {"stem_out_channels": 8, "hidden_sizes": [8, 8, 8, 8, 8], "image_size": [SIZE, SIZE]},
    "PPLCNet": {"scale": 0.25},
    "ViT": {"image_size": SIZE, "patch_size": 8, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16},
    "Swin": {"image_size": SIZE, "patch_size": 2, "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 4},
    "Dinov2": {"image_size": SIZE, "patch_size": 8, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
}  # fmt: skip


LARGER = ("Levit", "SwiftFormer", "MobileViT", "MobileViTV2")  # four halvings and more


def build(name: str) -> tuple[nn.Module, torch.Tensor]:
    """A network whose signal neither dies nor explodes, without dropout, and images for it."""
    config = getattr(t, f"{name}Config")(num_labels=5, **CONFIGS[name])
    net = getattr(t, f"{name}ForImageClassification")(config)
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if hasattr(module, "drop_prob"):
            module.drop_prob = 0.0
        if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d):
            module.momentum = 1.0
    size = 64 if name in LARGER else SIZE
    images = torch.randn(4, 3, size, size, dtype=torch.float64)
    with torch.no_grad():
        net.double().train()(images)  # batch norms see what they will normalise
    return net, images
