# SPDX-License-Identifier: MIT
"""Tensors over the daemon's memory: where they lie, what shares it, and when it goes."""
import gc
import json
import warnings

import fcc
import pytest
import reference
import torch
from daemon import Daemon
from ranks import Ranks


def buffers(comm):
    """How many the connection has."""
    gc.collect()
    return len(comm.member.connection.places[0])


def tensors_rank(comm):
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.float64, torch.bool):
        for shape in ((), (3,), (0, 4), (2, 3, 4)):
            for symmetric in (False, True):
                tensor = fcc.zeros(shape, dtype=dtype, symmetric=symmetric, comm=comm)
                assert tensor.shape == shape and tensor.dtype == dtype and tensor.device == comm.device
                assert torch.equal(tensor.cpu(), torch.zeros(shape, dtype=dtype))
                assert fcc.is_daemon_memory(tensor, comm)
    assert fcc.empty(2, 3, comm=comm).dtype == torch.get_default_dtype()
    with pytest.raises(fcc.ArgumentError, match="shape: .*-1"):
        fcc.empty(-1, comm=comm)
    with pytest.raises(fcc.ArgumentError, match=r"shape: \(2.5,\): allowed are integers"):
        fcc.empty(2.5, comm=comm)
    for symmetric in (False, True):  # more bytes than 64 bits can say
        with pytest.raises(fcc.ArgumentError, match="bytes: 18446744073709551632: allowed are 1 to"):
            fcc.empty((1 << 62) + 4, dtype=torch.float32, symmetric=symmetric, comm=comm)
    with pytest.raises(fcc.ArgumentError, match="device: meta"):
        fcc.empty(1, device="meta", comm=comm)


def sharing_rank(comm):
    """Views, slices and parameters lie there, too, and are used where they lie."""
    warnings.simplefilter("error", fcc.CopyWarning)
    whole = fcc.to_daemon(reference.random(comm.rank, 2, 40, 64).to(comm.device), comm)
    weight = torch.nn.Parameter(whole[1, 8:24])
    x = whole[0, :3]
    with torch.no_grad():
        for _ in range(2):
            got = fcc.gemv_all_reduce(x, weight, comm)
            reference.close(got, fcc.all_reduce(x @ weight.t(), comm).cpu())
            whole[1, 8:24] *= 2  # it is the same memory
    assert not fcc.is_daemon_memory(torch.ones(1, device=comm.device), comm)
    assert fcc.to_daemon(weight, comm) is weight


def lifetime_rank(comm):
    before = buffers(comm)
    large = fcc.empty(1 << 20, comm=comm)
    part = large[10:20]
    del large
    assert buffers(comm) == before + 1 and fcc.is_daemon_memory(part, comm)
    storage = part.untyped_storage()
    del part
    assert buffers(comm) == before + 1  # a storage is a reference
    del storage
    assert buffers(comm) == before
    small = [fcc.empty(100, comm=comm) for _ in range(50)]
    count = buffers(comm)
    assert count <= before + 1  # they share a buffer
    places = {tensor.data_ptr() for tensor in small}
    assert len(places) == 50
    del small
    assert {fcc.empty(100, comm=comm).data_ptr() for _ in range(50)} <= places and buffers(comm) == count


def results_rank(comm):
    """Results do not share memory while they live, and share it afterwards; what does not fit is an error on all ranks."""
    x, w = fcc.to_daemon(torch.ones(1, 8, device=comm.device), comm), fcc.to_daemon(torch.ones(64, 8, device=comm.device), comm)
    kept = [fcc.gemv_all_reduce(x * n, w, comm) for n in range(1, 20)]
    for n, y in enumerate(kept, 1):
        assert y.tolist() == [[8.0 * n * comm.size] * 64]
    places = {y.data_ptr() for y in kept}
    del kept, y
    assert fcc.gemv_all_reduce(x, w, comm).data_ptr() in places
    a, b = fcc.zeros(256 * comm.size, 4, comm=comm), fcc.zeros(4, 1024, comm=comm)  # 1 MiB for each rank: the heap has 4
    for n in (1024, 512, 768):  # pieces of other sizes join
        rows = fcc.gemm_all_to_all(a[:n // 4 * comm.size], b, comm)
        del rows
    kept = []
    with pytest.raises(fcc.OutOfMemoryError) as e:
        for _ in range(10 if comm.rank == 0 else 11):
            kept.append(fcc.gemm_all_to_all(a, b, comm))
            comm.synchronize()
            if comm.rank:
                kept.clear()
    assert len(kept) < 10 and e.value.rank == 0 and "memory for results" in e.value.reason
    assert comm.rank or "heap_bytes" in e.value.remedy
    comm.reserve(8 << 20)
    kept += [fcc.gemm_all_to_all(a, b, comm) for _ in range(2)]
    comm.barrier()


def closed_rank(comm):
    """Tensors outlive their communicator."""
    with pytest.raises(fcc.ArgumentError, match="to_daemon: int: allowed are a torch.Tensor and a torch.nn.Module"):
        fcc.to_daemon(3, comm)
    tensor = fcc.to_daemon(torch.arange(10, device=comm.device), comm)
    y = fcc.all_reduce(torch.ones(5, device=comm.device), comm)
    comm.barrier()
    comm.close()
    gc.collect()
    assert tensor.tolist() == list(range(10)) and y.tolist() == [float(comm.size)] * 5
    with pytest.raises(fcc.ArgumentError, match="closed"):
        comm.barrier()
    with pytest.raises(fcc.ArgumentError, match="closed"):
        torch.ops.fcc.all_reduce(y, comm.name)
    comm.close()


def module_rank(comm):
    warnings.simplefilter("error", fcc.CopyWarning)
    model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 4)).to(comm.device)
    model[2].tied = model[2].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    first, values = model[0].weight, {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert fcc.to_daemon(model, comm) is model and model[0].weight is first and model[2].tied is model[2].weight
    for name, tensor in model.state_dict().items():
        assert fcc.is_daemon_memory(tensor, comm) and torch.equal(tensor, values[name])
    model(torch.ones(4, 16, device=comm.device)).sum().backward()
    optimizer.step()
    assert fcc.is_daemon_memory(model[0].weight, comm)
    assert not torch.equal(model[2].bias, values["2.bias"])


def pool_rank(comm):
    warnings.simplefilter("error", fcc.CopyWarning)
    with fcc.mem_pool(comm):
        model = torch.nn.Linear(16, 8, bias=False, device=comm.device)
        held = torch.randn(3, 16, device=comm.device)
        turned = held.clone().t().clone(memory_format=torch.preserve_format)
        copied = torch.tensor([1.0, 2.0], device=comm.device)
    outside = torch.randn(3, 16, device=comm.device)
    for tensor in (model.weight, held, turned, copied):
        assert fcc.is_daemon_memory(tensor, comm)
    assert turned.stride() == (1, 16) and torch.equal(turned, held.t()) and copied.tolist() == [1, 2]
    assert not fcc.is_daemon_memory(outside, comm)
    with torch.no_grad():
        y = fcc.gemv_all_reduce(held, model.weight, comm)
    reference.close(y, fcc.all_reduce(model(held).detach(), comm).cpu())
    del model, held, turned, copied, tensor, y


def copies_rank(comm):
    """What lies elsewhere is copied in every call, with a warning in the first; but where ranks launch the operator themselves."""
    x, w = (reference.random(seed + comm.rank, rows, 12).to(comm.device) for seed, rows in ((1, 2), (5, 6)))
    weight = torch.nn.Parameter(w)

    def right():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with torch.no_grad():
                got = fcc.gemv_all_reduce(x, weight, comm)
                reference.close(got, fcc.all_reduce(x @ weight.t(), comm).cpu())
        return [str(w.message) for w in caught if w.category is fcc.CopyWarning], [w.filename for w in caught]
    texts, files = right()
    if comm.member.launches():
        assert not texts
    else:
        assert len(texts) == 2 and "x (2x12, float32)" in texts[0] and "fcc.empty" in texts[0] and "to_daemon" in texts[1]
        assert set(files) == {__file__}
    assert right()[0] == []  # each is said once
    with torch.no_grad():
        weight.mul_(3)
    right()
    weight.data.mul_(2)  # torch does not count this
    right()
    with pytest.deprecated_call(match="forget_copies"):
        fcc.forget_copies(comm)
    fcc.to_daemon(weight.data, comm)
    with torch.inference_mode():
        weight = torch.nn.Parameter(w.clone(), requires_grad=False)
    right()
    weight.data.mul_(2)
    right()
    weight = w[:, ::2]  # strides that operators do not take
    x = x[:, :6]
    right()
    expanded = torch.ones(1, 1, device=comm.device).expand(6, 6)
    weight = fcc.to_daemon(torch.ones(1, 1, device=comm.device), comm).expand(6, 6)
    assert expanded.stride() == weight.stride() == (0, 0)
    right()


@pytest.mark.parametrize("function", [tensors_rank, sharing_rank, lifetime_rank, closed_rank, module_rank, pool_rank, copies_rank])
def test_memory(run, function):
    run(2, function)


def test_results(run_by_worker):
    run_by_worker(2, results_rank, heap_bytes=4 << 20)


def used(comm):
    return comm._heap.nbytes + comm._local.nbytes


def needed_rank(comm):
    """Memory is taken when it is needed, by the rank that needs it, and what one rank keeps is no other's concern."""
    assert used(comm) == 0
    x, w = torch.ones(1, 8, device=comm.device), torch.ones(64, 8, device=comm.device)
    warnings.simplefilter("ignore", fcc.CopyWarning)
    for _ in range(100):
        fcc.gemv_all_reduce(x, w, comm)
    assert used(comm) == 4 << 20
    a, b = fcc.to_daemon(torch.ones(64 * comm.size, 4, device=comm.device), comm), fcc.zeros(4, 1024, comm=comm)
    a.mul_(comm.rank + 1)
    b.fill_(1)
    kept = []  # 256 KiB each: rank 0 keeps none, rank 1 all
    want = torch.arange(1, comm.size + 1.0).repeat_interleave(64).unsqueeze(1).expand(-1, 1024) * 4
    for n in range(200):
        rows = fcc.gemm_all_to_all(a, b, comm)
        if n % 50 == 0:
            assert torch.equal(rows.cpu(), want), n
        if comm.rank:
            kept.append(rows)
    assert used(comm) <= 8 << 20 if comm.rank == 0 else 100 << 20 < used(comm) < 140 << 20
    assert all(torch.equal(rows.cpu(), want) for rows in kept[::20])
    comm.synchronize()
    del kept, rows
    before = used(comm)
    wide = fcc.zeros(4, 3 << 15, comm=comm)  # 3 MiB: in pieces that are no longer used, joined; or more is taken
    assert fcc.gemm_all_to_all(a[:4 * comm.size], wide, comm).shape == (4 * comm.size, 3 << 15)
    assert used(comm) == before if comm.rank else used(comm) > before
    assert comm._heap.trim() and comm._heap.nbytes == 0  # nothing of it is used
    assert torch.equal(fcc.gemm_all_to_all(a, b, comm).cpu(), want)
    comm.reserve(5 << 20)
    assert comm._heap.nbytes == 7 << 20


def test_needed(run_by_worker):
    run_by_worker(2, needed_rank, heap_bytes=None)


def many_rank(comm, ids, count):
    """Many communicators at a time, each with results."""
    others = [fcc.Communicator(rank=comm.rank, size=comm.size, id=id, device=comm.device.type) for id in ids]
    kept = [fcc.all_reduce(torch.ones(4, device=comm.device), other) for other in others]
    assert all(y.tolist() == [float(comm.size)] * 4 for y in kept)
    large = []
    if comm.device.type == "cpu":  # a GPU's memory is not counted
        with pytest.raises(fcc.OutOfMemoryError, match="MEMORY_PER_USER_MB"):
            for _ in range(count):
                large.append(fcc.empty(8 << 20, dtype=torch.uint8, comm=comm))
    del large
    comm.barrier()
    for other in others:
        other.close()


def test_many(device):
    """20 communicators of two ranks in 256 MiB, of which one alone used to take twice as much."""
    with Daemon(device, "--memory-per-user-mb", "256") as daemon:
        ids = [fcc.unique_id(socket=daemon.socket) for _ in range(20)]
        Ranks(daemon, device, 2, many_rank, ids, 64, heap_bytes=None).results()


def given_back_rank(comm):
    """Within a limit, and within what the daemon gives, memory that was for other sizes serves."""
    a, b = fcc.zeros(8 * comm.size, 4, comm=comm), fcc.zeros(4, 1 << 14, comm=comm)  # 0.5 MiB for each rank
    for n in (1, 8, 3, 5, 8, 2, 8):
        rows = fcc.gemm_all_to_all(a[:n * comm.size], b, comm)
        assert not rows.any() and comm._heap.nbytes <= comm._heap.limit
        del rows
    kept = [fcc.gemm_all_to_all(a[:comm.size], b, comm) for _ in range(8)]
    with pytest.raises(fcc.OutOfMemoryError, match="the limit is"):
        kept.append(fcc.gemm_all_to_all(a[:comm.size * 8], b, comm))
    del kept[1::2]
    assert not fcc.gemm_all_to_all(a[:comm.size], b, comm).any()


def test_given_back(run_by_worker):
    run_by_worker(2, given_back_rank, heap_bytes=(1 << 20) + 100)


def test_nothing_is_left(run, daemon):
    """The job's worker goes when its ranks have gone."""
    run(2, tensors_rank)
    assert json.loads(daemon.ctl("status", "--json"))
