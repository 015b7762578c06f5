# SPDX-License-Identifier: MIT
"""What errors say, word for word: the function or module that was called and its argument, by the names that they have in Python, on all
ranks alike."""
import re

import fcc
import pytest
import torch


def cases(comm):
    """Calls that are wrong on rank 1 of two, and the reason that both ranks get."""
    n, wrong = comm.size, comm.rank == 1

    def zeros(*shape, **options):
        return fcc.zeros(*shape, comm=comm, **options)

    def pick(bad, good):
        return bad if wrong else good

    x, w, a, b = zeros(2, 8), zeros(4, 8), zeros(4 * n, 8), zeros(8, 3)
    tables = zeros(10, 4)
    indices, offsets = torch.zeros(n, dtype=torch.int64, device=x.device), torch.arange(n + 1, device=x.device)
    even = [4] * n

    def embedding(tables=tables, indices=indices, offsets=offsets, **options):
        options = {"table_rows": [10], "tables_per_rank": [1] * n, "batch": n, **options}
        return fcc.embedding_all_to_all(tables, indices, offsets, comm=comm, **options)

    rows_layer = fcc.nn.RowParallelLinear(8 * n, 4, comm=comm)
    experts = fcc.nn.ExpertParallelLinear(8, 3, comm=comm)
    bags = fcc.nn.ShardedEmbeddingBagCollection([10] * n, 4, comm=comm)
    index = torch.zeros(1, n, 2, dtype=torch.int64, device=x.device)
    return [
        # ---- what prepares them ----
        (lambda: fcc.prepare_gemv_all_reduce(pick(x[0], x), w, comm),
         "rank 1: prepare_gemv_all_reduce: x: 1 dimensions, [8]: allowed are 2"),
        (lambda: fcc.prepare_gemv_all_reduce(pick("x", x), w, comm),
         "rank 1: prepare_gemv_all_reduce: x: str 'x': allowed is a torch.Tensor"),
        (lambda: fcc.prepare_gemv_all_reduce(pick(x[:, :7], x), w, comm),
         "rank 1: prepare_gemv_all_reduce: w: shape[1] 8: allowed is 7 (x's shape[1], K)"),
        (lambda: fcc.prepare_gemm_all_to_all(pick(a[1:], a), b, comm),
         "rank 1: prepare_gemm_all_to_all: a: 7 rows: allowed without send_rows are multiples of 2"),
        (lambda: fcc.prepare_gemm_all_to_all(a, b, comm, send_rows=pick([1] * n, even), recv_rows=even),
         "rank 1: prepare_gemm_all_to_all: send_rows: [1, 1]: allowed are 2 numbers, 0 and more, one for each rank, 8 in all"),
        (lambda: fcc.prepare_gemm_all_to_all(a, pick(torch.zeros(8, 3, device=b.device), b), comm),
         "rank 1: prepare_gemm_all_to_all: b: it does not lie in the daemon's memory, with dense rows: a prepared operator "
         "reads it where it is"),
        # ---- functions ----
        (lambda: fcc.gemv_all_reduce(pick(x[:, :7], x), w, comm),
         "rank 1: gemv_all_reduce: w: shape[1] 8: allowed is 7 (x's shape[1], K)"),
        (lambda: fcc.gemv_all_reduce(pick(zeros(3, 8), x), w, comm), "gemv_all_reduce: x: shape[0]: rank 1 has 3, rank 0 has 2"),
        (lambda: fcc.gemv_all_reduce(x, pick(zeros(5, 8), w), comm), "gemv_all_reduce: w: shape[0]: rank 1 has 5, rank 0 has 4"),
        (lambda: fcc.gemv_all_reduce(pick(zeros(65537, 8), x), w, comm),
         f"rank 1: gemv_all_reduce: x: shape[0] 65537: allowed are 1 to {65536 if comm.device.type == 'cpu' else 64}"),
        (lambda: fcc.gemv_all_reduce(pick(x.half(), x), pick(w.half(), w), comm),
         "gemv_all_reduce: x: dtype: rank 1 has f16, rank 0 has f32"),
        (lambda: fcc.gemv_all_reduce(x, pick(w.double(), w), comm),
         "rank 1: gemv_all_reduce: w: torch.float64: allowed are float32, float16 and bfloat16"),
        (lambda: fcc.gemv_all_reduce(x, pick(w[0], w), comm), "rank 1: gemv_all_reduce: w: 1 dimensions, [8]: allowed are 2"),
        (lambda: fcc.gemv_all_reduce(x, w, comm, schedule=pick("quick", "auto")),
         'rank 1: gemv_all_reduce: schedule: "quick": allowed are auto, fused, sequential, compute_only, comm_only, batch_invariant, any_order'),
        # of two that fccd launches: test_streams_products.py has what comes where only one rank asks for such a one
        (lambda: fcc.gemv_all_reduce(x, w, comm, schedule=pick("comm_only", "sequential")),
         "gemv_all_reduce: schedule: rank 1 has comm_only, rank 0 has sequential"),
        (lambda: fcc.gemm_all_reduce(pick(a[1:], a), b, comm), "gemm_all_reduce: a: shape[0]: rank 1 has 7, rank 0 has 8"),
        (lambda: fcc.gemm_all_reduce(a, pick(zeros(8, 4), b), comm), "gemm_all_reduce: b: shape[1]: rank 1 has 4, rank 0 has 3"),
        (lambda: fcc.gemv_all_reduce(x, w, comm, bias=pick(w[:, 0].clone(), None)),
         "gemv_all_reduce: bias: rank 1 has one, rank 0 has none"),
        (lambda: fcc.gemv_all_reduce(x, w, comm, residual=pick(zeros(2, 3), zeros(2, 4))),
         "rank 1: gemv_all_reduce: residual: shape[1] 3: allowed is 4 (N)"),
        (lambda: fcc.gemv_all_reduce(x, w, comm, bias=pick(w, w[:, 0].clone())),
         "rank 1: gemv_all_reduce: bias: 2 dimensions, [4, 8]: allowed are 1"),
        (lambda: fcc.gemv_all_reduce(x, w, comm, bias=pick(3, w[:, 0].clone())),
         "rank 1: gemv_all_reduce: bias: int 3: allowed is a torch.Tensor"),
        (lambda: fcc.gemm_all_to_all(pick(a[:, :7], a), b, comm),
         "rank 1: gemm_all_to_all: b: shape[0] 8: allowed is 7 (a's shape[1], K)"),
        (lambda: fcc.gemm_all_to_all(a, pick(zeros(8, 4), b), comm), "gemm_all_to_all: b: shape[1]: rank 1 has 4, rank 0 has 3"),
        (lambda: fcc.gemm_all_to_all(pick(a.half(), a), pick(b.half(), b), comm),
         "gemm_all_to_all: a: dtype: rank 1 has f16, rank 0 has f32"),
        (lambda: fcc.gemm_all_to_all(a, b, comm, send_rows=pick([1] * n, even), recv_rows=even),
         "rank 1: gemm_all_to_all: send_rows: [1, 1]: allowed are 2 numbers, 0 and more, one for each rank, 8 in all"),
        (lambda: fcc.gemm_all_to_all(a, b, comm, send_rows=even, recv_rows=pick([4, 3], even)),
         "gemm_all_to_all: recv_rows: rank 1 receives 8 rows, its recv_rows add up to 7"),
        (lambda: fcc.gemm_all_to_all(pick(a[1:], a), b, comm),
         "rank 1: gemm_all_to_all: a: 7 rows: allowed without send_rows are multiples of 2"),
        (lambda: embedding(table_rows=pick([5], [10])),
         "rank 1: embedding_all_to_all: table_rows: sum 5: allowed is 10 (tables' shape[0])"),
        (lambda: embedding(table_rows=pick([5, 5], [10])),
         "rank 1: embedding_all_to_all: table_rows: 2 tables: tables_per_rank says 1"),
        (lambda: embedding(tables_per_rank=pick([2, 1], [1, 1])),
         "embedding_all_to_all: tables_per_rank: rank 1 has 3 in all, all ranks together have 2 tables"),
        (lambda: embedding(batch=pick(n + 1, n)),
         "rank 1: embedding_all_to_all: offsets: shape[0] 3: allowed is 4 (len(table_rows) * batch + 1)"),
        (lambda: embedding(batch=pick(-1, n)), "rank 1: embedding_all_to_all: batch: -1: allowed are 0 and more"),
        (lambda: embedding(batch_split=pick([2, 0], None)), "embedding_all_to_all: batch_split[0]: rank 1 has 2, rank 0 has 1"),
        (lambda: embedding(tables=pick(zeros(10, 5), tables)),
         "embedding_all_to_all: tables: shape[1]: rank 1 has 5, rank 0 has 4"),
        (lambda: embedding(tables=pick(tables.half(), tables)),
         "embedding_all_to_all: tables: dtype: rank 1 has f16, rank 0 has f32"),
        (lambda: embedding(offsets=pick(offsets.int(), offsets)),
         "rank 1: embedding_all_to_all: offsets: dtype i32: allowed is i64 (indices')"),
        (lambda: embedding(sample_weights=pick(torch.ones(n + 1, device=x.device), torch.ones(n, device=x.device))),
         "rank 1: embedding_all_to_all: sample_weights: shape[0] 3: allowed is 2 (indices' shape[0])"),
        (lambda: embedding(pooling=pick("max", "sum")), 'rank 1: embedding_all_to_all: pooling: "max": allowed are sum, mean'),
        (lambda: embedding(indices=pick(indices + 10, indices)),
         "rank 1: embedding_all_to_all: indices[0]: 10: table 0, bag 0, position 0: allowed are 0 to 9"),
        # ---- arguments of a wrong kind ----
        (lambda: fcc.gemv_all_reduce(pick([1.0], x), w, comm), "rank 1: gemv_all_reduce: x: list [1.0]: allowed is a torch.Tensor"),
        (lambda: fcc.gemv_all_reduce(pick(None, x), w, comm), "rank 1: gemv_all_reduce: x: NoneType None: allowed is a torch.Tensor"),
        (lambda: fcc.gemv_all_reduce(x, pick(w.cpu().numpy()[:1, :1], w), comm),
         "rank 1: gemv_all_reduce: w: ndarray array([[0.]], dtype=float32): allowed is a torch.Tensor"),
        (lambda: fcc.gemm_all_to_all(a, b, comm, send_rows=pick("44", even), recv_rows=even),
         "rank 1: gemm_all_to_all: send_rows: str '44': allowed is a list of whole numbers"),
        (lambda: fcc.gemm_all_to_all(a, b, comm, send_rows=pick([4.0, 4.0], even), recv_rows=even),
         "rank 1: gemm_all_to_all: send_rows: list [4.0, 4.0]: allowed is a list of whole numbers"),
        (lambda: embedding(batch=pick(2.5, 2)), "rank 1: embedding_all_to_all: batch: float 2.5: allowed is a whole number"),
        (lambda: embedding(table_rows=pick(10, [10])),
         "rank 1: embedding_all_to_all: table_rows: int 10: allowed is a list of whole numbers"),
        (lambda: embedding(pooling=pick(None, "sum")), "rank 1: embedding_all_to_all: pooling: NoneType None: allowed is a string"),
        (lambda: fcc.all_reduce(pick(3.0, zeros(1)), comm), "rank 1: all_reduce: x: float 3.0: allowed is a torch.Tensor"),
        (lambda: fcc.rows_all_to_all(pick([1], a), even, even, comm),
         "rank 1: rows_all_to_all: rows: list [1]: allowed is a torch.Tensor"),
        (lambda: rows_layer(pick([1.0], x)), "rank 1: RowParallelLinear: x: list [1.0]: allowed is a torch.Tensor"),
        (lambda: experts(pick("a", a)), "rank 1: ExpertParallelLinear: x: str 'a': allowed is a torch.Tensor"),
        (lambda: bags(pick("abc", index)), "rank 1: ShardedEmbeddingBagCollection: input: str 'abc': allowed is a torch.Tensor"),
        # ---- functions that are made of another operator ----
        (lambda: fcc.all_reduce(pick(zeros(3), zeros(4)), comm), "all_reduce: x: elements: rank 1 has 3, rank 0 has 4"),
        (lambda: fcc.all_reduce(pick(zeros(4).half(), zeros(4)), comm), "all_reduce: x: dtype: rank 1 has f16, rank 0 has f32"),
        (lambda: fcc.rows_all_to_all(pick(zeros(8, 9), a), even, even, comm),
         "rows_all_to_all: rows: shape[1]: rank 1 has 9, rank 0 has 8"),
        (lambda: fcc.rows_all_to_all(pick(a.half(), a), even, even, comm),
         "rows_all_to_all: rows: dtype: rank 1 has f16, rank 0 has f32"),
        (lambda: fcc.rows_all_to_all(a, pick([3, 3], even), even, comm),
         "rank 1: rows_all_to_all: send_rows: [3, 3]: allowed are 2 numbers, 0 and more, one for each rank, 8 in all"),
        (lambda: fcc.rows_all_to_all(a, even, pick([3, 3], even), comm),
         "rows_all_to_all: recv_rows: rank 1 expects 3 rows of rank 0, which sends 4"),
        # ---- modules ----
        (lambda: rows_layer(pick(x[:, :7], x)), "rank 1: RowParallelLinear: x: [2, 7]: allowed are [*, 8], this rank's columns"),
        (lambda: rows_layer(pick(zeros(3, 8), x)), "RowParallelLinear: x: shape[0]: rank 1 has 3, rank 0 has 2"),
        (lambda: rows_layer(pick(zeros(99, 8), zeros(100, 8))),
         "RowParallelLinear: x @ weight.T: elements: rank 1 has 396, rank 0 has 400"),
        (lambda: experts(pick(a[:, :7], a)), "rank 1: ExpertParallelLinear: x: [8, 7]: allowed are [rows, 8]"),
        (lambda: experts(a, even, pick([3, 3], even)),
         "ExpertParallelLinear: recv_rows: rank 1 receives 8 rows, its recv_rows add up to 6"),
        (lambda: experts(a, pick([3, 3], even), even), "rank 1: ExpertParallelLinear: send_rows: 6 in all: x has 8 rows"),
        (lambda: bags(pick(index[0], index)), "rank 1: ShardedEmbeddingBagCollection: input: [2, 2]: allowed are [nnz] with offsets, "
         "and [1, batch, L] without"),
        (lambda: bags(pick(index + 10, index)), "rank 1: ShardedEmbeddingBagCollection: input[0]: 10: table 1, bag 0, position 0: "
         "allowed are 0 to 9"),
        (lambda: bags(index[0, :, 0], pick(offsets[:n].int(), offsets[:n])),
         "rank 1: ShardedEmbeddingBagCollection: offsets: dtype i32: allowed is i64 (input')"),
    ]


def late(comm, reason, want, rank):
    """On a GPU an error comes with a later call. There it is known of which operator it is, but not for which of the functions that have used
    it, or in which module: then it is in the words of the operator, or names all of these functions; what is wrong is the same. Nor is it known
    there how many elements a row has. Of rows that differ in length each rank finds elements that it does not expect, and either may be named."""
    if comm.device.type != "cuda":
        return reason, rank
    if want in IN_ELEMENTS:
        return (want, 1) if re.fullmatch(IN_ELEMENTS[want], reason) else (reason, rank)
    if want in IN_ROWS:
        return (want, 1) if re.fullmatch(IN_ROWS[want], reason) else (reason, rank)
    wrong = re.compile(r"rank \d+ (?:has|receives) .*|bag \d+, position \d+: .*|dtype \w+: allowed is \w+")
    found, wanted = wrong.search(reason), wrong.search(want)
    return want if found and wanted and found[0] == wanted[0] else reason, rank


IN_ELEMENTS = {
    "rows_all_to_all: rows: shape[1]: rank 1 has 9, rank 0 has 8":
        r"rows_all_to_all: recv_rows: rank (0 expects 32 elements of rank 1, which sends 36|1 expects 36 elements of rank 0, which sends 32)",
    "rows_all_to_all: recv_rows: rank 1 expects 3 rows of rank 0, which sends 4":
        r"(rank 1: )?rows_all_to_all: recv_rows: rank 1 expects 24 elements of rank [01], which sends 32",  # it hears itself first
}


IN_ROWS = {  # the ranks' kernels compare what comes with what is expected
    "gemm_all_to_all: recv_rows: rank 1 receives 8 rows, its recv_rows add up to 7":
        r"gemm_all_to_all: recv_rows: rank 1 sends 4 rows to rank 1, which expects 3",
    "ExpertParallelLinear: recv_rows: rank 1 receives 8 rows, its recv_rows add up to 6":
        r"\w+: recv_rows: rank 0 sends 4 rows to rank 1, which expects 3",
}


def told_rank(comm):
    found = []
    for number, (call, want) in enumerate(cases(comm)):
        with pytest.raises((fcc.ArgumentError, fcc.IndexRangeError)) as e:
            call()
            comm.synchronize()
        found.append((number, *late(comm, e.value.reason, want, e.value.rank), want))
        assert e.value.args == (e.value.reason,) and str(e.value).startswith(e.value.reason)
        comm.barrier()
    return found


def test_told(run):
    for told in run(2, told_rank):
        assert [(number, reason, rank) for number, reason, rank, _ in told] == [(number, want, 1) for number, _, _, want in told]


@pytest.mark.parametrize("wrong,reason", [
    ({"rank": "0", "size": 1, "id": bytes(128)}, "rank: str '0': allowed is a whole number"),
    ({"rank": 0, "size": 1.0, "id": bytes(128)}, "size: float 1.0: allowed is a whole number"),
    ({"rank": 0, "size": 1, "id": "x"}, "id: str 'x': allowed is what unique_id() gave, 128 bytes"),
    ({"rank": 0, "size": 1, "id": bytes(128)}, "rank 0: id: all zero: allowed is one that unique_id() made"),
    ({"rank": 0, "size": 1, "id": bytes(8)}, "id: 8 bytes: allowed are the 128 that unique_id() gave"),
    ({"rank": 0}, "rank, size, id: allowed are all of them, or none (then the launcher says)"),
    ({"rank": 2, "size": 2, "id": bytes([1]) * 128}, "rank: 2: allowed are 0 to 1"),
    ({"rank": 0, "size": 1025, "id": bytes([1]) * 128}, "rank 0: size: 1025: allowed are 1 to 1024"),
    ({"device": "cpuu"}, "device: cpuu: allowed are cpu and cuda, with or without fccd's number of the device"),
    ({"device": "mps"}, "device: mps: allowed are cpu and cuda, with or without fccd's number of the device"),
    ({"time_limit": "5"}, "time_limit: str '5': allowed is a number of seconds"),
    ({"time_limit": 0}, "time_limit: 0: allowed are seconds, more than 0 and at most 4e6, and None"),
    ({"heap_bytes": 1.5}, "heap_bytes: float 1.5: allowed is a whole number of bytes"),
    ({"heap_bytes": -1}, "heap_bytes: -1: allowed are 0 and more"),
    ({"job": "a b"}, "job: character 1 is 0x20: allowed are printable ASCII characters other than space"),
    ({"job": 5}, "job: int 5: allowed is a string"),
    ({"socket": "/x" * 100}, "socket: 200 characters: allowed are 1 to 107"),
])
def test_init(daemon, wrong, reason):
    with pytest.raises(fcc.ArgumentError) as e:
        fcc.init(**{"socket": daemon.socket, **wrong})
    assert e.value.reason == reason


def test_socket(tmp_path):
    with pytest.raises(fcc.NoDaemonError) as e:
        fcc.init(socket=str(tmp_path))
    assert e.value.reason == f"{tmp_path}: it is a directory: allowed is fccd's socket"


def test_no_communicator():
    for comm, reason in ((None, "comm: no communicator is given, and there is no default one"),
                         ("fcc0", "all_reduce: comm: str: allowed are a Communicator, and None for the default one")):
        with pytest.raises(fcc.ArgumentError) as e:
            fcc.all_reduce(torch.ones(1), comm)
        assert e.value.reason == reason
