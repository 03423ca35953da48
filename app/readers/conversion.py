"""Converts documents that no parser knows, such as old Word files, by a LibreOffice that is installed on this machine.

LibreOffice runs with a profile of its own in a temporary folder, so that it meets no settings and no open windows of
the user, runs no macros and knows no trusted places. The profile also forbids to follow links, since a picture that a
document names by its address would be fetched from the network. LibreOffice's time and memory are limited.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from engine.errors import DocumentError
from engine.sandbox import environment, memory_of, processor_seconds

SUFFIXES = (".doc", ".dot", ".ppt", ".pps", ".xlsb")
"""Suffixes of the files that LibreOffice converts."""
_PROGRAMS = ("soffice", "libreoffice")
_PLACES = (
    "/Applications/LibreOffice.app/Contents/MacOS/soffice",
    "C:\\Program Files\\LibreOffice\\program\\soffice.com",
)
_SECONDS = 120.0  # maximum seconds of the processor for one document
_BY_THE_CLOCK = 600.0  # maximum seconds by the clock, because other programs may have the processor
_MEMORY_BYTES = 2_000_000_000  # maximum resident memory
_SETTINGS = (
    ("/org.openoffice.Office.Common/Security/Scripting", "BlockUntrustedRefererLinks", "true"),
    ("/org.openoffice.Office.Common/Security/Scripting", "DisableActiveContent", "true"),
    ("/org.openoffice.Office.Common/Security/Scripting", "DisableMacrosExecution", "true"),
    # where nothing listens, for whatever would still be fetched
    ("/org.openoffice.Inet/Settings", "ooInetProxyType", "2"),
    ("/org.openoffice.Inet/Settings", "ooInetHTTPProxyName", "127.0.0.1"),
    ("/org.openoffice.Inet/Settings", "ooInetHTTPProxyPort", "9"),
    ("/org.openoffice.Inet/Settings", "ooInetHTTPSProxyName", "127.0.0.1"),
    ("/org.openoffice.Inet/Settings", "ooInetHTTPSProxyPort", "9"),
    ("/org.openoffice.Inet/Settings", "ooInetNoProxy", ""),
)
"""Settings of the profile: path, name and value."""
_LOOK_EVERY = 0.2  # seconds between two checks of time and memory


class ConversionOffer(DocumentError):
    """Raised for a file that LibreOffice can convert, if the user agrees."""


def program() -> str | None:
    """Return the path of LibreOffice's program; None if it is not installed."""
    paths = (shutil.which(name) for name in _PROGRAMS)
    return next(filter(None, paths), None) or next(filter(os.path.isfile, _PLACES), None)


def suffixes() -> tuple[str, ...]:
    """The suffixes of files that this machine can convert, which the file chooser offers."""
    return SUFFIXES if program() else ()


def converted(path: Path, target: str, folder: Path, beat: Callable[[], None]) -> Path | None:
    """Convert a document. Return the file that was made, or None if LibreOffice is not installed or fails.

    Args:
        path: the document.
        target: suffix of the format to make, without a dot, such as "docx".
        folder: an empty folder for the copy that is converted, LibreOffice's profile and what it makes.
        beat: called several times a second; an exception raised in it ends LibreOffice.
    """
    office = program()
    if office is None:
        return None
    copy = folder / f"{path.stem}{path.suffix}"
    shutil.copyfile(path, copy)
    options = ["--headless", "--norestore", "--nolockcheck", "--nodefault", "--convert-to", target]
    profile = f"-env:UserInstallation={_profile(folder / 'profile')}"
    ours = {name: value for name, value in environment().items() if not name.startswith("PYTHON")}
    silent = subprocess.DEVNULL
    child = subprocess.Popen(
        [office, profile, *options, "--outdir", str(folder / "made"), str(copy)],
        stdin=silent,
        stdout=silent,
        stderr=silent,
        cwd=folder,
        env=ours,
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
    )
    try:
        if not _ends_in_time(child, beat):
            return None
    finally:
        _end(child)
    made = folder / "made" / f"{copy.stem}.{target}"
    return made if made.is_file() else None


def _profile(folder: Path) -> str:
    """Make a profile that follows no links. Return its address."""
    items = "".join(
        f'<item oor:path="{path}"><prop oor:name="{name}" oor:op="fuse"><value>{value}</value></prop></item>'
        for path, name, value in _SETTINGS
    )
    (folder / "user").mkdir(parents=True)
    (folder / "user" / "registrymodifications.xcu").write_text(
        f'<?xml version="1.0" encoding="UTF-8"?><oor:items xmlns:oor="http://openoffice.org/2001/registry">{items}'
        "</oor:items>",
        encoding="utf-8",
    )
    return folder.as_uri()


def _ends_in_time(child: subprocess.Popen[bytes], beat: Callable[[], None]) -> bool:
    deadline = time.monotonic() + _BY_THE_CLOCK
    while time.monotonic() < deadline:
        try:
            child.wait(_LOOK_EVERY)
            return True
        except subprocess.TimeoutExpired:
            beat()
        if memory_of(child.pid) > _MEMORY_BYTES or processor_seconds(child.pid) > _SECONDS:
            return False
    return False


def _end(child: subprocess.Popen[bytes]) -> None:
    """End LibreOffice, which starts another process of its own."""
    try:
        family = [*psutil.Process(child.pid).children(recursive=True), psutil.Process(child.pid)]
    except psutil.Error:
        family = []
    for process in family:
        try:
            process.kill()
        except psutil.Error:
            continue
    child.wait()
