# SPDX-License-Identifier: MIT
"""A private fccd: where none listens at the default socket, the ranks of a job on this node start one, which serves them alone and ends
with them.

A folder of the user's, mode 0700, has for each job NAME

    NAME.hold   each rank has a shared lock on it (flock) for as long as it lives. fccd ends when nobody has: HOLD_FILE in fccd.conf(5)
    NAME.sock, NAME.pid, NAME.log   fccd's

and `lock`, which is locked by the rank that looks whether a fccd is to be started, and starts it. The job is what the launcher's variables
say, so that all ranks find the same files, and no other job does.
"""
from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from . import _library
from ._library import library
from .errors import NoDaemonError

LISTENS_AT = "/run/fccd/fccd.sock"  # FCC_SOCKET_DEFAULT of the C library
LIMIT_S = 30.0  # for all of it: until fccd listens, or has said why not
PAUSE_S = 0.01
SOCKET_MAX = 107  # bytes of a socket's path
DEVICES_MAX = 64  # CPU_DEVICES in fccd.conf(5)
SERVICE = ("Start fccd on this node (`systemctl start fccd.socket`, or `fccd --background --socket PATH`, with FCCD_SOCKET=PATH for all "
           "ranks)")


class _Cannot(Exception):
    """Why there cannot be a private fccd, and what helps other than a service."""

    def __init__(self, why: str, *, instead: str | None = None, remedy: str | None = None) -> None:
        super().__init__(why)
        self.remedy = remedy or (f"{SERVICE}; or {instead}." if instead else f"{SERVICE}.")


class _Job:
    """What the launcher says of this process's job, and the job's files."""

    def __init__(self) -> None:
        said = _library.Env(size=1, local_size=1)
        if library().env_find(ctypes.byref(said)) < 0:  # who joins by the launcher's variables gets that error; who joins by an id need not
            said = _library.Env(size=1, local_size=1)
        self.rank, self.size, self.local_size = said.rank, said.size, said.local_size
        self.has_launcher = said.launcher not in (b"", b"none")
        self.is_on_one_node = said.local_size == said.size or (said.local_size < 0 and not said.meeting)
        folder = _folder()
        name = hashlib.sha256(b"\0".join([os.fsencode(os.uname().nodename), said.job])).hexdigest()[:16]
        self.folder = Path(folder)
        self.hold, self.socket, self.pid, self.log = (folder / f"{name}.{kind}" for kind in ("hold", "sock", "pid", "log"))

    @property
    def devices(self) -> int:
        return min(self.local_size if self.local_size > 0 else self.size, DEVICES_MAX)


def _folder() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    with contextlib.suppress(OSError):
        if os.path.isabs(runtime) and os.stat(runtime).st_uid == os.geteuid() and os.access(runtime, os.W_OK):
            return Path(runtime, "fccd")
    return Path(tempfile.gettempdir(), f"fccd-{os.geteuid()}")


def _folder_make(folder: Path) -> None:
    with contextlib.suppress(FileExistsError):
        folder.mkdir(0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise _Cannot(f"{folder}: {stat.filemode(found.st_mode)} of uid {found.st_uid}: allowed is a folder of uid {os.geteuid()}, mode 0700",
                      instead=f"remove {folder}, or let $XDG_RUNTIME_DIR or $TMPDIR name another place")


# ---- locks ----

@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
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


def _lock(fd: int, kind: int, until: float, waits_for: str) -> None:
    while True:
        try:
            return fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise _Cannot(f"{waits_for} for {LIMIT_S:g} s", instead="end the processes that have it open (`fuser` shows them)") from None
            time.sleep(PAUSE_S)


_held: dict[Path, int] = {}  # what this process holds: files with a shared lock


def _forked() -> None:
    """The lock is the parent's: it must not last as long as the child."""
    for fd in _held.values():
        os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_forked)


def _hold(job: _Job, until: float) -> None:
    """A private fccd of the job that there is stays from now on, until this process ends. One that is about to end is waited for."""
    if job.hold in _held and _is_there(_held[job.hold], job.hold):
        return
    if job.hold in _held:
        os.close(_held.pop(job.hold))
    while job.hold not in _held:
        with _opened(job.hold) as fd:
            _lock(fd, fcntl.LOCK_SH, until, f"{job.hold}: a private fccd has been about to end")
            if _is_there(fd, job.hold):
                _held[job.hold] = os.dup(fd)  # of the same lock; other programs that this process starts do not get it


# ---- fccd ----

def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(LIMIT_S)
        return sock.connect_ex(os.fsencode(path)) == 0


def _program() -> str:
    """fccd: what $FCCD_BINARY names, or the one that belongs to the library, or that in $PATH."""
    named = os.environ.get("FCCD_BINARY")
    if named:
        if not os.access(named, os.X_OK) or os.path.isdir(named):
            raise _Cannot(f"$FCCD_BINARY: \"{named}\": no program that this user may run", instead="let $FCCD_BINARY name fccd, or unset it")
        return os.path.abspath(named)
    beside = Path(os.path.realpath(library().file())).parents[1] / "bin" / "fccd"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("fccd")
    if not found:
        raise _Cannot(f"there is no fccd that this user may run: neither {beside}, nor in $PATH",
                      instead="let $FCCD_BINARY name it, or install the wheel, which brings it")
    return os.path.abspath(found)


@contextlib.contextmanager
def _all_cores(job: _Job) -> Iterator[None]:
    """Launchers may tie each rank to a core. What this thread starts in here has the launcher's cores, too."""
    own = os.sched_getaffinity(0)
    with contextlib.suppress(OSError):
        if job.has_launcher:
            os.sched_setaffinity(0, own | os.sched_getaffinity(os.getppid()))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, own)


def _remove_dead(folder: Path) -> None:
    """Removes files of jobs without a process that were killed together with their fccd, and logs of earlier ones."""
    for hold in folder.glob("*.hold"):
        with contextlib.ExitStack() as opened, contextlib.suppress(BlockingIOError, FileNotFoundError):
            for path in filter(Path.exists, (hold, hold.with_suffix(".pid"))):  # the second is fccd's, while it lives
                fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
                opened.callback(os.close, fd)
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for kind in ".sock", ".pid", ".log", ".hold":
                hold.with_suffix(kind).unlink(missing_ok=True)
    for log in folder.glob("*.log"):
        if not log.with_suffix(".hold").exists():
            log.unlink(missing_ok=True)


def _run(job: _Job, until: float) -> None:
    """Starts fccd in the background. Returns when it listens."""
    given: dict[str, object] = {"SOCKET": job.socket, "PID_FILE": job.pid, "LOG_FILE": job.log, "HOLD_FILE": job.hold}
    unless_named: dict[str, object] = {"CPU_DEVICES": job.devices, "LOG_LEVEL": "warning"}
    given |= {key: value for key, value in unless_named.items() if f"FCCD_{key}" not in os.environ}
    command = [_program(), "--background", "--config", os.devnull]
    for key, value in given.items():
        command += [f"--{key.lower().replace('_', '-')}", str(value)]
    with tempfile.TemporaryFile(dir=job.folder) as said, _all_cores(job):  # no pipe: fccd would have its end
        try:
            status = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said, cwd="/", check=False,
                                    timeout=max(until - time.monotonic(), 0.1)).returncode
        except subprocess.TimeoutExpired:
            raise _Cannot(f"{command[0]}: it has not listened within {LIMIT_S:g} s") from None
        said.seek(0)
        why = "; ".join(said.read().decode(errors="replace").split("\n")).strip("; ")
    if status != 0:
        raise _Cannot(f"{command[0]}: it ended with {status}: {why}")


def _start(job: _Job) -> None:
    until = time.monotonic() + LIMIT_S
    if not job.is_on_one_node:
        raise _Cannot(f"one serves the ranks of one node, and {job.local_size if job.local_size > 0 else 'some'} of this job's {job.size} ranks are "
                      "on this one", remedy="Start fccd on each of the nodes, with NODE_LISTEN and CLUSTER_KEY (OTHER NODES in fccd(8)), and, where it "
                      f"does not listen at {LISTENS_AT}, with FCCD_SOCKET for all ranks.")
    if len(os.fsencode(job.socket)) > SOCKET_MAX:
        raise _Cannot(f"{job.socket}: {len(os.fsencode(job.socket))} bytes: allowed are {SOCKET_MAX}",
                      instead="let $XDG_RUNTIME_DIR or $TMPDIR name a shorter place")
    _folder_make(job.folder)
    _hold(job, until)
    lock = job.folder / "lock"
    with _opened(lock) as fd:
        _lock(fd, fcntl.LOCK_EX, until, f"{lock}: another process has been starting a private fccd")
        if _listens(job.socket):
            return
        _remove_dead(job.folder)
        _run(job, until)
    sys.stderr.write(f"fcc: no fccd listens at {LISTENS_AT}: started a private one for this job "
                     f"(pid {job.pid.read_text().strip()}, socket {job.socket})\n")
    sys.stderr.flush()


def find() -> str | None:
    """The socket of the job's private fccd, if there is one. It stays until this process ends."""
    with contextlib.suppress(OSError, _Cannot):
        job = _Job()
        if job.socket.exists():
            _hold(job, time.monotonic() + LIMIT_S)
            return str(job.socket) if _listens(job.socket) else None
    return None


def start() -> str:
    """The socket of the job's private fccd, which is started if it is not there. It stays until this process ends. Raises NoDaemonError where
    there cannot be one."""
    job = None
    try:
        job = _Job()
        _start(job)
        return str(job.socket)
    except OSError as e:
        cannot = _Cannot(f"{e.filename}: {e.strerror}" if e.filename else str(e),
                         instead="let $XDG_RUNTIME_DIR or $TMPDIR name a folder that this user can write to")
    except _Cannot as e:
        cannot = e
    rank = job.rank if job and job.size > 1 else None
    who = "" if rank is None else f"rank {rank}: "
    raise NoDaemonError(f"{who}{LISTENS_AT}: no fccd listens there, and a private one cannot be started: {cannot}", code=errno.ECONNREFUSED,
                        rank=rank, remedy=cannot.remedy)
