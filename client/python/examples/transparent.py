# torchrun --nproc_per_node 2 client/python/examples/transparent.py [--device cuda]
# SPDX-License-Identifier: MIT
"""An All-to-All that nobody calls: torch.matmul stores its result into an output map, whose rows are the ranks' memory.

Each rank has tokens, sorted by the rank that they are for, and a weight. Rows p * ROWS to p * ROWS + ROWS - 1 of the product belong to rank p, and
lie there as soon as torch's BLAS has stored them: T3's output address space (arXiv 2401.16677), without a kernel or a copy. A step has two halves of
the map by turns, so that nobody stores into what another rank still reads.
"""
import argparse

import fcc
import torch

ROWS, COLS, DEPTH, STEPS = 1024, 1024, 256, 4


def maps_of(comm):
    """(what this rank sends, what it receives), both [size * ROWS, COLS]."""
    parts = fcc.map_parts(comm.size, ROWS, COLS, comm=comm)  # part s of each rank is for rank s's rows
    return (fcc.output_map([(parts[comm.rank], rank) for rank in range(comm.size)], comm),
            fcc.output_map([(part, comm.rank) for part in parts], comm))


def run(comm):
    torch.manual_seed(comm.rank)
    weight = torch.randn(DEPTH, COLS, device=comm.device)
    halves = [maps_of(comm), maps_of(comm)]
    same = True
    for step in range(STEPS):
        tokens = torch.randn(comm.size * ROWS, DEPTH, device=comm.device)
        sends, receives = halves[step % 2]
        torch.matmul(tokens, weight, out=sends)  # it knows nothing of ranks
        if comm.device.type == "cuda":
            torch.cuda.synchronize()
        comm.barrier()  # all ranks have stored; and all have read what the step before last has brought
        expected = fcc.all_to_all(torch.matmul(tokens, weight), comm=comm)
        same &= torch.equal(receives, expected.view_as(receives))
    print(f"rank {comm.rank} of {comm.size}: torch.matmul has sent {comm.size} x {ROWS} rows: {same}\n", end="", flush=True)  # the line at once: other ranks write, too
    assert same


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    with fcc.init(device=parser.parse_args().device) as comm:
        run(comm)


if __name__ == "__main__":
    main()
