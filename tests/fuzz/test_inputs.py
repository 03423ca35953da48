"""Whatever stands in a file or comes in a request: it is taken, or refused by the one error that is meant for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cli import arguments, doctor
from app.cli.serve import find_running
from app.core import settings
from app.core.race import Verified
from app.web import openai_api, openai_schema
from app.web.auth import AllowedRoute, Guard, LoginTokens
from engine.config import EngineConfig, SamplingParams, from_mapping
from engine.errors import OptionError, SnapshotRefused, TrifoldError
from engine.kv.manifest import MANIFEST, TURN_MANIFEST, ids_hash, read_manifest, read_turn_manifest
from tests.fuzz.conftest import JSON, SCALARS, looked_at, mutated, named
from tests.loops import run
from tests.tally import count

_MESSAGE = named(["role", "content"]) | st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "system", "assistant", "tool"]), "content": st.text(max_size=9) | JSON}
)
_BODY = mutated(
    {
        "messages": [{"role": "user", "content": "Who?"}], "model": "trifold", "temperature": 0.5, "top_p": 0.9,
        "seed": 1,
        "stream": True, "stop": ["a"], "max_tokens": 5, "stream_options": {"include_usage": True}, "n": 1,
        "trifold": {"mode": "plain", "book": "messages"}, "tools": [], "top_k": 3, "logit_bias": {},
    }
)  # fmt: skip


@looked_at(400)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.builds(lambda body: json.dumps(body).encode(), st.one_of(JSON, _BODY)),
        st.builds(
            lambda body, messages: json.dumps({**body, "messages": messages}).encode(),
            _BODY,
            st.lists(_MESSAGE, max_size=4),
        ),
    )
)
def test_the_body_of_v1(body: bytes) -> None:
    asked, refusal = _asked(body)
    if asked is None:
        assert refusal is not None
        assert 400 <= refusal.status < 500
        assert refusal.body["error"]["message"].endswith((".", "?"))
        json.dumps(refusal.body)
    else:
        assert isinstance(asked.sampling, SamplingParams)
        assert 0 <= (asked.sampling.temperature or 0.0) < float("inf")
        assert all(isinstance(words, str) for pair in asked.conversation[1] for words in pair)
        assert isinstance(asked.instructed.text, str)
    count("fuzzed requests")


def _asked(body: bytes) -> tuple[openai_schema.ChatRequest | None, openai_schema.ApiError | None]:
    try:
        return openai_schema.parse(body), None
    except openai_schema.ApiError as refused:
        return None, refused


_HEADER = {
    "format": 1, "tokens": 8, "prefix": "ab",
    "identity": {
        "book": "0" * 64, "ids": "1" * 64, "model": "m", "tokenizer": "t", "rope": "r", "dtype": "float32", "layers": 2,
        "kv_heads": 2, "head_dim": 4,
    },
    "shards": [{"start": 0, "stop": 8, "size": 4, "crc32": 1}],
}  # fmt: skip


@looked_at(300)
@given(
    st.one_of(
        st.binary(max_size=200), st.builds(lambda body: json.dumps(body).encode(), st.one_of(JSON, mutated(_HEADER)))
    )
)
def test_the_header_of_a_snapshot(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "tokens-00000000-00000008.safetensors").write_bytes(b"1234")
    (tmp_path / MANIFEST).write_bytes(header)
    try:
        snapshot = read_manifest(tmp_path)
    except SnapshotRefused as refused:
        said = refused.cause
    else:
        said = "."
        assert snapshot.tokens == snapshot.shards[-1].stop == 8
        assert snapshot.shards[-1].file == "tokens-00000000-00000008.safetensors"
    assert said.endswith(".")
    count("fuzzed files of our own")


_TURN = {
    "format": 1, "reading": "r", "start": 2, "ids": [7, 8, 9], "before": ids_hash([5, 6]),
    "context": ids_hash([5, 6, 7, 8, 9]), "shards": [{"start": 2, "stop": 4, "size": 4, "crc32": 1}],
}  # fmt: skip


@looked_at(300)
@given(
    st.one_of(
        st.binary(max_size=200), st.builds(lambda body: json.dumps(body).encode(), st.one_of(JSON, mutated(_TURN)))
    )
)
def test_the_header_of_a_turn(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "tokens-00000002-00000004.safetensors").write_bytes(b"1234")
    (tmp_path / TURN_MANIFEST).write_bytes(header)
    try:
        turn = read_turn_manifest(tmp_path, "r", [5, 6])
    except SnapshotRefused as refused:
        said = refused.cause
    else:
        said = "."
        assert (turn.start, turn.ids, turn.tokens) == (2, (7, 8, 9), 4)
    assert said.endswith(".")
    count("fuzzed files of our own")


def test_a_good_header_is_taken(tmp_path: Path) -> None:
    (tmp_path / "tokens-00000000-00000008.safetensors").write_bytes(b"1234")
    (tmp_path / MANIFEST).write_text(json.dumps(_HEADER), encoding="utf-8")
    assert read_manifest(tmp_path).tokens == 8
    (tmp_path / "tokens-00000002-00000004.safetensors").write_bytes(b"1234")
    (tmp_path / TURN_MANIFEST).write_text(json.dumps(_TURN), encoding="utf-8")
    assert read_turn_manifest(tmp_path, "r", [5, 6]).ids == (7, 8, 9)


@looked_at(150)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.builds(
            lambda kept: json.dumps(kept).encode(), JSON | named(["model", "draft", "remote", "port", "when", "pid"])
        ),
    )
)
def test_files_of_settings(tmp_path: Path, kept: bytes) -> None:
    """Rubbish in a file of ours is as good as no file."""
    for name in (settings.FILE, doctor.FILE, "verified.json", "instance.json"):
        (tmp_path / name).write_bytes(kept)
    found = settings.load(tmp_path)
    assert found is None or (found.model and isinstance(found.model, str))
    assert doctor.last_result(tmp_path) is None
    Verified(tmp_path / "verified.json").of(None)
    count("fuzzed files of our own", 3)


@looked_at(60)
@given(
    st.one_of(
        st.binary(max_size=60), st.builds(lambda port: json.dumps({"port": port}).encode(), st.text() | st.floats())
    )
)
def test_the_file_of_the_running_app(tmp_path: Path, kept: bytes) -> None:
    (tmp_path / "instance.json").write_bytes(kept)
    assert find_running(tmp_path / "instance.json") is None
    count("fuzzed files of our own")


_SETTINGS = list(EngineConfig.__dataclass_fields__)


@looked_at(300)
@given(st.dictionaries(st.sampled_from(_SETTINGS) | st.text(max_size=9), SCALARS | JSON, max_size=6))
def test_settings_of_the_engine(values: dict[str, Any]) -> None:
    try:
        config = from_mapping(EngineConfig, {"model": "m", **values})
    except OptionError as error:
        said = error.cause
    else:
        said = "."
        assert config.chunk_size is None or config.chunk_size >= 1
        assert config.retrieval_budget is None or config.retrieval_budget >= (config.chunk_size or 1)
    assert said.endswith(".")
    count("fuzzed settings")


_WORDS = st.sampled_from(
    [
        "ask",
        "read",
        "bench",
        "doctor",
        "test",
        "app",
        "--port",
        "--pages",
        "--seed",
        "1-2",
        "-1",
        "9" * 30,
        "--json",
        "--model",
    ]
)


@looked_at(200)
@given(st.lists(_WORDS | st.text(max_size=12), max_size=6))
def test_command_lines(line: list[str]) -> None:
    try:
        command = arguments.parse(line).command
    except (TrifoldError, arguments.HelpAsked):
        command = arguments.APP
    assert command in arguments.COMMANDS
    count("fuzzed command lines")


@looked_at(200)
@given(st.text(max_size=80), st.text(max_size=60))
def test_login_tokens_and_keys(token: str, header: str) -> None:
    assert not LoginTokens("s" * 43).redeem(token)
    assert not openai_api.opens(header, "sk-trifold-" + "x" * 40)
    count("fuzzed keys")


_BYTES = st.binary(max_size=30)
_NAMES = st.sampled_from(
    [
        b"host",
        b"origin",
        b"cookie",
        b"content-length",
        b"sec-fetch-site",
        b"sec-fetch-mode",
        b"purpose",
        b"transfer-encoding",
    ]
)
_VALUES = _BYTES | st.sampled_from(
    [b"127.0.0.1:7860", b"evil.example", b"same-origin", b"navigate", b"-1", b"1e9", b"\xb2"]
)


@looked_at(400)
@given(
    st.sampled_from(["GET", "POST", "HEAD", "PUT", "X"]),
    st.text(max_size=30).map(lambda path: "/" + path) | st.sampled_from(["/", "/healthz", "/ask", "/files/a"]),
    _BYTES,
    st.lists(st.tuples(_NAMES, _VALUES), max_size=6),
)
def test_the_guard(method: str, path: str, query: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    """Without the cookie nobody reaches the app, whatever a request looks like, and everybody gets an answer."""
    reached: list[str] = []
    told: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            told.append(message["status"])

    allowed = (
        AllowedRoute("GET", "/healthz", open=True),
        AllowedRoute("GET", "/"),
        AllowedRoute("GET", "/files/*"),
        AllowedRoute("POST", "/ask", limit=9),
    )
    guard = Guard(app, 7860, LoginTokens("s" * 43), allowed)
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query,
        "headers": headers,
        "client": ("127.0.0.1", 1),
    }
    run(guard(scope, receive, send))
    assert len(told) == 1
    assert set(reached) <= {"/healthz"}
    assert told[0] in (200, 400, 401, 403, 404, 413)
    count("fuzzed requests")


def test_a_login_token_that_only_looks_signed() -> None:
    """Found by looking at the code: what stands before the first full stop is made a number."""
    tokens = LoginTokens("s" * 43)
    forged = f"x.{tokens._sign('x')}"
    with pytest.raises(ValueError, match="invalid literal"):
        tokens.redeem(forged)  # only who has the secret can sign such a thing
