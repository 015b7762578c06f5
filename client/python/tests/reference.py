# SPDX-License-Identifier: MIT
"""The same work by torch and torch.distributed with gloo, on the cpu."""

import fcc
import torch
import torch.distributed as dist

TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def join(comm, path):
    """A process group of the communicator's ranks, that meet in a file."""
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=comm.rank, world_size=comm.size)


def random(seed, *shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(got, want, dtype=None):
    """Relative to the largest element that was wanted."""
    got, want = got.detach().cpu().float(), want.detach().float()
    assert got.shape == want.shape, (got.shape, want.shape)
    if want.numel():
        error = (got - want).abs().max().item() / max(1.0, want.abs().max().item())
        assert error <= TOLERANCE[dtype or torch.float32], error


def gemv(x, w):
    y = x.float() @ w.float().t()
    dist.all_reduce(y)
    return y


def exchange(rows, send_rows, recv_rows):
    """All-to-All of rows, as lists of sends and receives: gloo has no all_to_all."""
    world, rank = dist.get_world_size(), dist.get_rank()
    sent = list(rows.float().contiguous().split(list(send_rows)))
    came = [torch.empty(n, *rows.shape[1:]) for n in recv_rows]
    came[rank] = sent[rank]
    work = [dist.isend(sent[p].contiguous(), p) for p in range(world) if p != rank and send_rows[p]]
    work += [dist.irecv(came[p], p) for p in range(world) if p != rank and recv_rows[p]]
    for one in work:
        one.wait()
    return torch.cat(came)


def bags(tables, indices, offsets, weights, table_rows, batch, pooling):
    """[T][batch][D] of this rank's tables."""
    found, first = [], 0
    for t, rows in enumerate(table_rows):
        at = offsets[t * batch:(t + 1) * batch + 1].long()
        ids = indices[at[0]:at[-1]].long()
        factors = None if weights is None else weights[at[0]:at[-1]]
        found.append(torch.nn.functional.embedding_bag(ids, tables[first:first + rows].float(), at[:-1] - at[0], mode=pooling,
                                                       per_sample_weights=factors))
        first += rows
    return torch.stack(found) if found else torch.empty(0, batch, tables.shape[1])


def embedding(tables, indices, offsets, weights, table_rows, tables_per_rank, parts, pooling):
    """[own samples][all tables][D]"""
    rank, width = dist.get_rank(), tables.shape[1]
    pooled = bags(tables, indices, offsets, weights, table_rows, sum(parts), pooling)
    rows = torch.cat([part.reshape(-1, width) for part in pooled.split(list(parts), 1)])
    own = len(table_rows)
    came = exchange(rows, [own * n for n in parts], [n * parts[rank] for n in tables_per_rank])
    pieces = came.split([n * parts[rank] for n in tables_per_rank])
    return torch.cat([p.reshape(n, parts[rank], width) for p, n in zip(pieces, tables_per_rank)]).transpose(0, 1)




def to_all(mine, comm):
    """Each rank's result, on all ranks, so that each compares the whole."""
    placed = torch.nn.functional.pad(mine.reshape(1, mine.numel()), (0, 0, comm.rank, comm.size - 1 - comm.rank))
    return fcc.all_reduce(placed, comm, replicated=True)
