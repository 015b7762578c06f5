# SPDX-License-Identifier: MIT
"""Prepared operators: their results on GPUs, and everywhere what is refused."""
import threading
import weakref
from types import SimpleNamespace

import fcc
import pytest
import reference
import torch
from fcc.prepared import PreparedOperator
from ranks import gpus

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def refused_rank(comm):
    """On the cpu ranks launch nothing themselves. The communicator goes on."""
    x, w = fcc.zeros(1, 8, comm=comm), fcc.zeros(4, 8, comm=comm)
    for prepare in (lambda: fcc.prepare_gemv_all_reduce(x, w, comm), lambda: fcc.prepare_gemm_all_to_all(w, fcc.zeros(8, 2, comm=comm), comm)):
        with pytest.raises(fcc.UnsupportedError, match="prepare"):
            prepare()
    assert fcc.gemv_all_reduce(x + 1, w + 1, comm).tolist() == [[8.0 * comm.size] * 4]
    comm.check(wait=True)


def test_refused(run, device):
    if device != "cpu":
        pytest.skip("on GPUs they run")
    run(2, refused_rank)


def arguments_rank(comm):
    """What is wrong on one rank is an error on all, and the communicator goes on."""
    x, w = fcc.zeros(2, 8, comm=comm), fcc.zeros(4, 8, comm=comm)
    elsewhere = torch.zeros(2, 8, device=comm.device) if comm.rank == 0 else x
    with pytest.raises(fcc.ArgumentError, match="x: it does not lie in the daemon's memory" if comm.rank == 0 else "rank 0"):
        fcc.prepare_gemv_all_reduce(elsewhere, w, comm)
    turned = fcc.to_daemon(torch.zeros(8, 2, device=comm.device), comm).t()
    with pytest.raises(fcc.ArgumentError, match="b: it does not lie in the daemon's memory, with dense rows"):
        fcc.prepare_gemm_all_to_all(w, turned, comm)
    with pytest.raises(fcc.ArgumentError, match="a: 1 dimensions"):
        fcc.prepare_gemm_all_to_all(w[0], w, comm)
    with pytest.raises(fcc.ArgumentError, match="send_rows, recv_rows"):
        fcc.prepare_gemm_all_to_all(w, fcc.zeros(8, 4, comm=comm), comm, send_rows=[2] * comm.size)
    assert fcc.gemv_all_reduce(x, w, comm).shape == (2, 4)


def test_arguments(run):
    run(2, arguments_rank)


def skip_without_gpus(device, ranks):
    gpus(device, ranks)


def gemv_rank(comm, path):
    reference.join(comm, path)
    for m, n, k, dtype in [(1, 96, 64, d) for d in DTYPES] + [(16, 512, 1024, torch.bfloat16), (5, 33, 17, torch.float32)]:
        x, w = (fcc.to_daemon(reference.random(10 * comm.rank + j, rows, k, dtype=dtype).to(comm.device), comm)
                for j, rows in enumerate((m, n)))
        step = fcc.prepare_gemv_all_reduce(x, w, comm)
        for i in range(5):
            x.copy_(reference.random(100 + i + comm.rank, m, k, dtype=dtype))
            y = step()
            assert y is step.result
            reference.close(y, reference.gemv(x.cpu(), w.cpu()), dtype)
        comm.synchronize()
        step.close()
        with pytest.raises(fcc.ArgumentError, match="closed"):
            step()
        step.close()


def test_gemv(run, device, tmp_path):
    skip_without_gpus(device, 2)
    run(2, gemv_rank, tmp_path / "meet")


def gemm_rank(comm, path):
    reference.join(comm, path)
    size, rank = comm.size, comm.rank
    counts = [[3 * s + 5 * d for d in range(size)] for s in range(size)]
    for dtype, send, recv in ((torch.float16, None, None), (torch.bfloat16, counts[rank], [row[rank] for row in counts])):
        rows = sum(send) if send else 32 * size
        a, b = (fcc.to_daemon(reference.random(rank + j, *shape, dtype=dtype).to(comm.device), comm)
                for j, shape in enumerate(((rows, 64), (64, 128))))
        step = fcc.prepare_gemm_all_to_all(a, b, comm, send_rows=send, recv_rows=recv)
        sent, came = send or [32] * size, recv or [32] * size
        for i in range(3):
            a.copy_(reference.random(7 * i + rank, rows, 64, dtype=dtype))
            reference.close(step(), reference.exchange(a.cpu().float() @ b.cpu().float(), sent, came), dtype)
    with pytest.raises(fcc.ArgumentError, match="recv_rows"):
        fcc.prepare_gemm_all_to_all(a, b, comm, send_rows=send, recv_rows=[n + 1 for n in recv])


def test_gemm(run, device, tmp_path):
    skip_without_gpus(device, 2)
    run(2, gemm_rank, tmp_path / "meet")


def captured_rank(comm):
    torch.cuda.set_device(comm.device)  # torch.cuda.graph() captures a stream of the current GPU
    x, w = fcc.zeros(1, 64, comm=comm), fcc.to_daemon(torch.ones(32, 64, device=comm.device), comm)
    step = fcc.prepare_gemv_all_reduce(x, w, comm)
    step()
    comm.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # the default mode, in which no thread may call what could spoil a capture
        x += 1
        y = step()
    for i in range(1, 20):
        if i % 3:
            graph.replay()
        else:  # a run outside of the graph
            x += 1
            step()
        assert y.tolist() == [[64.0 * i * comm.size] * 32]
    a, b = fcc.zeros(comm.size, 64, comm=comm), fcc.zeros(64, 8, comm=comm)
    with pytest.raises(fcc.CaptureError, match="gemm_all_reduce: .*: prepare the operator, where fcc has a function"):
        with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
            fcc.gemm_all_reduce(a, b, comm)
    comm.synchronize()
    comm.barrier()
    comm.close()  # and with it the operator
    graph.replay()  # it is over at once
    torch.cuda.synchronize()
    with pytest.raises(fcc.ArgumentError, match="closed"):
        step()


def test_capture_and_close(run, device):
    skip_without_gpus(device, 1)
    run(1, captured_rank)


def test_captures(run, device):
    skip_without_gpus(device, 2)
    run(2, captured_rank)


def aborted_rank(comm):
    x, w = fcc.zeros(1, 64, comm=comm), fcc.zeros(32, 64, comm=comm)
    step = fcc.prepare_gemv_all_reduce(x, w, comm)
    step()
    comm.barrier()
    if comm.rank == 1:
        comm.abort("enough")
        return
    with pytest.raises(fcc.AbortedError, match="enough"):
        step()  # the other one does not come
        comm.synchronize()
    with pytest.raises(fcc.AbortedError, match="enough"):
        step()


def test_abort(run, device):
    skip_without_gpus(device, 2)
    run(2, aborted_rank)


def test_close_beside_a_call():
    """What a call uses is freed when it has come back, and later calls are refused. (A stand-in for the library's part, which needs GPUs.)"""
    begun, go, order = threading.Event(), threading.Event(), []

    def enqueue(handle, stream):
        begun.set()
        assert go.wait(30)
        order.append("called")
        return 0
    x = torch.ones(2)
    operator = PreparedOperator.__new__(PreparedOperator)
    member = SimpleNamespace(on_gpu=False, rank=0)
    operator.__dict__.update(comm=SimpleNamespace(name="stand-in", rank=0, _member=member), result=x, _member=member, _handle=None, _first=x.data_ptr, _second=x.data_ptr,
                             _places=(x.data_ptr(),) * 3, _enqueue=enqueue, _lock=threading.RLock())
    operator._end = weakref.finalize(operator, order.append, "freed")
    caller = threading.Thread(target=operator)
    caller.start()
    assert begun.wait(30)
    closer = threading.Thread(target=operator.close)
    closer.start()
    closer.join(0.1)
    assert closer.is_alive() and order == []
    go.set()
    for thread in (caller, closer):
        thread.join(30)
        assert not thread.is_alive()
    assert order == ["called", "freed"]
    with pytest.raises(fcc.ArgumentError, match="prepared: it has been closed"):
        operator()
