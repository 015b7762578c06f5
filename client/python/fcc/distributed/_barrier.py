# SPDX-License-Identifier: MIT
"""monitored_barrier: a barrier that says who did not come. It uses the store alone, so it works when ranks hang."""
from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ..errors import TimeLimitError
from ._meeting import await_key


def monitored_barrier(store: Any, key: str, rank: int, size: int, timeout: timedelta, wait_all_ranks: bool) -> None:
    """Rank 0 waits for the others, and they for its word. dist.DistBackendError on all who came if a rank has not come in time, which is
    named; with wait_all_ranks all of these are."""
    limit = timeout.total_seconds()
    if rank != 0:
        store.set(f"{key}/{rank}", "here")
        try:
            said = await_key(store, f"{key}/0", limit, "").decode()
        except TimeLimitError:
            said = f"rank 0 has not reached it within {limit:g} s, or has ended"
        if said != "all":  # in the words of gloo, which programs look for
            raise dist.DistBackendError(f"fcc: Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for "
                                        f"send/recv from rank 0: {said}")
        return
    until = time.monotonic() + limit
    missing = []
    for other in range(1, size):
        try:
            await_key(store, f"{key}/{other}", max(0.0, until - time.monotonic()), "")
            store.delete_key(f"{key}/{other}")
        except TimeLimitError:
            missing.append(other)
            if not wait_all_ranks:
                break
    if missing:
        text = (f"Rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))} failed to pass monitoredBarrier in "
                f"{round(limit * 1000)} ms")
        if limit <= 0:
            text += ": Rank 0 timed out in monitoredBarrier at once"
        store.set(f"{key}/0", text)
        raise dist.DistBackendError(f"fcc: rank 0: monitored_barrier: {text}")
    store.set(f"{key}/0", "all")
