# SPDX-License-Identifier: MIT
"""A process group of the ranks that are left of one."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ..communicator import Communicator
from ..errors import ArgumentError


def _made_of(communicator: Communicator, exclude: Sequence[int]) -> tuple[Communicator, list[int]]:
    """The communicator of the ranks that are left, and which they were: each says its old rank."""
    import torch
    old = communicator.rank
    made = communicator.shrink(exclude)
    from ..collectives import all_gather
    mine = torch.tensor([old], dtype=torch.int64, device=made.device)
    return made, [int(rank) for rank in all_gather(mine, comm=made).cpu()]


def shrink(group: Any = None, exclude: Sequence[int] = ()) -> Any:
    """A process group of the ranks that are left of `group` (None: the default one), when a rank or a node has died or the group was aborted. All that
    are left call it, and agree on who that is; ranks that are alive and do not call it are named in `exclude` (ranks in the group, the same for all).
    `group` is ended; if it was the default group, the new one is, and other groups are to be made anew. The store stays the old one: with a TCPStore
    in rank 0's process the death of rank 0 is the store's, too; torchrun keeps it elsewhere.

    Raises: what Communicator.shrink() raises, as it is; ArgumentError if the group is not of the backend fcc, or has run nothing yet."""
    from ._group import ProcessGroup
    was_default = group is None or group is dist.group.WORLD
    group = dist.group.WORLD if group is None else group
    if not isinstance(group, ProcessGroup):
        raise ArgumentError("shrink: group: allowed are process groups of the backend fcc")
    kind, communicator = group.communicator()
    ranks = dist.get_process_group_ranks(group)
    made, left = _made_of(communicator, exclude)
    name, (backend, store) = f"{group.group_name}:left{'-'.join(map(str, left))}", c10d._world.pg_map[group]
    new = group.of_left(dist.PrefixStore(name, store), kind, made)
    group.abort()
    config = c10d._world.pg_backend_config.get(group, "fcc")
    c10d._cleanup_process_group_global_state(group) if hasattr(c10d, "_cleanup_process_group_global_state") else _forget(group)
    new.setGroupName(name)
    if was_default:
        c10d._update_default_pg(new)
    c10d._world.pg_map[new] = (backend, store)
    c10d._world.pg_names[new] = name
    c10d._world.pg_backend_config[new] = config
    c10d._world.pg_group_ranks[new] = {i if was_default else ranks[old]: i for i, old in enumerate(left)}
    c10d._register_process_group(name, new)
    c10d._world.pg_to_tag[new] = f"ptd:{name}"
    c10d._world.tags_to_pg.setdefault(f"ptd:{name}", []).append(new)
    return new


def _forget(group: Any) -> None:
    """What an older torch knows of the group."""
    for known in (c10d._world.pg_map, c10d._world.pg_names, c10d._world.pg_backend_config, c10d._world.pg_group_ranks, c10d._world.pg_to_tag):
        known.pop(group, None)
