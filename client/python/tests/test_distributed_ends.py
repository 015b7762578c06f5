# SPDX-License-Identifier: MIT
"""The backend fcc of torch.distributed: barriers, ranks that do not fit together, come late, die or abort."""
import datetime
import gc
import os
import signal
import threading
import time
import weakref

import pytest
import torch
import torch.distributed as dist
from ranks import Group, gpus

SIZES = pytest.mark.parametrize("size", [2, 4])


def world():
    return dist.get_rank(), dist.get_world_size()


def monitored_barrier(**given):
    """Of the group itself where this PyTorch's function refuses all groups but gloo's."""
    try:
        dist.monitored_barrier(**given)
    except ValueError as e:
        if "only implemented for GLOO" not in str(e):
            raise
        dist.group.WORLD.monitored_barrier(**given)


def barrier_rank():
    rank, size = world()
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        time.sleep(0.3)
        store.set("came", "1")
    dist.barrier()
    assert store.check(["came"])
    monitored_barrier(timeout=datetime.timedelta(seconds=60))
    if rank == 1:  # comes when all others have given up
        store.wait([f"gave up {other}" for other in range(size) if other != 1], datetime.timedelta(seconds=60))
    else:
        with pytest.raises(RuntimeError, match="Rank 1 failed to pass monitoredBarrier in 2000 ms" if rank == 0 else "Rank . successfully reached"):
            monitored_barrier(timeout=datetime.timedelta(seconds=2), wait_all_ranks=True)
        store.set(f"gave up {rank}", "1")
    dist.barrier()


@SIZES
def test_barrier(group, size):
    group(size, barrier_rank)


def errors_rank():
    """Ranks that do not fit together all hear why, and the group goes on."""
    rank, size = world()
    last, on_gpu = size - 1, torch.get_default_device().type == "cuda"
    for call, text in (
            (lambda: dist.all_reduce(torch.ones(4 if rank == last else 3)), "all_reduce"),
            (lambda: dist.all_reduce(torch.ones(3, dtype=torch.float64 if rank == last else torch.float32)), "all_reduce"),
            (lambda: dist.all_reduce(torch.ones(3), dist.ReduceOp.MAX if rank == last else dist.ReduceOp.SUM), "all_reduce"),
            (lambda: dist.broadcast(torch.ones(3), 1 if rank == last else 0), "broadcast"),
            (lambda: dist.all_reduce(torch.ones(3)) if rank == last else dist.broadcast(torch.ones(3), 0), "all_reduce|broadcast"),
            (lambda: dist.all_reduce(torch.ones(3, dtype=torch.int32), dist.ReduceOp.AVG), "AVG of torch.int32"),
            (lambda: dist.all_reduce(torch.ones(3, dtype=torch.int16)), "torch.int16"),
            (lambda: dist.all_reduce(torch.ones(3, dtype=torch.float16).to_sparse() if rank == last else torch.ones(3)), "sparse|all_red"),
            (lambda: dist.all_to_all_single(torch.empty(size + (rank == last)), torch.ones(size)), "all_to_all")):
        with pytest.raises((RuntimeError, ValueError), match=text):
            call()
            if on_gpu:  # this rank's call is enqueued; what the other ranks have is found there
                dist.group.WORLD._devices["cuda"].synchronize()
        t = torch.ones(2)
        dist.all_reduce(t)
        assert t.tolist() == [size] * 2
    if on_gpu:
        dist.all_reduce(torch.ones(3 + rank))
        with pytest.raises(dist.DistBackendError, match="all_reduce"):  # it waits for the group's stream
            dist.barrier()
        return
    work = dist.all_reduce(torch.ones(3 + rank), async_op=True)
    with pytest.raises(dist.DistBackendError):
        work.wait()
    assert work.is_completed() and not work.is_success() and work.exception() is not None
    future = dist.all_reduce(torch.ones(3 + rank), async_op=True).get_future()
    with pytest.raises(RuntimeError):
        future.wait()
    dist.barrier()


@SIZES
def test_errors(group, size):
    group(size, errors_rank)


def late_rank():
    """A rank that does not come: the others' limit passes."""
    rank, _ = world()
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        work = dist.all_reduce(torch.ones(3), async_op=True)
        with pytest.raises(RuntimeError, match="Timed out"):
            work.wait(datetime.timedelta(seconds=0.1))
        with pytest.raises(dist.DistBackendError, match="rank 1|ETIMEDOUT"):
            work.wait()
        with pytest.raises(dist.DistBackendError):
            dist.all_reduce(torch.ones(3))
        store.set("heard", "1")
    else:
        store.wait(["heard"], datetime.timedelta(seconds=60))


def test_time_limit(daemon, on_cpu):
    Group(daemon, 2, late_rank, timeout_s=5).results()


def late_on_gpu_rank():
    """There the limit ends what is on the stream, and the next call says why."""
    rank, _ = world()
    x = torch.ones(3)
    dist.all_reduce(x)
    assert x.sum().item() == 6
    if rank == 0:
        dist.all_reduce(x)
        x.sum().item()  # waits for the stream
        with pytest.raises(dist.DistBackendError, match="rank 1"):
            dist.all_reduce(x)
    else:
        time.sleep(6)


def test_time_limit_on_gpus(daemon, device):
    gpus(device)
    Group(daemon, 2, late_on_gpu_rank, timeout_s=2, device=device).results()


def dying_rank():
    rank, size = world()
    dist.all_reduce(torch.ones(1000))
    dist.barrier()
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(dist.DistBackendError, match=f"rank {size - 1}"):
        for _ in range(100):
            x = torch.ones(1000)
            dist.all_reduce(x)
            x.sum().item()  # on a GPU this waits for the stream, and the next call says how that went
    assert time.monotonic() - began < 20


@SIZES
def test_death(daemon, device, size):
    found = Group(daemon, size, dying_rank, device=device).outcomes()
    assert [well for well, _ in found] == [True] * (size - 1) + [False], found


def dying_in_backward_rank(hooked):
    """C++ waits for the futures of a backward's collectives: what they end with has to be an exception there, too."""
    rank, size = world()
    model = torch.nn.Linear(4, 4)
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    if hooked:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
        wrapped.register_comm_hook(None, default_hooks.allreduce_hook)
    loss = wrapped(torch.ones(2, 4)).sum()
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(RuntimeError, match=f"rank {size - 1}"):
        loss.backward()


@pytest.mark.parametrize("hooked", [False, True])
def test_death_in_backward(daemon, on_cpu, hooked):
    found = Group(daemon, 2, dying_in_backward_rank, hooked).outcomes()
    assert [well for well, _ in found] == [True, False], found


def slow_down(name):
    """What ranks do to meet, of this name, takes a second longer from now on. None: nothing does."""
    from fcc.distributed import _meeting
    if name is None:
        return
    done = getattr(_meeting, name)

    def late(*args, **kwargs):
        time.sleep(1)
        return done(*args, **kwargs)
    setattr(_meeting, name, late)


def unsent_rank(slow, messages):
    """A rank leaves with messages that it has not sent: who waits for one of them hears that, instead of waiting for its time limit. slow: what takes
    that rank so long that it leaves meanwhile: to invite the other one, or to join it."""
    rank, size = world()
    if rank == 0:
        slow_down(slow)
        for _ in range(messages):
            dist.isend(torch.ones(3), 1)
        if slow == "Communicator":
            time.sleep(0.5)  # the other one has been invited, and joins
        return
    with pytest.raises(dist.DistBackendError, match="rank 0|destroyed") as told:
        for _ in range(messages + 1):
            x = torch.ones(3)
            dist.recv(x, 0)
            x.sum().item()  # on a GPU this waits for the stream, and the next call says how that went
    assert "Timed out" not in str(told.value)


@pytest.mark.parametrize("messages", [1, 3])
@pytest.mark.parametrize("slow", [None, "unique_id", "Communicator"])
def test_unsent(daemon, device, slow, messages):
    if device == "cuda":
        gpus(device)
    Group(daemon, 2, unsent_rank, slow, messages, device=device).results()


def abort_rank():
    rank, _ = world()
    group, store = dist.group.WORLD, dist.distributed_c10d._get_default_store()
    dist.barrier()
    if rank == 0:
        work = dist.all_reduce(torch.ones(3), async_op=True)
        threading.Timer(0.3, group.abort).start()
        with pytest.raises(dist.DistBackendError, match="abort"):
            work.wait()
        store.set("aborted", "1")
    else:
        store.wait(["aborted"], datetime.timedelta(seconds=60))
        with pytest.raises(dist.DistBackendError, match="abort"):
            dist.all_reduce(torch.ones(3))


def test_abort(group, on_cpu):
    group(2, abort_rank)


def gone_rank():
    """A group that has been destroyed goes with its store's connections when nobody has it any more; no collector of cycles is needed."""
    rank, size = world()
    group = dist.new_group(list(range(size)))
    dist.all_reduce(torch.ones(3), group=group)
    seen = weakref.ref(group)
    gc.collect()
    gc.disable()
    dist.destroy_process_group(group)
    del group
    assert seen() is None
    dist.barrier()


def test_goes(group, on_cpu):
    group(2, gone_rank)
