# SPDX-License-Identifier: MIT
"""Modules whose parameters are spread over the ranks of a communicator and whose results come by fused operators.

    mlp = torch.nn.Sequential(fcc.nn.ColumnParallelLinear(1024, 4096), torch.nn.GELU(), fcc.nn.RowParallelLinear(4096, 1024))

is one MLP, whose hidden units are spread over the ranks: with the same input on all ranks it has the results and the gradients of one
process, and so have the layers before and behind it, which all ranks have alike.

Parameters are made in the daemon's memory, so operators read them where they lie. What gives them other storage (.to(dtype),
.half(), copy.deepcopy(), load_state_dict(assign=True)) takes them out of it; fcc.to_daemon(module) brings them back.

All ranks call the same modules in the same order. An argument that is wrong on one rank is an error on all ranks.
"""
from .._names import told_of
from ._column import ColumnParallelLinear
from ._embedding import ShardedEmbeddingBagCollection
from ._linear import ExpertParallelLinear, RowParallelLinear

__all__ = ["ColumnParallelLinear", "ExpertParallelLinear", "RowParallelLinear", "ShardedEmbeddingBagCollection"]
told_of(*__all__)
