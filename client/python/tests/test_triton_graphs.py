# SPDX-License-Identifier: MIT
"""fcc.triton's signals in CUDA graphs: kernels that count their runs themselves, replayed by turns with launches outside, and when the
communicator has been aborted. FCC_TEST_DEVICE=cuda, with 2 GPUs or more; what the functions do is in test_triton.py, for the cpu."""
import pytest
import torch
from ranks import gpus

pytest.importorskip("triton")

from triton_ranks import exchange_run, windows  # noqa: E402

PROGRAMS, BLOCK = 8, 256


def graph_rank(comm):
    torch.cuda.set_device(comm.device)
    runs, result = torch.zeros(2, dtype=torch.int64, device=comm.device), torch.zeros(PROGRAMS, BLOCK, device=comm.device)
    data, flags = windows(comm, 2 * PROGRAMS, PROGRAMS * BLOCK)

    def step():
        exchange_run[(PROGRAMS,)](runs, data.table, flags.table, flags.status, result, comm.rank, comm.size, BLOCK=BLOCK)

    def check(run):
        part = torch.arange(BLOCK) + run * 1000 + 100 * torch.arange(PROGRAMS)[:, None] + (comm.rank - 1) % comm.size
        assert torch.equal(result.cpu(), part.float()), run
    step()
    check(1)
    graphs, run = [], 1
    for launches in (1, 3):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(launches):
                step()
        graphs.append((graph, launches))
    for number in range(300):
        graph, launches = graphs[number % 2]
        graph.replay()
        run += launches
        if number % 7 == 3:
            step()
            run += 1
        if number % 10 == 9:
            check(run)
    torch.cuda.synchronize()
    assert runs.tolist() == [run, 0]
    comm.barrier()
    if comm.rank == 0:
        comm.abort("no more runs")
    graphs[0][0].replay()  # its waits end: nobody comes, or all do
    torch.cuda.synchronize()


def test_graphs(run, device):
    run(gpus(device), graph_rank)
