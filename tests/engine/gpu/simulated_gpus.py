"""GPUs of Apple and Intel that are not there: torch's processor build answers as ``mps`` or ``xpu`` with real numbers.

    with simulated_gpu("mps") as gpu:
        session = Session.load(EngineConfig(..., device="mps"))

Tensors "on the device" are wrappers around host memory, and every operation on them is done at once: order is not
what can go wrong here, as on the simulated CUDA device. What can is refused as the real ones refuse it. Neither takes
float64, pinned memory, copies that nobody waits for, tensors of the host among its own (numbers excepted) or anything
of ``torch.cuda``, which this build has not. ``mps`` has no operation that torch's own list gives no Metal kernel, and
ends where a thread uses it while another is at work, which crashes the process on a Mac. ``limit`` bytes are all there
is.

It cannot see what a real one computes wrongly, how fast it is, or which operations torch's build for Intel lacks: these
are in no list that comes with torch. Stands on the same private places of torch as ``simulated_cuda``.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import re
import sys
import threading
import types
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.engine.gpu.simulated_cuda import _INDEXING, _META_TYPE, _REGISTRY, _TYPES, why_not
from tests.engine.leaves import tree_leaves, tree_map

_PLACES = {"xpu": 12, "mps": 13}  # of the device types in torch's registry of guards
_WAITS = ("threading.py", "futures/_base.py", "futures/thread.py")  # files in which a thread that waits is


class Gpu:
    """One device. ``held`` and ``peak`` are bytes of tensors; ``limit`` all that it has, None has no end."""

    def __init__(self, kind: str, limit: int | None) -> None:
        self.device = torch.device(kind, 0)
        self.limit, self.held, self.peak = limit, 0, 0
        self.total = 24 << 30
        self.threads: dict[int, str] = {}
        """Those that have used it, by number."""
        self.came = self.went = 0
        """Bytes that came from the host, and that went there."""

    @property
    def room(self) -> int:
        return (self.total if self.limit is None else self.limit) - self.held

    def used_by_this_thread(self) -> None:
        me = threading.get_ident()
        self.threads.setdefault(me, threading.current_thread().name)
        for other in self.threads:
            if other != me and not _waits(other):
                raise SystemError(f"{self.threads[me]} uses the device while {self.threads[other]} is at work")

    def holds(self, numbers: torch.Tensor) -> DeviceTensor:
        """Numbers that are the device's from now on."""
        if numbers.dtype is torch.float64:
            if self.device.type == "mps":
                raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support it.")
            raise RuntimeError("Required aspect fp64 is not supported on the device")
        return DeviceTensor(numbers, _Block(self, numbers.untyped_storage().nbytes()))


def _waits(thread: int) -> bool:
    """Whether a thread waits for another, or has ended."""
    frame = sys._current_frames().get(thread)
    return frame is None or frame.f_code.co_filename.endswith(_WAITS)


class _Block:
    """Memory of one storage."""

    def __init__(self, gpu: Gpu, size: int) -> None:
        self.gpu, self.size = gpu, 0
        if size > gpu.room and gpu.limit is not None:
            raise RuntimeError(f"{gpu.device.type.upper()} backend out of memory (allocated: {gpu.held} bytes)")
        self.size = size
        gpu.held += size
        gpu.peak = max(gpu.peak, gpu.held)

    def __del__(self) -> None:
        self.gpu.held -= self.size


class DeviceTensor(torch.Tensor):
    """A tensor that says it lies on the device."""

    elem: torch.Tensor
    block: _Block

    @staticmethod
    def __new__(cls, elem: torch.Tensor, block: _Block | None = None, requires_grad: bool = False) -> Any:
        if block is None:  # as a class of parameters, which it is for whoever asks for the type of one
            return torch.nn.Parameter(elem, requires_grad=requires_grad)
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            elem.size(),
            strides=elem.stride(),
            storage_offset=elem.storage_offset(),
            dtype=elem.dtype,
            device=block.gpu.device,
            requires_grad=False,
        )
        made.elem, made.block = elem, block
        return made

    def __repr__(self, *_: Any, **__: Any) -> str:  # type: ignore[override]
        return f"DeviceTensor({tuple(self.shape)}, {self.dtype})"

    def tolist(self) -> Any:
        return self.elem.tolist()

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _dispatch(func, args, kwargs or {})


class _Mode(TorchDispatchMode):
    """Sees what makes tensors on the device out of nothing."""

    def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {})


@cache
def without_metal() -> frozenset[str]:
    """Operations that have no kernel for Metal, by the list that torch is generated from."""
    spec = importlib.util.find_spec("torchgen")
    assert spec is not None
    assert spec.origin is not None
    listed = Path(spec.origin).parent / "packaged" / "ATen" / "native" / "native_functions.yaml"
    kernels: dict[str, str] = {}
    delegates: dict[str, str] = {}
    for entry in re.split(r"\n(?=- func: )", listed.read_text(encoding="utf-8")):
        name = re.match(r"- func: ([\w.]+)\(", entry)
        if not name:
            continue
        if delegate := re.search(r"structured_delegate: ([\w.]+)", entry):
            delegates[name[1]] = delegate[1]
        elif dispatch := re.search(r"\n  dispatch:\n((?:    .*\n?)+)", entry + "\n"):
            kernels[name[1]] = dispatch[1]
    kernels |= {name: kernels[other] for name, other in delegates.items() if other in kernels}
    return frozenset(name for name, of in kernels.items() if not re.search("MPS|Composite", of))


def _numbers(x: Any) -> Any:
    if isinstance(x, DeviceTensor):
        return x.elem
    return torch.device("cpu") if isinstance(x, torch.device) else x


def _dispatch(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Do one operation of torch."""
    gpu = _here[-1]
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    ours = [x for x in tensors if isinstance(x, DeviceTensor)]
    device, name = kwargs.get("device"), func.overloadpacket.__name__
    if kwargs.get("pin_memory"):
        raise RuntimeError("Cannot access accelerator device when none is available: no memory is pinned here")
    moved = name in ("_to_copy", "to") and device is not None
    if moved and device.type == "meta" and not ours:
        device = gpu.device  # without a number torch asks the guard that stands in, and that is the one of meta
    makes = device is not None and torch.device(device).type == gpu.device.type
    if not ours and not makes:
        return func(*args, **kwargs)
    if gpu.device.type == "mps":
        gpu.used_by_this_thread()
        full = func._schema.name.split("::")[1] + (f".{of}" if (of := func._overloadname) != "default" else "")
        if full in without_metal():
            raise NotImplementedError(f"The operator 'aten::{full}' is not currently implemented for the MPS device.")
    if kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2]):
        raise RuntimeError("a copy that nobody waits for reads memory that others may have by then (pytorch 189690)")
    return _computed(gpu, func, name, args, kwargs, tensors, moved=moved)


def _computed(
    gpu: Gpu, func: Any, name: str, args: Any, kwargs: dict[str, Any], tensors: list[torch.Tensor], *, moved: bool
) -> Any:
    ours = [x for x in tensors if isinstance(x, DeviceTensor)]
    others = [x for x in tensors if not isinstance(x, DeviceTensor) and x.dim() > 0]
    if others and name not in ("copy_", *_INDEXING) and not moved:
        raise RuntimeError(f"Expected all tensors to be on the same device: {func}")
    target = torch.device(kwargs["device"]).type if moved else ""
    a, k = tree_map(_numbers, (args, kwargs))
    out = func(*a, **k)
    if func._schema.is_mutable:
        into, source = args[0], args[1] if name == "copy_" else None
        if source is not None and isinstance(into, DeviceTensor) != isinstance(source, DeviceTensor):
            _count(gpu, source, to_host=isinstance(source, DeviceTensor))
        return args[0]
    if target == "cpu":
        _count(gpu, args[0], to_host=True)
        return out
    if moved and not ours:
        _count(gpu, args[0], to_host=False)
    known = {x.elem.untyped_storage().data_ptr(): x.block for x in ours}

    def owned(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        block = known.get(x.untyped_storage().data_ptr()) if x.numel() else None
        return DeviceTensor(x, block) if block else gpu.holds(x)

    return tree_map(owned, out)


def _count(gpu: Gpu, x: torch.Tensor, *, to_host: bool) -> None:
    size = x.numel() * x.element_size()
    gpu.went += size * to_host
    gpu.came += size * (not to_host)


_here: list[Gpu] = []


@contextlib.contextmanager
def simulated_gpu(kind: str, limit: int | None = None) -> Iterator[Gpu]:
    """A device of a kind for as long as the block lasts; all of torch is as before behind it."""
    assert not why_not(), why_not()
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * _TYPES).in_dll(library, _REGISTRY)
    if not guards[_PLACES[kind]]:
        guards[_PLACES[kind]] = guards[_META_TYPE]  # does nothing, and nothing is what a guard has to do here
    gpu = Gpu(kind, limit)
    _here.append(gpu)
    with contextlib.ExitStack() as after:
        after.callback(_here.pop)
        for owner, name, stand_in in _stand_ins(gpu):
            after.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, stand_in)
        from engine.model.kernels import cuda

        for known in (cuda.measured, cuda.measured_for_many):
            known.cache_clear()
            after.callback(known.cache_clear)
        with _Mode():
            yield gpu


def _stand_ins(gpu: Gpu) -> list[tuple[Any, str, Any]]:
    """What is replaced: (owner, name, value)."""
    module_to, run, tensor = torch.nn.Module.to, threading.Thread.run, torch.tensor
    attention = torch.nn.functional.scaled_dot_product_attention
    kind = gpu.device.type

    def moved(module: Any, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], str | torch.device) and torch.device(args[0]).type == kind:
            return _upload(gpu, module)
        return module_to(module, *args, **kwargs)

    def made(data: Any, **options: Any) -> torch.Tensor:
        device = options.pop("device", None)
        out = tensor(data, **options)
        return out.to(device) if device is not None and torch.device(device).type == kind else out

    def attended(q: torch.Tensor, *others: Any, **options: Any) -> torch.Tensor:
        """It chooses a kernel by the device before anybody here sees it."""
        if not isinstance(q, DeviceTensor):
            return attention(q, *others, **options)
        others, options = tree_map(_numbers, (others, options))
        return gpu.holds(attention(q.elem, *others, **options))

    def in_mode(thread: threading.Thread) -> None:
        with _Mode():
            run(thread)

    shared = [
        (torch, "inference_mode", lambda *_: torch.no_grad()),  # tensors of a subclass have no place in it
        (torch, "tensor", made),
        (torch.nn.Module, "to", moved),
        (torch.nn.functional, "scaled_dot_product_attention", attended),
        (threading.Thread, "run", in_mode),
    ]
    if kind == "mps":
        m: Any = torch.mps
        return [
            *shared,
            (torch.backends.mps, "is_available", lambda: True),
            (m, "recommended_max_memory", lambda: gpu.room + gpu.held),
            (m, "current_allocated_memory", lambda: gpu.held),
            (m, "empty_cache", lambda: None),
            (m, "synchronize", lambda: None),
        ]
    x: Any = torch.xpu
    properties = types.SimpleNamespace(is_integrated_gpu=False, total_memory=gpu.room)
    return [
        *shared,
        (x, "_lazy_init", lambda: None),
        (x, "is_available", lambda: True),
        (x, "is_initialized", lambda: True),
        (x, "device_count", lambda: 1),
        (x, "get_device_properties", lambda device=None: properties),
        (x, "get_device_name", lambda device=None: "simulated"),
        (x, "mem_get_info", lambda device=None: (gpu.room, gpu.room + gpu.held)),
        (x, "memory_reserved", lambda device=None: gpu.held),
        (x, "memory_allocated", lambda device=None: gpu.held),
        (x, "empty_cache", lambda: None),
        (x, "synchronize", lambda device=None: None),
    ]


def _upload(gpu: Gpu, module: Any) -> Any:
    """``nn.Module.to`` for the device; weights that are shared stay shared."""
    known: dict[int, torch.nn.Parameter] = {}
    for part in module.modules():
        for name, weight in list(part._parameters.items()):
            if weight is not None and not isinstance(weight, DeviceTensor):
                if id(weight) not in known:
                    known[id(weight)] = torch.nn.Parameter(gpu.holds(weight.data.clone()), requires_grad=False)
                part._parameters[name] = known[id(weight)]
        for name, buffer in list(part._buffers.items()):
            if buffer is not None and not isinstance(buffer, DeviceTensor):
                part._buffers[name] = gpu.holds(buffer.clone())
    return module
