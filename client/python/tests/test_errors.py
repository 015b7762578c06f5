# SPDX-License-Identifier: MIT
"""Errors carry a rank, a reason and a remedy, and reach all ranks that they concern."""
import errno
import os
import pickle
import re
import signal
import sys
import threading
import time
import warnings
from types import SimpleNamespace

import fcc
import pytest
import torch
from fcc import _calls
from fcc._names import Called, argument


def told(comm, kind, rank, text, call):
    """All ranks get that error, and the communicator goes on."""
    with pytest.raises(kind) as e:
        call()
        comm.synchronize()
    assert e.value.rank == rank and e.value.reason and e.value.remedy, e.value
    assert text in e.value.reason, e.value.reason
    comm.barrier()
    return e.value


def arguments_rank(comm):
    last = comm.size - 1
    wrong = comm.rank == last
    x, w = (fcc.zeros(rows, 8, comm=comm) for rows in (2, 4))
    told(comm, fcc.ArgumentError, last, "gemv_all_reduce",
         lambda: fcc.gemv_all_reduce(x[:, :7] if wrong else x, w, comm))
    told(comm, fcc.ArgumentError, last, "schedule", lambda: fcc.gemv_all_reduce(x, w, comm, schedule="fast" if wrong else "auto"))
    told(comm, fcc.ArgumentError, last, "torch.float64", lambda: fcc.gemv_all_reduce(x.double() if wrong else x, w, comm))
    told(comm, fcc.ArgumentError, last, "3 dimensions", lambda: fcc.gemv_all_reduce(x[None] if wrong else x, w, comm))
    a, b = fcc.zeros(4 * comm.size, 8, comm=comm), fcc.zeros(8, 3, comm=comm)
    told(comm, fcc.ArgumentError, last, "send_rows, recv_rows",
         lambda: fcc.gemm_all_to_all(a, b, comm, send_rows=[4] * comm.size if wrong else None))
    if comm.size > 1:
        told(comm, fcc.ArgumentError, last, "multiples", lambda: fcc.gemm_all_to_all(a[1:] if wrong else a, b, comm))
    told(comm, fcc.ArgumentError, last, "shape: (-1,)",
         lambda: fcc.zeros(-1 if wrong else 4, symmetric=True, comm=comm))
    if wrong:  # each rank's own affair
        with pytest.raises(fcc.ArgumentError, match="nbytes: 0"):
            comm.reserve(0)
    comm.barrier()
    # a reason that is no error of fcc's: a warning that this program takes for an error
    elsewhere = torch.zeros(4 * comm.size, 8, device=comm.device)
    with warnings.catch_warnings():
        warnings.simplefilter("error", fcc.CopyWarning)
        with pytest.raises(fcc.CopyWarning if wrong else fcc.ArgumentError, match="a .* does not lie dense"):
            fcc.gemm_all_reduce(elsewhere if wrong else a, b, comm)
            comm.synchronize()
    comm.barrier()
    tables, offsets = fcc.zeros(10, 4, comm=comm), torch.arange(comm.size + 1)
    for index, kind, text in ((0, None, ""), (10, fcc.IndexRangeError, "10")):
        indices = torch.full((comm.size,), index if wrong else 0)

        def call():
            return fcc.embedding_all_to_all(tables, indices.to(comm.device), offsets.to(comm.device), table_rows=[10],
                                            tables_per_rank=[1] * comm.size, batch=comm.size, comm=comm)
        if kind:
            told(comm, kind, last, text, call)
        else:
            call()


def rows_rank(comm):
    """Rows that come otherwise than was said are an error at the rank that said so; where the ranks launch the operator, at all."""
    a, b = fcc.zeros(3, 8, comm=comm), fcc.zeros(8, 3, comm=comm)
    send = [1, 2]
    recv = [send[comm.rank]] * 2 if comm.rank == 0 else [3, 1]
    if comm.member.launches():
        with pytest.raises(fcc.ArgumentError, match="gemm_all_to_all: recv_rows: rank 0 sends 2 rows to rank 1, which expects 3"):
            fcc.gemm_all_to_all(a, b, comm, send_rows=send, recv_rows=recv)
            comm.synchronize()
        comm.barrier()
        return
    if comm.rank == 0:
        fcc.gemm_all_to_all(a, b, comm, send_rows=send, recv_rows=recv)
    else:
        with pytest.raises(fcc.ArgumentError, match=r"recv_rows: \[3, 1\]: the ranks sent \[2, 2\]"):
            fcc.gemm_all_to_all(a, b, comm, send_rows=send, recv_rows=recv)
            comm.synchronize()
    comm.barrier()


def abort_rank(comm):
    if comm.rank == 1:
        comm.abort("the input is used up")
    with pytest.raises(fcc.AbortedError, match="rank 1 aborted the communicator: the input is used up") as e:
        comm.barrier()
    assert e.value.rank == 1 and e.value.code and isinstance(e.value, ConnectionAbortedError)
    assert str(pickle.loads(pickle.dumps(e.value))) == str(e.value)


def exception_rank(comm):
    """An exception that leaves `with` ends the communicator for all, at once."""
    begin = time.monotonic()
    if comm.rank == 1:
        with pytest.raises(ZeroDivisionError), comm:
            1 / 0
    else:
        with pytest.raises(fcc.AbortedError, match="ZeroDivisionError: division by zero"):
            comm.barrier()
    assert time.monotonic() - begin < 20


def wait_rank(comm, path, what):
    """Rank 0 is interrupted while it waits for rank 1, which comes later and hears of it."""
    call = {"operator": lambda: fcc.all_reduce(torch.ones(4, device=comm.device), comm), "barrier": comm.barrier,
            "allocation": lambda: fcc.empty(8, symmetric=True, comm=comm)}[what]
    if comm.rank == 0:
        path.write_text(str(os.getpid()))
        while True:  # the interrupt may come before the first call
            call()
            comm.synchronize()
    while not path.with_suffix(".sent").exists():
        time.sleep(0.01)
    with pytest.raises(fcc.AbortedError, match="rank 0 aborted the communicator: ") as e:
        while True:  # the first may come before rank 0 has been interrupted
            call()
            comm.synchronize()
    assert e.value.rank == 0


@pytest.mark.parametrize("function,size", [(arguments_rank, 1), (arguments_rank, 3), (rows_rank, 2), (abort_rank, 2),
                                           (exception_rank, 2)])
def test_errors(run, function, size):
    run(size, function)


@pytest.mark.parametrize("what", ["operator", "barrier", "allocation"])
def test_interrupt(start, tmp_path, what):
    path = tmp_path / "pid"
    ranks = start(2, wait_rank, path, what)
    until = time.monotonic() + 60
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < until
        time.sleep(0.01)
    time.sleep(0.3)  # it is in the call, or nearly: either way it is interrupted
    os.kill(int(path.read_text()), signal.SIGINT)
    path.with_suffix(".sent").write_text("")
    (well, interrupted), (heard, what_rank_1_found) = ranks.outcomes()
    assert not well and interrupted[1] == "KeyboardInterrupt", interrupted
    assert heard, what_rank_1_found


def test_time_limit(start):
    ranks = start(2, missing_rank, time_limit=3)  # which is also how far apart the ranks may join
    (_, first), (well, _) = ranks.outcomes()
    assert isinstance(first[0], fcc.TimeLimitError) and "1" in first[0].reason and well, first


def missing_rank(comm):
    if comm.rank == 0:
        comm.barrier()
    else:
        time.sleep(6)


def test_no_daemon(tmp_path):
    with pytest.raises(fcc.NoDaemonError) as e:
        fcc.init(rank=0, size=1, id=bytes(128), socket=str(tmp_path / "nothing"))
    assert "FCCD_SOCKET" in e.value.remedy and e.value.rank in (None, 0)


@pytest.mark.parametrize("wrong,text", [({"rank": 0}, "rank, size, id"), ({"rank": 0, "size": 1, "id": b"1"}, "128"),
                                        ({"device": "xpu"}, "device"), ({"time_limit": -1}, "time_limit"),
                                        ({"heap_bytes": -1}, "heap_bytes")])
def test_arguments_of_init(daemon, wrong, text):
    with pytest.raises(fcc.ArgumentError, match=text):
        fcc.init(socket=daemon.socket, **wrong)


def init_rank(comm, daemon_socket, ids, wrongs):
    """What fcc.init() refuses by itself on one rank, all hear at once, and who."""
    last = comm.size - 1
    for id, (wrong, text) in zip(ids, wrongs, strict=True):
        asked = {"rank": comm.rank, "size": comm.size, "device": comm.device.type, "time_limit": 60, "id": id}
        if comm.rank == last:
            asked |= {name: value(comm) if callable(value) else value for name, value in wrong.items()}
        begun = time.monotonic()
        with pytest.raises(fcc.ArgumentError, match=text) as e:
            fcc.Communicator(socket=daemon_socket, **asked)
        assert time.monotonic() - begun < 55  # not because the time limit has passed
        assert e.value.rank is not None, e.value
        if "size" not in wrong:
            assert e.value.rank == last, e.value
        comm.barrier()


def more_ranks(comm):
    return comm.size + 1


WRONG_FOR_INIT = [({"device": "xpu"}, "device: xpu: allowed are cpu and cuda"), ({"device": "nothing"}, "nothing"),
                  ({"time_limit": -1}, "time_limit: -1"), ({"heap_bytes": -1}, "heap_bytes: -1"), ({"size": more_ranks}, "size: ")]


def test_init_refused(run, daemon):
    ids = [fcc.unique_id(socket=daemon.socket) for _ in WRONG_FOR_INIT]
    run(3, init_rank, daemon.socket, ids, WRONG_FOR_INIT)


def launched_rank(comm):
    """The same where a launcher says who is who."""
    last = comm.size - 1
    os.environ.update(RANK=str(comm.rank), WORLD_SIZE=str(comm.size), LOCAL_RANK=str(comm.rank), LOCAL_WORLD_SIZE=str(comm.size),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT="29731")
    for limit in (-1, 60):
        if limit > 0:
            with fcc.Communicator(device=comm.device.type, time_limit=limit) as other:
                other.barrier()
            continue
        with pytest.raises(fcc.ArgumentError, match="time_limit: -1") as e:
            fcc.Communicator(device=comm.device.type, time_limit=limit if comm.rank == last else 60)
        assert e.value.rank in ((last, None) if comm.rank == last else (last,))
        comm.barrier()


def test_init_refused_by_launcher(run):
    run(3, launched_rank)


def test_no_default():
    with pytest.raises(fcc.ArgumentError, match="no default"):
        fcc.all_reduce(torch.ones(1))


def threads_rank(comm):
    """Two threads of a rank, each with a communicator of its own over the same connection."""
    second = fcc.Communicator(rank=comm.rank, size=comm.size, id=bytes(comm_id_from_first(comm)), device=comm.device.type)
    found = []

    def work(which):
        # A stream each: on one stream the ranks' operators of both communicators would have to stand in the same order.
        stream = torch.cuda.Stream(comm.device) if comm.device.type == "cuda" else None
        with torch.cuda.stream(stream):
            for n in range(50):
                found.append(fcc.all_reduce(torch.full((3,), float(n), device=comm.device), which).tolist() == [n * comm.size] * 3)
    threads = [threading.Thread(target=work, args=(which,)) for which in (comm, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 100
    second.close()


def comm_id_from_first(comm):
    """An id made on rank 0, told to all by a sum."""
    mine = torch.tensor(list(fcc.unique_id() if comm.rank == 0 else bytes(128)), dtype=torch.float32, device=comm.device)
    return [int(value) for value in fcc.all_reduce(mine, comm).tolist()]


def test_threads(run):
    run(2, threads_rank)


def closed_within_rank(comm):
    """Another thread closes the communicator when a call has begun: wherever the call is then, it ends with the reason."""
    x, w = fcc.to_daemon(torch.ones(2, 8), comm), fcc.to_daemon(torch.ones(4, 8), comm)
    bags = torch.zeros(2, dtype=torch.int64), torch.arange(3)
    program = fcc.Program("program p(N)\nin g: f32[N] local\nout y: f32[N] replicated\ny = all_reduce(g)\n")
    ways = {"all_reduce": lambda c: fcc.all_reduce(x, c), "all_gather": lambda c: fcc.all_gather(x, c), "gemv_all_reduce": lambda c: fcc.gemv_all_reduce(x, w, c),
            "gemm_all_reduce": lambda c: fcc.gemm_all_reduce(x, w.t(), c), "gemm_all_to_all": lambda c: fcc.gemm_all_to_all(x, w.t(), c),
            "all_to_all_v": lambda c: fcc.all_to_all_v(x, torch.tensor([2]), comm=c, capacity=4), "barrier": lambda c: c.barrier(),
            "embedding": lambda c: fcc.embedding_all_to_all(w, *bags, table_rows=[4], tables_per_rank=[1], batch=2, comm=c),
            "empty": lambda c: fcc.empty(4, comm=c), "to_daemon": lambda c: fcc.to_daemon(torch.ones(4), c), "split": lambda c: c.split(0),
            "reserve": lambda c: c.reserve(100), "compile": lambda c: program.compile(c, N=4), "program": lambda c: programs[c.name](x.view(-1)),
            "check": lambda c: c.check()}
    for name, way in ways.items():
        for at in range(1, 400, 3):  # lines of fcc's code: at each of them the other thread may come in between
            c, count, closers = comm.split(0), 0, []
            programs = {c.name: program.compile(c, N=16)} if name == "program" else {}
            package = os.path.dirname(fcc.__file__)

            def stop(frame, event, _):
                nonlocal count
                if not frame.f_code.co_filename.startswith(package):
                    return None
                count += event == "line"
                if count == at:
                    count += 1
                    closer = threading.Thread(target=c.close)
                    closer.start()
                    closer.join(0.05)  # it may wait for the call's end
                    closers.append(closer)
                return stop
            sys.settrace(stop)
            try:
                way(c)
            except fcc.Error as e:
                assert isinstance(e, (fcc.ArgumentError, fcc.AbortedError)), (name, at, e)
            finally:
                sys.settrace(None)
            for closer in closers:
                closer.join(30)
                assert not closer.is_alive(), (name, at)
            c.close()
            if count < at:
                break


def test_closed_within_a_call(run, on_cpu):
    run(1, closed_within_rank)


# A function that another operator does the work of.
MADE_OF = Called("all_reduce", {"gemv_all_reduce": ((r"\bw: shape\[0\]", "x: elements"), argument("w", "x"))})
ROWS = Called("rows_all_to_all", {"gemm_all_to_all": (argument("a", "rows"),)})


def words_rank(comm):
    """The arguments that errors name are the called function's: at once on the cpu, and on a GPU when it has run."""
    last, on_gpu = comm.size - 1, comm.device.type != "cpu"
    x = torch.ones(4 + (comm.rank == last), device=comm.device)
    rows = torch.ones(2, 3 + (comm.rank == last), device=comm.device)
    split = [2] + [0] * last

    def reason(call):
        with pytest.raises(fcc.ArgumentError) as e:
            call()
            comm.synchronize()
        comm.barrier()
        return e.value.reason

    def of_rows():
        return torch.ops.fcc.rows_all_to_all(rows, split, [2 if comm.rank == 0 else 0] * comm.size, comm.name)

    for _ in range(2):
        text = reason(lambda: fcc.all_reduce(x, comm))
        assert re.search(r"\ball_reduce: x: elements", text) and "gemv" not in text, text
    text = reason(of_rows)
    assert re.search(r"\brows_all_to_all: " + (r"recv_rows: rank \d expects" if on_gpu else "rows: shape"), text), text
    fcc.gemv_all_reduce(torch.ones(1, 8, device=comm.device), torch.ones(4, 8, device=comm.device), comm)
    text = reason(lambda: fcc.all_reduce(x, comm))
    assert re.search(r"(?<!or )\ball_reduce: x: elements", text), text
    text = reason(lambda: fcc.gemv_all_reduce(x[:, None], x[:, None], comm))
    assert re.search(r"\bgemv_all_reduce: ", text) and "all_reduce or" not in text, text


def later_rank(comm):
    """What comes later, from what the C library says of it: on the cpu, too."""
    told = "rank 1: gemv_all_reduce: w: shape[0] 5: rank 0 has 4"
    assert comm._later_error(-22, told).reason == told  # nobody has called it
    comm._calls["gemv_all_reduce"] = {"all_reduce": MADE_OF}
    error = comm._later_error(-22, told)
    assert error.reason == "rank 1: all_reduce: x: elements 5: rank 0 has 4" and error.earlier and error.rank == 1
    assert error.renamed(ROWS, 0).reason == error.reason  # it is not about the call that meets it
    assert comm._later_error(-110, "gemv_all_reduce #7: rank 1 did not come").reason == "all_reduce #7: rank 1 did not come"
    comm._calls["gemv_all_reduce"]["gemv_all_reduce"] = None
    assert comm._later_error(-22, told).reason == "rank 1: all_reduce or gemv_all_reduce: w: shape[0] 5: rank 0 has 4"
    refused = "rank 1: gemv_all_reduce: all_reduce: x: float 3.0: allowed is a torch.Tensor"  # and there it says for which call
    assert comm._later_error(-22, refused).reason == "rank 1: all_reduce: x: float 3.0: allowed is a torch.Tensor"
    comm._calls["gemv_all_reduce"] = {"gemv_all_reduce": None}
    assert comm._later_error(-22, told).reason == told
    comm._calls["gemm_all_to_all"] = {"rows_all_to_all": ROWS}
    assert comm._later_error(-22, "rank 0: gemm_all_to_all: a: dtype 9").reason == "rank 0: rows_all_to_all: rows: dtype 9"


@pytest.mark.parametrize("function,size", [(words_rank, 2), (words_rank, 3), (later_rank, 1)])
def test_words(run, function, size):
    run(size, function)


@pytest.mark.parametrize("status", [0, -errno.EINVAL])
def test_earlier(monkeypatch, status):
    """On a GPU the call that finds an earlier one's error enqueues its own operators before it raises."""
    enqueued, error = [], fcc.ArgumentError("rank 1: all_reduce: x: no").of_earlier()

    def enqueue(*given):
        enqueued.append(given)
        return status
    operator = SimpleNamespace(enqueue=enqueue, many_enqueue=enqueue)
    comm = SimpleNamespace(_member=SimpleNamespace(on_gpu=True, handle=None), _calls={}, _earlier=lambda: error)
    monkeypatch.setattr(_calls, "library", lambda: SimpleNamespace(operators={"all_reduce": operator}))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    for call, packed in ((_calls.run, b"1"), (_calls.run_many, [b"1", b"2"])):
        with pytest.raises(fcc.ArgumentError) as e:
            call(comm, "all_reduce", packed, 0)
        assert e.value is error
    assert len(enqueued) == 2


def in_step_rank(comm):
    """Ranks on GPUs hear of an error in different calls. They go on, each as it likes, and are in step all the time."""
    x = [fcc.to_daemon(torch.full((2, 8), float(i), device=comm.device), comm) for i in range(60)]
    w, odd = fcc.to_daemon(torch.ones(6, 8, device=comm.device), comm), fcc.zeros(5, 8, comm=comm)
    rows, found = fcc.to_daemon(torch.ones(comm.size, 4, device=comm.device), comm), {}
    for i, here in enumerate(x):
        wrong = comm.rank == 1 and i % 7 == 3
        if i % 5 == comm.rank:
            time.sleep(0.003)
        try:
            found[i] = fcc.gemv_all_reduce(here, odd if wrong else w, comm)
        except fcc.ArgumentError as e:
            assert e.rank == 1, e
        if i % 11 == 0:
            try:
                fcc.rows_all_to_all(rows[:, :3] if wrong else rows, [1] * comm.size, [1] * comm.size, comm)
            except fcc.ArgumentError as e:
                assert e.rank == 1, e
    for _ in range(100):
        try:
            comm.synchronize()
            break
        except fcc.ArgumentError as e:
            assert e.rank == 1, e
    else:
        raise AssertionError("there are more errors than calls")
    right = [i for i in found if i % 7 != 3]
    assert len(right) > 20 and all((found[i] == 8 * i * comm.size).all() for i in right)
    told(comm, fcc.ArgumentError, 1, "gemv_all_reduce", lambda: fcc.gemv_all_reduce(x[1], odd if comm.rank == 1 else w, comm))


def test_in_step(run):
    run(2, in_step_rank)


class Unreadable:
    """An argument, or an exception, that cannot be looked at."""

    def __iter__(self):
        raise ValueError("nobody reads this")

    def __repr__(self):
        raise ValueError("nobody reads this")


class Unspeakable(Exception):
    __str__ = Unreadable.__repr__


class Raising(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if "fcc" in str(function):
            raise Unspeakable
        return super().__torch_function__(function, types, args, kwargs or {})


def unreadable_rank(comm):
    """Rank 0's argument defies even those who look at what is wrong with it: the other one is told all the same, at once."""
    size, wrong = comm.size, comm.rank == 0
    x, w = (fcc.empty(2 * size, 8, comm=comm).fill_(1) for _ in range(2))
    calls = {
        "counts": lambda: fcc.rows_all_to_all(x, Unreadable() if wrong else [2] * size, [2] * size, comm),
        "no tensor": lambda: fcc.gemv_all_reduce(Unreadable() if wrong else x, w, comm),
        "no text": lambda: fcc.gemv_all_reduce(x, w, comm, schedule="\udcff" if wrong else "auto"),
        "raises": lambda: fcc.gemv_all_reduce(x.as_subclass(Raising) if wrong else x, w, comm),
    }
    for name, call in calls.items():
        with pytest.raises(Exception) as caught:
            call()
            comm.synchronize()
        assert wrong or isinstance(caught.value, fcc.ArgumentError) and caught.value.rank == 0, (name, caught.value)
        assert (fcc.all_reduce(x, comm) == size).all(), name
    if wrong:
        comm.abort("a file's name: \udcff")
    with pytest.raises(fcc.AbortedError, match="a file's name"):
        fcc.all_reduce(x, comm)
        comm.synchronize()


def test_unreadable(run):
    run(2, unreadable_rank)


def numbers_rank(comm):
    """Whole numbers that are too large, and what is not even a list: each is named, on all ranks."""
    size, wrong = comm.size, comm.rank == 0
    rows = fcc.empty(2 * size, 8, comm=comm).fill_(1)
    indices = torch.zeros(2 * size, dtype=torch.int64, device=comm.device)
    offsets = torch.arange(2 * size + 1, device=comm.device)
    even = [2] * size

    def embedding(**given):
        usual = {"table_rows": [2 * size], "tables_per_rank": [1] * size, "batch": 2 * size}
        fcc.embedding_all_to_all(rows, indices, offsets, **{**usual, **(given if wrong else {})}, comm=comm)
        comm.synchronize()

    for value in ([1 << 63] * size, [-(1 << 63) - 1] * size, torch.tensor(2), torch.zeros(4, 8).to_mkldnn(), 2):
        calls = {
            "send_rows": lambda: fcc.rows_all_to_all(rows, value if wrong else even, even, comm),
            "recv_rows": lambda: fcc.gemm_all_to_all(rows, rows.t().contiguous(), comm, send_rows=even,
                                                     recv_rows=value if wrong else even),
            "table_rows": lambda: embedding(table_rows=value),
            "tables_per_rank": lambda: embedding(tables_per_rank=value),
            "batch_split": lambda: embedding(batch_split=value),
        }
        for name, call in calls.items():
            with pytest.raises(fcc.ArgumentError, match=f"rank 0: .*: {name}: .*allowed is a list of whole numbers"):
                call()
                comm.synchronize()
    for batch in (1 << 63, None, 1.5):
        with pytest.raises(fcc.ArgumentError, match="rank 0: embedding_all_to_all"):
            embedding(batch=batch)
    for name in ("send_rows", "recv_rows"):
        with pytest.raises(fcc.ArgumentError, match=f"rank 0: rows_all_to_all: {name}: NoneType None: allowed is a list"):
            fcc.rows_all_to_all(rows, **{"send_rows": even, "recv_rows": even, **({name: None} if wrong else {})}, comm=comm)
            comm.synchronize()
    with pytest.raises(fcc.ArgumentError, match="batch: int 9223372036854775808: allowed is a whole number of 64 bits"):
        embedding(batch=1 << 63)
    assert (fcc.all_reduce(rows, comm) == size).all()


def test_numbers(run):
    run(2, numbers_rank)
