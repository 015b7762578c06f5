# SPDX-License-Identifier: MIT
"""Arguments of wrong kinds and ranges, of what is no operator: constructors, tensors in the daemon's memory, new communicators. test_words.py has the
operators'."""
import inspect
import re

import fcc
import fcc.collectives
import numpy
import pytest
import torch


def refused(call, reason):
    with pytest.raises(fcc.ArgumentError, match=re.escape(reason)):
        call()


def takers(of, prefix=""):
    """The public functions, classes and methods that take a communicator: by their names."""
    found = {}
    for name in getattr(of, "__all__", None) or [name for name in vars(of) if not name.startswith("_")]:
        one = getattr(of, name)
        is_class = isinstance(one, type) and one.__module__.startswith("fcc") and not issubclass(one, Exception)
        if (is_class or inspect.isfunction(one) or inspect.ismethod(one)) and "comm" in inspect.signature(one).parameters:
            found[prefix + name] = one
        if is_class:
            found |= takers(one, f"{prefix}{name}.")
    return found


def comm_rank(comm):
    x, w, e, weight = torch.ones(2, 2), torch.ones(2, 2), fcc.Epilogue(), [torch.nn.Parameter(torch.ones(2))]
    step = fcc.Program("program p(N = 4)\nin x: f32[N] local\nout y: f32[N]\ny = all_reduce(x)\n")
    known = dict((
            ("barrier", lambda c: fcc.barrier(c)), ("sum_gradients", lambda c: fcc.sum_gradients(x, c)),
            *((name, lambda c, name=name: getattr(fcc, name)(x, c)) for name in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce", "gather", "scatter",
                                                                                    "send_receive")),
            *((name, lambda c, name=name: getattr(fcc, name)(x, w, c)) for name in ("gemv_all_reduce", "gemm_all_reduce", "gemm_reduce_scatter", "all_gather_gemm", "gemm_all_to_all")),
            ("all_reduce_many", lambda c: fcc.all_reduce_many([x], c)), ("all_to_all_v", lambda c: fcc.all_to_all_v(x, x, c, capacity=1)),
            ("rows_all_to_all", lambda c: fcc.collectives.rows_all_to_all(x, [2], [2], c)), ("embedding_all_to_all", lambda c: fcc.embedding_all_to_all(x, x, x, comm=c, table_rows=[2], tables_per_rank=[1], batch=1)),
            ("prepare_gemv_all_reduce", lambda c: fcc.prepare_gemv_all_reduce(x, w, c)),
            ("map_parts", lambda c: fcc.map_parts(1, 2, 2, comm=c)), ("output_map", lambda c: fcc.output_map([(x, 0)], c)), ("Tracker", lambda c: fcc.Tracker(c)),
            ("signal_wait", lambda c: fcc.signal_wait(x, 0, 1, comm=c)), ("RingReduceScatter", lambda c: fcc.RingReduceScatter(print, 2, 2, comm=c)),
            ("RingAllGather", lambda c: fcc.RingAllGather(print, 2, 2, comm=c)), ("Program.compile", lambda c: step.compile(c)), ("CompiledProgram", lambda c: fcc.CompiledProgram(step, c, {})),
            ("prepare_gemm_all_to_all", lambda c: fcc.prepare_gemm_all_to_all(x, w, c)), ("empty", lambda c: fcc.empty(2, comm=c)),
            ("zeros", lambda c: fcc.zeros(2, comm=c)), ("to_daemon", lambda c: fcc.to_daemon(x, c)), ("is_daemon_memory", lambda c: fcc.is_daemon_memory(x, c)),
            ("mem_pool", lambda c: fcc.mem_pool(c).__enter__()), ("Epilogue.fuses", lambda c: e.fuses("all_reduce", c, x)),
            ("all_reduce_epilogue", lambda c: fcc.all_reduce_epilogue(x, e, c)), ("parallelize", lambda c: fcc.parallelize(torch.nn.Linear(2, 2), c)),
            *((f"{name}_epilogue", lambda c, name=name: getattr(fcc, f"{name}_epilogue")(x, w, e, c)) for name in (
                "gemv_all_reduce", "gemm_all_reduce", "gemm_reduce_scatter", "all_gather_gemm", "gemm_all_to_all")),
            *((name, lambda c, name=name: getattr(fcc.nn, name)(2, 2, comm=c)) for name in ("RowParallelLinear", "ColumnParallelLinear", "ExpertParallelLinear")),
            *((f"{name}.from_linear", lambda c, name=name: getattr(fcc.nn, name).from_linear(torch.nn.Linear(2, 2), comm=c)) for name in ("RowParallelLinear", "ColumnParallelLinear")),
            ("ShardedEmbeddingBagCollection", lambda c: fcc.nn.ShardedEmbeddingBagCollection([2], 2, comm=c)),
            *((name, lambda c, name=name: getattr(fcc.optim, name)(weight, comm=c)) for name in ("Adam", "AdamW", "LAMB", "SGD"))))
    said = {"Program.compile": "program p", "CompiledProgram": "program p", **{f"{name}.from_linear": name for name in ("RowParallelLinear", "ColumnParallelLinear")}}
    of_their_own = {"PreparedOperator", "ShardedOptimizer", "forget_copies"}  # which others make; which does nothing
    every = {name for of in (fcc, fcc.nn, fcc.optim, fcc.collectives) for name in takers(of)} - of_their_own | {"AdamW"}  # its signature says **others
    assert every == set(known), every ^ set(known)
    for name, call in known.items():
        for bad in "cpu", 3, 0, "", [], False, object():  # also what counts as nothing
            refused(lambda: call(bad), f"{said.get(name, name)}: comm: {type(bad).__name__}: allowed are a Communicator, and None for the default one")


def test_what_is_no_communicator(run, on_cpu):
    run(1, comm_rank)


def kinds_rank(comm):
    refused(lambda: fcc.sum_gradients([1]), "rank 0: sum_gradients: x: list [1]: allowed is a torch.Tensor")
    refused(lambda: fcc.is_daemon_memory(3), "is_daemon_memory: int: allowed is a torch.Tensor")
    refused(lambda: fcc.zeros(2, dtype="float32"), "dtype: 'float32': allowed is a torch.dtype")
    refused(lambda: fcc.empty(2, device="nowhere"), "device: 'nowhere': the communicator's memory is on cpu")
    refused(lambda: fcc.empty(2, device=1.5), "device: 1.5: the communicator's memory is on cpu")
    for bad in "a", 1.5, 1 << 63:
        refused(lambda: comm.reserve(bad), f"nbytes: {bad!r}: allowed are 1 and more")
    assert fcc.zeros(2, requires_grad=True).requires_grad and fcc.empty(2, requires_grad=True).is_leaf and not fcc.zeros(2).requires_grad
    (fcc.zeros(2, requires_grad=True, comm=comm) * 2).sum().backward()
    layers = {"RowParallelLinear": (0, 1), "ColumnParallelLinear": (1, 0), "ExpertParallelLinear": (1, 1)}
    for name, least in layers.items():
        make, said = getattr(fcc.nn, name), f"rank 0: {name}: "
        for bad in "8", 1.5, -1, None:
            refused(lambda: make(bad, 4), f"{said}in_features: {bad!r}: allowed are whole numbers, {least[0]} and more")
            refused(lambda: make(4, bad), f"{said}out_features: {bad!r}: allowed are whole numbers, {least[1]} and more")
        for bad in torch.float64, torch.int32:
            refused(lambda: make(4, 4, dtype=bad), f"{said}dtype: {bad}: allowed are float32, float16 and bfloat16")
        assert make(numpy.int64(4), 4, device="cpu", dtype=torch.bfloat16).weight.dtype == torch.bfloat16
        refused(lambda: make(4, 4, device="cuda"), "device: cuda: the communicator's memory is on cpu")
        if name != "ExpertParallelLinear":
            refused(lambda: make.from_linear(torch.nn.Conv1d(1, 1, 1)), f"{name}.from_linear: linear: Conv1d: allowed is a torch.nn.Linear")
            refused(lambda: make.from_linear(torch.nn.Linear(2, 2, dtype=torch.float64)), f"{said}dtype: torch.float64: allowed")
    refused(lambda: fcc.nn.ExpertParallelLinear(4, 4, "2"), "num_experts: '2': allowed are whole numbers, 1 and more")
    bags = fcc.nn.ShardedEmbeddingBagCollection
    refused(lambda: bags(10, 4), "num_embeddings: 10: allowed is a list of numbers, 1 and more, the rows of each table")
    refused(lambda: bags([10, 0], 4), "num_embeddings: [10, 0]: allowed")
    refused(lambda: bags([10], "4"), "embedding_dim: '4': allowed are whole numbers, 1 and more")
    refused(lambda: bags([10], 4, tables_per_rank=["1"]), "tables_per_rank: ['1']: allowed are 1 numbers")
    refused(lambda: bags([10], 4, dtype=torch.float64), "dtype: torch.float64: allowed")
    assert bags([10], 4, device="cpu").weight.shape == (10, 4)
    refused(lambda: fcc.nn.ColumnParallelLinear(4, 4)(None), "ColumnParallelLinear: x: NoneType None: allowed is a torch.Tensor")
    torch.set_default_dtype(torch.float64)
    try:
        refused(lambda: fcc.nn.RowParallelLinear(4, 4), "dtype: torch.float64 (torch's default): allowed")
    finally:
        torch.set_default_dtype(torch.float32)


def test_kinds(run, on_cpu):
    run(1, kinds_rank)


def split_rank(comm):
    """All ranks hear of one rank's mistake, at once, and go on. (ctypes takes the last 32 bits of a number that is longer.)"""
    wrong, most = comm.rank == 1, (1 << 31) - 1
    for color in "a", 1.5, -1, 1 << 32, most + 1:
        refused(lambda: comm.split(color if wrong else 0), f"rank 1: split: color: {color!r}: allowed are 0 to {most}, and None")
    for key in "k", None, 1 << 32, -most - 1:
        refused(lambda: comm.split(0, key if wrong else 0), f"rank 1: split: key: {key!r}: allowed are {-most} to {most}")
    half = comm.split(numpy.int32(most), -comm.rank)
    assert (half.size, half.rank) == (2, 1 - comm.rank)
    half.close()
    for exclude in 3, "ab", [1.5], [comm.size], [-1], [comm.rank], [(1 << 32) + 1 - comm.rank], None:
        refused(lambda: comm.shrink(exclude), f"rank {comm.rank}: shrink: exclude: {exclude!r}: allowed is a list of other ranks, 0 to 1")
    refused(lambda: comm.shrink([1.5] if wrong else ()), "rank 1: shrink: exclude: [1.5]" if wrong else "rank 1: nexcluded: -1")
    comm.barrier()


def test_split_and_shrink(run, on_cpu):
    run(2, split_rank, time_limit=60)


def remedies_rank(comm):
    """What the reason does not say, and a newcomer asks next."""
    mine, b = torch.ones(2 + comm.rank, 3), torch.ones(3, 2)
    for call, remedy in ((lambda: fcc.gemv_all_reduce(torch.ones(65537, 3), b.t().contiguous()), "fcc.gemm_all_reduce(x, w.t())"),
                         (lambda: fcc.all_gather(mine), "counts=[...]"), (lambda: fcc.gather(mine), "counts=[...]"),
                         (lambda: fcc.all_gather_gemm(mine, b), "rows=[...]")):
        with pytest.raises(fcc.ArgumentError) as e:
            call()
        assert remedy in e.value.remedy, e.value
    everyone = [2 + rank for rank in range(comm.size)]
    assert len(fcc.all_gather(mine, counts=everyone)) == len(fcc.all_gather_gemm(mine, b, rows=everyone)) == sum(everyone)
    assert len(fcc.gather(mine, counts=everyone)) == (0 if comm.rank else sum(everyone))


def test_remedies(run, on_cpu):
    run(2, remedies_rank)
