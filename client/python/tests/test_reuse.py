# SPDX-License-Identifier: MIT
"""A result's memory is not used again while anybody can see it, however it is seen; and afterwards it is."""
import contextlib
import copy
import io
import multiprocessing
import pickle
import threading
import weakref
from multiprocessing.reduction import ForkingPickler

import fcc
import numpy
import pytest
import torch
import torch.multiprocessing
from ranks import gpus

ROUNDS = 6


def saved_by_autograd(y):
    leaf = y.detach().requires_grad_()
    return (leaf * leaf).sum().grad_fn  # holds its input


def gradient(node):
    return node.next_functions[0][0]._saved_self


def as_floats(storage):
    return torch.tensor(storage.cpu().tolist(), dtype=torch.uint8).view(torch.float32)


def capsule(y):
    """torch exports from the current GPU alone."""
    with torch.cuda.device(y.device) if y.is_cuda else contextlib.nullcontext():
        return y.__dlpack__()


def exported(y):
    with torch.cuda.device(y.device) if y.is_cuda else contextlib.nullcontext():
        return torch.from_dlpack(y)


HOLDERS = {  # what is kept of a result, and how its numbers are read later
    "tensor": (lambda y: y, lambda kept: kept),
    "view": (lambda y: y[:, 1:], lambda kept: kept),
    "detached": (lambda y: y.detach(), lambda kept: kept),
    "data": (lambda y: y.data, lambda kept: kept),
    "shallow copy": (copy.copy, lambda kept: kept),
    "untyped storage": (lambda y: y.untyped_storage(), as_floats),
    "typed storage": (lambda y: y._typed_storage(), lambda kept: torch.tensor(kept.tolist())),
    "numpy": (lambda y: y.numpy(), lambda kept: torch.from_numpy(kept.copy())),
    "slice of numpy": (lambda y: y.numpy()[:, 1:], lambda kept: torch.from_numpy(kept.copy())),
    "memoryview": (lambda y: memoryview(y.numpy()), lambda kept: torch.tensor(kept.tolist())),
    "dlpack capsule": (capsule, lambda kept: torch.utils.dlpack.from_dlpack(kept).clone()),
    "from dlpack": (exported, lambda kept: kept),
    "numpy from dlpack": (numpy.from_dlpack, lambda kept: torch.from_numpy(kept.copy())),
    "set_": (lambda y: torch.empty(0, device=y.device).set_(y.untyped_storage()), lambda kept: kept),
    "autograd": (saved_by_autograd, gradient),
    "shared": (lambda y: y.share_memory_(), lambda kept: kept),
    "shared view": (lambda y: y[:, 1:].share_memory_(), lambda kept: kept),
    "shared storage": (lambda y: y.share_memory_().untyped_storage(), as_floats),
    "numpy, then shared": (lambda y: (y.numpy(), y.share_memory_())[1], lambda kept: kept),
    "parameter": (lambda y: torch.nn.Parameter(y), lambda kept: kept.detach()),
    "closure": (lambda y: lambda: y, lambda kept: kept()),
    "thread": (lambda y: waiting(y), lambda kept: answer(kept)),
}


ON_GPUS = ("tensor", "view", "detached", "data", "shallow copy", "untyped storage", "dlpack capsule", "from dlpack", "set_",
           "autograd", "parameter", "closure", "thread")


def holders(comm):
    return HOLDERS if comm.device.type == "cpu" else {name: HOLDERS[name] for name in ON_GPUS}


def waiting(y):
    """A thread that has it, and shows it when it is asked."""
    go, said = threading.Event(), []

    def wait():
        go.wait(60)
        said.append(y.clone())
    thread = threading.Thread(target=wait)
    thread.start()
    return go, said, thread


def answer(kept):
    go, said, thread = kept
    go.set()
    thread.join(60)
    return said[0]


def results(comm):
    """Makers of results that are one number everywhere, of the same size, one for each operator and way to call it."""
    size, rank = comm.size, comm.rank
    near = {n: fcc.zeros(*shape, comm=comm) for n, shape in {"x": (2, 8), "w": (6, 8), "a": (2 * size, 8), "b": (8, 6)}.items()}
    near["w"].fill_(1), near["b"].fill_(1)
    tables, bags = fcc.zeros(10, 6, comm=comm), 2 * size
    indices = fcc.to_daemon(torch.zeros(bags, dtype=torch.int64), comm)  # (to the communicator's device)
    offsets = fcc.to_daemon(torch.arange(bags + 1), comm)

    def gemv(value):
        near["x"].fill_(value / 8)
        return fcc.gemv_all_reduce(near["x"], near["w"], comm), value * size

    def gemm(value):
        near["a"].fill_(value / 8)
        return fcc.gemm_all_to_all(near["a"], near["b"], comm), value

    def embedding(value):
        tables.fill_(value)
        return fcc.embedding_all_to_all(tables, indices, offsets, table_rows=[10], tables_per_rank=[1] * size, batch=bags,
                                        comm=comm), value

    def all_reduce(value):
        return fcc.all_reduce(torch.full((2, 6), float(value), device=comm.device), comm), value * size

    def gradient(value):
        near["x"].fill_(value / 8)
        w = near["w"].detach().requires_grad_()
        return fcc.gemv_all_reduce(near["x"], w, comm).detach(), value * size
    return {"gemv": gemv, "gemm": gemm, "embedding": embedding, "all_reduce": all_reduce, "with a gradient": gradient}


def held_rank(comm):
    """Keep one of them in every way; what is kept stays as it was, through many other results, and so do those."""
    for operator, make in results(comm).items():
        for name, (keep, read) in holders(comm).items():
            y, number = make(1)
            kept = keep(y)
            del y
            others = []
            for value in range(2, 2 + ROUNDS):
                other, want = make(value)
                assert (other == want).all(), (operator, name, value)
                if value % 2:
                    others.append((other, want))
            seen = read(kept)
            assert (seen[..., :6] == number).all(), (operator, name, seen)
            for other, want in others:
                assert (other == want).all(), (operator, name)
            if name == "numpy, then shared":
                assert kept.is_shared()
            del kept, seen, other, others
    comm.barrier()


def used_again_rank(comm):
    """The heap has room for a few dozen results; each way keeps, and lets go, hundreds."""
    makers = results(comm)
    for name, (keep, read) in holders(comm).items():
        if name == "thread":
            continue
        for value in range(100):
            y, number = makers["gemv"](value)
            kept = keep(y)
            del y
            assert (read(kept)[..., :6] == number).all(), (name, value)
            del kept
    assert comm._heap.nbytes <= 64 << 10


def pickled_rank(comm):
    """What a queue does when it sends: the receiver opens the memory when the sender has let go of it."""
    make = results(comm)["gemv"]
    for strategy in ("file_descriptor", "file_system"):
        torch.multiprocessing.set_sharing_strategy(strategy)
        for _ in range(3):
            y, number = make(1)
            text = ForkingPickler.dumps(y)
            alive = weakref.ref(y)
            del y
            assert alive() is None
            for value in range(2, 2 + ROUNDS):
                other, want = make(value)
                assert (other == want).all()
                other.fill_(-1)
            received = pickle.loads(bytes(text))
            assert (received == number).all(), (strategy, received)
            received.fill_(7)
            other, want = make(3)
            assert (other == want).all() and (received == 7).all()
            del received, other


def reader(queue, go, back):
    """Another process: it takes everything out first, and reads it when the sender has gone on."""
    taken = [queue.get(timeout=60) for _ in range(ROUNDS)]
    go.wait(60)
    back.put([tensor.flatten().tolist() for tensor in taken])


def queue_rank(comm):
    multiprocessing.current_process()._config["daemon"] = False  # or it may have no children
    make = results(comm)["gemv"]
    for context in (torch.multiprocessing.get_context("fork"), multiprocessing.get_context("fork")):
        queue, back, go = context.Queue(), context.Queue(), context.Event()
        process = context.Process(target=reader, args=(queue, go, back))
        process.start()
        wanted = []
        for value in range(ROUNDS):
            y, number = make(value)
            assert (y == number).all(), value
            queue.put(y)
            wanted.append([float(number)] * 12)
            del y
        for value in range(100, 100 + 4 * ROUNDS):
            y, number = make(value)
            assert (y == number).all(), value
        go.set()
        assert back.get(timeout=60) == wanted
        process.join(60)
        assert process.exitcode == 0


def small_rank(comm):
    """The same of tensors in the daemon's memory that are no results."""
    for name, (keep, read) in holders(comm).items():
        tensor = fcc.empty(2, 6, comm=comm).fill_(5)
        kept = keep(tensor)
        del tensor
        for value in range(ROUNDS):
            other = fcc.empty(2, 6, comm=comm).fill_(-value)
            assert (other == -value).all()
        seen = read(kept)
        assert (seen[..., :6] == 5).all(), (name, seen)
        del kept, seen
    if comm.device.type != "cpu":
        return
    large = fcc.empty(1 << 19, comm=comm).fill_(5)
    assert fcc.is_daemon_memory(large, comm)
    large.share_memory_()
    assert not fcc.is_daemon_memory(large, comm) and (large == 5).all()


def saved_rank(comm):
    """A file that a result is saved in has no more of the heap than the result."""
    y, number = results(comm)["gemv"](2)
    file = io.BytesIO()
    torch.save(y, file)
    assert y.untyped_storage().nbytes() == 12 * 4
    assert (torch.load(io.BytesIO(file.getvalue())) == number).all()


# ---- results that are given in again ----


ROUNDS_FED = 60


def blocks(size, tensor):
    """What rank d has of tensor[s] of all ranks s after an All-to-All: block d of each."""
    every = tensor.unflatten(1, (size, -1))
    return torch.stack([every[:, d].flatten(0, 1) for d in range(size)])


def feeds(comm):
    """name: (a step whose argument is the last one's result, the same of all ranks' arguments together, the first arguments
    [rank][rows][columns]). Their numbers stay small integers, which are exact, as size is a power of two."""
    size, rank, device = comm.size, comm.rank, comm.device
    order = torch.arange(8).roll(3)
    turn = fcc.to_daemon(torch.eye(8, device=device)[order.to(device)], comm)  # x @ turn.t() is x[:, order], and turn @ x is x[order]
    shared = fcc.to_daemon(turn / size, comm)
    first = torch.arange(8.0 * 8).view(1, 8, 8) + 100 * torch.arange(float(size)).view(size, 1, 1)
    ids, ends = (order % (2 * size)).repeat(size)[:2 * size].to(device), torch.arange(2 * size + 1, device=device)
    ids, ends, ones, zeros = (fcc.to_daemon(t, comm) for t in (ids, ends, torch.ones(1, 1, device=device), torch.zeros_like(ids)))

    def bags(tables, indices, weights=None):
        return fcc.embedding_all_to_all(tables, indices, ends, table_rows=[tables.shape[0]], tables_per_rank=[1] * size, batch=2 * size,
                                        sample_weights=weights, comm=comm)

    def whole_bags(rows):  # [rank][2 * size][columns], what each bag sums
        return blocks(size, rows).unflatten(1, (size, 2)).transpose(1, 2)

    def halves(y):
        y = fcc.gemv_all_reduce(y, shared, comm)
        return torch.cat([fcc.gemv_all_reduce(half, shared, comm) for half in (y[:4], y[4:])])

    def mean(of):
        return of.mean(0, keepdim=True).expand(size, -1, -1)
    return {
        "x": (lambda y: fcc.gemv_all_reduce(y, shared, comm), lambda y: mean(y)[:, :, order], size * first),
        "w": (lambda y: fcc.gemv_all_reduce(shared, y, comm), lambda y: mean(y)[:, :, order].transpose(1, 2), size * first),
        "views of x": (halves, lambda y: mean(y)[:, :, order][:, :, order], size * first),
        "x and w": (lambda y: fcc.gemv_all_reduce(y, y, comm).clamp_(max=1),
                    lambda y: (size * mean(y @ y.transpose(1, 2))).clamp(max=1), torch.eye(8)[order].expand(size, 8, 8)),
        "a": (lambda y: fcc.gemm_all_to_all(y, turn, comm), lambda y: blocks(size, y)[:, :, order.argsort()], first),
        "b": (lambda y: fcc.gemm_all_to_all(turn, y, comm), lambda y: blocks(size, y[:, order]), first),
        "tables": (lambda y: bags(y, ids).view(2 * size, 8), lambda y: whole_bags(y[:, ids.cpu()]).flatten(1, 2), first[:, :2 * size]),
        "sample_weights": (lambda y: bags(ones, zeros, y.view(-1)).view(2 * size, 1), lambda y: whole_bags(y).flatten(1, 2),
                           first[:, :2 * size, :1]),
        "all_reduce": (lambda y: fcc.all_reduce(y, comm).div_(size), mean, size * first),
        "rows_all_to_all": (lambda y: fcc.rows_all_to_all(y, [8 // size] * size, [8 // size] * size, comm),
                            lambda y: blocks(size, y), first),
    }


def fed_rank(comm):
    """y = f(y), many times, also with those before kept: each result is that of the last one as it was."""
    for name, (step, whole, first) in feeds(comm).items():
        for keep in (0, 1, ROUNDS_FED):
            want, kept = first, []
            y = fcc.to_daemon(first[comm.rank].contiguous().to(comm.device), comm)
            for number in range(ROUNDS_FED):
                kept.append((y, want[comm.rank]))
                y, want = step(y), whole(want)
                assert torch.equal(y.cpu(), want[comm.rank]), (name, keep, number, y, want[comm.rank])
                del kept[:max(0, len(kept) - keep)]
            for before, wanted in kept:
                assert torch.equal(before.cpu(), wanted), (name, keep)
            assert len(kept) == keep
    comm.check(wait=True)


def fed_prepared_rank(comm):
    """The same of operators that are prepared, whose results each run overwrites: one's result as the next one's input, as the
    input of an ordinary one, copied into its own input, and put in its place, which is refused."""
    size = comm.size
    order = torch.arange(8).roll(3)
    turn = fcc.to_daemon((torch.eye(8)[order] / size).to(comm.device), comm)
    x = fcc.to_daemon(torch.arange(16.0).view(2, 8).to(comm.device), comm)
    first = fcc.prepare_gemv_all_reduce(x, turn, comm)
    second = fcc.prepare_gemv_all_reduce(first.result, turn, comm)
    want = x.cpu()
    for _ in range(ROUNDS_FED):
        first()
        y = second()
        third = fcc.gemv_all_reduce(second.result, turn, comm)
        want = want[:, order]
        assert torch.equal(first.result.cpu(), want)
        want = want[:, order]
        assert torch.equal(y.cpu(), want) and torch.equal(third.cpu(), want[:, order])
        x.copy_(y)
    x.data = first.result
    with pytest.raises(fcc.ArgumentError, match="x: it has been given other memory"):
        first()


@pytest.mark.parametrize("function", [held_rank, small_rank, saved_rank])
def test_held(run, function):
    run(2, function)


@pytest.mark.parametrize("function", [pickled_rank, queue_rank])
def test_sent(run, device, function):
    if device != "cpu":
        pytest.skip("memory that is shared like that is the cpu's")
    run(2, function)


def test_used_again(run):
    run(2, used_again_rank, heap_bytes=64 << 10)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_given_in_again(run, size):
    run(size, fed_rank)


def test_prepared_given_in_again(run, device):
    gpus(device)
    run(2, fed_prepared_rank)
