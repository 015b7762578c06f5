# SPDX-License-Identifier: MIT
"""Where no fccd listens, a job's ranks start a private one: one for all of them, which ends with the last of them, however it ends."""
import ctypes
import importlib.util
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import types

import fcc
import pytest
import torch
from daemon import ROOT
from fcc import _private
from fcc._library import library
from fcc._private.program import _compiler
from ranks import _context

LIMIT_S = 180
STARTED = re.compile(r"^fcc: no fccd listens at /run/fccd/fccd\.sock: started a private one for this job \(pid (\d+), socket (.+)\)$", re.M)


@pytest.fixture(autouse=True)
def nobody_listens():
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        if sock.connect_ex(_private.LISTENS_AT) == 0:
            pytest.skip(f"a fccd listens at {_private.LISTENS_AT}")


def _main(channel, environment, folder, function, arguments):
    with open(folder / "stderr", "ab", buffering=0) as said:
        os.dup2(said.fileno(), 2)
    for name in ("FCCD_SOCKET", "FCCD_JOB", "FCCD_BINARY"):
        os.environ.pop(name, None)
    os.environ.update(environment)
    torch.set_num_threads(1)
    try:
        channel.send((True, function(channel, *arguments)))
    except BaseException as e:  # the parent judges
        channel.send((False, e if isinstance(e, fcc.Error) else traceback.format_exc()))


class Folder:
    """Where private daemons of a test's processes are."""

    def __enter__(self):
        self.directory = tempfile.TemporaryDirectory(prefix="fcc-private-")
        self.path = pathlib.Path(self.directory.name)
        self.environment = {"XDG_RUNTIME_DIR": self.directory.name, "FCCD_GPUS": "none", "FCCD_CPU_WORKGROUPS": "1"}
        self.processes = []
        return self

    def __exit__(self, kind, *_):
        for process, _ in self.processes:
            process.kill()
            process.join(LIMIT_S)
        for pid in self.pids():
            gone(pid)
        if kind is None:
            logs = {path.name for path in (self.path / "fccd").glob("*.log") if path.stat().st_size}  # of those who had something to tell
            assert self.files() <= {"lock"} | logs, self.files()
        self.directory.cleanup()

    def begin(self, function, *arguments, **environment):
        """Runs function(channel, *arguments) in a process."""
        channel, theirs = _context.Pipe()
        process = _context.Process(target=_main, args=(theirs, self.environment | environment, self.path, function, arguments), daemon=True)
        process.start()
        theirs.close()
        self.processes.append((process, channel))
        return process, channel

    def ranks(self, size, function, *arguments, **environment):
        return [self.begin(function, *arguments, FCC_RANK=str(rank), FCC_SIZE=str(size), FCC_MEETING="", **environment) for rank in range(size)]

    def said(self):
        return (self.path / "stderr").read_text() if (self.path / "stderr").exists() else ""

    def pids(self):
        return [int(pid) for pid, _ in STARTED.findall(self.said())]

    def files(self):
        return {path.name for path in (self.path / "fccd").glob("*")}


@pytest.fixture
def folder():
    with Folder() as there:
        yield there


def result(channel):
    """What a process sent, if it is well."""
    assert channel.poll(LIMIT_S), "nothing within the time limit"
    well, what = channel.recv()
    if not well:
        raise what if isinstance(what, fcc.Error) else AssertionError(what)
    return what


def runs(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(pid):
    until = time.monotonic() + LIMIT_S
    while runs(pid):
        assert time.monotonic() < until, f"process {pid} is still there"
        time.sleep(0.02)


# ---- one for all ranks, and no longer ----

def summing(channel):
    with fcc.init() as comm:
        total = fcc.all_reduce(torch.tensor([comm.rank + 1.0])).item()
        return total, library().device_count(comm.member.connection.handle)


def test_one_process(folder):
    """Without a launcher."""
    _, channel = folder.begin(summing)
    assert result(channel) == (1.0, 1)
    assert len(folder.pids()) == 1


def test_ranks_that_start_at_once(folder):
    assert [result(channel) for _, channel in folder.ranks(6, summing)] == [(21.0, 6)] * 6
    assert len(folder.pids()) == 1 and folder.said().count("\n") == 1, folder.said()


def test_again_and_again(folder):
    """One that is about to end is in nobody's way."""
    for _ in range(6):
        process, channel = folder.begin(summing)
        assert result(channel) == (1.0, 1)
        process.join(LIMIT_S)
        time.sleep(0.17)
    assert 1 <= len(folder.pids()) <= 6


def test_torchrun(tmp_path, folder):
    """fcc.init() and the backend of torch.distributed."""
    program = tmp_path / "program.py"
    program.write_text("import fcc, os, torch, torch.distributed as dist\n"
                       "dist.init_process_group('fcc')\n"
                       "x = torch.tensor([dist.get_rank() + 1.0])\n"
                       "dist.all_reduce(x)\n"
                       "with fcc.init() as comm:\n"
                       "    y = fcc.all_reduce(x)\n"
                       "dist.destroy_process_group()\n"
                       "print(f'{x.item()} {y.item()}\\n', end='', flush=True)\n")
    environment = {key: value for key, value in os.environ.items() if key not in ("FCCD_JOB", "FCCD_SOCKET")} | folder.environment
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(program)], text=True,
                          env=environment | {"OMP_NUM_THREADS": "1"}, capture_output=True, timeout=LIMIT_S, check=False, cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.split() == ["3.0", "6.0"] * 2, done.stdout + done.stderr
    (pid, _), = STARTED.findall(done.stderr)
    gone(int(pid))


def joined(channel):
    comm = fcc.init(time_limit=20)
    channel.send((True, comm.rank))
    channel.recv()
    try:
        channel.send((True, fcc.all_reduce(torch.ones(1)).item()))
    except fcc.Error as e:
        channel.send((False, e))
    channel.recv()


def test_ranks_that_are_killed(folder):
    """The others are told; the daemon stays for them, whoever started it, and ends with the last."""
    ranks = folder.ranks(3, joined)
    assert [result(channel) for _, channel in ranks] == [0, 1, 2]
    pid, = folder.pids()
    ranks[0][0].kill()
    for _, channel in ranks[1:]:
        channel.send("go on")
        with pytest.raises(fcc.AbortedError, match="rank 0"):
            result(channel)
    ranks[1][0].kill()
    again = folder.ranks(2, joined)
    assert [result(channel) for _, channel in again] == [0, 1]
    assert folder.pids() == [pid]
    for process, _ in [ranks[2], *again]:
        process.kill()
    gone(pid)


def test_jobs_side_by_side(folder):
    jobs = [folder.ranks(2, joined, FCCD_JOB=name) for name in ("one", "other")]
    for job in jobs:
        assert [result(channel) for _, channel in job] == [0, 1]
    first, second = folder.pids()
    for process, _ in jobs[0]:
        process.kill()
        process.join()
    for _, channel in jobs[1]:
        channel.send("go on")
    assert [result(channel) for _, channel in jobs[1]] == [2.0, 2.0]
    assert first != second


def killed_daemon(channel):
    with fcc.init() as comm:
        fcc.all_reduce(torch.ones(1))
        del comm
    channel.send((True, None))
    channel.recv()
    with fcc.init() as comm:
        return fcc.all_reduce(torch.ones(1)).item()


def test_daemon_that_is_killed(folder):
    """The next call starts another one. What a job leaves that was killed together with its daemon goes when the next job starts one."""
    _, channel = folder.begin(killed_daemon)
    result(channel)
    pid, = folder.pids()
    os.kill(pid, signal.SIGKILL)
    gone(pid)
    channel.send("go on")
    assert result(channel) == 1.0
    assert len(folder.pids()) == 2
    other, channel = folder.begin(joined, FCCD_JOB="other")
    result(channel)
    os.kill(folder.pids()[2], signal.SIGKILL)
    other.kill()
    other.join()
    gone(folder.pids()[2])
    assert any(name.endswith(".sock") for name in folder.files())
    _, channel = folder.begin(summing, FCCD_JOB="third")
    assert result(channel) == (1.0, 1)


def forks(channel):
    comm = fcc.init()
    child = os.fork()
    if child == 0:
        signal.pause()
    channel.send((True, (comm.rank, child)))
    channel.recv()


def test_children(folder):
    """A child that outlives its parent does not keep the parent's daemon."""
    process, channel = folder.begin(forks)
    _, child = result(channel)
    pid, = folder.pids()
    process.kill()
    process.join()
    gone(pid)
    assert runs(child)
    os.kill(child, signal.SIGKILL)


def cores(channel):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # as launchers do
    with fcc.init():
        return len(os.sched_getaffinity(0)), len(os.sched_getaffinity(int(next(pathlib.Path(os.environ["XDG_RUNTIME_DIR"], "fccd").glob("*.pid")).read_text())))


def test_cores(folder):
    """A rank that is tied to a core starts a fccd that is not."""
    (_, channel), = folder.ranks(1, cores)
    assert result(channel) == (1, len(os.sched_getaffinity(0)))


# ---- errors ----

def refused(channel):
    start = time.monotonic()
    with pytest.raises(fcc.NoDaemonError) as e:
        fcc.init()
    return str(e.value), e.value.rank, time.monotonic() - start


def everywhere(folder, size, function=refused, **environment):
    """The error's text, which all ranks have but for their number."""
    texts = set()
    for rank, (_, channel) in enumerate(folder.ranks(size, function, **environment)):
        text, number, _ = result(channel)
        assert number == rank and text.startswith(f"rank {rank}: /run/fccd/fccd.sock: no fccd listens there, and a private one cannot be started: ")
        texts.add(text.partition("started: ")[2])
    assert len(texts) == 1 and not folder.pids(), texts
    text, = texts
    assert "systemctl start fccd.socket" in text and "FCCD_SOCKET=PATH" in text
    return text


def forget(folder):
    """A hold without a fccd stays until the next one is started."""
    for path in (folder.path / "fccd").glob("*.hold"):
        path.unlink()


def test_no_program(folder, tmp_path):
    text = everywhere(folder, 2, FCCD_BINARY="/nonexistent/fccd")
    assert text.startswith("$FCCD_BINARY: \"/nonexistent/fccd\": no program that this user may run") and "let $FCCD_BINARY name fccd" in text
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libfccclient.so.0").write_bytes(pathlib.Path(os.environ["FCC_LIBRARY"]).read_bytes())
    text = everywhere(folder, 2, FCC_LIBRARY=str(tmp_path / "lib" / "libfccclient.so.0"), PATH=str(tmp_path))
    assert text.startswith(f"there is no fccd that this user may run: neither {tmp_path}/bin/fccd, nor in $PATH") and "the wheel, which brings it" in text
    forget(folder)


def test_no_place(folder):
    (folder.path / "fccd").mkdir(0o755)
    text = everywhere(folder, 2)
    assert text.startswith(f"{folder.path}/fccd: drwxr-xr-x of uid {os.geteuid()}: allowed is a folder of uid {os.geteuid()}, mode 0700")
    assert "$XDG_RUNTIME_DIR or $TMPDIR" in text
    (folder.path / "fccd").rmdir()
    long = folder.path / ("long" * 20)
    long.mkdir()
    assert "bytes: allowed are 107" in everywhere(folder, 2, XDG_RUNTIME_DIR=str(long))


def refused_a_place(channel):
    library()  # before the right to read it may be lost
    if os.geteuid() == 0:
        os.setresuid(65534, 65534, 65534)
    tempfile.tempdir = os.environ["XDG_RUNTIME_DIR"]
    return refused(channel)


def test_no_right_to_write(folder):
    folder.path.chmod(0o500)
    text = everywhere(folder, 2, refused_a_place)
    assert re.match(rf"{folder.path}/fccd-\d+: Permission denied", text), text
    assert "let $XDG_RUNTIME_DIR or $TMPDIR name a folder that this user can write to" in text
    folder.path.chmod(0o700)


def program(folder, text):
    path = folder.path / "program"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return str(path)


def test_program_that_fails(folder):
    path = program(folder, "echo there is no more room >&2; exit 3")
    assert everywhere(folder, 2, FCCD_BINARY=path).startswith(f"{path}: it ended with 3: there is no more room (ECONNREFUSED)")
    text = everywhere(folder, 2, FCCD_CPU_WORKGROUPS="many")
    assert "it ended with 2: fccd: FCCD_CPU_WORKGROUPS: CPU_WORKGROUPS: \"many\": allowed is a number from 0 to 256" in text
    forget(folder)


def refused_on_a_full_disk(channel):
    """In a mount namespace of this thread's."""
    libc, folder = ctypes.CDLL(None), os.environ["XDG_RUNTIME_DIR"]
    new_namespace, all_private = 0x20000, 0x44000
    if libc.unshare(new_namespace) or libc.mount(b"none", b"/", None, all_private, None) or \
            libc.mount(b"none", folder.encode(), b"tmpfs", 0, b"size=4k,mode=700"):
        return None
    pathlib.Path(folder, "all").write_bytes(bytes(4096))
    return refused(channel)


def test_full_disk(folder):
    """What fccd says does not need a place there."""
    said = result(folder.begin(refused_on_a_full_disk)[1])
    if said is None:
        pytest.skip("this user may not mount")
    assert re.search(r"fccd: it ended with 1: .*PID_FILE .*No space left on device", said[0]), said[0]


def refused_soon(channel):
    _private.Job.limit_s = 2.0
    return refused(channel)


def test_time_limit(folder):
    """Of a program that hangs all ranks hear within the limit, which they do not have one after the other."""
    path = program(folder, "exec sleep 40")
    said = [result(channel) for _, channel in folder.ranks(5, refused_soon, FCCD_BINARY=path)]
    assert any("it has not listened within 2 s" in text for text, _, _ in said), said
    assert all("has not listened" in text or "another process has been starting a private fccd for 2 s" in text for text, _, _ in said), said
    assert max(seconds for _, _, seconds in said) < 8, said
    forget(folder)


def test_nodes(folder):
    """A private one serves one node."""
    environment = {"TORCHELASTIC_RUN_ID": "run", "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
                   "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "29500"}
    _, channel = folder.begin(refused, **environment)
    text, rank, _ = result(channel)
    assert rank == 3 and text.startswith("rank 3: ") and "one serves the ranks of one node, and 2 of this job's 4 ranks are on this one" in text
    assert "Start fccd on each of the nodes, with NODE_LISTEN and CLUSTER_KEY" in text
    _, channel = folder.begin(refused, FCC_RANK="0", FCC_SIZE="4", FCC_MEETING="192.0.2.1:7070")
    assert "some of this job's 4 ranks are on this one" in result(channel)[0]
    assert not folder.files()


def test_socket_that_is_named(folder):
    """Whoever names a socket wants that one."""
    for given in {"FCCD_SOCKET": "/nonexistent/fccd.sock"}, {"FCCD_SOCKET": _private.LISTENS_AT}:
        _, channel = folder.begin(refused, **given)
        text, _, _ = result(channel)
        assert "private" not in text and given["FCCD_SOCKET"] in text
    assert not folder.files()


def test_default_socket():
    assert f'#define FCC_SOCKET_DEFAULT "{_private.LISTENS_AT}"' in (ROOT / "proto" / "proto.h").read_text()


def test_compiler(tmp_path, monkeypatch):
    """Of PyTorch's packages the newest; otherwise fccd looks by itself."""
    where = tmp_path / "cu13" / "lib"
    where.mkdir(parents=True)
    package = types.SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: package)
    assert _compiler() == "auto"
    for version in 13, 12:
        (where / f"libnvrtc.so.{version}").touch()
    assert _compiler() == str(where / "libnvrtc.so.13")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert _compiler() == "auto"
