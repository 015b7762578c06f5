# SPDX-License-Identifier: MIT
"""torch.ops.fcc.* called as they are: what torch refuses before an operator hears of it reaches all ranks, and meta and fake tensors
ask for shapes."""
import fcc
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

ops = torch.ops.fcc


class Nothing:
    pass


def calls_of(comm):
    """Of each operator: its name, a call that is right, and what it gives."""
    device, size = comm.device, comm.size
    x, w, rows = torch.ones(2, 8, device=device), torch.ones(4, 8, device=device), torch.ones(size, 3, device=device)
    ones, zeros, ends = [1] * size, torch.zeros(size, dtype=torch.int64, device=device), torch.arange(size + 1, device=device)
    tables = torch.ones(4, 2, device=device)
    return {
        "gemv_all_reduce": ([x, w, comm.name], {}, torch.full((2, 4), 8. * size)),
        "gemm_all_reduce": ([x, w.t().contiguous(), comm.name], {}, torch.full((2, 4), 8. * size)),
        "gemm_reduce_scatter": ([rows, torch.ones(3, 5, device=device), comm.name], {"rows": ones}, torch.full((1, 5), 3. * size)),
        "gemm_all_to_all": ([rows, torch.ones(3, 5, device=device), comm.name], {"send_rows": ones, "recv_rows": ones},
                            torch.full((size, 5), 3.)),
        "embedding_all_to_all": ([tables, zeros, ends, None, [4], ones, size, comm.name], {}, torch.ones(1, size, 2)),
        "rows_all_to_all": ([rows, ones, ones, comm.name], {}, torch.ones(size, 3)),
        "all_reduce": ([x, comm.name], {}, torch.full((2, 8), 1. * size)),
    }


def wrongs_of(comm, name, args, keywords):
    """(what is given in the place of which argument, and what the error says of it)"""
    first = {"gemm_all_reduce": "a", "gemm_reduce_scatter": "a", "gemm_all_to_all": "a", "embedding_all_to_all": "tables", "rows_all_to_all": "rows"}.get(name, "x")
    at = next(i for i, arg in enumerate(args) if arg is comm.name)
    good = args[0]
    for value, says in ((good.tolist(), f"{first}: list"), (None, f"{first}: NoneType None"), (Nothing(), f"{first}: Nothing"),
                        ("x", f"{first}: str 'x'"), (good.to_sparse(), f"{first}: torch.float32, torch.sparse_coo")):
        yield [value, *args[1:]], keywords, says
    if name not in ("all_reduce", "rows_all_to_all"):
        yield [good.double(), *args[1:]], keywords, "torch.float64"
    elif comm.device.type == "cpu":  # it is not the other ranks'
        yield [good.double(), *args[1:]], keywords, f"{first}: dtype: rank {comm.size - 1} has f64, rank 0 has f32"
    yield [*args[:at], comm, *args[at + 1:]], keywords, "comm: a Communicator: allowed is the name of one"
    if len([arg for arg in args if isinstance(arg, torch.Tensor)]) > 1:
        for wrong in ([good.to("meta"), *args[1:]], [good, args[1].to("meta"), *args[2:]]):
            yield wrong, keywords, " and meta: allowed is the communicator's device"
    if name == "rows_all_to_all":
        yield [good, "rows", *args[2:]], keywords, "send_rows: str 'rows': allowed is a list of whole numbers"
    elif name != "all_reduce":
        yield args, {**keywords, "schedule": 3}, "schedule: int 3: allowed is a string"
    if name in ("gemv_all_reduce", "gemm_all_reduce", "all_reduce"):
        yield args, {**keywords, "replicated": "yes"}, "replicated: str 'yes': allowed is True or False"
    if name == "embedding_all_to_all":
        yield [*args[:6], 1.5, comm.name], keywords, "batch: float 1.5: allowed is a whole number"


def wrong_rank(comm):
    last = comm.size - 1
    for name, (args, keywords, right) in calls_of(comm).items():
        call = getattr(ops, name)
        for wrong_args, wrong_keywords, says in wrongs_of(comm, name, args, keywords):
            with pytest.raises(fcc.ArgumentError) as e:
                if comm.rank == last:
                    call(*wrong_args, **wrong_keywords)
                else:
                    call(*args, **keywords)
                comm.synchronize()
            assert e.value.rank == last and f"{name}: " in e.value.reason and says in e.value.reason, e.value
            result = call(*args, **keywords)  # all are in step
            comm.synchronize()
            assert torch.equal(result.cpu(), right), (name, says, result)


def unknown_rank(comm):
    """Nobody can be told where it is not known which ranks; those that did not call wait for nothing."""
    with pytest.raises(fcc.ArgumentError, match='comm: "nobody"'):
        ops.all_reduce(torch.ones(2, device=comm.device), "nobody")
    with pytest.raises(RuntimeError, match="comm"):
        ops.all_reduce(torch.ones(2, device=comm.device), 5)
    with pytest.raises(RuntimeError, match="missing"):
        ops.all_reduce()
    x = torch.ones(2, device=comm.device)
    with pytest.raises(RuntimeError if comm.rank else fcc.ArgumentError, match="other"):  # torch's words, of which the ranks are told
        ops.all_reduce(x, comm.name, **({"other": 1} if comm.rank else {}))
    with pytest.raises(RuntimeError, match="Expected a value of type 'Tensor'"):  # an overload: torch's own words
        ops.all_reduce.default([1.], comm.name)
    assert torch.equal(fcc.all_reduce(torch.ones(2, device=comm.device), comm).cpu(), torch.full((2,), 1. * comm.size))


def shapes_rank(comm):
    """One rank alone asks for shapes, and the others go on."""
    for name, (args, keywords, right) in calls_of(comm).items():
        call = getattr(ops, name)
        if comm.rank == 0:
            meta = call(*[arg.to("meta") if isinstance(arg, torch.Tensor) else arg for arg in args], **keywords)
            assert meta.is_meta and meta.shape == right.shape, (name, meta)
            with FakeTensorMode() as mode:
                fakes = [mode.from_tensor(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
                fake = call(*fakes, **keywords)
                assert fake.device == args[0].device and fake.shape == right.shape, (name, fake)
                with pytest.raises(Exception) as e:
                    call(None, *fakes[1:], **keywords)
                assert not isinstance(e.value, fcc.Error)
        result = call(*args, **keywords)
        comm.synchronize()
        assert torch.equal(result.cpu(), right), (name, result)


@pytest.mark.parametrize("function,size", [(wrong_rank, 2), (wrong_rank, 3), (unknown_rank, 2), (shapes_rank, 2)])
def test_torch_ops(run, function, size):
    run(size, function)
