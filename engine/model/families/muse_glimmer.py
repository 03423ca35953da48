"""States the facts about Muse Glimmer, and makes a causal LM of its text part.

transformers has the text part only inside a model that also takes images.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from engine.model.families.family import SLIDING, Family

_DEFAULTS = {
    "hidden_size": 6_656,
    "intermediate_size": 19_968,
    "num_hidden_layers": 52,
    "vocab_size": 202_048,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131_072,
    "sliding_window": 2_048,
}


@dataclass(frozen=True)
class MuseFamily(Family):
    """A family whose causal LM is made here."""

    def register(self) -> None:
        _register()


@functools.cache
def _register() -> None:
    """Register the causal LM with transformers' ``AutoModelForCausalLM``. A repeated call has no effect."""
    import torch
    from torch import nn
    from transformers import AutoModelForCausalLM, GenerationMixin
    from transformers.modeling_outputs import CausalLMOutputWithPast
    from transformers.models.muse_glimmer import modeling_muse_glimmer as library
    from transformers.models.muse_glimmer.configuration_muse_glimmer import MuseGlimmerTextConfig

    class MuseGlimmerForCausalLM(library.MuseGlimmerPreTrainedModel, GenerationMixin):
        """The text model with an LM head. The head computes the same logits as in the model that also takes images."""

        config_class = MuseGlimmerTextConfig
        _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012 - transformers' own

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.model = library.MuseGlimmerTextModel(config)
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
            self.post_init()

        def forward(
            self, input_ids: torch.Tensor | None = None, logits_to_keep: int = 0, **rest: Any
        ) -> CausalLMOutputWithPast:
            out = self.model(input_ids=input_ids, **rest)
            logits = self.lm_head(out.last_hidden_state[:, -logits_to_keep:]) * self.config.output_multiplier
            cap = self.config.final_logit_softcapping
            return CausalLMOutputWithPast(logits=torch.tanh(logits / cap) * cap, past_key_values=out.past_key_values)

    AutoModelForCausalLM.register(MuseGlimmerTextConfig, MuseGlimmerForCausalLM, exist_ok=True)


FAMILIES = {
    "muse_glimmer_text": MuseFamily(
        "Muse Glimmer",
        wrapper="muse_glimmer",
        gated=True,
        others=SLIDING,
        full_every=4,
        period="sliding_window_pattern",
        norm_offset=1.0,
        last_norm_offset=0.0,
        rope_left_out=True,
        rope_by_layer="layer_rope_theta",
        logits_factor="output_multiplier",
        reads=("final_logit_softcapping", "layer_rope_theta"),
        positive=("qk_scale_factor", "output_multiplier", "post_norm_eps", "final_logit_softcapping"),
        defaults=_DEFAULTS,
    ),
}
