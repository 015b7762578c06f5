# SPDX-License-Identifier: MIT
"""Results that go where they belong while they are made, by producers that know nothing of it (C: fcc_map, fcc_tracker).

maps.py: output_map(), a tensor whose rows are memory of several ranks, for torch.matmul(out=) and the like. tracker.py: Tracker, rules by which
what is counted as produced is stored, added and told at other ranks.
"""
from .maps import map_parts, output_map
from .tracker import Rule, Tracker, signal_wait

__all__ = ["Rule", "Tracker", "map_parts", "output_map", "signal_wait"]
