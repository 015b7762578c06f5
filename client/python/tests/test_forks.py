# SPDX-License-Identifier: MIT
"""Children that are forked from a rank: what they do with its communicator is refused, and the rank does not notice. And ranks
whose worker does nothing any more."""
import atexit
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import traceback

import fcc
import pytest
import torch
import torch.distributed as dist
from daemon import Daemon
from ranks import Ranks

CHILD_LIMIT_S = 90


def child(function, *arguments):
    """Run it in a forked child, which must come to its end without an exception."""
    sys.stdout.flush()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(CHILD_LIMIT_S)
        text = ""
        try:
            function(*arguments)
        except BaseException:
            text = traceback.format_exc()
        os.write(writing, text.encode()[:60000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read().decode()
    status = os.waitpid(pid, 0)[1]
    assert not text and status == 0, f"the child ended with wait status {status:#x}: {text}"


def refused_in_child(comm, x, w, tables, step):
    """Everything that asks for the daemon."""
    ones = torch.ones(4)
    many = torch.zeros(8, 8)
    calls = [
        lambda: fcc.all_reduce(ones, comm), lambda: fcc.all_reduce(ones), lambda: fcc.gemv_all_reduce(x, w, comm),
        lambda: fcc.gemv_all_reduce(ones[None], torch.ones(3, 4), comm), lambda: torch.ops.fcc.gemv_all_reduce(x, w, comm.name),
        lambda: fcc.gemm_all_to_all(many, many, comm), lambda: fcc.rows_all_to_all(many, [8, 0], [8, 0], comm),
        lambda: fcc.embedding_all_to_all(tables, torch.zeros(2, dtype=torch.int64), torch.arange(3), table_rows=[10],
                                         tables_per_rank=[1, 1], batch=2, comm=comm),
        lambda: fcc.prepare_gemv_all_reduce(x, w, comm), lambda: fcc.empty(3, comm=comm), lambda: fcc.empty(3),
        lambda: fcc.zeros(1 << 20, comm=comm), lambda: fcc.zeros(8, symmetric=True, comm=comm),
        lambda: fcc.to_daemon(ones, comm), lambda: fcc.to_daemon(torch.nn.Linear(3, 3), comm),
        lambda: fcc.is_daemon_memory(ones, comm), fcc.default, comm.barrier,
        comm.synchronize, comm.check, lambda: comm.reserve(1 << 20), lambda: comm.abort("no"), step]
    for i, call in enumerate(calls):
        with pytest.raises(fcc.ForkedError, match="forked") as e:
            call()
        assert isinstance(e.value, ChildProcessError) and "fcc.init" in e.value.remedy and e.value.rank == comm.rank, i
    with pytest.raises(ZeroDivisionError), comm:  # which aborts nothing
        1 / 0
    assert x.sum() == 8 and torch.ones(3).sum() == 3  # what the parent has can be read
    comm.close()
    del x, w, tables, step, calls, call, e
    gc.collect()


def anew_in_child(comm, x):
    """A communicator of its own, and tensors of the parent's with it."""
    with pytest.raises(fcc.ForkedError):
        fcc.all_reduce(torch.ones(2))
    with fcc.init(rank=0, size=1, id=fcc.unique_id(), heap_bytes=1 << 20) as own:
        assert fcc.all_reduce(torch.full((3,), 7.0)).tolist() == [7.0] * 3
        assert fcc.gemv_all_reduce(x, x).item() == 8
        assert not fcc.is_daemon_memory(x) and fcc.default() is own
        with pytest.raises(fcc.ForkedError):
            comm.barrier()
    atexit._run_exitfuncs()


def use_rank(comm):
    x, w, tables = fcc.zeros(1, 8, comm=comm) + 0, fcc.zeros(4, 8, comm=comm), fcc.zeros(10, 4, comm=comm)
    x = fcc.to_daemon(x + 1, comm)
    w.fill_(comm.rank + 1)
    linear = torch.nn.Linear(8, 4)

    def step():
        return fcc.gemv_all_reduce(x, w, comm)

    def right():
        assert step().tolist() == [[8.0 * comm.size * (comm.size + 1) / 2] * 4]
        assert fcc.all_reduce(torch.ones(4), comm).tolist() == [float(comm.size)] * 4
        assert x.tolist() == [[1.0] * 8] and w.tolist() == [[comm.rank + 1.0] * 8] * 4

    for turn in range(2 * comm.size):
        right()
        if turn % comm.size == comm.rank:
            child(refused_in_child, comm, x, w, tables, step)
            child(anew_in_child, comm, x)
            with fcc.mem_pool(comm):
                child(lambda: linear(torch.ones(2, 8)).sum().item())
    right()


class Samples(torch.utils.data.Dataset):
    def __init__(self, table, calls):
        self.table, self.calls = table, calls

    def __len__(self):
        return 64

    def __getitem__(self, i):
        if self.calls:
            fcc.all_reduce(torch.ones(2))
        return self.table[i] * 2


def loader_rank(comm):
    """Workers of a DataLoader read tensors of the daemon's memory, come and go; one that calls an operator says why it
    cannot."""
    multiprocessing.current_process()._config["daemon"] = False  # ranks.py's ranks are; daemons may have no children
    table = fcc.to_daemon(torch.arange(64.0), comm)
    for _ in range(2):
        loader = torch.utils.data.DataLoader(Samples(table, False), batch_size=16, num_workers=2,
                                             multiprocessing_context="fork")
        seen = []
        for batch in loader:
            seen.append(batch)
            assert fcc.all_reduce(torch.ones(2), comm).tolist() == [float(comm.size)] * 2
        assert torch.cat(seen).tolist() == (torch.arange(64.0) * 2).tolist()
        calls = torch.utils.data.DataLoader(Samples(table, True), num_workers=1, multiprocessing_context="fork")
        with pytest.raises(fcc.ForkedError, match="forked"):
            next(iter(calls))
        comm.barrier()
    assert table.tolist() == list(range(64))


def inherits(comm, held, done, tell):
    """A child reads what it was left when its parent has let go of it and gone on."""
    os.read(done, 1)
    for name, (tensor, number) in held.items():
        assert (tensor == number).all(), (name, tensor)
    os.write(tell, b"1")


def inherited_rank(comm):
    """Results and other tensors that a child has are not overwritten by what the parent makes later, until it has ended; nor
    are they when the child is gone but a child of it lives."""
    x, w = fcc.zeros(2, 8, comm=comm), fcc.zeros(6, 8, comm=comm) + 1
    w = fcc.to_daemon(w, comm)

    def make(value):
        x.fill_(value / 8)
        return {"gemv": (fcc.gemv_all_reduce(x, w, comm), value * comm.size),
                "gemm": (fcc.gemm_all_to_all(x, w.t(), comm), value),
                "sum": (fcc.all_reduce(torch.full((2, 6), float(value)), comm), value * comm.size),
                "empty": (fcc.empty(2, 6, comm=comm).fill_(value), value),
                "storage": (fcc.gemv_all_reduce(x, w, comm).untyped_storage(), None)}
    for grand in (False, True):
        for _ in range(3):
            go, went = os.pipe(), os.pipe()
            held = make(1)
            assert fcc.all_reduce(torch.ones(1), comm).item() == comm.size
            pid = os.fork()
            if pid == 0:
                try:
                    if not grand or os.fork() == 0:
                        signal.alarm(CHILD_LIMIT_S)
                        del held["storage"]
                        inherits(comm, held, go[0], went[1])
                finally:
                    os._exit(0)
            if grand:
                os.waitpid(pid, 0)
            del held
            for value in range(2, 12):
                for name, (tensor, number) in make(value).items():
                    assert number is None or (tensor == number).all(), name
            os.write(go[1], b"1")
            os.close(went[1])
            assert os.read(went[0], 1) == b"1"
            if not grand:
                os.waitpid(pid, 0)
            for fd in (*go, went[0]):
                os.close(fd)
    comm.barrier()


def epochs_rank(comm):
    """Forks by the hundred while results live: their memory is used again when the children have ended, and no descriptors are
    left. (The heap has room for a dozen results.)"""
    w, x = fcc.zeros(128, 8, comm=comm), fcc.zeros(8, 8, comm=comm) + 1
    x = fcc.to_daemon(x, comm)
    fds, last = None, None
    for epoch in range(60):
        w.fill_(epoch)
        y = fcc.gemv_all_reduce(x, w, comm)  # `last` is alive, too
        pid = os.fork()
        if pid == 0:
            os._exit(int(y[0, 0]) != 8 * epoch * comm.size)
        assert os.waitpid(pid, 0)[1] == 0
        assert last is None or (last == 8 * (epoch - 1) * comm.size).all()
        last = y
        if epoch == 20:
            fds = len(os.listdir("/proc/self/fd"))
    assert len(os.listdir("/proc/self/fd")) <= fds + 2
    assert comm._heap.nbytes <= 64 << 10


def other_program_rank(comm):
    """A child that becomes another program sees nothing any more."""
    y = fcc.all_reduce(torch.ones(1000), comm)
    process = subprocess.Popen(["sleep", "60"], preexec_fn=lambda: None)  # with which Python forks as os.fork() does
    try:
        (block,) = [block for block in comm._heap._blocks if block.shape == (1000,)]
        del y
        until = time.monotonic() + 30
        while block.lent and block.is_lent():
            assert time.monotonic() < until
            time.sleep(0.01)
        assert block.forsaken()
    finally:
        process.kill()
        process.wait()


def thread_rank(comm):
    """Forks while another thread is within the library."""
    stop = threading.Event()
    failed = []

    def work():
        while not stop.is_set():
            try:
                fcc.all_reduce(torch.ones(2), comm)
                fcc.empty(1 << 18, comm=comm)
            except BaseException as e:
                failed.append(e)
                raise
    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(10):
            child(anew_in_child, comm, torch.ones(1, 8))
    finally:
        stop.set()
        thread.join()
    assert not failed


@pytest.mark.parametrize("function,size", [(use_rank, 1), (use_rank, 2), (loader_rank, 2), (thread_rank, 1),
                                           (inherited_rank, 1), (inherited_rank, 2), (other_program_rank, 1)])
def test_forks(run, device, function, size):
    if device != "cpu":
        pytest.skip("no GPU driver survives a fork")
    run(size, function)


def test_many_forks(run, device):
    if device != "cpu":
        pytest.skip("no GPU driver survives a fork")
    run(1, epochs_rank, heap_bytes=64 << 10)


# ---- process groups of torch.distributed ----

def refused_group_child(sub, unused):
    """Every way to a group: none joins in the parent's place, or waits for a thread that only the parent has."""
    peer, world = 1 - dist.get_rank(), dist.group.WORLD
    ones = torch.ones(3)
    calls = {
        "all_reduce": [lambda: dist.all_reduce(ones), lambda: dist.all_reduce(ones, async_op=True), lambda: dist.all_reduce(ones, group=sub),
                       lambda: dist.all_reduce(ones, group=unused), lambda: torch.ops._c10d_functional.all_reduce(ones, "sum", world.group_name)],
        "barrier": [dist.barrier], "send": [lambda: dist.send(ones, peer), lambda: dist.send(ones, peer, group=unused), lambda: dist.isend(ones, peer)],
        "recv": [lambda: dist.recv(ones, peer), lambda: dist.recv(ones, peer, group=unused), lambda: dist.irecv(ones, peer)],
        "monitored_barrier": [world.monitored_barrier], "new_group": [lambda: dist.new_group([0, 1])],
        "all_gather": [lambda: torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))]}
    for name, ways in calls.items():
        for call in ways:
            begun = time.monotonic()
            with pytest.raises(RuntimeError, match=rf"rank {1 - peer}: {name}: the process group is of the process \(pid {os.getppid()}\)"):
                call()
            assert time.monotonic() - begun < 10
    with pytest.raises(fcc.ForkedError):
        fcc.distributed.shrink()
    unused.shutdown()
    sub.abort()
    dist.destroy_process_group()
    dist.init_process_group("fcc", store=dist.HashStore(), rank=0, world_size=1)  # a group of its own
    dist.all_reduce(ones)
    assert ones.tolist() == [1.0] * 3
    dist.destroy_process_group()
    gc.collect()


def forked_group_rank():
    rank, size = dist.get_rank(), dist.get_world_size()
    sub, unused = dist.new_group([0, 1]), dist.new_group([0, 1])

    def right():
        for group in (None, sub):
            y = torch.ones(2)
            dist.all_reduce(y, group=group)
            assert y.tolist() == [size] * 2
        dist.send(y, 1) if rank == 0 else dist.recv(y, 0)

    if rank == 1:
        child(refused_group_child, sub, unused)  # before there is any communicator
    right()
    child(refused_group_child, sub, unused)
    held = dist.irecv(torch.zeros(2), 0) if rank == 1 else None  # whose thread waits
    child(refused_group_child, sub, unused)
    dist.send(torch.ones(2), 1) if held is None else held.wait()
    right()
    dist.all_reduce(torch.ones(1), group=unused)
    dist.group.WORLD.monitored_barrier()


def test_forks_of_a_group(group, on_cpu):
    group(2, forked_group_rank)


# ---- a worker that is stopped ----

def stopped_rank(comm, path, what):
    x, w = torch.ones(2, 8), torch.ones(4, 8)
    rows = torch.ones(1 << 18, 2)  # whose result needs memory that there is none of yet
    calls = {"all_reduce": lambda: fcc.all_reduce(torch.ones(4), comm), "barrier": comm.barrier,
             "gemv_all_reduce": lambda: fcc.gemv_all_reduce(x, w, comm),
             "rows_all_to_all": lambda: torch.ops.fcc.rows_all_to_all(rows, [1 << 18], [1 << 18], comm.name),
             "empty": lambda: fcc.empty(1 << 20, comm=comm), "symmetric": lambda: fcc.empty(8, symmetric=True, comm=comm),
             "reserve": lambda: comm.reserve(1 << 20), "unique_id": fcc.unique_id, "init": lambda: fcc.init(rank=0, size=1, id=bytes(128))}
    names = {"empty": "allocating memory", "symmetric": "allocating memory", "reserve": "allocating memory", "unique_id": r"unique_id\(\)",
             "init": r"fcc.init\(\)"}
    fcc.all_reduce(torch.ones(4), comm), fcc.gemv_all_reduce(x, w, comm)
    comm.barrier()
    (path / what).write_text("")
    while not (path / "stopped").exists():
        time.sleep(0.01)
    # The first one waits, and finds it out; the others hear at once, each of itself, and so does who asks again.
    for name in [what, *calls, what]:
        with pytest.raises(fcc.TimeLimitError, match=rf"^{names.get(name, name)}: the worker of job '.*' \(pid \d+\) does not answer") as e:
            calls[name]()
        assert "continue or end it" in e.value.remedy


def test_worker_is_stopped(device, tmp_path):
    """Each in a connection of its own, all at once: the wait takes some seven seconds."""
    if device != "cpu":
        pytest.skip("once is enough")
    kinds = ["rows_all_to_all", "barrier", "empty", "symmetric", "init"]
    with Daemon(device) as daemon:
        ranks = [Ranks(daemon, device, 1, stopped_rank, tmp_path, what, time_limit=1) for what in kinds]
        until = time.monotonic() + 60
        while not all((tmp_path / what).exists() for what in kinds):
            assert time.monotonic() < until
            time.sleep(0.01)
        children = f"/proc/{daemon.process.pid}/task/{daemon.process.pid}/children"
        (worker,) = [int(pid) for pid in open(children).read().split()]
        os.kill(worker, signal.SIGSTOP)
        try:
            (tmp_path / "stopped").write_text("")
            found = [one.outcomes() for one in ranks]
        finally:
            os.kill(worker, signal.SIGCONT)
        assert all(well for ((well, _),) in found), found
