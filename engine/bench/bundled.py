"""Where the bundled models and the sample book lie: what the bench runs on unless others are named."""

from __future__ import annotations

from pathlib import Path

ASSETS = Path(__file__).resolve().parents[2] / "assets"
TARGET, DRAFT = (str(ASSETS / "demo" / name) for name in ("target", "draft"))
SAMPLE = ASSETS / "sample" / "the-lamplighters-of-orre.txt"
