# SPDX-License-Identifier: MIT
"""Communicator.split() and shrink(): new communicators of ranks, with tensors that stay what they were."""
import os
import signal

import fcc
import pytest
import torch
from ranks import Group, gpus


def halves(comm):
    half = comm.split(comm.rank % 2, key=-comm.rank)
    assert (half.size, half.rank) == (2, 1 - comm.rank // 2)
    mine = fcc.to_daemon(torch.full((1000,), float(comm.rank + 1)), comm)
    assert fcc.all_reduce(mine, comm=half).tolist() == [float(2 * (comm.rank % 2) + 4)] * 1000
    assert comm.split(None if comm.rank else 3) is None or comm.rank == 0
    with pytest.raises(fcc.ArgumentError, match="color: -1"):
        comm.split(-1)
    half.close()
    return fcc.all_reduce(mine, comm=comm)[0].item()


def test_split(run, device):
    if device != "cpu":
        pytest.skip("ranks share GPUs here")
    assert run(4, halves) == [10.0] * 4


def ranks_for_deaths(device):
    """On GPUs each rank has one. Under MPS a death may cost all their contexts."""
    if device == "cpu":
        return 4
    if os.path.exists(os.path.join(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"), "control")):
        pytest.skip("under MPS the contexts may be lost")
    return gpus(device)


def sums(size):
    """Of rank + 1: of all, and of all but the last one but one, which dies."""
    return size * (size + 1) / 2, size * (size + 1) / 2 - (size - 1)


def left(comm):
    victim, (of_all, of_left) = comm.size - 2, sums(comm.size)
    mine = fcc.to_daemon(torch.full((1000,), float(comm.rank + 1), device=comm.device), comm)
    before = fcc.all_reduce(mine, comm=comm)  # a result in the daemon's memory
    comm.synchronize()
    if comm.rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(fcc.Error):
        while True:
            fcc.all_reduce(mine, comm=comm)
            comm.synchronize()
    made = comm.shrink()
    assert (made.size, made.rank) == (comm.size - 1, comm.rank - (comm.rank > victim)) and fcc.default() is made
    with pytest.raises(fcc.ArgumentError, match="closed"):
        comm.barrier()
    assert mine.tolist() == [float(comm.rank + 1)] * 1000 and before.tolist() == [of_all] * 1000
    for _ in range(3):
        assert fcc.all_reduce(mine).tolist() == [of_left] * 1000
        assert fcc.all_reduce(before).tolist() == [of_all * made.size] * 1000
    del before
    made.barrier()
    made.close()
    assert mine[0].item() == comm.rank + 1  # the memory stays as long as the tensor


def test_shrink(start, device):
    size = ranks_for_deaths(device)
    outcomes = start(size, left).outcomes()
    assert [well for well, _ in outcomes] == [rank != size - 2 for rank in range(size)], outcomes  # one was killed


def group_left():
    import torch.distributed as dist
    rank, size = dist.get_rank(), dist.get_world_size()
    victim, (of_all, of_left) = size - 2, sums(size)
    x = torch.full((10,), float(rank + 1))
    dist.all_reduce(x)
    assert x[0].item() == of_all  # on a GPU it is done by then
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(Exception):
        while True:
            dist.all_reduce(x)
            x.tolist()
    group = fcc.distributed.shrink()
    assert dist.group.WORLD is group and dist.get_world_size() == size - 1 and dist.get_rank() == rank - (rank > victim)
    x = torch.full((10,), float(rank + 1))
    dist.all_reduce(x)
    dist.barrier()
    assert x.tolist() == [of_left] * 10
    told = [None] * (size - 1)
    dist.all_gather_object(told, rank)
    assert told == [other for other in range(size) if other != victim]


def test_group_shrink(daemon, device):
    size = ranks_for_deaths(device)
    outcomes = Group(daemon, size, group_left, device=device).outcomes()
    assert [well for well, _ in outcomes] == [rank != size - 2 for rank in range(size)], outcomes


def group_of_nothing():
    with pytest.raises(fcc.ArgumentError, match="has run nothing yet"):
        fcc.distributed.shrink()


def test_group_shrinks_what_it_has(daemon):
    Group(daemon, 2, group_of_nothing).results()
