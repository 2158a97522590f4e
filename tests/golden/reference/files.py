"""What the plain references of current models share: files, and the two parts that nearly all of them have."""

import dataclasses
import json

import torch
from safetensors.torch import load_file, save_file
from torch import nn


class Config(dict):
    """config.json, its fields also as attributes."""

    def __getattr__(self, key):
        if key.startswith("__"):
            raise AttributeError(key)
        return self[key]

    def __setattr__(self, key, value):
        self[key] = value


@dataclasses.dataclass
class Output:
    # [1, tokens, vocab]
    logits: torch.Tensor


def write(model, folder):
    (folder / "config.json").write_text(json.dumps(model.config, indent=2) + "\n")
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, folder / "model.safetensors", {"format": "pt"})


def read_with(kind, folder, dtype):
    model = kind(Config(json.loads((folder / "config.json").read_text())))
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.to(dtype)


class RmsNorm(nn.Module):
    def __init__(self, d, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(d)), eps

    def forward(self, x):
        f = x.float()
        f = f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * f.to(x.dtype)


def rotate(x, theta):
    """`x [heads, tokens, d]` by its positions, i paired with i + d/2."""
    _, n, d = x.shape
    angle = torch.arange(n).float()[:, None] / theta ** (torch.arange(0, d, 2).float() / d)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
