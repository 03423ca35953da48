"""A client behind the guard: the whole app in this process, opened with its owner's login token."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from starlette.testclient import TestClient

from app.core import settings
from app.core.state import AppState
from app.web import server
from app.web.auth import opening_address


@contextmanager
def enter(state: AppState, data: Path, port: int) -> Iterator[TestClient]:
    """A client with the cookie in front of the whole guarded app."""
    chosen = dataclasses.replace(settings.make_settings(), data=data, port=port)
    base = f"http://127.0.0.1:{port}"
    with TestClient(server.guarded_app(state, chosen), base_url=base, client=("127.0.0.1", 1)) as client:
        client.headers["origin"] = base
        client.get(opening_address(data, port).removeprefix(base))
        yield client
