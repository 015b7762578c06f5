# SPDX-License-Identifier: MIT
"""How the process group joins and spreads tensors where ranks launch collectives themselves (fcc.distributed._direct), on the cpu: what the GPU
would be told is run through the daemon's memory."""
import fcc.distributed._device as device_of_group
import pytest
import torch
import torch.distributed as dist
from fcc.distributed import _direct
from fcc.distributed._collectives import Collectives
from fcc.distributed._vectors import aligned
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


def staged(function):
    _direct._at = lambda flat: flat
    device_of_group.Collectives = Staged
    function()
    assert type(dist.group.WORLD._devices["cpu"]._on) is Staged


@pytest.mark.parametrize("function", [reductions_rank, premultiplied_rank, moves_rank, layouts_rank, async_rank, coalesced_rank, groups_rank,
                                      functional_rank, errors_rank, ddp, ddp_norm, zero], ids=lambda function: function.__name__)
def test_as_with_pieces(group, on_cpu, function):
    group(4 if function is groups_rank else 2, staged, function)
