# SPDX-License-Identifier: MIT
"""The short way of calls that are like one before (fcc/_direct.py): it is taken, it is right, and whoever looks at calls still
sees them."""
import ctypes
import gc

import fcc
import pytest
import torch
from fcc import _direct
from fcc._library import library
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

OP = torch.ops.fcc.gemv_all_reduce


class Counted:
    """How often the dispatcher was called."""

    def __enter__(self):
        self.count, self.there = 0, OP._op

        def counted(*args, **keywords):
            self.count += 1
            return self.there(*args, **keywords)
        OP._op = counted
        return self

    def __exit__(self, *_):
        OP._op = self.there

    def of(self, call):
        before = self.count
        call()
        return self.count - before


def filled(comm, *shape, dtype=torch.float32):
    """Small integers, so that sums are exact; other ones on each rank."""
    made = fcc.empty(*shape, dtype=dtype, comm=comm)
    return made.copy_((torch.arange(made.numel()).reshape(shape) * (comm.rank + 2)) % 7 - 3)


def right(comm, x, w, y):
    """Of all ranks' parts, which are known everywhere."""
    torch.testing.assert_close(y, fcc.all_reduce(x.float() @ w.float().t(), comm).to(y.dtype), rtol=0, atol=0)


def warmed(comm):
    """As much memory is taken as the calls of a test need: a buffer that comes has calls looked at anew."""
    x, w = filled(comm, 3, 24), filled(comm, 5, 24)
    right(comm, x, w, OP(x, w, comm.name))


def refused(call):
    """How: as torch refuses it, and not on account of another exception."""
    with pytest.raises((RuntimeError, TypeError)) as caught:
        call()
    assert caught.value.__context__ is None
    return type(caught.value), str(caught.value)


def taken_rank(comm):
    warmed(comm)
    x, w = filled(comm, 4, 8), filled(comm, 6, 8)
    with torch.no_grad(), Counted() as dispatcher:
        assert dispatcher.of(lambda: OP(x, w, comm.name)) == 1
        for i in range(20):  # other values, and other tensors, at the same place
            x.fill_(i - 5)
            x[2].fill_(i)
            y = []
            assert dispatcher.of(lambda: y.append(OP(x.view(4, 8), w, comm.name))) == 0
            right(comm, x, w, y[0])
        held = [fcc.gemv_all_reduce(x, w, comm) for _ in range(5)]  # results that live are not given out again
        assert len({y.data_ptr() for y in held}) == 5 and all(torch.equal(y, held[0]) for y in held)
        assert dispatcher.count < 8
        assert dispatcher.of(lambda: fcc.gemv_all_reduce(x, w, comm)) <= 1
        for _ in range(10):  # a free one is found among those that are not
            assert dispatcher.of(lambda: fcc.gemv_all_reduce(x, w, comm)) == 0
        del held, y
        one = OP(x.fill_(1), w, comm.name).clone()
        held = []
        for i in range(12):  # as many live as calls go by before one is given out again: each keeps what it was
            held = [*held[-(i % 4):], (i, OP(x.fill_(i), w, comm.name))]
            assert all(torch.equal(y, was * one) for was, y in held)
        del held
        # one address, several shapes, strides and dtypes: each is known when it has come once
        wide = w.view(3, 16)
        for name in ("first", "again"):
            for some, other in ((x[:1], w), (x[:2], w), (x[::2], w), (x.view(2, 16), wide), (x[:, :3], w[:, :3]),
                                (x.view(torch.bfloat16)[:, :8], w.view(torch.bfloat16)[:, :8])):
                y = []
                assert dispatcher.of(lambda: y.append(OP(some, other, comm.name))) == (name == "first"), (name, some.shape)
                right(comm, some, other, y[0])


def seen_rank(comm):
    """Whatever stands between a call and the operator is asked."""
    warmed(comm)
    x, w = filled(comm, 2, 8), filled(comm, 6, 8)
    call = lambda: OP(x, w, comm.name)  # noqa: E731
    call()
    said = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            said.append(str(function))
            return function(*args, **(kwargs or {}))

    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            said.append(str(function))
            return function(*args, **(kwargs or {}))

    class Tensors(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            said.append(str(function))
            return super().__torch_function__(function, types, args, kwargs or {})

    with Counted() as dispatcher:
        assert dispatcher.of(call) == 0
        for mode in (Functions(), Dispatch()):
            said.clear()
            with mode:
                assert dispatcher.of(call) == 1
            assert any("fcc.gemv_all_reduce" in text for text in said), said
        for which in range(1, 4):  # each time, not only the first: a result is of their kind
            for _ in range(4):
                said.clear()
                given = [t.as_subclass(Tensors) if which >> i & 1 else t for i, t in enumerate((x, w))]
                assert type(OP(*given, comm.name)) is Tensors
                assert any("gemv_all_reduce" in text for text in said), said
                assert dispatcher.of(call) == 0
        with torch._subclasses.fake_tensor.FakeTensorMode(allow_non_fake_inputs=True):
            assert dispatcher.of(lambda: said.append(call())) == 1
        assert isinstance(said[-1], torch._subclasses.FakeTensor)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            assert dispatcher.of(call) == 1
        assert "fcc::gemv_all_reduce" in {event.name for event in profile.events()}
        for keywords in ({"replicated": False}, {"schedule": "sequential"}, {"replicated": True, "schedule": "auto"}):
            assert dispatcher.of(lambda: OP(x, w, comm.name, **keywords)) == 1
        negative = torch._neg_view(x)
        right(comm, -x, w, OP(negative, w, comm.name))
        right(comm, x, w, call())
        mapped = torch.func.functionalize(lambda a: OP(a, w, comm.name))(x)
        right(comm, x, w, mapped)
        weight = torch.nn.Parameter(w)
        for _ in range(3):  # a gradient is wanted: it comes; none is: there is no graph
            y = OP(x, weight, comm.name)
            assert y.requires_grad
            y.sum().backward()
            torch.testing.assert_close(weight.grad, x.sum(0).expand_as(w))
            weight.grad = None
            with torch.no_grad():
                assert not OP(x, weight, comm.name).requires_grad
            weight.requires_grad_(False)
            assert not OP(x, weight, comm.name).requires_grad
            assert dispatcher.of(lambda: OP(x, weight, comm.name)) == 0  # switched on, but nobody wants one
            weight.requires_grad_(True)
        with torch.no_grad():
            assert dispatcher.of(lambda: OP(x, weight, comm.name)) == 0
        for _ in range(2):
            with torch.inference_mode():
                right(comm, x, w, call())
            right(comm, x, w, call())
        with torch.autocast(comm.device.type, torch.bfloat16):
            assert call().dtype == torch.bfloat16  # as of torch.nn.Linear
        for wrong, keywords in (((x, w), {}), ((x, w, 7), {}), ((x, w, []), {}), ((), {}),
                                ((x, w, comm.name, None, None, True), {}), ((x, w, comm.name), {"other": 1})):
            assert refused(lambda: OP(*wrong, **keywords)) == refused(lambda: dispatcher.there(*wrong, **keywords))
        with pytest.raises(fcc.ArgumentError, match="gemv_all_reduce: x: str 'x': allowed is a torch.Tensor"):
            OP("x", w, comm.name)
        with pytest.raises(fcc.ArgumentError, match="no such communicator"):
            OP(x, w, "fcc0/nobody")


def enqueued_rank(comm):
    """What the C library is given by a rank on a GPU, whatever this one is on: a function that stands for it looks at that."""
    warmed(comm)
    x, w = filled(comm, 2, 8), filled(comm, 6, 8)
    several = [OP(x, w, comm.name) for _ in range(3)]  # so much room there is for results
    del several
    prepared, connection, seen, looked, status = comm._prepared, comm.member.connection, [], [], [0]
    stream = 0x7FF012345678

    @ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
    def enqueue(*arguments):
        layout = library().operators["gemv_all_reduce"].layout
        seen.append((*arguments, layout.unpack(ctypes.string_at(arguments[1], layout.size))))
        return status[0]
    there = {name: getattr(prepared, name) for name in ("on_gpu", "enqueue", "current_stream", "comm_error", "unlooked")}
    same = prepared.arguments[prepared.current_stream(prepared.index)][w.data_ptr()][x.data_ptr()]
    prepared.arguments[stream] = {w.data_ptr(): {
        x.data_ptr(): _direct.Kept(x, w, same.check, same.front, same.blocks, stream, ())}}
    try:
        prepared.on_gpu, prepared.unlooked, prepared.current_stream = True, 0, lambda index: stream
        prepared.enqueue = type(there["enqueue"])(ctypes.cast(enqueue, ctypes.c_void_p).value)
        prepared.comm_error = lambda handle: looked.append(there["comm_error"](handle)) or 0
        with Counted() as dispatcher:
            held = OP(x, w, comm.name) if dispatcher.of(lambda: OP(x, w, comm.name)) == 0 else None
            for _ in range(14):
                y = OP(x, w, comm.name)
                handle, _, at, out, fields = seen[-1]
                assert (handle, at, out) == (comm.member.handle.value, stream, None)
                for i, tensor in enumerate((x, w, y)):
                    dtype = fcc.memory.DTYPES[tensor.dtype]
                    given = (*connection.find(tensor.data_ptr()), dtype, 2, *tensor.shape, 0, 0, *tensor.stride(), 0, 0)
                    assert fields[12 * i:12 * i + 12] == given, (i, fields, given)
                assert fields[36:] == (0,) and y.data_ptr() != held.data_ptr()
                if len(seen) % 2:
                    held = y
        assert dispatcher.count == 0 and len(seen) == 16 and looked == [0, 0]  # errors are asked for in every eighth call
        status[0] = -22
        with pytest.raises(fcc.ArgumentError):
            OP(x, w, comm.name)
    finally:
        for name, value in there.items():
            setattr(prepared, name, value)
    right(comm, x, w, OP(x, w, comm.name))


def memory_rank(comm):
    """Memory that has gone and come again at the same address is other memory."""
    warmed(comm)
    w = filled(comm, 6, 8)
    seen = set()
    for size in (3 << 20, 3 << 20, 5 << 20):  # buffers of their own
        big = fcc.zeros(size, comm=comm)
        x = big[:16].view(2, 8)
        x.copy_(torch.arange(16.0).view(2, 8) - size % 5)
        seen.add(x.data_ptr())
        with Counted() as dispatcher:
            assert dispatcher.of(lambda: right(comm, x, w, OP(x, w, comm.name))) == 1
            assert dispatcher.of(lambda: right(comm, x, w, OP(x, w, comm.name))) == 0
        del big, x
        gc.collect()
    moved = torch.nn.Parameter(torch.zeros(6, 8, device=comm.device), requires_grad=False)
    x = filled(comm, 2, 8)
    for _ in range(2):
        moved.data = filled(comm, 6, 8)
        right(comm, x, moved, OP(x, moved, comm.name))
        moved.data = filled(comm, 6, 8) + 1  # not in the daemon's memory
        with pytest.warns(fcc.CopyWarning) if _ == 0 and not comm.member.launches() else torch.no_grad():
            right(comm, x, moved, OP(x, moved, comm.name))


def ends_rank(comm):
    warmed(comm)
    x, w = filled(comm, 2, 8), filled(comm, 6, 8)
    for _ in range(3):
        OP(x, w, comm.name)
    comm.barrier()  # on a GPU the other rank may only have enqueued its own
    if comm.rank == 1:
        comm.abort("enough")
    with Counted() as dispatcher, pytest.raises(fcc.AbortedError, match="enough"):
        for _ in range(100):  # on a GPU one of the next calls
            OP(x, w, comm.name)
            comm.synchronize()
    assert dispatcher.count == 0
    name = comm.name
    comm.close()
    with pytest.raises(fcc.ArgumentError, match="it has been closed"):
        OP(x, w, name)


@pytest.mark.parametrize("function", [taken_rank, seen_rank, enqueued_rank, memory_rank, ends_rank])
def test_direct(run, function):
    assert _direct._check is not _direct._no_check, "this torch's guards are not what _direct.py takes them for"
    run(2, function)


def test_guard_keeps_nothing():
    import sys
    tensor = torch.zeros(2, 3)
    before = sys.getrefcount(tensor)
    check = _direct._guard(tensor)
    assert sys.getrefcount(tensor) == before and check(tensor)
