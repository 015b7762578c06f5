# SPDX-License-Identifier: MIT
"""The program fccd: where it is, and its start."""
from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from .._library import library
from .job import Cannot, Job


def listens(job: Job) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(job.limit_s)
        return sock.connect_ex(os.fsencode(job.socket)) == 0


def _program() -> str:
    """fccd: what $FCCD_BINARY names, or the one that belongs to the library, or that in $PATH."""
    named = os.environ.get("FCCD_BINARY")
    if named:
        if not os.access(named, os.X_OK) or os.path.isdir(named):
            raise Cannot(f"$FCCD_BINARY: \"{named}\": no program that this user may run", instead="let $FCCD_BINARY name fccd, or unset it")
        return os.path.abspath(named)
    beside = Path(os.path.realpath(library().file())).parents[1] / "bin" / "fccd"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("fccd")
    if not found:
        raise Cannot(f"there is no fccd that this user may run: neither {beside}, nor in $PATH",
                     instead="let $FCCD_BINARY name it, or install the wheel, which brings it")
    return os.path.abspath(found)


def _compiler() -> str:
    """NVRTC of the packages that PyTorch brings, for programs' steps on GPUs; where there are none, what fccd finds by itself."""
    package = importlib.util.find_spec("nvidia")
    folders = (package.submodule_search_locations if package else None) or []
    found = [path for folder in folders for path in Path(folder).glob("*/lib/libnvrtc.so.1[23]")]
    return str(max(found, key=lambda path: path.name)) if found else "auto"


@contextlib.contextmanager
def _all_cores(job: Job) -> Iterator[None]:
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


def remove_dead(folder: Path) -> None:
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


def run(job: Job) -> None:
    """Starts fccd in the background. Returns when it listens."""
    given: dict[str, object] = {"SOCKET": job.socket, "PID_FILE": job.pid, "LOG_FILE": job.log, "HOLD_FILE": job.hold}
    unless_named: dict[str, object] = {"CPU_DEVICES": job.devices, "LOG_LEVEL": "warning", "GPU_COMPILER": _compiler()}
    given |= {key: value for key, value in unless_named.items() if f"FCCD_{key}" not in os.environ}
    command = [_program(), "--background", "--config", os.devnull]
    for key, value in given.items():
        command += [f"--{key.lower().replace('_', '-')}", str(value)]
    with open(os.memfd_create("fccd"), "w+b") as said, _all_cores(job):  # no pipe: fccd would have its end; and disks may be full
        try:
            status = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said, cwd="/", check=False,
                                    timeout=max(job.until - time.monotonic(), 0.1)).returncode
        except subprocess.TimeoutExpired:
            raise Cannot(f"{command[0]}: it has not listened within {job.limit_s:g} s") from None
        said.seek(0)
        why = "; ".join(said.read().decode(errors="replace").split("\n")).strip("; ")
    if status != 0:
        raise Cannot(f"{command[0]}: it ended with {status}: {why}")
