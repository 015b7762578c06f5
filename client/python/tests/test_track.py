# SPDX-License-Identifier: MIT
"""Output maps and trackers. (What the C library says of each error is tested there.)"""
import gc

import fcc
import pytest
import reference
import torch


def map_rank(comm, rows, cols, dtype):
    """torch's own product does the All-to-All, and gives what the operator gives."""
    parts = fcc.map_parts(comm.size, rows, cols, dtype, comm)
    assert all(part.shape == (rows, cols) and not part.any() for part in parts)
    out = fcc.output_map([(parts[comm.rank], r) for r in range(comm.size)], comm)
    mine = fcc.output_map([(part, comm.rank) for part in parts], comm)
    assert out.shape == mine.shape == (rows * comm.size, cols) and out.stride() == parts[0].stride()
    a = reference.random(comm.rank, rows * comm.size, 24).to(dtype).to(comm.device)
    b = reference.random(100 + comm.rank, 24, cols).to(dtype).to(comm.device)
    comm.barrier()
    torch.matmul(a, b, out=out)
    if out.is_cuda:
        torch.cuda.synchronize()
    comm.barrier()
    want = fcc.all_to_all(torch.matmul(a, b), comm=comm)
    assert torch.equal(mine.cpu(), want.cpu())
    comm.barrier()
    del parts, out  # this rank's own memory stays, as `mine` has it
    gc.collect()
    assert torch.equal(mine.cpu(), want.cpu())


def errors_rank(comm):
    parts = fcc.map_parts(2, 64, 64, torch.float32, comm)
    page = parts[0].stride(0) * 64
    with pytest.raises(fcc.ArgumentError, match="output_map: pieces: none"):
        fcc.output_map([], comm)
    with pytest.raises(fcc.ArgumentError, match="pieces.0.: it does not lie in the daemon's memory"):
        fcc.output_map([(torch.ones(4, 4, device=comm.device), 0)], comm)
    with pytest.raises(fcc.ArgumentError, match="strides .* allowed are rows"):
        fcc.output_map([(parts[0].t()[:, :8], 0)], comm)
    with pytest.raises(fcc.ArgumentError, match="pieces.1.: torch.float32, 32 columns"):
        fcc.output_map([(parts[0], 0), (parts[1][:, :32], 0)], comm)
    with pytest.raises(fcc.ArgumentError, match=f"rank: {comm.size}: allowed are 0 to"):
        fcc.output_map([(parts[0], comm.size)], comm)
    with pytest.raises(fcc.ArgumentError, match="overlap in the memory of rank"):
        fcc.output_map([(parts[0], 0), (parts[0], 0)], comm)
    if not parts[0].is_cuda:
        with pytest.raises(fcc.ArgumentError, match="multiple of [0-9]+, the granularity"):
            fcc.output_map([(parts[0][1:], 0)], comm)
    with pytest.raises(fcc.UnsupportedError, match="the smallest stride .* a tensor, and a call of the library, for each piece.* Take a number of columns"):
        fcc.map_parts(1, 3, 7, torch.float32, comm)
    with pytest.raises(fcc.ArgumentError, match="rows 0"):
        fcc.map_parts(1, 0, 7, torch.float32, comm)
    assert page
    comm.barrier()


@pytest.mark.parametrize("rows, cols, dtype", [(64, 64, torch.float32), (16, 1000, torch.float32), (256, 60, torch.bfloat16)])
def test_map(run, device, rows, cols, dtype):
    if device != "cpu":
        rows, cols = 1024, 1024  # of 2 MiB
    run(3, map_rank, rows, cols, dtype)


def test_map_errors(run, on_cpu):
    run(2, errors_rank)


def ring_rank(comm, runs):
    """Each rank's sum of what all have sent it, run after run."""
    size, me = comm.size, comm.rank
    after, before = (me + 1) % size, (me - 1) % size
    source = fcc.zeros(6, 50, comm=comm)
    place, total = fcc.zeros(6, 40, symmetric=True, comm=comm), fcc.zeros(6, 40, symmetric=True, comm=comm)
    words = fcc.zeros(4, dtype=torch.int64, symmetric=True, comm=comm)  # come, used, and what the rule of this rank has added
    tracker, called = fcc.Tracker(comm), []
    with pytest.raises(fcc.AlreadyJoinedError):
        fcc.Tracker(comm)
    send = tracker.store(source[:, 5:45], place, after, count=6, signal=(words, 0), awaits=[(words, 1, 1)], call=called.append, name="send")
    summed = tracker.add(source[:, 5:45], total, me, signal=(words, 2))
    used = tracker.signal(before, signal=(words, 1))
    comm.barrier()
    for n in range(1, runs + 1):
        if n > 1:
            assert send.wait(n - 1) and summed.wait(n - 1)
        for row in range(6):
            source[row] = 100.0 * n + 10 * me + row
            send.add()
        summed.add()
        assert fcc.signal_wait(words, 0, n, comm=comm)
        assert place[:, 0].tolist() == [100.0 * n + 10 * before + row for row in range(6)]
        used.add()
    assert summed.wait(runs) and words[2] == runs
    assert total[3, 7] == sum(100.0 * n + 10 * me + 3 for n in range(1, runs + 1))
    assert not send.wait(runs + 1, timeout=0.01) and not fcc.signal_wait(words, 0, runs + 1, timeout=0.0, comm=comm)
    assert send.wait(runs)
    comm.barrier()
    tracker.close()
    assert called == list(range(1, runs + 1))
    with pytest.raises(fcc.ArgumentError, match="closed"):
        send.add()
    another = fcc.Tracker(comm)
    with pytest.raises(fcc.ArgumentError, match="source: torch.float64"):
        another.add(fcc.zeros(4, dtype=torch.float64, comm=comm), fcc.zeros(4, dtype=torch.float64, comm=comm), me)
    with pytest.raises(fcc.ArgumentError, match="the same of source and to"):
        another.store(source, place, after)
    with pytest.raises(fcc.ArgumentError, match="signal: .* index 4"):
        another.signal(after, signal=(words, 4))
    with pytest.raises(fcc.ArgumentError, match="awaits: 3 words"):
        another.signal(after, awaits=[(words, 0, 0)] * 3)
    with pytest.raises(fcc.ArgumentError, match="rank: 9"):
        another.signal(9)
    comm.barrier()


def kinds_rank(comm):
    """What is of a wrong kind, or out of range, is not cut to what C takes."""
    x, to, words = fcc.zeros(4, comm=comm), fcc.zeros(4, symmetric=True, comm=comm), fcc.zeros(2, dtype=torch.int64, symmetric=True, comm=comm)
    tracker = fcc.Tracker(comm)
    rule, product = tracker.signal(comm.rank, count=2), lambda first, out, add: out.zero_()
    for call, reason in (
            (lambda: fcc.signal_wait(3, 0, 1, comm=comm), "signal_wait: words: int, index 0: allowed are words"), (lambda: fcc.signal_wait(words, "0", 1, comm=comm), "index '0'"),
            (lambda: fcc.signal_wait(words, 0, -1, comm=comm), "signal_wait: value: int -1: allowed are whole numbers, 0 and more"),
            (lambda: fcc.signal_wait(words, 0, 1, "5", comm=comm), "signal_wait: timeout: str '5': allowed are seconds"),
            (lambda: fcc.signal_wait(words, 0, 1, float("nan"), comm=comm), "timeout: float nan"), (lambda: fcc.signal_wait(words.to_sparse(), 0, 1, comm=comm), "signal_wait: words"),
            (lambda: rule.add(-1), "Rule.add: n: int -1: allowed"), (lambda: rule.add(1.5), "Rule.add: n: float 1.5"), (lambda: rule.add(None), "Rule.add: n: NoneType None"),
            (lambda: rule.add(1 << 64), "Rule.add: n: int 184"), (lambda: rule.add_enqueue("1"), "Rule.add_enqueue: n: str '1'"),
            (lambda: rule.wait("1"), "Rule.wait: run: str '1'"), (lambda: rule.wait(1, -1), "Rule.wait: timeout: int -1"), (lambda: rule.wait(-1), "Rule.wait: run: int -1"),
            (lambda: tracker.signal("1"), "rank: str '1': allowed are whole numbers, 0 and more"), (lambda: tracker.signal(1 << 32), "rank: int 4294967296"),
            (lambda: tracker.signal(0, count=-1), "count: int -1"), (lambda: tracker.signal(0, count="2"), "count: str '2'"), (lambda: tracker.signal(0, name=3), "name: int 3: allowed is a string"),
            (lambda: tracker.signal(0, signal=words), "signal: Tensor: allowed is (words, index)"), (lambda: tracker.signal(0, awaits=3), "awaits: int: allowed are at most 2"),
            (lambda: tracker.signal(0, awaits=[words]), "awaits[0]: Tensor: allowed is (words, index, lag)"), (lambda: tracker.signal(0, awaits=[(words, 0, -1)]), "awaits[0]: lag: int -1"),
            (lambda: tracker.signal(0, call=3), "call: int 3: allowed is a function"), (lambda: tracker.store(None, to, 0), "source: NoneType None: allowed is a torch.Tensor"),
            (lambda: tracker.store(x, [to], 0), "to: list"), (lambda: tracker.store(torch.zeros(4, device="meta"), to, 0), "source: torch.strided on meta: allowed are dense tensors on cpu"),
            (lambda: fcc.output_map(3, comm), "output_map: pieces: 3: allowed is a list of (tensor, rank)"), (lambda: fcc.output_map([x], comm), "allowed is a list of (tensor, rank)"),
            (lambda: fcc.output_map([(3, 0)], comm), "output_map: pieces[0]: int: allowed are tensors"), (lambda: fcc.output_map([(x, "0")], comm), "output_map: pieces[0]: rank: str '0'"),
            (lambda: fcc.map_parts("1", 2, 2, comm=comm), "map_parts: parts '1', rows 2, cols 2: allowed are 1 to 2147483647"), (lambda: fcc.map_parts(1, 2, 2, "f32", comm), "map_parts: dtype: 'f32'"),
            (lambda: fcc.RingReduceScatter(3, 4, 4, comm=comm), "RingReduceScatter: product: int 3: allowed is a function"),
            (lambda: fcc.RingReduceScatter(product, "4", 4, comm=comm), "rows '4', columns 4: allowed are whole numbers"),
            (lambda: fcc.RingAllGather(product, 4, 4.5, comm=comm), "rows 4, columns 4.5: allowed are whole numbers"), (lambda: fcc.RingAllGather(product, [4, None], 4, comm=comm), "rows [4, None]"),
            (lambda: fcc.RingAllGather(product, 4, 4, "f32", comm=comm), "RingAllGather: dtype: 'f32'"), (lambda: fcc.RingAllGather(product, 4, 4, pieces="2", comm=comm), "pieces: '2'")):
        with pytest.raises(fcc.ArgumentError) as e:
            call()
        assert reason in e.value.reason and "Error" not in e.value.reason, e.value.reason
    rule.add(2)
    assert rule.wait(1, 5)
    comm.barrier()


def test_kinds(run, on_cpu):
    run(1, kinds_rank)
    run(2, kinds_rank)


def late_rank(comm):
    tracker = fcc.Tracker(comm)
    rule = tracker.signal(comm.rank, count=3, name="pieces")
    rule.add(2)
    with pytest.raises(fcc.TimeLimitError, match=r'rule 0 "pieces" \(signal to rank [01]\): run 1: its count is 2 of 3'):
        rule.wait(1)


def streams_rank(comm, replays):
    """A ring on streams: calls, and replays of a graph that sends, awaits and tells. What comes is what the rank before has now."""
    torch.cuda.set_device(comm.device)  # of which the streams below are
    size, me = comm.size, comm.rank
    source, place = fcc.zeros(64, 256, comm=comm), fcc.zeros(64, 256, symmetric=True, comm=comm)
    words = fcc.zeros(2, dtype=torch.int64, symmetric=True, comm=comm)  # come, used
    tracker = fcc.Tracker(comm)
    send = tracker.store(source, place, (me + 1) % size, count=2, signal=(words, 0), awaits=[(words, 1, 1)], name="send")
    come = tracker.signal(me, awaits=[(words, 0, 0)], name="come")
    used = tracker.signal((me - 1) % size, signal=(words, 1), name="used")
    seen = torch.empty(64, 256, device=comm.device)
    source.fill_(float(me))
    torch.cuda.synchronize()
    comm.barrier()

    def step():
        source.add_(10)
        send.add_enqueue()
        send.add_enqueue()
        send.wait_enqueue()
        come.add_enqueue()
        come.wait_enqueue()
        seen.copy_(place)
        used.add_enqueue()

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            step()
    for n in range(1, replays + 1):
        stream.synchronize()
        assert (seen == (me - 1) % size + 10.0 * n).all(), n
        with torch.cuda.stream(stream):
            graph.replay()
    stream.synchronize()
    comm.barrier()
    tracker.close()
    with pytest.raises(fcc.ArgumentError, match="closed"):
        send.add_enqueue()


def test_tracker_on_streams(run, device):
    if device != "cuda":
        pytest.skip("of GPUs")
    run(2, streams_rank, 30)


def no_streams_rank(comm):
    rule = fcc.Tracker(comm).signal(comm.rank)
    for call in (rule.add_enqueue, rule.wait_enqueue, rule.run_enqueue):
        with pytest.raises(fcc.UnsupportedError, match="a cpu device, which has no streams"):
            call()
    assert rule.count % 8 == 0


def test_tracker_no_streams(run, on_cpu):
    run(1, no_streams_rank)


def test_tracker(run, on_cpu):
    run(3, ring_rank, 50)


def test_tracker_late(run, on_cpu):
    run(2, late_rank, time_limit=2)


def test_tracker_on_gpus(run, device):
    if device != "cuda":
        pytest.skip("of GPUs")
    run(1, thread_counts_rank)


def thread_counts_rank(comm):
    tracker = fcc.Tracker(comm)
    rule = tracker.signal(0, count=2)
    for i in range(1, 20):
        rule.add(2)
        assert rule.wait(i)
    assert not rule.wait(20, timeout=0)
    tracker.close()
