# SPDX-License-Identifier: MIT
"""Modules whose parameters are sharded over the ranks of a communicator and whose results are computed by fused operators.

    mlp = torch.nn.Sequential(fcc.nn.ColumnParallelLinear(1024, 4096), torch.nn.GELU(), fcc.nn.RowParallelLinear(4096, 1024))

is one MLP whose hidden units are spread over the ranks. If all ranks have the same input and the same layers before and after the MLP,
results and gradients are those of a single process.

parallelize() makes such layers of those of a model of transformers.

Parameters are created in the daemon's memory, so operators read them without a copy. An operation that gives a parameter new storage
(.to(dtype), .half(), copy.deepcopy(), load_state_dict(assign=True)) moves it out of the daemon's memory; fcc.to_daemon(module) moves it
back.

All ranks call the same modules in the same order. A wrong argument on one rank is an error on all ranks.
"""
from .._names import told_of
from ._column import ColumnParallelLinear
from ._embedding import ShardedEmbeddingBagCollection
from ._linear import ExpertParallelLinear, RowParallelLinear
from ._parallelize import parallelize
from ._row_norm import row_parallel_norm

__all__ = ["ColumnParallelLinear", "ExpertParallelLinear", "RowParallelLinear", "ShardedEmbeddingBagCollection", "parallelize",
           "row_parallel_norm"]
told_of(*__all__)
