# SPDX-License-Identifier: MIT
"""The backend "fcc" of torch.distributed.

    import fcc, torch.distributed as dist
    dist.init_process_group("fcc")         # under torchrun; on several nodes fccd runs on each

All collectives, sub-groups and object collectives of torch.distributed, for tensors on the cpu and on CUDA GPUs wherever they lie, and messages
of tensors on the cpu; so DistributedDataParallel, FSDP2, ZeroRedundancyOptimizer and DTensor run on it.

_group.py: the process group. _work.py: what its calls return, and the order in which they run; _streams.py: on GPUs. _device.py: the
communicator of a group. _collectives.py: collectives in pieces; _direct.py: where they need none; _vectors.py: tensors as vectors.
_words.py: errors in torch's terms. _pairs.py: messages. _meeting.py: how ranks find each other. _shrink.py: the group of those that are left.
"""
from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from ._group import ProcessGroup
from ._shrink import shrink

__all__ = ["ProcessGroup", "shrink"]


def _create(store: dist.Store, rank: int, size: int, timeout: timedelta) -> ProcessGroup:
    return ProcessGroup(store, rank, size, timeout)


def register() -> None:
    """Makes "fcc" known to torch.distributed; `import fcc` calls it."""
    if "FCC" not in dist.Backend._plugins:
        defaults = dict(getattr(dist.Backend, "default_device_backend_map", {}))
        dist.Backend.register_backend("fcc", _create, devices=["cpu", "cuda"])
        if defaults:  # registering makes no difference for groups that name no backend
            dist.Backend.default_device_backend_map.clear()
            dist.Backend.default_device_backend_map.update(defaults)
        # torch's flight recorder records what passes through C++; it cannot be attached to a group that is written in Python.
        recorded = getattr(dist.distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", None)
        if recorded is not None:
            recorded.add("fcc")


register()
