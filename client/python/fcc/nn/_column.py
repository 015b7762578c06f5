# SPDX-License-Identifier: MIT
"""The layer before a RowParallelLinear. Only its gradients are communicated, or with sequence_parallel=True also its input."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import communicator
from .._calls import unsubmitted
from .._modes.autocast import dtype_of
from .._names import Called, argument
from .._communicator.refusals import refuse
from ..communicator import Communicator, find, rank_of
from ..errors import ArgumentError, Error
from ..memory import empty
from ._made import linear_check, spread_make
from ._sequence import gathered_linear, gathered_wrong

_ops = torch.ops.fcc

COLUMN_PARALLEL = Called("ColumnParallelLinear", {
    "all_gather_gemm": (argument("a", "x"), argument("b", "weight.T"), ("(?<=the ranks' )a(?= have )", "x"), ("(?<=which is for )b(?= that )", "weight.T"))})


class ColumnParallelLinear(nn.Module):
    """y = x @ weight.T + bias, with the output's columns spread over the ranks: each rank has the rows of the weight and the elements of
    the bias for its own columns.

    All ranks have the same x. Forward is torch's product, without communication. Backward sums the gradient of x over the ranks by one
    all_reduce of x's size, so the layers before this one get the whole gradient, the same on all ranks.

        mlp = torch.nn.Sequential(fcc.nn.ColumnParallelLinear(1024, 4096), torch.nn.GELU(), fcc.nn.RowParallelLinear(4096, 1024))

    Args:
        in_features: K
        out_features: N, the columns of all ranks together. Rank r has N // size columns; the first N % size ranks have one more.
            RowParallelLinear divides its in_features in the same way
        bias: add a bias
        comm: None: the default communicator
        device: None, or the communicator's device, where the parameters lie: for readers of the program
        dtype: float32, float16 or bfloat16; None: torch's default
        replicated: for second derivatives; see fcc.sum_gradients()
        init: draw weight and bias. False: they are not set, for code that loads them next
        sequence_parallel: each rank has some positions of x; see below

    Attributes:
        columns: a slice: this rank's columns of the N
        weight: [N_r][K], in the daemon's memory
        bias: [N_r] or None. With the same torch.manual_seed() on all ranks, weight and bias are drawn as the parts of one torch.nn.Linear.
            Drawing them needs memory for the whole layer

    Input: [*][K], the same on all ranks. Output: [*][N_r].

    state_dict() has this rank's rows. load_state_dict() takes this rank's rows, or the whole [N][K] and [N] of a torch.nn.Linear, from
    which it picks the rows.

    With sequence_parallel=True a sequence is spread over the ranks between such layers and the RowParallelLinear that follow them: each rank has its own
    positions, x's first dimension. forward(x, rows=None) is one all_gather_gemm: it multiplies the positions of all ranks. rows is the number of each rank's
    positions, the same list on all ranks, or None, where all have as many. Output: [all positions][*][N_r]. Backward gives each rank the gradient of its
    positions, by one gemm_reduce_scatter. The weight is [N_r][K] as ever, but its columns lie beside each other in memory; it requires a gradient on all
    ranks, or on none. What follows may differ between ranks: the losses of all ranks count together.

    Raises: ArgumentError, and, from backward, what fcc.all_reduce() does; with sequence_parallel ArgumentError on all ranks, and what fcc.all_gather_gemm()
        does.
    """

    comm_name: str
    in_features: int
    out_features: int
    sequence_parallel: bool
    columns: slice  # of the whole layer's, which are this rank's
    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, in_features: int, out_features: int, bias: bool = True, *, comm: Communicator | None = None,
                 device: str | torch.device | None = None, dtype: torch.dtype | None = None, replicated: bool = True, init: bool = True,
                 sequence_parallel: bool = False) -> None:
        super().__init__()
        self.replicated = replicated
        spread_make(self, "ColumnParallelLinear", comm, in_features, out_features, True, bias=bias, device=device, dtype=dtype,
                    sequence_parallel=sequence_parallel)
        if init:
            self.reset_parameters()

    @classmethod
    def from_linear(cls, linear: nn.Linear, *, comm: Communicator | None = None, replicated: bool = True,
                    sequence_parallel: bool = False) -> ColumnParallelLinear:
        """This rank's part of a whole layer that is the same on all ranks. The part is a copy."""
        linear_check(linear, "ColumnParallelLinear")
        made = cls(linear.in_features, linear.out_features, linear.bias is not None, comm=comm, dtype=linear.weight.dtype,
                   replicated=replicated, init=False, sequence_parallel=sequence_parallel)
        made.load_state_dict(linear.state_dict())
        return made

    def reset_parameters(self) -> None:
        """Draw the weight and the bias again, as torch.nn.Linear does."""
        bound = 1 / math.sqrt(self.in_features)
        with torch.no_grad():
            for part, shape in ((self.weight, (self.out_features, self.in_features)), (self.bias, (self.out_features,))):
                if part is not None:
                    whole = torch.empty(shape, dtype=part.dtype, device=part.device)
                    part.copy_(whole.uniform_(-bound, bound)[self.columns])

    def forward(self, x: Tensor, rows: Sequence[int] | None = None) -> Tensor:
        if self.sequence_parallel:
            return self._gathered(x, rows)
        wrong = self._wrong(x) or ("" if rows is None else f"rows: {rows}: allowed only with sequence_parallel")
        if wrong:
            rank = rank_of(self.comm_name)
            raise ArgumentError(f"rank {rank}: ColumnParallelLinear: {wrong}", rank=rank,
                                remedy="Correct the argument; no other rank waits for this call, but for its backward.")
        if torch.is_grad_enabled():  # else there is no backward, and a copy of x is spared
            x = _ops.sum_gradients(x, self.comm_name, replicated=self.replicated)
        return nn.functional.linear(x, self.weight, self.bias)

    def _gathered(self, x: Tensor, rows: Sequence[int] | None) -> Tensor:
        comm = find(self.comm_name)
        try:
            wrong = self._wrong(x) or gathered_wrong(comm.name, x, rows)
            if wrong:
                raise refuse(comm, "all_gather_gemm", ArgumentError(f"rank {comm.rank}: ColumnParallelLinear: {wrong}"))
            return gathered_linear(x, self.weight, self.bias, comm.name, rows)
        except Error as e:
            raise e.renamed(COLUMN_PARALLEL, comm.rank) from None
        except Exception as e:
            raise unsubmitted(comm, "all_gather_gemm", ColumnParallelLinear.forward, e, x=x, rows=rows) from None

    def _wrong(self, x: Tensor) -> str:
        """What torch's product would refuse."""
        if not isinstance(x, Tensor):
            return f"x: {type(x).__name__} {x!r:.40}: allowed is a torch.Tensor"
        if x.ndim < 1 or x.shape[-1] != self.in_features:
            return f"x: {list(x.shape)}: allowed are [*, {self.in_features}]"
        if x.dtype != self.weight.dtype and dtype_of(x) != dtype_of(self.weight):
            return f"x: {x.dtype}: allowed is the weight's, {self.weight.dtype} (or torch.autocast)"
        return ""

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        state_dict = dict(state_dict)
        for name, whole in (("weight", (self.out_features, self.in_features)), ("bias", (self.out_features,))):
            given = state_dict.get(prefix + name)
            if isinstance(given, Tensor) and tuple(given.shape) == whole:
                state_dict[prefix + name] = given[self.columns]
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        return (f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
                f"columns={self.columns.start}:{self.columns.stop}, comm={self.comm_name}"
                f"{', sequence_parallel=True' if self.sequence_parallel else ''}")
