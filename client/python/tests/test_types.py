# SPDX-License-Identifier: MIT
"""Values that are no dense tensors or no numbers are errors that all ranks hear of at once. Copies to the daemon's memory, and
of modules, are as torch's are."""
import copy
import pickle
import time
import warnings

import fcc
import numpy
import pytest
import torch


def strange(x):
    return [x.to_sparse(), x.to_sparse_csr(), torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), x.double(), x.long(), x.bool(),
            torch.complex(x, x), x.to(torch.float8_e4m3fn), None, 3.0, [1.0], x.numpy(), "x",
            torch.nested.nested_tensor([x, x], layout=torch.jagged),
            *([x.to_mkldnn()] if torch.backends.mkldnn.is_available() else [])]


def refused_rank(comm):
    """One rank gives something else: all hear of it at once, which argument of which rank it was, and go on."""
    warnings.simplefilter("ignore")
    x, two = torch.ones(2 * comm.size, 4), [2] * comm.size
    tables, ids, offsets = torch.ones(3, 4), torch.zeros(2, dtype=torch.long), torch.tensor([0, 1, 2])

    def embedding(given, counts=None):
        return fcc.embedding_all_to_all(given, ids, offsets, table_rows=[3], tables_per_rank=[1] * comm.size,
                                        batch=2 if counts is None else counts, comm=comm)
    calls = {
        "gemv_all_reduce: x": lambda given: fcc.gemv_all_reduce(given, torch.ones(3, 4), comm),
        "gemv_all_reduce: w": lambda given: fcc.gemv_all_reduce(x, given, comm),
        "gemm_all_to_all: a": lambda given: fcc.gemm_all_to_all(given, torch.ones(4, 3), comm),
        "rows_all_to_all: rows": lambda given: fcc.rows_all_to_all(given, two, two, comm),
        "all_reduce: x": lambda given: fcc.all_reduce(given, comm), "embedding_all_to_all: tables": embedding}
    right = {name: tables if "tables" in name else x for name in calls}
    begin = time.monotonic()
    for name, call in calls.items():
        for wrong in strange(torch.ones(2 * comm.size, 4)):
            # a dtype that is right by itself, but not the other ranks', is told in the same words on all ranks
            said = f"rank 1: {name}|{name}: dtype: rank 1 has |rank 1: all_reduce: reduction: sum: not allowed of bool"
            with pytest.raises(fcc.ArgumentError, match=said if comm.rank == 1 else "") as e:
                call(wrong if comm.rank == 1 else right[name])
            assert e.value.rank == 1, (name, e.value)
        call(right[name])
    for name, call, well in (("rows_all_to_all: send_rows", lambda n: fcc.rows_all_to_all(x, n, two, comm), two),
                             ("gemm_all_to_all: recv_rows", lambda n: fcc.gemm_all_to_all(
                                 x, torch.ones(4, 3), comm, send_rows=two, recv_rows=n), two),
                             ("embedding_all_to_all: batch", lambda n: embedding(tables, n), 2)):
        for wrong in ([2.0] * comm.size, ["2"] * comm.size) if well != 2 else (2.0, "2"):
            with pytest.raises(fcc.ArgumentError, match=f"rank 1: {name}" if comm.rank == 1 else ""):
                call(wrong if comm.rank == 1 else well)
        call(well)
    assert time.monotonic() - begin < 30  # a single one that is not told takes as long


def behind_rank(comm):
    """What torch raises when the operator has run concerns this rank alone: the next operators are each other's."""
    w = torch.nn.Parameter(torch.ones(3, 4))
    for number in range(3):
        with torch.inference_mode(comm.rank == 1):
            x = torch.full((2, 4), float(number))
        if comm.rank == 1:
            with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
                fcc.gemv_all_reduce(x, w, comm)
        else:
            assert (fcc.gemv_all_reduce(x, w, comm) == 4 * number * comm.size).all()
        assert fcc.all_reduce(torch.full((5,), float(number)), comm).tolist() == [float(number * comm.size)] * 5


def copies_rank(comm):
    x = torch.ones(2, 4, requires_grad=True)
    w = torch.arange(12.0).view(3, 4)
    near = fcc.to_daemon(x * 2, comm)
    assert fcc.is_daemon_memory(near, comm) and near.requires_grad and not near.is_leaf
    fcc.gemv_all_reduce(near, fcc.to_daemon(w, comm), comm).sum().backward()
    assert (x.grad == 2 * w.sum(0)).all()  # each rank's part of the sum is its own
    leaf = fcc.to_daemon(x, comm)
    assert leaf.is_leaf and leaf.requires_grad
    with torch.no_grad():
        assert not fcc.to_daemon(x * 2, comm).grad_fn
    assert (fcc.to_daemon(torch._neg_view(w), comm) == -w).all()
    assert (fcc.to_daemon(torch.complex(w, w).conj(), comm) == torch.complex(w, -w)).all()
    for wrong in (w.to_sparse(), torch.quantize_per_tensor(w, 0.1, 0, torch.qint8), w.to("meta")):
        with pytest.raises(fcc.ArgumentError, match="to_daemon: torch"):
            fcc.to_daemon(wrong, comm)
    assert fcc.empty(numpy.int64(3), comm=comm).shape == (3,) and fcc.zeros(numpy.int32(2), 3, comm=comm).shape == (2, 3)
    for shape in ((-1,), (1, -5), ("3",), ([2, None],)):
        with pytest.raises(fcc.ArgumentError, match="shape"):
            fcc.empty(*shape, comm=comm)


class Holder(torch.nn.Module):
    def __init__(self, comm):
        super().__init__()
        self.comm, self.layer = comm, fcc.nn.RowParallelLinear(4 * comm.size, 3, comm=comm)

    def forward(self, x):
        return self.layer(x)


def modules_rank(comm):
    """Copies of modules that hold a communicator, as those with averaged weights are; pickled ones; and the end of `with`."""
    warnings.simplefilter("ignore")
    module, x = Holder(comm), torch.ones(2, 4)
    other = copy.deepcopy(module)
    assert other.comm is comm and copy.copy(comm) is comm and other.layer.weight is not module.layer.weight
    assert torch.equal(other(x), module(x))
    averaged = torch.optim.swa_utils.AveragedModel(module)
    assert torch.equal(averaged(x), module(x))
    assert torch.equal(pickle.loads(pickle.dumps(module.layer))(x), module(x))
    with pytest.raises(TypeError, match="Communicator.name"):
        pickle.dumps(module)
    with pytest.raises(ZeroDivisionError), comm:
        comm.close()
        1 / 0


def test_refused(run, device):
    if device != "cpu":
        pytest.skip("such tensors are the cpu's")
    run(2, refused_rank)


def test_behind(run, device):
    if device != "cpu":
        pytest.skip("once is enough")
    run(2, behind_rank)


def test_copies(run, device):
    if device != "cpu":
        pytest.skip("once is enough")
    run(2, copies_rank)


def test_modules(run, device):
    if device != "cpu":
        pytest.skip("once is enough")
    run(2, modules_rank)
