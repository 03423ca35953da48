"""Plans where models and KV are placed in memory, and estimates from short measurements how long passes take.

The functions exported here estimate, before a model is downloaded, whether and how fast the model would run. Of these
functions, only ``machine_rates`` imports torch.
"""

from engine.plan.hardware import MachineRates, machine_rates
from engine.plan.memory_budget import MIN_CHAT_TOKENS, BookFit
from engine.plan.model_fit import (
    BOOK_TOKENS,
    Q4_K_M_FITTED,
    SHORTEST_BOOK,
    BookTimes,
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
from engine.quantization import BITS, StateSize

__all__ = [
    "BITS",
    "BOOK_TOKENS",
    "MIN_CHAT_TOKENS",
    "Q4_K_M_FITTED",
    "SHORTEST_BOOK",
    "BookFit",
    "BookTimes",
    "FreeMemory",
    "MachineRates",
    "ModelFit",
    "ModelShape",
    "Rounding",
    "StateSize",
    "book_times",
    "fit_pair",
    "gpu_class",
    "machine_rates",
    "measure_free_memory",
    "read_config",
    "retrieval_gain",
    "rounding",
    "roundings",
    "shape_of",
]
