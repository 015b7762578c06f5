# torchrun --nproc-per-node 4 client/python/examples/triton_gemm_all_to_all.py
# SPDX-License-Identifier: MIT
"""GEMM + All-to-All (SC24) as the program's own Triton kernel, checked against fccd's operator, with the times of both.

Each rank multiplies a [ranks * m, k] by b [k, n]. Rows p * m to p * m + m - 1 of the product belong to rank p. The c of a rank has the rows
from rank 0, then those from rank 1, and so on: [ranks * m, n]. As soon as a tile is finished it is stored at its destination, followed by
its signal. The last program waits for the signals of all tiles.

    programs 0 ...  one tile each, the next rank's first, the own last:
                    compute; put; signal                                  signal come[me][tile] = epoch, at dst
    last program    waits for all ranks' tiles, at most limit_ns          come[*][*] >= epoch

May a tile overwrite the destination: has its last content been read? Nobody has to ask, because calls use two c in turn: call e stores into
the c of call e - 2. Call e begins when this rank has dst's tiles of call e - 1. So dst has begun its call e - 1, which follows all readers
of the result of call e - 2 on dst's stream. A result is valid until the next call, as with an operator that has one c.

One program of a rank waits, and all others run to their end. So the awaited programs find room whichever of a grid's programs run first,
and also where several ranks share a GPU, as long as the GPU has room for one program of each rank.

--m, --n, --k, --dtype, --device (cuda if there is a GPU, otherwise cpu: then in Triton's interpreter, whose times mean nothing), --repeat,
--limit (seconds that a kernel waits; then each rank prints which tiles are missing). A small shape is checked first. Without a GPU the
shapes are small unless they are given.
"""
import argparse
import errno
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
from fcc.triton import put_tile, reason, signal, wait_all


@triton.jit(do_not_specialize=["epoch", "me"])  # or it would be compiled anew for some of their values
def kernel(a, b, c, flags, status, result, epoch, me, ranks, m, n, limit_ns,  #
           K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, WAIT: tl.constexpr, WIDE: tl.constexpr = False):
    """a, b: pointers, dense. c, flags: tables. result: int32, 1: all tiles have come; negative: the reason (fcc.triton.reason). K is a
    constant because Triton's interpreter, with NumPy from 2.5 on, accepts no other number in range(). WIDE: the factors are made float32 before they
    are multiplied: the interpreter's tl.dot() takes bfloat16 for the integers that have its bits."""
    tiles_n = tl.cdiv(n, BN)
    tiles = tl.cdiv(m, BM) * tiles_n  # for each destination
    at = tl.program_id(0)
    if at < ranks * tiles:
        dst = (me + 1 + at // tiles) % ranks
        tile = at % tiles
        rows = tile // tiles_n * BM + tl.arange(0, BM)
        cols = tile % tiles_n * BN + tl.arange(0, BN)
        depth = tl.arange(0, BK)
        a_at = a + (dst * m + rows)[:, None].to(tl.int64) * K + depth[None, :]
        b_at = b + depth[:, None].to(tl.int64) * n + cols[None, :]
        sums = tl.zeros([BM, BN], tl.float32)
        for first in range(0, K, BK):
            inside = first + depth < K
            x = tl.load(a_at + first, mask=(rows < m)[:, None] & inside[None, :], other=0.0)
            y = tl.load(b_at + tl.cast(first, tl.int64) * n, mask=inside[:, None] & (cols < n)[None, :], other=0.0)
            if WIDE:
                x, y = x.to(tl.float32), y.to(tl.float32)
            sums = tl.dot(x, y, sums, input_precision="ieee")
        to = (me * m + rows)[:, None].to(tl.int64) * n + cols[None, :]
        put_tile(c, dst, to, sums.to(a.dtype.element_ty), (rows < m)[:, None] & (cols < n)[None, :])
        signal(flags, dst, me * tiles + tile, epoch)
    elif wait_all(flags, me, 0, ranks * tiles, epoch, status, WAIT, limit_ns):
        tl.store(result, 1)
    else:
        tl.store(result, reason(status))


class GemmAllToAll:
    """The operator for one shape: m rows for each rank, n columns. Making it is collective. limit: seconds that a call may wait."""

    def __init__(self, comm, m, n, dtype, blocks=(128, 128, 64), limit=20.0):
        self.comm, self.m, self.n = comm, m, n
        self.blocks, self.limit_ns = blocks, round(limit * 1e9)
        if comm.device.type == "cuda":
            room = torch.cuda.get_device_properties(comm.device).multi_processor_count  # for a program on each, at least
            if comm.size > room:
                raise ValueError(f"rank {comm.rank}: {comm.size} ranks, which may share {comm.device}, of {room} "
                                 f"multiprocessors: each rank has a program that waits, and needs one of its own: allowed are "
                                 f"{room} ranks")
        self.tiles = triton.cdiv(m, blocks[0]) * triton.cdiv(n, blocks[1])
        self.c = [fcc.zeros(comm.size * m, n, dtype=dtype, symmetric=True, comm=comm) for _ in range(2)]
        self.flags = fcc.zeros(comm.size * self.tiles, dtype=torch.int64, symmetric=True, comm=comm)
        self.c_windows = [fcc.triton.Window(c, comm) for c in self.c]
        self.flag_window = fcc.triton.Window(self.flags, comm)
        if self.flag_window.remote:
            raise ValueError(f"rank {comm.rank}: ranks {self.flag_window.remote} are on other nodes: this operator is one "
                             f"node's")
        self.result = torch.ones(1, dtype=torch.int32, device=comm.device)
        self.epoch = 0

    def __call__(self, a, b):
        """Returns c, valid until the next call. On a GPU it runs on the current stream; check() says whether all tiles have come."""
        comm = self.comm
        if a.shape[0] != comm.size * self.m or b.shape != (a.shape[1], self.n) or not (a.is_contiguous() and b.is_contiguous()):
            raise ValueError(f"rank {comm.rank}: a: {tuple(a.shape)}, b: {tuple(b.shape)}: allowed are dense "
                             f"[{comm.size * self.m}, k] and [k, {self.n}]")
        self.epoch += 1
        half = self.epoch % 2
        bm, bn, bk = self.blocks
        kernel[(comm.size * self.tiles + 1,)](a, b, self.c_windows[half].table, self.flag_window.table, self.flag_window.status,
                                              self.result, self.epoch, comm.rank, comm.size, self.m, self.n, self.limit_ns,
                                              K=a.shape[1], BM=bm, BN=bn, BK=bk, WAIT=512, WIDE=fcc.triton.device.INTERPRETED and a.dtype == torch.bfloat16,
                                              num_warps=8, num_stages=3)
        return self.c[half]

    def check(self):
        """Waits for the last call. Raises the reason if some of its tiles have not come."""
        found = self.result.item()
        if found == 1:
            return
        if found == -errno.ETIMEDOUT:
            raise fcc.errors.TimeLimitError(f"rank {self.comm.rank}: gemm_all_to_all in Triton: not all tiles have come within "
                                            f"{self.limit_ns / 1e9:g} s: {self.state()}", code=errno.ETIMEDOUT,
                                            rank=self.comm.rank)
        self.comm.barrier()  # says why the communicator has come to its end

    def state(self):
        """The signals in words: how many tiles of which call have come from each rank."""
        come = self.flags.view(self.comm.size, self.tiles).cpu()
        texts = []
        for rank, words in enumerate(come):
            values, counts = words.unique(return_counts=True)
            found = zip(values.tolist(), counts.tolist())
            texts.append(f"of rank {rank} " + ", ".join(f"{count} have {value}" for value, count in found))
        return f"call {self.epoch}, {self.tiles} tiles of each rank: " + "; ".join(texts)


def times_us(comm, call, repeat):
    """The median time of a call on the slowest rank; all ranks begin together."""
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


def inputs(comm, m, n, k, dtype):
    torch.manual_seed(comm.rank)
    a = fcc.empty(comm.size * m, k, dtype=dtype, comm=comm)
    b = fcc.empty(k, n, dtype=dtype, comm=comm)
    a.copy_(torch.randn(a.shape) * 0.5)
    b.copy_(torch.randn(b.shape) * 0.5)
    return a, b


def checked(comm, mine, a, b, calls):
    """Compares with the built-in operator, `calls` times: (greatest difference, greatest element). Exits if they differ by more than
    rounding."""
    theirs = fcc.gemm_all_to_all(a, b, comm).float()
    scale = theirs.abs().max().item()
    allowed = scale * {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 1e-5}[a.dtype]
    worst = 0.0
    for call in range(calls):
        c = mine(a, b)
        mine.check()
        worst = max(worst, (c.float() - theirs).abs().max().item())
        if not worst <= allowed:
            raise SystemExit(f"rank {comm.rank}: call {call}: {tuple(c.shape)} differs from the built-in operator's by "
                             f"{worst:g}; at most {allowed:g} are rounding")
    return worst, scale


def parsed(arguments=None):
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--m", type=int, default=2048 if cuda else 48, help="rows for each rank")
    parser.add_argument("--n", type=int, default=4096 if cuda else 80)
    parser.add_argument("--k", type=int, default=3584 if cuda else 96)
    parser.add_argument("--dtype", choices=["float16", "bfloat16", "float32"], default="float16")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if cuda else "cpu")
    parser.add_argument("--repeat", type=int, default=20 if cuda else 3, help="0: no times")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds")
    return parser.parse_args(arguments)


def run(comm, args):
    if args.device == "cuda":
        torch.cuda.set_device(comm.device)  # Triton launches there
    dtype = getattr(torch, args.dtype)
    blocks = (128, 128, 64) if args.device == "cuda" else (32, 32, 32)

    small = (blocks[0] + 3, blocks[1] + 5, blocks[2] + 8)  # tiles with edges
    checked(comm, GemmAllToAll(comm, *small[:2], dtype, blocks, args.limit), *inputs(comm, *small, dtype), calls=3)

    mine = GemmAllToAll(comm, args.m, args.n, dtype, blocks, args.limit)
    a, b = inputs(comm, args.m, args.n, args.k, dtype)
    difference, scale = checked(comm, mine, a, b, calls=2)
    if comm.rank == 0:
        print(f"gemm_all_to_all, {comm.size} ranks, {args.m} x {args.n} x {args.k} for each destination, {args.dtype}, "
              f"{comm.device}: greatest difference {difference:.2g} of {scale:.3g}", flush=True)
    if args.repeat > 0:
        fused = times_us(comm, lambda: mine(a, b), args.repeat)
        mine.check()
        theirs = times_us(comm, lambda: fcc.gemm_all_to_all(a, b, comm), args.repeat)
        if comm.rank == 0:
            print(f"  this kernel in Triton{'' if args.device == 'cuda' else ' (interpreted)'} {fused:12.1f} us")
            print(f"  fcc.gemm_all_to_all          {theirs:12.1f} us")
    comm.barrier()


def main():
    args = parsed()
    with fcc.init(device=args.device) as comm:
        run(comm, args)


if __name__ == "__main__":
    main()
