# SPDX-License-Identifier: MIT
"""Communicator.split() and shrink(): new communicators of ranks, with tensors that stay what they were."""
import os
import signal

import fcc
import pytest
import torch
from ranks import Group


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


def left(comm):
    mine = fcc.to_daemon(torch.full((1000,), float(comm.rank + 1)), comm)
    before = fcc.all_reduce(mine, comm=comm)  # a result in the daemon's memory
    if comm.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(fcc.Error):
        while True:
            fcc.all_reduce(mine, comm=comm)
    made = comm.shrink()
    assert (made.size, made.rank) == (3, comm.rank - (comm.rank > 2)) and fcc.default() is made
    with pytest.raises(fcc.ArgumentError, match="closed"):
        comm.barrier()
    assert mine.tolist() == [float(comm.rank + 1)] * 1000 and before.tolist() == [10.0] * 1000
    for _ in range(3):
        assert fcc.all_reduce(mine).tolist() == [7.0] * 1000
        assert fcc.all_reduce(before).tolist() == [30.0] * 1000
    del before
    made.barrier()
    made.close()
    assert mine[0].item() == comm.rank + 1  # the memory stays as long as the tensor


def test_shrink(start, device):
    if device != "cpu":
        pytest.skip("under MPS the contexts are lost")
    outcomes = start(4, left).outcomes()
    assert [well for well, _ in outcomes] == [True, True, False, True], outcomes  # one was killed


def group_left():
    import torch.distributed as dist
    rank = dist.get_rank()
    x = torch.full((10,), float(rank + 1))
    dist.all_reduce(x)
    assert x[0].item() == 10
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(Exception):
        while True:
            dist.all_reduce(x)
    group = fcc.distributed.shrink()
    assert dist.group.WORLD is group and dist.get_world_size() == 3 and dist.get_rank() == rank - (rank > 2)
    x = torch.full((10,), float(rank + 1))
    dist.all_reduce(x)
    dist.barrier()
    assert x.tolist() == [7.0] * 10
    told = [None] * 3
    dist.all_gather_object(told, rank)
    assert told == [0, 1, 3]


def test_group_shrink(daemon, device):
    if device != "cpu":
        pytest.skip("under MPS the contexts are lost")
    outcomes = Group(daemon, 4, group_left).outcomes()
    assert [well for well, _ in outcomes] == [True, True, False, True], outcomes
