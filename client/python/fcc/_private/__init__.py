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
import errno
import fcntl
import os
import sys

from ..errors import NoDaemonError
from .job import LISTENS_AT, Cannot, Job, folder_make, hold, lock, opened
from .program import listens, remove_dead, run

SOCKET_MAX = 107  # bytes of a socket's path


def _start(job: Job) -> None:
    if not job.is_on_one_node:
        raise Cannot(f"one serves the ranks of one node, and {job.local_size if job.local_size > 0 else 'some'} of this job's {job.size} ranks are "
                     "on this one", remedy="Start fccd on each of the nodes, with NODE_LISTEN and CLUSTER_KEY (OTHER NODES in fccd(8)), and, where it "
                     f"does not listen at {LISTENS_AT}, with FCCD_SOCKET for all ranks.")
    if len(os.fsencode(job.socket)) > SOCKET_MAX:
        raise Cannot(f"{job.socket}: {len(os.fsencode(job.socket))} bytes: allowed are {SOCKET_MAX}",
                     instead="let $XDG_RUNTIME_DIR or $TMPDIR name a shorter place")
    folder_make(job.folder)
    hold(job)
    path = job.folder / "lock"
    with opened(path) as fd:
        lock(fd, fcntl.LOCK_EX, job, f"{path}: another process has been starting a private fccd")
        if listens(job):
            return
        remove_dead(job.folder)
        run(job)
    sys.stderr.write(f"fcc: no fccd listens at {LISTENS_AT}: started a private one for this job "
                     f"(pid {job.pid.read_text().strip()}, socket {job.socket})\n")
    sys.stderr.flush()


def find() -> str | None:
    """The socket of the job's private fccd, if there is one. It stays until this process ends."""
    with contextlib.suppress(OSError, Cannot):
        job = Job()
        if job.socket.exists():
            hold(job)
            return str(job.socket) if listens(job) else None
    return None


def start() -> str:
    """The socket of the job's private fccd, which is started if it is not there. It stays until this process ends. Raises NoDaemonError where
    there cannot be one."""
    job = None
    try:
        job = Job()
        _start(job)
        return str(job.socket)
    except OSError as e:
        cannot = Cannot(f"{e.filename}: {e.strerror}" if e.filename else str(e),
                        instead="let $XDG_RUNTIME_DIR or $TMPDIR name a folder that this user can write to")
    except Cannot as e:
        cannot = e
    rank = job.rank if job and job.size > 1 else None
    who = "" if rank is None else f"rank {rank}: "
    raise NoDaemonError(f"{who}{LISTENS_AT}: no fccd listens there, and a private one cannot be started: {cannot}", code=errno.ECONNREFUSED,
                        rank=rank, remedy=cannot.remedy)
