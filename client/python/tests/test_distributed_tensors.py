# SPDX-License-Identifier: MIT
"""The tensors of an operation of torch.distributed, taken together: on one device, of one dtype, each in memory of its own, held until it is done;
and where inputs and outputs share memory."""
import re

import pytest
import torch
import torch.distributed as dist
from test_distributed import SIZES, same, world

from fcc.distributed import _vectors
from fcc.distributed._checks import unfit


def refusals(rank, size):
    """Calls that are wrong on the last rank, and what all ranks hear of it."""
    last = size - 1

    def here(bad, good):
        return bad if rank == last else good
    x, lost = torch.ones(4), torch.empty(4, device="meta")
    whole, one = torch.ones(4 * size), torch.ones(1).expand(4)
    elsewhere = "tensors on meta: not supported, only cpu and cuda"
    expanded = r"a result of shape \[4\] with strides \[0\], as expand\(\) makes it: allowed are tensors each of whose elements has memory of its own"
    group = dist.group.WORLD
    return (
        (lambda: dist.all_reduce(here(lost, x)), f"all_reduce: {elsewhere}"),
        (lambda: dist.broadcast(here(lost, x), 0), f"broadcast: {elsewhere}"),
        (lambda: dist.all_gather([x.clone() for _ in range(size - 1)] + [here(lost, x.clone())], x), f"all_gather: {elsewhere}"),
        (lambda: dist.all_gather_into_tensor(here(torch.empty(4 * size, device="meta"), whole.clone()), x), f"all_gather: {elsewhere}"),
        (lambda: dist.reduce_scatter_tensor(x.clone(), here(torch.empty(4 * size, device="meta"), whole)), f"reduce_scatter: {elsewhere}"),
        (lambda: dist.all_to_all_single(whole.clone(), here(torch.empty(4 * size, device="meta"), whole)), f"all_to_all: {elsewhere}"),
        (lambda: dist.gather(x, [x.clone()] * (size - 1) + [lost] if rank == last else None, dst=last), f"gather: {elsewhere}"),
        (lambda: dist.scatter(x.clone(), [x] * (size - 1) + [lost] if rank == last else None, src=last), f"scatter: {elsewhere}"),
        (lambda: dist.all_reduce(here(one, x)), f"all_reduce: {expanded}"),
        (lambda: dist.broadcast(here(one, x), 0), f"broadcast: {expanded}"),
        (lambda: dist.reduce_scatter_tensor(here(one, x), whole), f"reduce_scatter: {expanded}"),
        (lambda: dist.all_to_all([x.clone()] * here(1, size), [x] * here(1, size)),
         f"all_to_all: outputs: 1 tensors: allowed are {size}, one for each rank"),
        (lambda: dist.all_to_all([], []) if rank == last else dist.all_to_all([x.clone() for _ in range(size)], [x] * size),
         f"all_to_all: outputs: 0 tensors: allowed are {size}, one for each rank"),
        (lambda: group.alltoall_base(whole.clone(), whole.to(here(torch.float64, torch.float32)), [], []).wait(),
         "all_to_all: torch.float32 and torch.float64: allowed is one dtype"),
        (lambda: group.allreduce([x, here("x", x)]).wait(), "all_reduce: str: allowed are tensors"),
        (lambda: dist.all_reduce(here(torch.ones(3, dtype=torch.int16), x)), "all_reduce: ReduceOp.SUM of torch.int16: allowed are bfloat16, "),
        (lambda: dist.broadcast(here(torch.quantize_per_tensor(x, 0.1, 0, torch.quint8), x), 0),
         "broadcast: torch.quint8, torch.strided: allowed are dense tensors that are not quantized"),
        (lambda: dist.all_reduce(here(x.to_sparse(), x)),
         "all_reduce: torch.float32, torch.sparse_coo: allowed are dense tensors that are not quantized"),
    )


def refused_rank():
    rank, size = world()
    dist.barrier()
    for call, text in refusals(rank, size):
        with pytest.raises((RuntimeError, ValueError)) as e:
            call()
        said = f"rank {size - 1}: " if rank != size - 1 or "not supported" not in str(e.value) else ""
        assert re.search(f"{said}.*({text})", str(e.value)), (str(e.value), text)
        assert "counts=" not in str(e.value)
        x = torch.ones(2)
        dist.all_reduce(x)
        assert x.tolist() == [size] * 2
    root = torch.ones(1).expand(4)  # where nothing is written, expanded tensors do
    dist.broadcast(root if rank == 0 else torch.zeros(4), 0)
    dist.reduce(torch.zeros(4) if rank == 0 else root, 0)


def torchs_words_rank():
    """Errors have the names that arguments have in torch.distributed."""
    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.ones(4 if rank else 6)
    for call, text in (
            (lambda: dist.all_reduce(x), "all_reduce: tensor: elements: rank 1 has 4, rank 0 has 6"),
            (lambda: dist.all_reduce(torch.ones(2).to(torch.float64 if rank else torch.float32)), "all_reduce: tensor: dtype: rank 1 has f64, rank 0 has f32"),
            (lambda: dist.broadcast(x, 0), "broadcast: tensor: elements: rank 1 has 4, rank 0 has 6"),
            (lambda: dist.broadcast(torch.ones(2), size), f"broadcast: src: {size}: allowed are 0 to {size - 1}"),
            (lambda: dist.reduce(torch.ones(2), size), f"reduce: dst: {size}: allowed are 0 to {size - 1}"),
            (lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4), [1, 3], [2, 2]), "all_to_all: output: rank 0 expects 1 elements of rank 0, which sends 2")):
        with pytest.raises(dist.DistBackendError, match=re.escape(text)):
            call()
    again = torch.ones(2)
    dist.all_reduce(again)
    assert again.tolist() == [size] * 2


def test_torchs_words(group, on_cpu):
    group(2, torchs_words_rank)


def test_two_devices():
    """As of tensors on the cpu and on a GPU, which a machine without one has not."""
    found = unfit(3, "all_gather", [torch.ones(2), torch.ones(2, device="meta")], [], ("cpu", "meta"))
    assert found.reason == "rank 3: all_gather: tensors on cpu and meta: allowed are tensors on one device" and found.rank == 3


@SIZES
def test_refused(group, on_cpu, size):
    group(size, refused_rank)


def calls(size):
    """Collectives with all tensors that each of them reads and writes."""
    def many(n=1, parts=None):
        return [torch.ones(n) for _ in range(parts or size)]
    x, whole, outs, ins = torch.ones(1), torch.ones(size), many(), many()
    rank, group = dist.get_rank(), dist.group.WORLD
    lists, roots = outs if rank == 0 else None, ins if rank == 0 else None
    yield [x], lambda: dist.all_reduce(x, async_op=True)
    yield [x], lambda: dist.reduce(x, 0, async_op=True)
    yield [x], lambda: dist.broadcast(x, 0, async_op=True)
    yield [x, *outs], lambda: dist.all_gather(outs, x, async_op=True)
    yield [x, whole], lambda: dist.all_gather_into_tensor(whole, x, async_op=True)
    yield [*outs, ins[0]], lambda: group.allgather_coalesced([[out] for out in outs], ins[:1])
    yield [x, *ins], lambda: dist.reduce_scatter(x, ins, async_op=True)
    yield [x, whole], lambda: dist.reduce_scatter_tensor(x, whole, async_op=True)
    yield [*outs, *ins], lambda: dist.all_to_all(outs, ins, async_op=True)
    yield [whole, y := torch.ones(size)], lambda: dist.all_to_all_single(y, whole, async_op=True)
    yield [x, *(lists or ())], lambda: dist.gather(x, lists, 0, async_op=True)
    yield [x, whole] if rank == 0 else [x], lambda: group.gather_single(whole, x)
    yield [x, *(roots or ())], lambda: dist.scatter(x, roots, 0, async_op=True)


def held_rank():
    """What a work is given to hold: on a GPU the memory of a tensor that is not held is another's before the collective has read it."""
    dist.all_reduce(torch.ones(1))
    device, held = dist.group.WORLD._devices["cpu"], []
    submit = device.submit
    device.submit = lambda name, operation, tensors, outputs, at_once: (
        held.extend([*tensors, *outputs]), submit(name, operation, tensors, outputs, at_once))[1]
    for number, (tensors, call) in enumerate(calls(dist.get_world_size())):
        held.clear()
        call().wait()
        found = {id(tensor) for tensor in held}
        needed = tensors
        assert all(id(tensor) in found for tensor in needed), number
    del device.submit


@SIZES
def test_held(group, on_cpu, size):
    group(size, held_rank)


def shared_rank():
    """Inputs and outputs that share memory, in many pieces: as if the inputs had been copied before."""
    rank, size = world()
    _vectors.PIECE_BYTES = 1 << 12
    n = 3001

    def drawn(count, r):
        return torch.randn(count, generator=torch.Generator().manual_seed(r))
    for shift in (0, 1, n // 2):
        x = drawn(2 * n, rank)
        out, own = x[shift:shift + n], x[:n]
        sent = [n - 2 * (size - 1), *[2] * (size - 1)]
        came = [sent[rank]] * size
        want = torch.cat([drawn(2 * n, r)[:n].split(sent)[rank] for r in range(size)])
        if sum(came) <= n:
            dist.all_to_all_single(x[shift:shift + sum(came)], own, came, sent)
            same(x[shift:shift + sum(came)].clone(), want)
        else:
            dist.all_to_all_single(torch.empty(sum(came)), own, came, sent)
        x = drawn(size * n + shift, rank)
        total = sum(drawn(size * n + shift, r)[:size * n].split(n)[rank] for r in range(size))
        dist.reduce_scatter_tensor(x[shift:shift + n], x[:size * n])
        torch.testing.assert_close(x[shift:shift + n], total)
        x = drawn(size * n + shift, rank)
        dist.all_gather_into_tensor(x[:size * n], x[shift:shift + n])
        same(x[:size * n].clone(), torch.cat([drawn(size * n + shift, r)[shift:shift + n] for r in range(size)]))
        x = drawn(size * n + shift, rank)
        out = x[shift:shift + n] if rank == 0 else torch.empty(n)
        dist.scatter(out, list(x[:size * n].split(n)) if rank == 0 else None, src=0)
        same(out.clone(), drawn(size * n + shift, 0)[:size * n].split(n)[rank])
        x = drawn(size * n + shift, rank)
        dist.gather(x[shift:shift + n], list(x[:size * n].split(n)) if rank == 0 else None, dst=0)
        if rank == 0:
            same(x[:size * n].clone(), torch.cat([drawn(size * n + shift, r)[shift:shift + n] for r in range(size)]))


@SIZES
def test_shared_memory(group, on_cpu, size):
    group(size, shared_rank)


EMPTY = {  # of tensors without elements, on a rank and its group
    "all_reduce": lambda x, rank, size: dist.all_reduce(x),
    "reduce": lambda x, rank, size: dist.reduce(x, 0),
    "broadcast": lambda x, rank, size: dist.broadcast(x, 0),
    "all_gather": lambda x, rank, size: dist.all_gather([x.clone() for _ in range(size)], x),
    "reduce_scatter": lambda x, rank, size: dist.reduce_scatter(x.clone(), [x] * size),
    "all_to_all": lambda x, rank, size: dist.all_to_all_single(x.clone(), x),
    "gather": lambda x, rank, size: dist.gather(x, [x.clone() for _ in range(size)] if rank == 0 else None, 0),
    "scatter": lambda x, rank, size: dist.scatter(x.clone(), [x] * size if rank == 0 else None, 0),
}


def empty_rank(name):
    rank, size = world()
    EMPTY[name](torch.empty(0, 3), rank, size)
    x = torch.ones(2)
    dist.all_reduce(x)
    same(x, torch.full((2,), float(size)))


@pytest.mark.parametrize("name", EMPTY)
def test_empty_first(group, on_cpu, name):
    """A group's first collective makes what the others pass through, if it has nothing to move, too."""
    group(2, empty_rank, name)


def single_rank():
    """Tensors of one element are contiguous, whatever their stride."""
    rank, size = world()
    for dtype in (torch.float32, torch.int16, torch.complex64, torch.bool):
        x = torch.full((5,), rank == 0, dtype=dtype)[1:2:2].as_strided((1,), (2,))
        assert x.is_contiguous()
        dist.broadcast(x, 0)
        same(x, torch.ones(x.shape, dtype=dtype))
        came = torch.zeros(1, dtype=dtype)
        requests = [dist.isend(x, (rank + 1) % size), dist.irecv(came, (rank - 1) % size)]
        for request in requests:
            request.wait()
        same(came, torch.ones(1, dtype=dtype))


def test_single_elements(group, on_cpu):
    group(2, single_rank)
