# SPDX-License-Identifier: MIT
"""How the process group joins and spreads tensors where ranks launch collectives themselves (fcc.distributed._direct), on the cpu: what the GPU
would be told is run through the daemon's memory."""
import contextlib
import functools
import time

import fcc
import fcc.distributed._device as device_of_group
import pytest
import torch
import torch.distributed as dist
from fcc.distributed import _direct
from fcc.distributed._collectives import Collectives
from fcc.distributed._messages import Direction, Messages
from fcc.distributed._vectors import Vector, aligned
from fcc.distributed._work import Work
from test_distributed import (async_rank, coalesced_rank, functional_rank, groups_rank, layouts_rank, moves_rank, premultiplied_rank,
                              reductions_rank)
from test_distributed_ends import errors_rank, slow_down
from test_distributed_models import ddp, ddp_norm, zero

ALIKE = ("all_reduce", "reduce", "broadcast")  # in place: in is out


class Staged(_direct.Direct):
    """Direct, whose operators' tensors pass through the daemon's memory."""

    def _run(self, op, **given):
        tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
        spaces = {name: aligned(max(1, tensor.numel() * tensor.element_size())) for name, tensor in tensors.items()}
        self._pieces.reserve(sum(spaces.values()))
        at, places, copies = 0, {}, {}
        for name, tensor in tensors.items():
            if name == "out" and op in ALIKE and "in_" in tensors and tensors["in_"].data_ptr() == tensor.data_ptr():
                places[name], copies[name] = places["in_"], copies["in_"]
                continue
            places[name], copies[name] = self._pieces.at(at, tensor.numel(), tensor.dtype)
            copies[name].copy_(tensor)
            at += spaces[name]
        Collectives._run(self, op, **{**given, **places})
        if "out" in tensors:
            tensors["out"].copy_(copies["out"])


    def _run_many(self, op, calls):
        for arguments in calls:
            self._run(op, **arguments)


def staged(function):
    _direct._at = lambda flat: flat
    device_of_group.Collectives = Staged
    function()
    assert type(dist.group.WORLD._devices["cpu"]._on) is Staged


def apart_rank():
    """Large tensors have an operator each, also where one of them is copied; small ones one together."""
    rank, on = dist.get_rank(), dist.group.WORLD._devices["cpu"]
    dist.all_reduce(torch.ones(1))
    called = []
    run, on._on._run = on._on._run, lambda op, **given: (called.append(op), run(op, **given))
    for n, operators in ((100, 1), (50000, 3)):
        called.clear()
        tensors = [torch.full((n,), rank + 1.0), torch.full((n // 100, 100), rank + 2.0).t(), torch.full((n + 1,), rank + 3.0)]
        dist.group.WORLD.allreduce_coalesced(tensors).wait()
        assert called == ["all_reduce"] * operators
        assert all(torch.equal(t, torch.full_like(t, 2.0 * i + 3)) for i, t in enumerate(tensors))
    del on._on._run


def sent(out, own):
    """A message of this group of two, as one operation of a communicator of two: fcc.distributed._messages."""
    vector = [None if tensor is None else Vector("send" if out is None else "recv", [tensor]) for tensor in (out, own)]
    name = "send" if out is None else "recv"
    tensors = [tensor for tensor in (out, own) if tensor is not None]
    dist.group.WORLD._devices["cpu"].submit(name, lambda on: on.send_receive(*vector, 1 - on.rank), tensors, (), True).wait()


def messages_rank():
    rank = dist.get_rank()
    for tensor in (torch.arange(1000.0), torch.arange(12).reshape(3, 4).t(), torch.ones(0), torch.tensor([True, False])):
        for source in (0, 1):
            come = torch.zeros_like(tensor)
            sent(None if rank == source else come, tensor if rank == source else None)
            assert rank == source or torch.equal(come, tensor)
    for count, dtype in ((4, torch.float32), (2, torch.float32), (3, torch.int32)):  # on both ranks, and the group goes on
        said = "dtype" if dtype == torch.int32 else f"rank 1 expects {count} elements of rank 0, which sends 3"
        with pytest.raises(RuntimeError, match=f"send_receive: .*{said}"):
            sent(None, torch.ones(3)) if rank == 0 else sent(torch.ones(count, dtype=dtype), None)
        dist.all_reduce(x := torch.ones(1))
        assert x.item() == 2


class NoStream:
    """In the place of torch.cuda's streams and events, where there is no GPU: all is done in the order in which it is called."""

    device = None

    def __init__(self, *_):
        pass

    def wait_event(self, _):
        pass

    record = wait_event

    def query(self):
        return True


def without_gpus():
    """The way of messages between GPUs, with communicators on the cpu, whose operators take the time of the thread that runs them: all are
    handed over to the direction's thread."""
    for name in ("Stream", "Event"):
        setattr(torch.cuda, name, NoStream)
    torch.cuda.current_stream = NoStream
    torch.cuda.device = torch.cuda.stream = contextlib.nullcontext
    torch.cuda.is_current_stream_capturing = lambda: False
    torch._C._cuda_getDevice = lambda: 0

    def hand_over(self, work, deliver):
        self._waiting.append(work)
        self._lane.submit(Work("message", deliver))
    Direction._hand_over = hand_over
    world = dist.group.WORLD
    return Messages("fcc", world.rank(), functools.partial(world._meetings.of_two, "cpu"), world._meetings.refuse)


def ring_rank():
    """Nobody waits for a communicator that another rank comes to later only; messages are in the order of the calls."""
    rank, size = dist.get_rank(), dist.get_world_size()
    messages = without_gpus()
    after, before = (rank + 1) % size, (rank - 1) % size
    come = [torch.empty(n) for n in (3, 5000, 0, 1)]
    works = [messages.send(torch.full_like(tensor, rank + 10.0 * i), after) for i, tensor in enumerate(come)]
    works += [messages.receive(tensor, before) for tensor in come]
    for work in reversed(works):
        assert work.wait() and work.is_completed() and work.is_success()
    assert works[-1].source_rank() == before and works[-1].result()[0] is come[-1]
    for i, tensor in enumerate(come):
        assert torch.equal(tensor, torch.full_like(tensor, before + 10.0 * i))
    said = f"recv: rank {after} expects 4 elements of rank {rank}, which sends 3"
    wrong = messages.send(torch.ones(3), after), messages.receive(torch.ones(4), before)
    with pytest.raises(RuntimeError, match=said):
        wrong[0].wait()
    with pytest.raises(RuntimeError, match=f"recv: rank {rank} expects 4 elements of rank {before}, which sends 3"):
        wrong[1].get_future().wait()
    works = messages.send(torch.ones(2), after), messages.receive(x := torch.zeros(2), before)
    assert all(work.wait() for work in works) and x.sum() == 2
    dist.barrier()
    if size > 2 and rank == 0:  # nobody receives it: its communicator is never made
        lost = messages.send(torch.ones(1), 2)
        messages.close(dist.DistBackendError("the end"))
        with pytest.raises(dist.DistBackendError, match="the end"):
            lost.wait()
    dist.barrier()
    messages.close(dist.DistBackendError("the end"))


@pytest.mark.parametrize("size", [2, 4])
def test_messages_of_threads(group, on_cpu, size):
    group(size, ring_rank)


def unsent_rank(slow):
    """As unsent_rank() of test_distributed_ends.py, of messages between GPUs."""
    messages = without_gpus()
    if dist.get_rank() == 0:
        slow_down(slow)
        lost = [messages.send(torch.ones(3), 1) for _ in range(3)]
        if slow == "Communicator":
            time.sleep(0.5)  # the other one has been invited, and joins
        messages.close(dist.DistBackendError("the end"))
        with pytest.raises(RuntimeError, match="the end|aborted"):
            lost[-1].wait()
        return
    with pytest.raises(RuntimeError, match="rank 0") as told:
        for _ in range(4):
            messages.receive(torch.ones(3), 0).wait()
    assert "Timed out" not in str(told.value)
    messages.close(dist.DistBackendError("the end"))


@pytest.mark.parametrize("slow", [None, "unique_id", "Communicator"])
def test_unsent_messages_of_threads(group, on_cpu, slow):
    group(2, unsent_rank, slow)


def test_errors_of_messages_have_the_ranks_of_the_group():
    direction = Direction("a name", (1, 0), lambda: None, None)
    error = direction.in_group(fcc.ArgumentError("send_receive: shape: rank 1 expects 4 elements of rank 0, which sends 3"))
    assert error.reason == "recv: rank 0 expects 4 elements of rank 1, which sends 3" and error.rank == 0 and "rank 0 expects" in str(error)


def pieces(function):
    """As without rings."""
    function()
    assert type(dist.group.WORLD._devices["cpu"]._on) is Collectives


def test_messages_with_pieces(group, on_cpu):
    group(2, pieces, messages_rank)


@pytest.mark.parametrize("function", [reductions_rank, premultiplied_rank, moves_rank, layouts_rank, async_rank, coalesced_rank, groups_rank,
                                      functional_rank, errors_rank, messages_rank, apart_rank, ddp, ddp_norm, zero], ids=lambda function: function.__name__)
def test_as_with_pieces(group, on_cpu, function):
    group(4 if function is groups_rank else 2, staged, function)
