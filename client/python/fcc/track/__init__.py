# SPDX-License-Identifier: MIT
"""Results that go where they belong while they are made, by producers that know nothing of it (C: fcc_map, fcc_tracker).

maps.py: output_map(), a tensor whose rows are memory of several ranks, for torch.matmul(out=) and the like. tracker.py: Tracker, rules by which
what is counted as produced is stored, added and told at other ranks. pieces.py: any product in pieces, in the order of a ring.
"""
from .maps import map_parts, output_map
from .pieces import RingAllGather, RingReduceScatter
from .tracker import Rule, Tracker, signal_wait

__all__ = ["RingAllGather", "RingReduceScatter", "Rule", "Tracker", "map_parts", "output_map", "signal_wait"]
