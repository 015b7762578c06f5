# torchrun --nproc-per-node 4 client/python/examples/triton_gemm_all_to_all.py
# SPDX-License-Identifier: MIT
"""GEMM + All-to-All (SC24) as a Triton kernel of one's own, checked against fccd's, with both times.

Each rank multiplies a [ranks * m, k] by b [k, n]; rows p * m to p * m + m - 1 of the product belong to rank p, whose c is what rank 0 has sent
it, then rank 1, ...: [ranks * m, n]. A tile goes to its destination the moment it is finished, then a signal of its own; the last program
waits for the signals of all tiles that come from others.

    program 0       tells every rank: my c may be overwritten             signal ready[me] = epoch, at all ranks
    programs 1 ...  a tile each, the next rank's first, the own last:
                    compute; wait for ready[dst]; put; tell               signal come[me][tile] = epoch, at dst
    last program    waits for all ranks' tiles                            come[*][*] >= epoch

Nobody waits for a program that may not have begun because others wait: ready comes from a first program that waits for nothing, and what the
last one waits for comes from programs that wait for such only.

--m, --n, --k, --dtype, --device (cuda if there is one, otherwise cpu: then in Triton's interpreter, whose times mean nothing), --repeat.
On a machine without a GPU the shapes are small unless they are given.
"""
import argparse
import os
import statistics
import time

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

import triton
import triton.language as tl

import fcc
import fcc.triton
from fcc.triton import put_tile, signal, wait, wait_all


@triton.jit
def kernel(a, b, c, flags, status, result, epoch, me, ranks, m, n, k,  #
           BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, WAIT: tl.constexpr):
    """a, b: pointers, dense. c, flags: tables. result: int32, 1: all tiles have come."""
    tiles_n = tl.cdiv(n, BN)
    tiles = tl.cdiv(m, BM) * tiles_n  # for each destination
    ready = ranks * tiles  # where these signals begin
    at = tl.program_id(0)
    if at == 0:
        for rank in range(ranks):
            signal(flags, rank, ready + me, epoch)
    elif at <= ranks * tiles:
        dst = (me + 1 + (at - 1) // tiles) % ranks
        tile = (at - 1) % tiles
        rows = tile // tiles_n * BM + tl.arange(0, BM)
        cols = tile % tiles_n * BN + tl.arange(0, BN)
        depth = tl.arange(0, BK)
        a_at = a + (dst * m + rows)[:, None].to(tl.int64) * k + depth[None, :]
        b_at = b + depth[:, None].to(tl.int64) * n + cols[None, :]
        sums = tl.zeros([BM, BN], tl.float32)
        for first in range(0, k, BK):
            inside = first + depth < k
            x = tl.load(a_at + first, mask=(rows < m)[:, None] & inside[None, :], other=0.0)
            y = tl.load(b_at + tl.cast(first, tl.int64) * n, mask=inside[:, None] & (cols < n)[None, :], other=0.0)
            sums = tl.dot(x, y, sums, input_precision="ieee")
        if wait(flags, me, ready + dst, epoch, status):
            to = (me * m + rows)[:, None].to(tl.int64) * n + cols[None, :]
            put_tile(c, dst, to, sums.to(a.dtype.element_ty), (rows < m)[:, None] & (cols < n)[None, :])
            signal(flags, dst, me * tiles + tile, epoch)
    else:
        come = wait_all(flags, me, 0, ranks * tiles, epoch, status, WAIT)
        tl.store(result, come.to(tl.int32))


class GemmAllToAll:
    """The operator for one shape: m rows for each rank, n columns. Making it is collective."""

    def __init__(self, comm, m, n, dtype, blocks=(128, 128, 64)):
        self.comm, self.m, self.n = comm, m, n
        self.blocks = blocks
        self.tiles = triton.cdiv(m, blocks[0]) * triton.cdiv(n, blocks[1])
        self.c = fcc.zeros(comm.size * m, n, dtype=dtype, symmetric=True, comm=comm)
        self.flags = fcc.zeros(comm.size * (self.tiles + 1), dtype=torch.int64, symmetric=True, comm=comm)
        self.c_window, self.flag_window = fcc.triton.Window(self.c, comm), fcc.triton.Window(self.flags, comm)
        if self.c_window.remote:
            raise ValueError(f"ranks {self.c_window.remote} are on other nodes: this operator is one node's")
        self.result = torch.ones(1, dtype=torch.int32, device=comm.device)
        self.epoch = 0

    def __call__(self, a, b):
        """c, in place of what the last call returned. On a GPU on the current stream; check() says whether all has come."""
        comm = self.comm
        self.epoch += 1
        bm, bn, bk = self.blocks
        kernel[(2 + comm.size * self.tiles,)](a, b, self.c_window.table, self.flag_window.table, self.flag_window.status,
                                              self.result, self.epoch, comm.rank, comm.size, self.m, self.n, a.shape[1],
                                              BM=bm, BN=bn, BK=bk, WAIT=512, num_warps=8, num_stages=3)
        return self.c

    def check(self):
        """Raise what ended the communicator, if a call has not got all of its tiles."""
        if not self.result.item():
            self.comm.barrier()  # says why


def times_us(comm, call, repeat):
    """The median time of a call, of the slowest rank's view of it: all begin together."""
    found = []
    for _ in range(repeat):
        comm.barrier()
        if comm.device.type == "cuda":
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            call()
            end.record()
            end.synchronize()
            found.append(begin.elapsed_time(end) * 1000)
        else:
            begun = time.perf_counter()
            call()
            found.append((time.perf_counter() - begun) * 1e6)
    return statistics.median(found)


def main():
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--m", type=int, default=2048 if cuda else 48, help="rows for each rank")
    parser.add_argument("--n", type=int, default=4096 if cuda else 80)
    parser.add_argument("--k", type=int, default=3584 if cuda else 96)
    parser.add_argument("--dtype", choices=["float16", "bfloat16", "float32"], default="float16")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if cuda else "cpu")
    parser.add_argument("--repeat", type=int, default=20 if cuda else 3)
    args = parser.parse_args()
    dtype = getattr(torch, args.dtype)
    comm = fcc.init(device=args.device)
    if args.device == "cuda":
        torch.cuda.set_device(comm.device)  # Triton launches there
    torch.manual_seed(comm.rank)
    a = fcc.empty(comm.size * args.m, args.k, dtype=dtype, comm=comm)
    b = fcc.empty(args.k, args.n, dtype=dtype, comm=comm)
    a.copy_(torch.randn(a.shape) * 0.5)
    b.copy_(torch.randn(b.shape) * 0.5)
    mine = GemmAllToAll(comm, args.m, args.n, dtype, (128, 128, 64) if args.device == "cuda" else (32, 32, 32))

    built_in = fcc.gemm_all_to_all(a, b, comm)
    c = mine(a, b)
    mine.check()
    difference = (c.float() - built_in.float()).abs().max().item()
    scale = built_in.float().abs().max().item()
    allowed = scale * {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 1e-5}[args.dtype]
    if difference > allowed:
        raise SystemExit(f"rank {comm.rank}: differs from the built-in operator by {difference:g}; at most {allowed:g} are rounding")
    fused = times_us(comm, lambda: mine(a, b), args.repeat)
    mine.check()
    theirs = times_us(comm, lambda: fcc.gemm_all_to_all(a, b, comm), args.repeat)
    if comm.rank == 0:
        print(f"gemm_all_to_all, {comm.size} ranks, {args.m} x {args.n} x {args.k} for each destination, {args.dtype}, {comm.device}: "
              f"greatest difference {difference:.2g} of {scale:.3g}")
        print(f"  this kernel in Triton{'' if args.device == 'cuda' else ' (interpreted)'} {fused:12.1f} us")
        print(f"  fcc.gemm_all_to_all          {theirs:12.1f} us")
    comm.barrier()
    comm.close()


if __name__ == "__main__":
    main()
