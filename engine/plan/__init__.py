"""Plans where models and KV are placed in memory, and estimates from short measurements how long passes take.

The functions exported here estimate, before a model is downloaded, whether and how fast the model would run. Of these
functions, only ``machine_rates`` imports torch.
"""

from engine.plan.hardware import (
    DeviceFacts,
    MachineRates,
    ModelFacts,
    TorchFacts,
    inspect_model,
    machine_rates,
    probe_torch,
)
from engine.plan.memory_budget import MIN_CHAT_TOKENS, BookFit, leaving_out, to_leave_out
from engine.plan.model_fit import (
    BOOK_TOKENS,
    Q4_K_M_FITTED,
    SHORTEST_BOOK,
    FreeMemory,
    ModelFit,
    Rounding,
    book_times,
    fit_pair,
    gpu_class,
    measure_free_memory,
    retrieval_gain,
    rounding,
    roundings,
)
from engine.plan.model_shape import ModelShape, read_config, shape_of
from engine.quantization import BITS, StateSize, card_bytes_per_weight, fitted_size

__all__ = [
    "BITS",
    "BOOK_TOKENS",
    "MIN_CHAT_TOKENS",
    "Q4_K_M_FITTED",
    "SHORTEST_BOOK",
    "BookFit",
    "DeviceFacts",
    "FreeMemory",
    "MachineRates",
    "ModelFacts",
    "ModelFit",
    "ModelShape",
    "Rounding",
    "StateSize",
    "TorchFacts",
    "book_times",
    "card_bytes_per_weight",
    "fit_pair",
    "fitted_size",
    "gpu_class",
    "inspect_model",
    "leaving_out",
    "machine_rates",
    "measure_free_memory",
    "probe_torch",
    "read_config",
    "retrieval_gain",
    "rounding",
    "roundings",
    "shape_of",
    "to_leave_out",
]
