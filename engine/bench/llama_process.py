"""A program that runs llama.cpp in its own process: lines of JSON in, lines of JSON out. Imports neither the engine nor
torch.

The first line loads a model. Every further line asks for tokens. The binding computes only the part of a prompt that
its cache does not hold yet.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def loaded(request: dict[str, Any]) -> Any:
    """Load the model that a request describes: ``gguf`` (file), ``window`` (tokens), ``threads``, ``half_kv`` (whether
    KV is kept in float16, otherwise in 8 bits), and ``yarn`` (None, or YaRN's factor and the window that it stretches).
    """
    import llama_cpp

    stretched: dict[str, Any] = {}
    if request["yarn"]:
        factor, original = request["yarn"]
        stretched = {"rope_freq_scale": 1.0 / factor, "yarn_orig_ctx": int(original)}
        stretched["rope_scaling_type"] = llama_cpp.LLAMA_ROPE_SCALING_TYPE_YARN
    kv = llama_cpp.GGML_TYPE_F16 if request["half_kv"] else llama_cpp.GGML_TYPE_Q8_0
    return llama_cpp.Llama(
        request["gguf"],
        n_ctx=request["window"],
        n_threads=request["threads"],
        n_threads_batch=request["threads"],
        flash_attn=True,
        type_k=kv,
        type_v=kv,
        verbose=False,
        **stretched,
    )


def speculate(llama: Any, most: int) -> None:
    """Let the binding's prompt lookup propose at most ``most`` tokens at once; 0 turns lookup off.

    If lookup is set at loading, the binding keeps the logits of every token of a book: 600 KB a token with a vocabulary
    of 151,936. Lookup is therefore set after the book has been read. The table of logits then has a row for every token
    too, but rows that are never written take no memory.
    """
    llama.draft_model, llama._logits_all = None, most > 0
    if most:
        import numpy as np
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        llama.draft_model = LlamaPromptLookupDecoding(num_pred_tokens=most)
        if llama.scores.shape[0] < llama.n_ctx():
            llama.scores = np.ndarray((llama.n_ctx(), llama.n_vocab()), dtype=np.single)


def answered(llama: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Generate at most ``count`` tokens after ``prompt``, until one of ``ends``. Returns the tokens, the moments of the
    request and of each token, and the processor time from the first token to the last, all in seconds.
    """
    llama.set_seed(request["seed"])
    speculate(llama, request.get("lookup", 0))
    spent = 0.0
    tokens: list[int] = []
    moments: list[float] = []
    began = time.perf_counter()
    how = {"temp": request["temperature"], "top_p": request["top_p"], "min_p": 0.0}
    how["top_k"] = request.get("top_k") or 0
    for token in llama.generate(request["prompt"], **how):
        tokens.append(int(token))
        moments.append(time.perf_counter())
        spent = spent or time.process_time()
        if len(tokens) == request["count"] or token in request["ends"]:
            break
    return {"tokens": tokens, "began": began, "moments": moments, "processor_s": time.process_time() - spent}


def main() -> None:
    # The library writes to standard output, so answers go to a copy of that file descriptor.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    llama: Any = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if llama is None:
                llama = loaded(request)
                said = {"vocabulary": llama.n_vocab()}
            else:
                said = answered(llama, request)
        except (ImportError, OSError, RuntimeError, ValueError) as error:
            said = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(said) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
