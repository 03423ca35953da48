"""What a model can have on this machine once the one that runs has gone. Measures; decides nothing."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from app.models.fit import Room
from engine import Status
from engine.fitting import bytes_per_weight

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def measure(data: Path, status: Status, kv_bytes: int = 0, kv: str = "model", rounding: str = "stored") -> Room:
    """Look at memory and disk.

    Args:
        data: the folder whose disk matters.
        status: of the engine that runs; its weights are counted as free.
        kv_bytes: of the open book, in the memory that the engine uses.
        kv: how this start keeps a cache; rounding: what it rounds weights to.
    """
    model = status.model
    itemsize = _BYTES.get(model.dtype, 0) if model else 0
    held = int(model.parameters * bytes_per_weight(rounding, itemsize)) if model and itemsize else 0
    held += (model.draft_parameters or 0) * itemsize if model else 0
    existing = next(folder for folder in (data, *data.parents) if folder.exists())
    disk = shutil.disk_usage(existing).free
    import psutil

    available = int(psutil.virtual_memory().available)
    gpu = _gpu_memory()
    if gpu is not None:
        return Room(gpu + held + kv_bytes, disk, on_gpu=True, host=available, kv=kv, rounding=rounding)
    return Room(available + held + kv_bytes, disk, on_gpu=False, kv=kv, rounding=rounding)


def _gpu_memory() -> int | None:
    """Free bytes of the GPU that the engine uses, None without one. Asks torch only if the engine has loaded it."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_available():
        return None
    return int(torch.cuda.mem_get_info()[0])
