# SPDX-License-Identifier: MIT
"""How the process group joins and spreads tensors where ranks launch collectives themselves (fcc.distributed._direct), on the cpu: what the GPU
would be told is run through the daemon's memory."""
import fcc
import fcc.distributed._device as device_of_group
import pytest
import torch
import torch.distributed as dist
from fcc.distributed import _direct
from fcc.distributed._collectives import Collectives
from fcc.distributed._messages import Direction
from fcc.distributed._vectors import Vector, aligned
from test_distributed import (async_rank, coalesced_rank, functional_rank, groups_rank, layouts_rank, moves_rank, premultiplied_rank,
                              reductions_rank)
from test_distributed_ends import errors_rank
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


def test_errors_of_messages_have_the_ranks_of_the_group():
    direction = Direction("a name", (1, 0), lambda: None)
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
