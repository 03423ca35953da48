"""Imports point one way: the layers of the design, checked on the source."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# From the ground up. A module imports only from layers before its own, or within its layer where that is listed.
LAYERS: tuple[tuple[str, ...], ...] = (
    (
        "engine.errors",
        "engine.events",
        "engine.lookup",
        "engine.hardware",
        "engine.threads",
        "engine.rates",
        "engine.transfers",
        "engine.graphs",
    ),
    (
        "engine.config",
        "engine.weights",
        "engine.status",
        "engine.fitting",
        "engine.snapshot_header",
        "engine.speeds",
        "engine.beliefs",
        "engine.costs",
        "engine.refresh",
    ),
    (
        "engine.document",
        "engine.prompt",
        "engine.sampling",
        "engine.metrics",
        "engine.pages",
        "engine.quantized",
        "engine.choice",
        "engine.snapshots",
    ),
    ("engine.triton_attention", "engine.kernels", "engine.turns"),
    ("engine.speculation", "engine.tokenizer", "engine.attention", "engine.controller"),
    ("engine.cache", "engine.cache.shape"),
    ("engine.cache.placement", "engine.cache.rounding", "engine.architecture"),
    ("engine.cache.stores", "engine.cache.selection"),
    ("engine.cache.staging",),
    ("engine.cache.full", "engine.cache.streaming", "engine.cache.retrieval"),
    ("engine.models", "engine.planner", "engine.relief", "engine.conversation"),
    ("engine.cache.snapshot", "engine.probing"),
    ("engine.prefill", "engine.context", "engine.drafters", "engine.answer", "engine.fingerprint", "engine.standin"),
    ("engine.proposing", "engine.lookup_drafter"),
    ("engine.decoding", "engine.reading", "engine.request", "engine.keeping"),
    ("engine.hierarchy",),
    ("engine.answering",),
    ("engine.session",),
    ("engine.worker", "engine.selftest"),
    ("engine",),
    (
        "engine.bench.report",
        "engine.bench.plot",
        "engine.bench.workloads",
        "engine.bench.standins",
        "engine.bench.bundled",
    ),
    ("engine.bench.record",),
    ("engine.bench.peers",),
    ("engine.bench.rows",),
    ("engine.bench.sweeps", "engine.bench.gpu", "engine.bench.tiers"),
    ("engine.bench",),
    ("engine.bench.__main__",),
    ("engine.bench.trees", "engine.bench.kept"),
)
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
# The caches lean on the full cache, and it on nothing of its layer.
WITHIN = {("engine.cache.retrieval", "engine.cache.full"), ("engine.cache.streaming", "engine.cache.full")}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, *, lazy: bool) -> set[str]:
    """Modules that a file imports; with ``lazy`` also inside functions and for type checking."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = ast.walk(tree) if lazy else iter(tree.body)
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


ENGINE = sorted((ROOT / "engine").rglob("*.py"))
OUTSIDE = sorted([*(ROOT / "app").rglob("*.py"), ROOT / "launch.py"])


def test_every_engine_module_has_a_layer() -> None:
    assert {module_name(path) for path in ENGINE} == set(RANK)


@pytest.mark.parametrize("path", ENGINE, ids=module_name)
def test_engine_imports_point_down(path: Path) -> None:
    name = module_name(path)
    for other in imports(path, lazy=False) & set(RANK):
        assert RANK[other] < RANK[name] or (name, other) in WITHIN or other == "engine", f"{name} imports {other}"


@pytest.mark.parametrize("path", ENGINE, ids=module_name)
def test_engine_knows_no_app(path: Path) -> None:
    roots = {other.split(".")[0] for other in imports(path, lazy=True)}
    assert not roots & {"gradio", "fastapi", "uvicorn", "app"}


@pytest.mark.parametrize("path", OUTSIDE, ids=module_name)
def test_only_the_engine_imports_torch_at_the_top(path: Path) -> None:
    roots = {other.split(".")[0] for other in imports(path, lazy=False)}
    assert not roots & {"torch", "transformers"}


@pytest.mark.parametrize("path", [p for p in OUTSIDE if "cli" not in p.parts], ids=module_name)
def test_the_page_uses_the_front_door(path: Path) -> None:
    """The page needs no part of the engine that deals in tensors."""
    inner = {f"engine.{name}" for name in ("cache", "models", "attention", "decoding", "session", "prefill")}
    assert not imports(path, lazy=True) & inner
