# SPDX-License-Identifier: MIT
"""A job's files, and the locks on them."""
from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from .. import _library
from .._library import library

LISTENS_AT = "/run/fccd/fccd.sock"  # FCC_SOCKET_DEFAULT of the C library
PAUSE_S = 0.01
DEVICES_MAX = 64  # CPU_DEVICES in fccd.conf(5)
SERVICE = ("Start fccd on this node (`systemctl start fccd.socket`, or `fccd --background --socket PATH`, with FCCD_SOCKET=PATH for all "
           "ranks)")


class Cannot(Exception):
    """Why there cannot be a private fccd, and what helps other than a service."""

    def __init__(self, why: str, *, instead: str | None = None, remedy: str | None = None) -> None:
        super().__init__(why)
        self.remedy = remedy or (f"{SERVICE}; or {instead}." if instead else f"{SERVICE}.")


class Job:
    """What the launcher says of this process's job, and the job's files. To be used for one search or start."""

    limit_s = 30.0  # for all of it: until fccd listens, or has said why not

    def __init__(self) -> None:
        self.until = time.monotonic() + self.limit_s
        said = _library.Env(size=1, local_size=1)
        if library().env_find(ctypes.byref(said)) < 0:  # who joins by the launcher's variables gets that error; who joins by an id need not
            said = _library.Env(size=1, local_size=1)
        self.rank, self.size, self.local_size = said.rank, said.size, said.local_size
        self.has_launcher = said.launcher not in (b"", b"none")
        self.is_on_one_node = said.local_size == said.size or (said.local_size < 0 and not said.meeting)
        self.folder = _folder()
        name = hashlib.sha256(b"\0".join([os.fsencode(os.uname().nodename), said.job])).hexdigest()[:16]
        self.hold, self.socket, self.pid, self.log = (self.folder / f"{name}.{kind}" for kind in ("hold", "sock", "pid", "log"))

    @property
    def devices(self) -> int:
        return min(self.local_size if self.local_size > 0 else self.size, DEVICES_MAX)


def _folder() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    with contextlib.suppress(OSError):
        if os.path.isabs(runtime) and os.stat(runtime).st_uid == os.geteuid() and os.access(runtime, os.W_OK):
            return Path(runtime, "fccd")
    return Path(tempfile.gettempdir(), f"fccd-{os.geteuid()}")


def folder_make(folder: Path) -> None:
    with contextlib.suppress(FileExistsError):
        folder.mkdir(0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise Cannot(f"{folder}: {stat.filemode(found.st_mode)} of uid {found.st_uid}: allowed is a folder of uid {os.geteuid()}, mode 0700",
                     instead=f"remove {folder}, or let $XDG_RUNTIME_DIR or $TMPDIR name another place")


# ---- locks ----

@contextlib.contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


def _is_there(fd: int, path: Path) -> bool:
    """Whether the file at the path is the one that is open: whoever removes one has it locked."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def lock(fd: int, kind: int, job: Job, waits_for: str) -> None:
    while True:
        try:
            return fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > job.until:
                raise Cannot(f"{waits_for} for {job.limit_s:g} s", instead="end the processes that have it open (`fuser` shows them)") from None
            time.sleep(PAUSE_S)


_held: dict[Path, int] = {}  # what this process holds: files with a shared lock


def _forked() -> None:
    """The lock is the parent's: it must not last as long as the child."""
    for fd in _held.values():
        os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_forked)


def hold(job: Job) -> None:
    """A private fccd of the job that there is stays from now on, until this process ends. One that is about to end is waited for."""
    if job.hold in _held and _is_there(_held[job.hold], job.hold):
        return
    if job.hold in _held:
        os.close(_held.pop(job.hold))
    while job.hold not in _held:
        with opened(job.hold) as fd:
            lock(fd, fcntl.LOCK_SH, job, f"{job.hold}: a private fccd has been about to end")
            if _is_there(fd, job.hold):
                _held[job.hold] = os.dup(fd)  # of the same lock; other programs that this process starts do not get it
