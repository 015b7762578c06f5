# SPDX-License-Identifier: MIT
"""Random parameters that do not depend on which rank has them."""
from __future__ import annotations

from collections.abc import Iterator

import torch


def numbered_generators(which: slice, device: torch.device) -> Iterator[tuple[int, torch.Generator]]:
    """(number, generator) for each number of `which`. All generators are seeded by one draw from torch's own generator, so they follow
    torch.manual_seed(). With the same seed on all ranks, parts with different numbers differ, and a part is the same on whichever rank
    it is."""
    seed = int(torch.randint(1 << 62, (), device="cpu"))
    for number in range(which.start, which.stop):
        yield number, torch.Generator(device).manual_seed(seed + number)
