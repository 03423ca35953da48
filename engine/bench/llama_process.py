"""A program that runs llama.cpp in its own process. It reads requests as lines of JSON, and answers each request with a
line of JSON. It imports neither the engine nor torch.

The first request loads a model. A request with ``draft`` loads a draft model from another file. Every other request
generates tokens. llama.cpp's Python binding computes only the part of a prompt that is not yet in its cache.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from typing import Any


def loaded(request: dict[str, Any], gguf: str) -> Any:
    """Load a model from the file ``gguf``. The request has the settings: ``window`` (tokens), ``threads``, ``half_kv``
    (whether KV is kept in float16, otherwise in 8 bits), and ``yarn`` (None, or YaRN's factor and the window that YaRN
    extends).
    """
    import llama_cpp

    stretched: dict[str, Any] = {}
    if request["yarn"]:
        factor, original = request["yarn"]
        stretched = {"rope_freq_scale": 1.0 / factor, "yarn_orig_ctx": int(original)}
        stretched["rope_scaling_type"] = llama_cpp.LLAMA_ROPE_SCALING_TYPE_YARN
    kv = llama_cpp.GGML_TYPE_F16 if request["half_kv"] else llama_cpp.GGML_TYPE_Q8_0
    return llama_cpp.Llama(
        gguf,
        n_ctx=request["window"],
        n_threads=request["threads"],
        n_threads_batch=request["threads"],
        flash_attn=True,
        type_k=kv,
        type_v=kv,
        verbose=False,
        **stretched,
    )


def proposing(draft: Any, most: int) -> Any:
    """Make a function with which the model ``draft`` proposes ``most`` tokens by greedy decoding. llama.cpp's Python
    binding calls this function in place of one of its own draft models.
    """
    import numpy as np

    def propose(text: Any, /, **_: Any) -> Any:
        """Propose the tokens that follow ``text``, an array of all tokens so far. Only tokens that the draft's cache
        lacks are computed.
        """
        shared = min(len(text) - 1, draft.n_tokens)
        different = np.flatnonzero(text[:shared] != draft.input_ids[:shared])
        held = int(different[0]) if len(different) else shared
        draft.n_tokens = held
        proposed = itertools.islice(draft.generate(text[held:].tolist(), temp=0.0, reset=False), most)
        return np.array(list(proposed), np.intc)

    return propose


def speculate(llama: Any, draft: Any, request: dict[str, Any]) -> None:
    """Turn on speculation as the request says: with ``lookup``, the binding's prompt lookup proposes at most this
    number of tokens at once; with ``drafted``, the draft model proposes this number, and reads the prompt during this
    call. If the request has neither, nothing is proposed.

    Speculation is turned on only after the book has been read. If it were on before, the binding would store the logits
    of every token of the book: 600 KB per token with a vocabulary of 151,936. The array for logits has a row for every
    token of the window, but rows that are never written take no memory.
    """
    lookup, drafted = request.get("lookup", 0), request.get("drafted", 0)
    llama.draft_model, llama._logits_all = None, bool(lookup or drafted)
    if llama._logits_all:
        import numpy as np
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        if drafted:
            llama.draft_model = proposing(draft, drafted)
            llama.draft_model(np.array(request["prompt"], np.intc))
        else:
            llama.draft_model = LlamaPromptLookupDecoding(num_pred_tokens=lookup)
        if llama.scores.shape[0] < llama.n_ctx():
            llama.scores = np.ndarray((llama.n_ctx(), llama.n_vocab()), dtype=np.single)


def answered(llama: Any, draft: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Generate at most ``count`` tokens after ``prompt``, and stop after a token of ``ends``; all three are in the
    request. The reply has ``tokens``, ``began`` (the time at which generation began), ``moments`` (the time of each
    token) and ``processor_s`` (processor time between the first and the last token). Times are in seconds.
    """
    llama.set_seed(request["seed"])
    speculate(llama, draft, request)
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
    # llama.cpp writes to standard output. So answers go to a copy of that file descriptor, and standard output is
    # redirected to standard error.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    llama: Any = None
    draft: Any = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if llama is None:
                llama = loaded(request, request["gguf"])
                said = {"vocabulary": llama.n_vocab()}
            elif "draft" in request:
                draft = loaded(request, request["draft"])
                said = {"vocabulary": draft.n_vocab()}
            else:
                said = answered(llama, draft, request)
        except (ImportError, OSError, RuntimeError, ValueError) as error:
            said = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(said) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
