"""Draft heads for tiny models, and what they compute, written down from the published equations alone.

DeepSeek-V3 (arXiv 2412.19437), equations 21 to 23, with the order of halves and the norms of Qwen3-Next's weights:
``h' = projection [norm(Emb(t + 1)); norm(h)]``, one layer of the family, a norm, and the target's head.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

Weights = dict[str, torch.Tensor]


def add_head(folder: str, out: Path, seed: int = 3, *, apart: bool = False) -> str:
    """Copy a model's folder, with a random head of its family beside the model's weights.

    Args:
        apart: whether the experts of a mixture are stored one by one, as Qwen3-Next's are; otherwise joined.
    """
    shutil.copytree(folder, out)
    own = load_file(out / "model.safetensors")
    settings = json.loads((out / "config.json").read_text(encoding="utf-8"))
    kinds = settings.get("layer_types") or ["full_attention"] * settings["num_hidden_layers"]
    layer = max(at for at, kind in enumerate(kinds) if kind == "full_attention")
    random = torch.Generator().manual_seed(seed)
    width = settings["hidden_size"]

    def like(values: torch.Tensor) -> torch.Tensor:
        base = values.mean() if values.dim() == 1 else 0.0
        return base + 0.2 * torch.randn(values.shape, generator=random)

    prefix = f"model.layers.{layer}."
    head = {f"mtp.layers.0.{name.removeprefix(prefix)}": like(own[name]) for name in own if name.startswith(prefix)}
    norm = own["model.norm.weight"]
    head |= {f"mtp.{name}.weight": like(norm) for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")}
    head["mtp.fc.weight"] = like(torch.empty(width, 2 * width))
    if not apart and settings.get("num_experts"):
        experts = "mtp.layers.0.mlp.experts."
        gate, up, down = (
            torch.stack([head.pop(f"{experts}{at}.{part}_proj.weight") for at in range(settings["num_experts"])])
            for part in ("gate", "up", "down")
        )
        head |= {f"{experts}gate_up_proj": torch.cat([gate, up], 1), f"{experts}down_proj": down}
    save_file({**own, **head}, out / "model.safetensors", metadata={"format": "pt"})
    return str(out)


class Reference:
    """A head in plain torch: attention over everything before, without a cache. Of Llama, Qwen 2 and Qwen 3.5."""

    def __init__(self, folder: str) -> None:
        self.weights: Weights = load_file(Path(folder) / "model.safetensors")
        said: dict[str, Any] = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        self.delta = said["model_type"] == "qwen3_5_text"
        self.heads, self.kv_heads = said["num_attention_heads"], said["num_key_value_heads"]
        self.head_dim = said.get("head_dim") or said["hidden_size"] // self.heads
        rope = said["rope_parameters"]
        self.theta, self.rotary = rope["rope_theta"], int(self.head_dim * rope.get("partial_rotary_factor", 1.0))
        self.epsilon = said["rms_norm_eps"]

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight = self.weights[f"{name}.weight"] + (1.0 if self.delta else 0.0)
        return x / (x.pow(2).mean(-1, keepdim=True) + self.epsilon).sqrt() * weight

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        """Rotate x (heads, n, head_dim): pairs are the halves of the first dimensions."""
        half = self.rotary // 2
        angles = torch.arange(x.shape[1])[:, None] * self.theta ** -(torch.arange(half) / half)
        a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin(), rest], -1)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        own = "mtp.layers.0.self_attn."
        q, k, v = (x @ self.weights[f"{own}{name}_proj.weight"].T for name in "qkv")
        for name, part in zip("qkv", (q, k, v), strict=True):
            if (bias := self.weights.get(f"{own}{name}_proj.bias")) is not None:
                part += bias
        q = q.view(len(x), self.heads, -1)
        q, gate = (q[..., : self.head_dim], q[..., self.head_dim :]) if self.delta else (q, None)
        k, v = (part.view(len(x), self.kv_heads, -1).transpose(0, 1) for part in (k, v))
        q = q.transpose(0, 1)
        if self.delta:
            q, k = self.norm(q, f"{own}q_norm"), self.norm(k, f"{own}k_norm")
        k, v = (part.repeat_interleave(self.heads // self.kv_heads, 0) for part in (self.turned(k), v))
        scores = self.turned(q) @ k.transpose(1, 2) / self.head_dim**0.5
        scores = scores.masked_fill(torch.ones(len(x), len(x)).triu(1).bool(), -torch.inf)
        out = (scores.softmax(-1) @ v).transpose(0, 1)
        out = out if gate is None else out * gate.sigmoid()
        return out.flatten(1) @ self.weights[f"{own}o_proj.weight"].T

    def __call__(self, hidden: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Read tokens (n,) after hidden states (n, width) of the tokens before them.

        Returns:
            Logits (n, vocabulary), and the states (n, width) that take the place of the target's.
        """
        embedded = self.weights["model.embed_tokens.weight"][tokens]
        halves = self.norm(embedded, "mtp.pre_fc_norm_embedding"), self.norm(hidden, "mtp.pre_fc_norm_hidden")
        x = torch.cat(halves, -1) @ self.weights["mtp.fc.weight"].T
        x = x + self.attention(self.norm(x, "mtp.layers.0.input_layernorm"))
        y = self.norm(x, "mtp.layers.0.post_attention_layernorm")
        gate, up, down = (self.weights[f"mtp.layers.0.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
        x = x + (functional.silu(y @ gate.T) * (y @ up.T)) @ down.T
        states = self.norm(x, "mtp.norm")
        return states @ self.weights["lm_head.weight"].T, states
