# SPDX-License-Identifier: MIT
"""The backend fcc of torch.distributed: every collective, against what plain torch computes from all ranks' tensors."""
import pytest
import torch
import torch.distributed as dist
from fcc.distributed import _vectors
from ranks import gpus

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.uint8, torch.int8, torch.int32, torch.int64)
MOVED = (*FLOATS, *INTEGERS, torch.bool, torch.int16, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2)
SIZES = pytest.mark.parametrize("size", [2, 4])
COUNTS = (0, 1, 7, 1000)
PIECE = 1 << 10  # bytes: most of the tensors here need several pieces


def small_pieces():
    _vectors.PIECE_BYTES = PIECE


def tensor_of(rank, shape, dtype, seed=0):
    """A rank's tensor, which every rank can make. Its values are such that sums and products of four are exact in every dtype."""
    random = torch.Generator("cpu").manual_seed(1000 * seed + rank)
    values = torch.randint(0, 3, shape if isinstance(shape, tuple) else (shape,), generator=random, device="cpu")
    return (values.bool() if dtype == torch.bool else values.to(dtype)).to(torch.get_default_device())


def world():
    return dist.get_rank(), dist.get_world_size()


def same(found, wanted):
    assert found.dtype == wanted.dtype and found.shape == wanted.shape, (found.dtype, found.shape, wanted.shape)
    if found.dtype.itemsize == 1:
        found, wanted = found.view(torch.uint8), wanted.view(torch.uint8)
    assert torch.equal(found, wanted), (found, wanted)


def combined(op, tensors):
    """What a reduction of all ranks' tensors gives."""
    dtype = tensors[0].dtype
    work = torch.stack([t.double() if dtype.is_floating_point else t for t in tensors])
    name = op.name if hasattr(op, "name") else str(op)
    if dtype == torch.bool:
        name = {"SUM": "BOR", "PRODUCT": "BAND", "MAX": "BOR", "MIN": "BAND"}.get(name, name)
    if name in ("SUM", "AVG"):
        found = work.sum(0, dtype=work.dtype)
        return (found / len(tensors) if name == "AVG" else found).to(dtype)
    if name == "PRODUCT":
        return work.prod(0, dtype=work.dtype).to(dtype)
    if name in ("MIN", "MAX"):
        return (work.amin(0) if name == "MIN" else work.amax(0)).to(dtype)
    found = tensors[0].clone()
    for tensor in tensors[1:]:
        found = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}[name](found, tensor)
    return found


def cases():
    """Each dtype with each reduction that it has."""
    op = dist.ReduceOp.RedOpType
    numbers = (op.SUM, op.PRODUCT, op.MIN, op.MAX)
    bits = (op.BAND, op.BOR, op.BXOR)
    yield from ((dtype, one) for dtype in FLOATS for one in (*numbers, op.AVG))
    yield from ((dtype, one) for dtype in (*INTEGERS, torch.bool) for one in (*numbers, *bits))


# ---- reductions ----

def reductions_rank():
    small_pieces()
    rank, size = world()
    for dtype, op in cases():
        for count in COUNTS:
            all_ = [tensor_of(r, count, dtype) for r in range(size)]
            mine = all_[rank].clone()
            dist.all_reduce(mine, op)
            same(mine, combined(op, all_))
            root = count % size
            mine = all_[rank].clone()
            dist.reduce(mine, root, op)
            same(mine, combined(op, all_) if rank == root else all_[rank])
            parts = [[tensor_of(r, count, dtype, seed=p) for p in range(size)] for r in range(size)]
            wanted = combined(op, [parts[r][rank] for r in range(size)])
            mine = torch.empty(count, dtype=dtype)
            dist.reduce_scatter(mine, parts[rank], op)
            same(mine, wanted)
            mine = torch.empty(count, dtype=dtype)
            dist.reduce_scatter_tensor(mine, torch.cat(parts[rank]), op)
            same(mine, wanted)


@SIZES
def test_reductions(group, size):
    group(size, reductions_rank)


def premultiplied_rank():
    rank, size = world()
    from torch._C._distributed_c10d import _make_nccl_premul_sum
    for factor in (0.5, torch.tensor([0.5])):
        mine = torch.full((10,), 2.0 * (rank + 1))
        dist.all_reduce(mine, _make_nccl_premul_sum(factor))
        same(mine, torch.full((10,), float(sum(range(1, size + 1)))))


def test_premultiplied_sum(group):
    group(2, premultiplied_rank)


# ---- what only moves ----

def moves_rank():
    small_pieces()
    rank, size = world()
    for dtype in MOVED:
        for count in COUNTS:
            all_ = [tensor_of(r, count, dtype) for r in range(size)]
            outs = [torch.empty(count, dtype=dtype) for _ in range(size)]
            if not dtype.is_complex:  # which torch gives as floats
                dist.all_gather(outs, all_[rank])
                for r in range(size):
                    same(outs[r], all_[r])
            whole = torch.empty(size * count, dtype=dtype)
            dist.all_gather_into_tensor(whole, all_[rank])
            same(whole, torch.cat(all_))
            root = (count + 1) % size
            mine = all_[rank].clone()
            dist.broadcast(mine, root)
            same(mine, all_[root])
            outs = [torch.empty(count, dtype=dtype) for _ in range(size)] if rank == root else None
            dist.gather(all_[rank], outs, root)
            for r in range(size if outs else 0):
                same(outs[r], all_[r])
            mine = torch.empty(count, dtype=dtype)
            parts = [tensor_of(r, count, dtype, seed=5) for r in range(size)]
            dist.scatter(mine, parts if rank == root else None, root)
            same(mine, parts[rank])
            exchanges(rank, size, count, dtype)


def exchanges(rank, size, count, dtype):
    """All-to-Alls: of equal parts, of rows by counts, of lists."""
    parts = [[tensor_of(r, count, dtype, seed=p) for p in range(size)] for r in range(size)]
    wanted = torch.cat([parts[r][rank] for r in range(size)])
    out = torch.empty(size * count, dtype=dtype)
    dist.all_to_all_single(out, torch.cat(parts[rank]))
    same(out, wanted)
    sent = [[(r + p) % 3 * 5 for p in range(size)] for r in range(size)]
    rows = [tensor_of(r, (sum(sent[r]), 3), dtype) for r in range(size)]
    come = [sent[r][rank] for r in range(size)]
    out = torch.empty((sum(come), 3), dtype=dtype)
    dist.all_to_all_single(out, rows[rank], come, sent[rank])
    same(out, torch.cat([rows[r].split(sent[r])[rank] for r in range(size)]))
    outs = [torch.empty(count + r, dtype=dtype) for r in range(size)]
    ins = [tensor_of(rank, count + rank, dtype, seed=p) for p in range(size)]
    dist.all_to_all(outs, ins)
    for r in range(size):
        same(outs[r], tensor_of(r, count + r, dtype, seed=rank))


@SIZES
def test_moves(group, size):
    group(size, moves_rank)


def layouts_rank():
    """Tensors with gaps, in other orders, of several dimensions and with gradients; inputs are not changed."""
    rank, size = world()
    whole = torch.arange(24.0).view(4, 6) + rank
    column = whole.clone()[:, 1]
    dist.all_reduce(column)
    same(column, sum(torch.arange(24.0).view(4, 6)[:, 1] + r for r in range(size)))
    turned = whole.clone().t()
    dist.all_reduce(turned)
    same(turned, sum(torch.arange(24.0).view(4, 6).t() + r for r in range(size)))
    out = torch.empty(6, size * 4).t()
    dist.all_gather_into_tensor(out, whole)
    same(out, torch.cat([torch.arange(24.0).view(4, 6) + r for r in range(size)]))
    outs = [torch.empty(6, 4).t() for _ in range(size)]
    dist.all_gather(outs, whole.t().contiguous().t())
    same(outs[1], torch.arange(24.0).view(4, 6) + 1)
    leaf = torch.nn.Parameter(torch.full((3,), float(rank)))
    dist.broadcast(leaf, 1)
    same(leaf.detach(), torch.ones(3))
    with torch.inference_mode():
        made = torch.ones(3)
    dist.all_reduce(made)
    same(made.clone(), torch.full((3,), float(size)))
    scalar = torch.tensor(2.0)
    dist.all_reduce(scalar)
    assert scalar.item() == 2 * size
    uneven = [torch.empty(r) for r in range(size)]
    dist.all_gather(uneven, torch.full((rank,), float(rank)))
    same(torch.cat(uneven), torch.cat([torch.full((r,), float(r)) for r in range(size)]))


@SIZES
def test_layouts(group, size):
    group(size, layouts_rank)


def large_rank():
    """A tensor of several pieces takes no more of the daemon's memory than one of them."""
    rank, size = world()
    count = _vectors.PIECE_BYTES // 4 * 2 + 5
    x = torch.full((count,), float(rank))
    x[-1] = rank + 10
    dist.all_reduce(x)
    assert x[0] == x[-2] == sum(range(size)) and x[-1] == sum(range(10, 10 + size))
    collectives = dist.group.WORLD._devices["cpu"]._on
    assert collectives._pieces._bytes.numel() <= _vectors.PIECE_BYTES
    if rank == 0:
        dist.send(x, 1)
    elif rank == 1:
        come = torch.empty(count)
        dist.recv(come, 0)
        same(come, x)


def test_large(group, on_cpu):
    group(2, large_rank)


# ---- works ----

def async_rank():
    rank, size = world()
    tensors = [torch.full((1000,), float(i + rank)) for i in range(50)]
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    for i, work in reversed(list(enumerate(works))):
        assert work.wait()
        if tensors[i].is_cuda:  # where wait() orders streams
            torch.cuda.current_stream().synchronize()
        assert work.is_completed() and work.is_success() and work.exception() is None
        same(tensors[i], torch.full((1000,), float(sum(i + r for r in range(size)))))
    x = torch.ones(3)
    future = dist.all_reduce(x, async_op=True).get_future().then(lambda f: f.value()[0] * 2)
    same(future.wait(), torch.full((3,), 2.0 * size))
    same(dist.all_reduce(x, async_op=True).result()[0], torch.full((3,), float(size * size)))

    def again(future):  # a collective within a future's callback
        y = future.value()[0].clone()
        return dist.all_reduce(y, async_op=True).get_future().wait()[0]
    work = dist.all_reduce(torch.ones(2), async_op=True)
    same(work.get_future().then(again).wait(), torch.full((2,), float(size * size)))


@SIZES
def test_async(group, size):
    group(size, async_rank)


def coalesced_rank():
    rank, size = world()
    from torch.distributed.distributed_c10d import _coalescing_manager
    tensors = [torch.full((n,), float(rank + n), dtype=dtype) for n, dtype in ((3, torch.float32), (5, torch.float64), (0, torch.float32),
                                                                                  (4, torch.float32))]
    with _coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    for tensor in tensors:
        same(tensor, torch.full_like(tensor, sum(r + tensor.numel() for r in range(size))))
    outs = [torch.empty(size * n) for n in (2, 3)]
    with _coalescing_manager():
        for out in outs:
            dist.all_gather_into_tensor(out, torch.full((out.numel() // size,), float(rank)))
    for out in outs:
        same(out, torch.arange(size).float().repeat_interleave(out.numel() // size))
    outs = [torch.empty(n) for n in (2, 3)]
    with _coalescing_manager():
        for out in outs:
            dist.reduce_scatter_tensor(out, torch.arange(float(size)).repeat_interleave(out.numel()))
    for out in outs:
        same(out, torch.full_like(out, rank * size))
    a, b = torch.ones(3), torch.full((2,), float(rank))
    with _coalescing_manager(device=a.device, async_ops=True) as manager:
        dist.broadcast(b, 1)
        dist.reduce(a, 0)
    manager.wait()
    same(b, torch.ones(2))


def test_coalesced(group):
    group(2, coalesced_rank)


# ---- groups, messages, objects ----

def groups_rank():
    rank, size = world()
    evens, odds = dist.new_group(list(range(0, size, 2))), dist.new_group(list(range(1, size, 2)))
    pairs = [dist.new_group([r, (r + 1) % size]) for r in range(size)]
    mine = evens if rank % 2 == 0 else odds
    t = torch.tensor([float(rank)])
    dist.all_reduce(t, group=mine)
    assert t.item() == sum(range(rank % 2, size, 2))
    for r, pair in enumerate(pairs):
        if rank in (r, (r + 1) % size):
            t = torch.tensor([float(rank)])
            dist.broadcast(t, r, group=pair)
            assert t.item() == r
    dist.barrier(group=mine)
    dist.destroy_process_group(mine)
    t = torch.ones(1)
    dist.all_reduce(t)
    assert t.item() == size


@pytest.mark.parametrize("size", [4])
def test_groups(group, size):
    group(size, groups_rank)


def messages_rank():
    small_pieces()
    rank, size = world()
    after, before = (rank + 1) % size, (rank - 1) % size
    for dtype in (torch.float32, torch.int64, torch.bool, torch.bfloat16):
        for count in (0, 1, 1000, 5000):
            sent, come = tensor_of(rank, count, dtype), torch.empty(count, dtype=dtype)
            works = [dist.isend(sent, after), dist.irecv(come, before)]
            for work in works:
                work.wait()
            same(come, tensor_of(before, count, dtype))
            come.zero_()
            ops = [dist.P2POp(dist.irecv, come, before), dist.P2POp(dist.isend, sent, after)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            same(come, tensor_of(before, count, dtype))
    # tags: what comes first is kept until somebody asks for it
    if rank == 0:
        for tag in (3, 1, 2):
            dist.send(torch.full((2000,), float(tag)), 1, tag=tag)
    if rank == 1:
        work = dist.irecv(late := torch.empty(2000), 0, tag=2)
        for tag in (1, 3):
            dist.recv(come := torch.empty(2000), 0, tag=tag)
            same(come, torch.full((2000,), float(tag)))
        work.wait()
        same(late, torch.full((2000,), 2.0))
    with pytest.raises(NotImplementedError, match="recv_anysource"):
        dist.recv(torch.empty(1))
    if rank == 0:
        dist.send(torch.ones(3), 1)
    if rank == 1:
        with pytest.raises(RuntimeError, match=r"recv: 4 elements of torch.float32: rank 0 .* has sent 3 of torch.float32"):
            dist.recv(torch.ones(4), 0)


@SIZES
def test_messages(group, on_cpu, size):
    group(size, messages_rank)


def messages_on_gpus_rank():
    """In the order of the calls, whatever their tags; behind what is on the current stream; in graphs; of other sizes than expected."""
    rank, size = world()
    after, before = (rank + 1) % size, (rank - 1) % size
    for dtype in (torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.complex64):
        for count in (0, 1, 1000, 3000001):
            given, come = tensor_of(rank, count, dtype), torch.empty(count, dtype=dtype)
            works = [dist.isend(given, after), dist.irecv(come, before)]
            for work in works:
                work.wait()
            same(come, tensor_of(before, count, dtype))
            come.zero_()
            for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, come, before), dist.P2POp(dist.isend, given, after)]):
                work.wait()
            same(come, tensor_of(before, count, dtype))
    for i in range(20):  # what is sent is what the stream has made of it then
        given, come = torch.full((5000,), 0.0), torch.empty(5000)
        given.fill_(rank + i)
        works = [dist.isend(given, after), dist.irecv(come, before)]
        for work in works:
            work.wait()
        given.fill_(-1)
        same(come, torch.full((5000,), float(before + i)))
    graph, given, come = torch.cuda.CUDAGraph(), torch.zeros(100), torch.empty(100)
    with torch.cuda.graph(graph):
        for work in [dist.isend(given, after), dist.irecv(come, before)]:
            work.wait()
    for i in range(5):
        given.fill_(rank + 10 * i)
        graph.replay()
        same(come, torch.full((100,), before + 10.0 * i))
    dist.barrier()
    if rank < 2:
        with pytest.raises(RuntimeError, match="recv: rank 1 expects 4 elements of rank 0, which sends 3"):
            dist.send(torch.ones(3), 1) if rank == 0 else dist.recv(torch.ones(4), 0)
            torch.cuda.synchronize()
            dist.send(torch.ones(3), 1) if rank == 0 else dist.recv(torch.ones(3), 0)  # the next call says so, if not the one before
        dist.group.WORLD._messages.synchronize()
    dist.barrier()


def on_gpus(group, device, size, run):
    gpus(device, size)
    group(size, run)


@SIZES
def test_messages_on_gpus(group, device, size):
    on_gpus(group, device, size, messages_on_gpus_rank)


def coalesced_beside_messages_rank():
    """Collectives of one kind, and messages, in one block: torch takes a block's collectives for what the first one is, or refuses others."""
    from torch.distributed.distributed_c10d import _coalescing_manager
    rank, size = world()
    after, before = (rank + 1) % size, (rank - 1) % size
    for n in (1, 1000, 1000003):
        x = [torch.full((n + i,), rank + 1.0 + i) for i in range(3)]
        whole, part = ([torch.empty(length) for _ in range(3)] for length in (n * size, n))
        rows, given = ([torch.full((length,), float(rank + i)) for i in range(3)] for length in (n * size, n))
        for collective in (lambda i: dist.all_reduce(x[i], async_op=True),
                           lambda i: dist.all_gather_into_tensor(whole[i], given[i], async_op=True),
                           lambda i: dist.reduce_scatter_tensor(part[i], rows[i], async_op=True)):
            come = torch.empty(n)
            with _coalescing_manager(device=come.device, async_ops=True) as manager:
                dist.isend(given[0], after)
                for i in range(3):
                    collective(i)
                dist.irecv(come, before)
            manager.wait()
            same(come, torch.full((n,), float(before)))
        for i in range(3):
            same(x[i], torch.full((n + i,), size * (size + 1) / 2 + i * size))
            same(whole[i], torch.arange(float(size)).repeat_interleave(n) + i)
            same(part[i], torch.full((n,), size * (size - 1) / 2 + i * size))


@SIZES
def test_coalesced_beside_messages(group, device, size):
    if device == "cuda":
        on_gpus(group, device, size, coalesced_beside_messages_rank)
    else:
        group(size, coalesced_beside_messages_rank)


def objects_rank():
    rank, size = world()
    found = [None] * size
    dist.all_gather_object(found, {"rank": rank, "text": "x" * rank})
    assert found == [{"rank": r, "text": "x" * r} for r in range(size)]
    objects = [rank, "a"] if rank == 1 else [None, None]
    dist.broadcast_object_list(objects, 1)
    assert objects == [1, "a"]
    found = [None] * size if rank == 0 else None
    dist.gather_object(("r", rank), found, 0)
    assert rank != 0 or found == [("r", r) for r in range(size)]
    mine = [None]
    dist.scatter_object_list(mine, [f"to {r}" for r in range(size)] if rank == 0 else None, 0)
    assert mine == [f"to {rank}"]
    if rank == 0:
        dist.send_object_list(["sent", 7], 1)
    if rank == 1:
        dist.recv_object_list(got := [None, None], 0)
        assert got == ["sent", 7]


@SIZES
def test_objects(group, on_cpu, size):
    group(size, objects_rank)


def functional_rank():
    rank, size = world()
    import torch.distributed._functional_collectives as functional
    everyone = list(range(size))
    x = torch.arange(4.0 * size) + rank
    all_ = [torch.arange(4.0 * size) + r for r in range(size)]
    same(functional.wait_tensor(functional.all_reduce(x, "sum", everyone)), sum(all_))
    same(functional.wait_tensor(functional.all_gather_tensor(x, 0, everyone)), torch.cat(all_))
    same(functional.wait_tensor(functional.reduce_scatter_tensor(x, "sum", 0, everyone)), sum(all_).chunk(size)[rank])
    same(functional.wait_tensor(functional.broadcast(x, 1, everyone)), all_[1])
    split = [4] * size
    same(functional.wait_tensor(functional.all_to_all_single(x, split, split, everyone)),
         torch.cat([part.chunk(size)[rank] for part in all_]))
    for out, wanted in zip(functional.all_reduce_coalesced([x, x + 1], "avg", everyone), (sum(all_) / size, sum(all_) / size + 1)):
        same(functional.wait_tensor(out), wanted)
    for out in functional.all_gather_into_tensor_coalesced([x, x], everyone):
        same(functional.wait_tensor(out), torch.cat(all_))
    for out in functional.reduce_scatter_tensor_coalesced([x, x], "sum", [0, 0], everyone):
        same(functional.wait_tensor(out), sum(all_).chunk(size)[rank])


@SIZES
def test_functional(group, size):
    group(size, functional_rank)
