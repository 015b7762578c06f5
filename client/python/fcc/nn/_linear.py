# SPDX-License-Identifier: MIT
"""Linear layers that use gemv_all_reduce and gemm_all_to_all."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import communicator
from .._modes.autocast import dtype_of, lowered
from .._calls import group, unsubmitted
from .._communicator.refusals import refuse
from ..communicator import Communicator, find, rank_of
from .._names import Called, argument
from ..errors import ArgumentError, Error
from ..memory import empty
from ..ops import GEMV_ROWS
from ._made import linear_check, sizes_check, spread_make
from ._seeds import numbered_generators
from ._sequence import scattered_linear, scattered_parts

_ops = torch.ops.fcc

ROW_PARALLEL = Called("RowParallelLinear", {"gemv_all_reduce": (argument("w", "weight"),),
                                             "all_reduce": ((r"\bx(?=: )", "x @ weight.T"),),
                                             "gemm_reduce_scatter": (argument("a", "x"), argument("b", "weight.T"))})
_EXPERT_PARALLEL = Called("ExpertParallelLinear", {
    "gemm_all_to_all": (argument("a", "x"), argument("b", "weight"), (r"\bweight: shape\[", "weight[i]: shape[")),
    "all_reduce": ((r"\bx: ", "bias of all experts: "),)})


class RowParallelLinear(nn.Module):
    """y = x @ weight.T + bias, where each rank has some of x's columns and of the weight's: the products are summed over ranks.

    It follows layers whose outputs are spread over the ranks, as the heads of an attention or the hidden layer of an MLP are:
    rank r has in_features // size columns of x, the first in_features % size ranks one more (Attributes: columns).

    Up to 64 rows (decoding) that is one gemv_all_reduce. Beyond (prefill) it is torch's product, then an all_reduce, and
    float16 and bfloat16 are rounded once more: each rank's product, before the sum. All ranks have the same number of rows, so
    all take the same way.

    Args:
        in_features: K, of all ranks together
        out_features: N
        bias: add a bias [N], once, to the sum. All ranks have it, and add the same if it is the same. Where all start with the
            same it stays so: its gradient is the same on all ranks (replicated), or summed over them (not)
        comm: None: the default communicator
        device: None, or the communicator's device, where the parameters lie: for readers of the program
        dtype: float32, float16 or bfloat16; None: torch's default
        replicated: how gradients come back; see fcc.gemv_all_reduce. True (the default): all ranks use y alike, as in tensor
            parallelism. The gradient of x is that of this rank's columns
        init: draw the weight and set the bias to 0. False: they are not set, for code that loads them next
        sequence_parallel: each rank gets some positions of y; see below

    Attributes:
        columns: a slice: which of the K columns are this rank's
        weight: [N][K_r], in the daemon's memory. With the same torch.manual_seed() on all ranks it is drawn as the columns of
            one torch.nn.Linear, and a whole one is needed meanwhile
        bias: [N] or None, in the daemon's memory: 0 at first, so that it is the same on all ranks

    Input: [*][K_r], dtype of the weight, the same * on all ranks; and a residual [*][N], or none, which is added to the sum and is the
    same on all ranks. Output: [*][N], the same bits on all ranks. Under torch.autocast all is as with torch.nn.Linear, whatever the
    number of rows.

    state_dict() has this rank's columns. load_state_dict() takes those, or the whole [N][K] of a torch.nn.Linear, of which it
    picks the columns.

    With sequence_parallel=True y's first dimension, of positions, is divided among the ranks, as a ColumnParallelLinear with
    sequence_parallel=True takes them: forward(x, residual=None, rows=None) is one gemm_reduce_scatter for any number of rows. rows is the number of
    each rank's positions, the same list on all ranks; None: equal numbers, with one more on the first ranks. The residual, [own positions][*][N], is
    this rank's. Output: [own positions][*][N]. The weight is [N][K_r] as ever, but its columns lie beside each other in memory. The losses of all ranks count
    together.

    Raises: ArgumentError (on all ranks), and what fcc.gemv_all_reduce() does.
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
        spread_make(self, "RowParallelLinear", comm, in_features, out_features, False, bias=bias, device=device, dtype=dtype,
                    sequence_parallel=sequence_parallel)
        if init:
            self.reset_parameters()

    @classmethod
    def from_linear(cls, linear: nn.Linear, *, comm: Communicator | None = None, replicated: bool = True,
                    sequence_parallel: bool = False) -> RowParallelLinear:
        """This rank's columns of a whole layer that is the same on all ranks. The columns are a copy."""
        linear_check(linear, "RowParallelLinear")
        made = cls(linear.in_features, linear.out_features, linear.bias is not None, comm=comm, dtype=linear.weight.dtype,
                   replicated=replicated, init=False, sequence_parallel=sequence_parallel)
        made.load_state_dict(linear.state_dict())
        return made

    def reset_parameters(self) -> None:
        """Draw the weight anew, as torch.nn.Linear does, and let the bias be 0."""
        if self.in_features:
            bound = 1 / math.sqrt(self.in_features)
            whole = torch.empty(self.out_features, self.in_features, dtype=self.weight.dtype, device=self.weight.device)
            with torch.no_grad():
                self.weight.copy_(whole.uniform_(-bound, bound)[:, self.columns])
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, residual: Tensor | None = None, rows: Sequence[int] | None = None) -> Tensor:
        if self.sequence_parallel:
            return self._scattered(x, residual, rows)
        return self._reduced(x, residual, rows)

    def _scattered(self, x: Tensor, residual: Tensor | None, parts: Sequence[int] | None) -> Tensor:
        name, comm = self.comm_name, find(self.comm_name)
        try:
            own = scattered_parts(name, x, parts)
            self._check(x, residual, self.weight, (own[comm.rank], *x.shape[1:-1]))
            return scattered_linear(x, self.weight, self.bias, residual, name, own)
        except Error as e:
            raise e.renamed(ROW_PARALLEL, comm.rank) from None
        except Exception as e:
            raise unsubmitted(comm, "gemm_reduce_scatter", RowParallelLinear.forward, e, x=x, residual=residual, rows=parts) from None

    def _reduced(self, x: Tensor, residual: Tensor | None, parts: Sequence[int] | None) -> Tensor:
        weight, bias, name = self.weight, self.bias, self.comm_name
        try:
            if parts is not None:
                raise refuse(find(name), "gemv_all_reduce", ArgumentError(
                    f"rank {rank_of(name)}: RowParallelLinear: rows: {list(parts)}: allowed only with sequence_parallel"))
            self._check(x, residual, weight, tuple(x.shape[:-1]))
            rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
            if not 1 <= rows.shape[0] <= GEMV_ROWS:
                y = _ops.all_reduce(rows @ weight.t(), name, replicated=self.replicated)
            elif residual is not None and self._joins(residual):  # both are added before the sum is rounded
                added = residual.reshape(rows.shape[0], self.out_features)
                return _ops.gemv_all_reduce(rows, weight, name, bias, added).view(residual.shape)
            else:
                y = (_ops.gemv_all_reduce(rows, weight, name) if self.replicated else
                     _ops.gemv_all_reduce(rows, weight, name, replicated=False))
        except Error as e:
            raise e.renamed(ROW_PARALLEL, rank_of(name)) from None
        except Exception as e:
            raise unsubmitted(find(name), "gemv_all_reduce", RowParallelLinear.forward, e, x=x, residual=residual) from None
        if bias is not None:
            if not self.replicated:
                bias = _ops.sum_gradients(bias, name, replicated=False)
            y = y + (bias if bias.dtype == y.dtype else bias.to(y.dtype))
        y = y.view(*x.shape[:-1], self.out_features)
        return y if residual is None else residual + y

    def _joins(self, residual: Tensor) -> bool:
        """Whether the operator can add it."""
        return not self.sequence_parallel and self.replicated and residual.dtype == self.weight.dtype and not torch.is_autocast_enabled(residual.device.type)

    def _check(self, x: Tensor, residual: Tensor | None, weight: Tensor, rows: tuple[int, ...]) -> None:
        """Refuses what torch's product would refuse, which would be an error on this rank alone. rows: the dimensions of y but the last."""
        if x.ndim < 1 or x.shape[-1] != weight.shape[1]:
            what = f"x: {list(x.shape)}: allowed are [*, {weight.shape[1]}], this rank's columns"
        elif x.dtype != weight.dtype and dtype_of(x) != dtype_of(weight) or x.device != weight.device:
            what = f"x: {x.dtype} on {x.device}: allowed are the weight's, {weight.dtype} on {weight.device}"
        elif residual is not None and tuple(residual.shape) != (*rows, weight.shape[0]):
            what = f"residual: {list(residual.shape)}: allowed are {[*rows, weight.shape[0]]}"
        elif residual is not None and residual.device != weight.device:
            what = f"residual: on {residual.device}: allowed is {weight.device}"
        else:
            return
        comm = find(self.comm_name)
        raise refuse(comm, "gemm_reduce_scatter" if self.sequence_parallel else "gemv_all_reduce", ArgumentError(f"rank {comm.rank}: RowParallelLinear: {what}"))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        whole = state_dict.get(prefix + "weight")
        if isinstance(whole, Tensor) and tuple(whole.shape) == (self.out_features, self.in_features):
            state_dict = {**state_dict, prefix + "weight": whole[:, self.columns]}
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        return (f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
                f"columns={self.columns.start}:{self.columns.stop}, comm={self.comm_name}"
                f"{', sequence_parallel=True' if self.sequence_parallel else ''}")


class ExpertParallelLinear(nn.Module):
    """Linear layers of experts that are spread over the ranks. The rows of the results go to the ranks that own the samples.

    It is the last layer of the experts in a mixture of experts. The rows that a router has sent to an expert are ordered by the rank that
    their results go to, and each rank gets its results from all experts. That is one gemm_all_to_all for each of a rank's experts.

    Args:
        in_features: K, out_features: N, of each expert
        num_experts: E, of all ranks together, a multiple of size. Rank r has the E / size experts from r * E / size on
        bias: each expert adds a bias to its rows. The receiving rank adds it, which costs one all_reduce of [E][N] in each call
        comm: None: the default communicator
        device: None, or the communicator's device, where the parameters lie: for readers of the program
        dtype: float32, float16 or bfloat16; None: torch's default

    Attributes:
        experts: a slice: this rank's experts of the E
        weight: [E / size][K][N], in the daemon's memory: each expert's is the transpose of torch.nn.Linear's. With the same
            torch.manual_seed() on all ranks an expert has the same weight whatever the number of ranks
        bias: [E / size][N] or None

    Input: x [M_r][K], dtype of the weight: the rows for this rank's first expert, then those for its second, and so on; each expert's rows
        are ordered by the rank that their results go to. send_rows [E / size][size]: how many rows those are. recv_rows [E / size][size]:
        how many rows come from each rank's first expert, from each rank's second, and so on. With one expert on each rank both may be flat.
        Without them every rank has the same number of rows, and all experts and ranks get equal shares.
    Output: [sum of recv_rows][N]: the rows from rank 0's first expert, from rank 1's first, and so on, then from rank 0's second.

    Each rank's loss counts for gradients, as with fcc.gemm_all_to_all().

    state_dict() has this rank's experts. load_state_dict() takes this rank's experts, or all [E][K][N] and [E][N], from which it picks
    them.

    Raises: ArgumentError (on all ranks), and what fcc.gemm_all_to_all() does.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, in_features: int, out_features: int, num_experts: int | None = None, bias: bool = False, *,
                 comm: Communicator | None = None, device: str | torch.device | None = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        comm = communicator.chosen(comm, "ExpertParallelLinear")
        in_features, out_features, experts = sizes_check(comm, "ExpertParallelLinear", dtype, in_features=(in_features, 1), out_features=(out_features, 1),
                                                         num_experts=(comm.size if num_experts is None else num_experts, 1))
        if experts % comm.size:
            raise ArgumentError(f"rank {comm.rank}: ExpertParallelLinear: num_experts: {experts}: allowed are multiples of {comm.size}")
        own = experts // comm.size
        self.comm_name = comm.name
        self.in_features, self.out_features, self.num_experts = in_features, out_features, experts
        self.experts = slice(comm.rank * own, (comm.rank + 1) * own)
        self.weight = nn.Parameter(empty(own, in_features, out_features, dtype=dtype, device=device, comm=comm))
        self.register_parameter("bias", nn.Parameter(empty(own, out_features, dtype=dtype, comm=comm)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw each expert anew, as torch.nn.Linear does."""
        bound = 1 / math.sqrt(self.in_features)
        with torch.no_grad():
            for number, generator in numbered_generators(self.experts, self.weight.device):
                self.weight[number - self.experts.start].uniform_(-bound, bound, generator=generator)
                if self.bias is not None:
                    self.bias[number - self.experts.start].uniform_(-bound, bound, generator=generator)

    def forward(self, x: Tensor, send_rows: Sequence[Sequence[int]] | Sequence[int] | None = None,
                recv_rows: Sequence[Sequence[int]] | Sequence[int] | None = None) -> Tensor:
        try:
            return self._forward(x, send_rows, recv_rows)
        except Error as e:
            raise e.renamed(_EXPERT_PARALLEL, rank_of(self.comm_name)) from None
        except Exception as e:
            raise unsubmitted(find(self.comm_name), "gemm_all_to_all", ExpertParallelLinear.forward, e, x=x) from None

    def _forward(self, x: Tensor, send_rows: Sequence[Any] | None, recv_rows: Sequence[Any] | None) -> Tensor:
        comm = find(self.comm_name)
        try:
            sent, received = self._counts(comm, x, send_rows, recv_rows)
        except ArgumentError as e:
            raise refuse(comm, "gemm_all_to_all", e) from None
        found = []
        first = 0
        x, weight = lowered(x, self.comm_name), lowered(self.weight, self.comm_name)
        with group(comm, x, weight):
            for i, (send, receive) in enumerate(zip(sent, received)):
                rows = x[first:first + sum(send)]
                found.append(_ops.gemm_all_to_all(rows, weight[i], self.comm_name, send_rows=send, recv_rows=receive))
                first += sum(send)
        y = found[0] if len(found) == 1 else torch.cat(found)
        return y if self.bias is None else y + self._biases(comm, received).to(y.dtype)

    def _counts(self, comm: Communicator, x: Tensor, send_rows: Sequence[Any] | None,
                recv_rows: Sequence[Any] | None) -> tuple[list[list[int]], list[list[int]]]:
        """send_rows and recv_rows, both as [E / size][size], checked."""
        own, said = self.weight.shape[0], f"rank {comm.rank}: ExpertParallelLinear: "
        if x.ndim != 2 or x.shape[1] != self.in_features:
            raise ArgumentError(f"{said}x: {list(x.shape)}: allowed are [rows, {self.in_features}]")
        if (send_rows is None) != (recv_rows is None):
            raise ArgumentError(f"{said}send_rows, recv_rows: allowed are both, or none")
        if send_rows is None or recv_rows is None:
            if x.shape[0] % (own * comm.size):
                raise ArgumentError(f"{said}x: {x.shape[0]} rows: allowed without send_rows are multiples of {own * comm.size}")
            shares = [[x.shape[0] // (own * comm.size)] * comm.size] * own
            return shares, shares
        found = []
        for name, counts in (("send_rows", send_rows), ("recv_rows", recv_rows)):
            nested = [list(counts)] if own == 1 and all(isinstance(n, int) for n in counts) else [list(part) for part in counts]
            if len(nested) != own or any(len(part) != comm.size or min(part) < 0 for part in nested):
                raise ArgumentError(f"{said}{name}: {nested}: allowed are {own} times {comm.size} numbers, 0 and more")
            found.append(nested)
        total = sum(sum(part) for part in found[0])
        if total != x.shape[0]:
            raise ArgumentError(f"{said}send_rows: {total} in all: x has {x.shape[0]} rows")
        return found[0], found[1]

    def _biases(self, comm: Communicator, received: list[list[int]]) -> Tensor:
        """[sum of received][N]: for each row the bias of its expert."""
        own = self.weight.shape[0]
        before, after = self.experts.start, self.num_experts - self.experts.stop
        assert self.bias is not None
        everywhere = _ops.all_reduce(nn.functional.pad(self.bias, (0, 0, before, after)), self.comm_name)
        experts = [rank * own + i for i in range(own) for rank in range(comm.size)]
        counts = torch.tensor([n for part in received for n in part], device=everywhere.device)
        return everywhere[torch.tensor(experts, device=everywhere.device)].repeat_interleave(
            counts, dim=0, output_size=sum(sum(part) for part in received))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        state_dict = dict(state_dict)
        for name, own in (("weight", self.weight), ("bias", self.bias)):
            every = state_dict.get(prefix + name)
            if own is not None and isinstance(every, Tensor) and tuple(every.shape) == (self.num_experts, *own.shape[1:]):
                state_dict[prefix + name] = every[self.experts]
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        return (f"in_features={self.in_features}, out_features={self.out_features}, num_experts={self.num_experts}, "
                f"bias={self.bias is not None}, experts={self.experts.start}:{self.experts.stop}, comm={self.comm_name}")
