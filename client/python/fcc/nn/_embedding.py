# SPDX-License-Identifier: MIT
"""Embedding tables that use embedding_all_to_all."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import communicator
from .._calls import unsubmitted
from .._names import Called, argument
from .._communicator.refusals import refuse
from ..communicator import Communicator, find, rank_of
from ..errors import ArgumentError, Error
from ..memory import empty
from ..ops import batch_parts
from ._made import sizes_check, whole_list
from ._seeds import numbered_generators

_ops = torch.ops.fcc


class ShardedEmbeddingBagCollection(nn.Module):
    """Several torch.nn.EmbeddingBag, each on one rank. A rank pools the bags of all samples in its own tables, and gets the results of all
    tables for its own samples.

    Args:
        num_embeddings: the number of rows of each table of all ranks, in the tables' order: the same list on all ranks
        embedding_dim: D, of all tables
        mode: "mean" (as torch.nn.EmbeddingBag) or "sum"
        include_last_offset: offsets have one more element: the end of the last bag
        tables_per_rank: the number of tables on each rank; None: equal numbers, with one more on the first ranks
        comm: None: the default communicator
        dtype: of the tables: float32, float16 or bfloat16; None: torch's default
        padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse: accepted because torch.nn.EmbeddingBag has them; only their defaults
            are allowed. Instead of padding_idx, leave such indices out of the bags: an empty bag gives zeros. Gradients of tables are dense

    Attributes:
        tables: a slice: this rank's tables
        weight: [rows of this rank's tables][D], the tables one below the other, in the daemon's memory. With the same torch.manual_seed()
            on all ranks a table has the same elements whichever rank it is on

    Input, on each rank for its own T_r tables and for all `batch` samples, including those of other ranks:
        input: rows of the tables, int32 or int64; either [nnz], bag by bag, with the bags of this rank's first table first, or
            [T_r][batch][L]: bags of equal length, without offsets
        offsets: [T_r * batch], dtype of input: the start of each bag. With include_last_offset one element more; offsets in the daemon's
            memory are then used without a copy
        per_sample_weights: shape of input, float32: the factor of each index; only with mode "sum"
        batch: number of samples of all ranks together. Only a rank without tables needs it: with tables it follows from the other arguments
        batch_split: number of samples of each rank, `batch` in all, the same list on all ranks; None: equal numbers, with one more on the
            first ranks
    Output: [batch_split[rank]][all tables][D], dtype of the tables: this rank's samples, with all tables in their order.

    Each rank's loss counts for gradients, as with fcc.embedding_all_to_all().

    state_dict() has this rank's tables, under names such as "3.weight" for table 3: all ranks together have what a torch.nn.ModuleList of
    torch.nn.EmbeddingBag has. load_state_dict() takes all tables or only this rank's, and ignores tables of other ranks.

    Raises: ArgumentError (on all ranks), IndexRangeError for an index that is not in its table, and what fcc.embedding_all_to_all() does.
    """

    def __init__(self, num_embeddings: Sequence[int], embedding_dim: int, max_norm: float | None = None,
                 norm_type: float = 2.0, scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False,
                 include_last_offset: bool = False, padding_idx: int | None = None, *,
                 tables_per_rank: Sequence[int] | None = None, comm: Communicator | None = None,
                 device: str | torch.device | None = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        comm = communicator.chosen(comm, "ShardedEmbeddingBagCollection")
        self.comm_name = comm.name
        for name, value, default, instead in (
                ("max_norm", max_norm, None, "renormalise the weight between steps"),
                ("norm_type", norm_type, 2.0, "there is no max_norm"), ("sparse", sparse, False, "gradients are dense"),
                ("scale_grad_by_freq", scale_grad_by_freq, False, "use per_sample_weights"),
                ("padding_idx", padding_idx, None, "leave such indices out of the bags; an empty bag gives zeros")):
            if value != default:
                raise self._wrong(comm, f"{name}: {value}: allowed is {default}: {instead}")
        if mode not in ("sum", "mean"):
            raise self._wrong(comm, f"mode: \"{mode}\": allowed are sum and mean")
        (embedding_dim,) = sizes_check(comm, "ShardedEmbeddingBagCollection", dtype, embedding_dim=(embedding_dim, 1))
        rows = whole_list(num_embeddings, 1)
        if rows is None:
            raise self._wrong(comm, f"num_embeddings: {num_embeddings!r:.40}: allowed is a list of numbers, 1 and more, the rows of each table")
        per_rank = batch_parts(len(rows), None, comm.size) if tables_per_rank is None else whole_list(tables_per_rank, 0)
        if per_rank is None or len(per_rank) != comm.size or sum(per_rank) != len(rows):
            raise self._wrong(comm, f"tables_per_rank: {tables_per_rank!r:.40}: allowed are {comm.size} numbers, 0 and more, {len(rows)} in all")
        first = sum(per_rank[:comm.rank])
        self.mode, self.include_last_offset = mode, include_last_offset
        self.num_embeddings, self.embedding_dim, self.tables_per_rank = rows, embedding_dim, per_rank
        self.tables = slice(first, first + per_rank[comm.rank])
        self.weight = nn.Parameter(empty(sum(rows[self.tables]), embedding_dim, dtype=dtype, device=device, comm=comm))
        self.reset_parameters()

    @staticmethod
    def _wrong(comm: Communicator, what: str) -> ArgumentError:
        return ArgumentError(f"rank {comm.rank}: ShardedEmbeddingBagCollection: {what}")

    def reset_parameters(self) -> None:
        """Draw the tables again, as torch.nn.EmbeddingBag does."""
        with torch.no_grad():
            for number, generator in numbered_generators(self.tables, self.weight.device):
                self.table(number).normal_(generator=generator)

    def table(self, number: int) -> Tensor:
        """A view [rows][D] of the weight: one table of this rank. Raises ArgumentError if the table is on another rank."""
        if not self.tables.start <= number < self.tables.stop:
            raise self._wrong(find(self.comm_name), f"table {number}: allowed are this rank's, range({self.tables.start}, "
                                                    f"{self.tables.stop})")
        first = sum(self.num_embeddings[self.tables.start:number])
        return self.weight[first:first + self.num_embeddings[number]]

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None, *,
                batch: int | None = None, batch_split: Sequence[int] | None = None) -> Tensor:
        try:
            return self._forward(input, offsets, per_sample_weights, batch, batch_split)
        except Error as e:
            raise e.renamed(self._called(e.rank), rank_of(self.comm_name)) from None
        except Exception as e:
            raise unsubmitted(find(self.comm_name), "embedding_all_to_all", ShardedEmbeddingBagCollection.forward, e, input=input,
                              offsets=offsets, per_sample_weights=per_sample_weights, batch=batch,
                              batch_split=batch_split) from None

    def _called(self, rank: int | None) -> Called:
        """The error text with the module's numbers for tables. The module numbers the tables of all ranks; the operator numbers those of
        one rank."""
        first = sum(self.tables_per_rank[:rank or 0])
        return Called("ShardedEmbeddingBagCollection", {"embedding_all_to_all": (
            (r"\btable (\d+)", lambda found: f"table {first + int(found[1])}"),
            (r"\btables: shape\[1\]", "embedding_dim"), (r"\btables: dtype", "dtype"), (r"\blen\(table_rows\)", "tables of this rank"),
            argument("tables", "weight"), argument("indices", "input"), argument("sample_weights", "per_sample_weights"))})

    def _forward(self, input: Tensor, offsets: Tensor | None, per_sample_weights: Tensor | None, batch: int | None,
                 batch_split: Sequence[int] | None) -> Tensor:
        comm = find(self.comm_name)
        try:
            batch = self._batch(comm, input, offsets, per_sample_weights, batch)
        except ArgumentError as e:
            raise refuse(comm, "embedding_all_to_all", e) from None
        if offsets is None:
            bags, length = input.shape[0] * batch, input.shape[2]
            offsets = torch.arange(0, (bags + 1) * length, length, dtype=input.dtype, device=input.device) if length else \
                torch.zeros(bags + 1, dtype=input.dtype, device=input.device)
            offsets = self._near(comm, offsets)
        elif not self.include_last_offset:
            end = torch.full((1,), input.shape[0], dtype=offsets.dtype, device=offsets.device)
            offsets = self._near(comm, offsets, end)
        weights = None if per_sample_weights is None else per_sample_weights.reshape(-1)
        return _ops.embedding_all_to_all(self.weight, input.reshape(-1), offsets, weights, self.num_embeddings[self.tables],
                                         self.tables_per_rank, batch, self.comm_name, batch_split=batch_split,
                                         pooling=self.mode)

    def _batch(self, comm: Communicator, input: Tensor, offsets: Tensor | None, per_sample_weights: Tensor | None,
               batch: int | None) -> int:
        """The number of samples. Raises what is wrong with the shapes."""
        own = self.tables_per_rank[comm.rank]
        shape = list(input.shape)
        if input.ndim != (3 if offsets is None else 1):
            raise self._wrong(comm, f"input: {shape}: allowed are [nnz] with offsets, and [{own}, batch, L] without")
        if per_sample_weights is not None and (self.mode != "sum" or per_sample_weights.shape != input.shape):
            raise self._wrong(comm, f"per_sample_weights: {list(per_sample_weights.shape)}, mode {self.mode}: allowed are the "
                                    f"shape of input, {shape}, and mode sum")
        if offsets is None:
            if input.shape[0] != own or batch not in (None, input.shape[1]):
                raise self._wrong(comm, f"input: {shape}: allowed are [{own}, {'batch' if batch is None else batch}, L]")
            return input.shape[1]
        last = int(self.include_last_offset)
        bags = (offsets.shape[0] if offsets.ndim == 1 else -1) - last
        if batch is None and (own == 0 or bags < 0 or bags % own):
            raise self._wrong(comm, f"offsets: {list(offsets.shape)}: allowed are {own} * batch{' + 1' * last}" +
                              ("; a rank without tables must be told the batch" if own == 0 else ""))
        if batch is not None and bags != own * batch:
            raise self._wrong(comm, f"offsets: {list(offsets.shape)}: allowed with batch {batch} are [{own * batch + last}]")
        return bags // own if batch is None else batch

    @staticmethod
    def _near(comm: Communicator, *pieces: Tensor) -> Tensor:
        """The tensors joined, in the daemon's memory. The module makes the joined tensor, so the caller cannot place it there.
        (torch.compile and torch.func's transformations do not support out=; there the operator copies.)"""
        if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active() or pieces[0].device != comm.device:
            return torch.cat(pieces)
        return torch.cat(pieces, out=empty(sum(piece.shape[0] for piece in pieces), dtype=pieces[0].dtype, comm=comm))

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        for number in range(self.tables.start, self.tables.stop):
            table = self.table(number)
            destination[f"{prefix}{number}.weight"] = table if keep_vars else table.detach()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], strict: bool,
                              missing_keys: list[str], unexpected_keys: list[str], error_msgs: list[str]) -> None:
        known = {f"{prefix}{number}.weight": number for number in range(len(self.num_embeddings))}
        if strict:
            unexpected_keys += [key for key in state_dict if key.startswith(prefix) and key not in known]
        for key, number in known.items():
            if not self.tables.start <= number < self.tables.stop:
                continue
            if key not in state_dict:
                if strict:
                    missing_keys.append(key)
                continue
            table, given = self.table(number), state_dict[key]
            if given.shape != table.shape:
                error_msgs.append(f"size mismatch for {key}: {list(given.shape)}: allowed are {list(table.shape)}")
                continue
            with torch.no_grad():
                table.copy_(given)

    def extra_repr(self) -> str:
        return (f"num_embeddings={self.num_embeddings}, embedding_dim={self.embedding_dim}, mode={self.mode}, "
                f"tables={self.tables.start}:{self.tables.stop}, comm={self.comm_name}")
