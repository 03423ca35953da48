"""Makes a causal LM of Muse Glimmer's text part, which transformers has only as a part of a model that also takes
images.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn


@functools.cache
def register() -> None:
    """Register the causal LM with transformers' ``AutoModelForCausalLM``. A repeated call has no effect."""
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
