# torchrun --nproc_per_node 2 client/python/examples/ring.py [--rows N] [--cols N] [--depth N]
# SPDX-License-Identifier: MIT
"""A row-parallel product and its ReduceScatter, by torch.addmm in pieces: T3's ring (arXiv 2401.16677), on cpu devices.

A rank begins with the rows that are farthest from it on the ring, and computes each piece onto what has arrived of it (beta = 1), while pieces that
are finished travel on. The same is done in sequence for comparison, and by the operator, whose sums are in rank order.
"""
import argparse
import time

import fcc
import torch

RUNS = 5


def slowest(comm, work):
    """Seconds of the slowest rank, the best of RUNS."""
    best = float("inf")
    for _ in range(RUNS):
        comm.barrier()
        begin = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begin)
    return float(fcc.all_reduce(torch.tensor([best], dtype=torch.float64), reduction="max", comm=comm)[0])


def run(comm, rows, cols, depth):
    torch.manual_seed(comm.rank)
    a, b = torch.randn(comm.size * rows, depth), fcc.to_daemon(torch.randn(depth, cols))
    whole, held = fcc.empty(comm.size * rows, cols), fcc.to_daemon(a)

    def product(first, out, add):  # torch's own
        mine = a[first:first + len(out)]
        torch.addmm(out, mine, b, out=out) if add else torch.mm(mine, b, out=out)

    def sequence():
        torch.mm(a, b, out=whole)
        return fcc.reduce_scatter(whole)

    ring = fcc.RingReduceScatter(product, rows, cols)
    same = torch.allclose(ring.run(), sequence(), rtol=1e-4, atol=1e-3)
    times = [slowest(comm, work) for work in (ring.run, sequence, lambda: fcc.gemm_reduce_scatter(held, b))]
    print(f"rank {comm.rank} of {comm.size}: the ring's rows are those of the sequence: {same}\n", end="", flush=True)  # the line at once: other ranks write, too
    if comm.rank == 0:
        print(f"{ring.pieces} pieces, ms: ring {times[0] * 1e3:.2f}, in sequence {times[1] * 1e3:.2f}, gemm_reduce_scatter {times[2] * 1e3:.2f}\n", end="", flush=True)
    ring.close()
    assert same


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=512, help="of each rank's result [512]")
    parser.add_argument("--cols", type=int, default=1024, help="[1024]")
    parser.add_argument("--depth", type=int, default=256, help="K of each rank [256]")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with fcc.init() as comm:
        run(comm, args.rows, args.cols, args.depth)


if __name__ == "__main__":
    main()
