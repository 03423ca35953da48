"""Keeps what the program stores from other users of the machine. Only on systems with POSIX permissions; on Windows the
folders of a user are closed to others by default.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

logger = logging.getLogger(__name__)

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def make_private(folder: Path) -> bool:
    """Make the data folder if it is missing, and close it to other users. Return whether it was open to them.

    A folder that also serves another purpose stays as it is: a home folder, or one that several users write to.

    Raises:
        OSError: the folder cannot be made.
    """
    folder.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
    if os.name != "posix":
        return False
    folder = folder.resolve()  # a link is followed, because the folder behind it is the data folder
    now = folder.stat()
    shared = now.st_uid != os.getuid() or now.st_mode & stat.S_ISVTX or folder == Path.home().resolve()
    if shared or not now.st_mode & _OTHERS:
        return False
    return _close(folder)


def tighten(paths: Iterable[Path]) -> int:
    """Close files and folders, with everything in them, to other users. Return how many were open to them."""
    if os.name != "posix":
        return 0
    count = 0
    for path in paths:
        count += _close(path)
        for folder, folders, files in os.walk(path):
            count += sum(_close(Path(folder, name)) for name in (*folders, *files))
    return count


def _close(path: Path) -> bool:
    """Take all permissions of other users from a file or folder of this user. Links are left alone."""
    with suppress(OSError):
        now = path.lstat()
        if now.st_uid == os.getuid() and now.st_mode & _OTHERS and not stat.S_ISLNK(now.st_mode):
            path.chmod(stat.S_IMODE(now.st_mode) & ~_OTHERS)
            return True
    return False


def hide_new_files() -> int:
    """Let everything that this process creates from now on be closed to other users. Return the umask before."""
    return os.umask(_OTHERS)


@contextmanager
def umask(mask: int) -> Iterator[None]:
    """Give this process another umask within the ``with`` block, for a program that it starts."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def foreign_user(client: tuple[str, int] | None, port: int) -> int | None:
    """Return the id of the other user of this machine who holds the connection from ``client`` to ``port``; None if it
    is this user or root, or if the system does not tell.

    Linux lists the owner of every TCP connection. A connection through a forwarder or from another machine is not in
    the list.
    """
    if client is None or not Path("/proc/net/tcp").exists():
        return None
    host = _unmapped(ipaddress.ip_address(client[0]))
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError, ValueError), open(table, encoding="ascii") as lines:
            next(lines)
            for line in lines:
                _, local, remote, _, _, _, _, owner, *_ = line.split()
                ports = int(local.rpartition(":")[2], 16), int(remote.rpartition(":")[2], 16)
                if ports == (client[1], port) and _address(local) == host:
                    return int(owner) if int(owner) not in (0, os.getuid()) else None
    return None


def _address(entry: str) -> _Address:
    """The address of an entry of the system's table, whose 32-bit words have the byte order of the processor."""
    words = bytes.fromhex(entry.rpartition(":")[0])
    ordered = words if sys.byteorder == "big" else b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
    return _unmapped(ipaddress.ip_address(ordered))


def _unmapped(address: _Address) -> _Address:
    """An IPv4 address that is written within IPv6, by itself."""
    return (address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None) or address
