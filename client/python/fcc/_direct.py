# SPDX-License-Identifier: MIT
"""The short way of a call of gemv_all_reduce that is like one before: a step of decoding counts in microseconds.

torch.ops passes the dispatcher, which takes longer than all that is to be done. It is there for those that look at calls or
change them: autograd, modes, functorch, the tracer, the profiler, wrappers of tensors. So where none of them is there the
operator is run at once (Packet); in any other case, and whenever something is unusual, the call goes on as torch has it.

What the C library is given for two tensors is packed once and kept, and so is what it is given for them and the last result,
which is mostly free again when they come again. It is right for tensors at the same addresses of whom torch's own guard, the
one that torch.compile looks at its graphs' inputs with, says that type, dtype, device, shape, strides, requires_grad and
dispatch keys (with what the thread adds: functorch, the tracer, inference mode) are those of the first ones, and as long as
the daemon's buffers are the same: Connection.places is another object as soon as one comes or goes.
"""
from __future__ import annotations

import ctypes
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverloadPacket
from torch.autograd import forward_ad

from . import communicator
from ._calls import run
from ._dispatch import none_is_plain, plain_threads
from ._library import library
from ._packets import refused
from ._pool import Block
from .communicator import Communicator, Prepared
from .memory import DTYPES

KEPT = 4096  # pairs of addresses, before all are forgotten: who has so many does not use them again
SHAPES = 8  # of one pair of addresses
UNLOOKED = 7  # so many calls may go by before the errors of those on streams are asked for

_NOT_GIVEN: Any = object()
_prepared = communicator._prepared
_references = torch._C._storage_Use_Count
_variables = sys.getrefcount
_function_modes = torch._C._len_torch_function_stack
_dispatch_modes = torch._C._len_torch_dispatch_stack
_profiled = torch._C._autograd._profiler_enabled
_grad_enabled = torch.is_grad_enabled


class Kept:
    """A call that was made: what is to be true of another one's tensors, and what the C library is given for them."""

    __slots__ = ("at", "blocks", "check", "front", "last", "others", "wants")

    def __init__(self, x: Tensor, w: Tensor, check: Callable[..., bool], front: bytes, blocks: deque[Block], stream: int,
                 others: tuple[Kept, ...]) -> None:
        self.check, self.front, self.blocks = check, front, blocks
        self.wants = x.requires_grad or w.requires_grad  # a gradient, where those are not off; `check` sees if it changes
        self.at = ctypes.c_void_p.from_param(stream)
        self.last: tuple[Block | None, tuple] = (None, ())  # a result, and the arguments with it: threads see both or none
        self.others = others  # with tensors at the same addresses, on the same stream

    def arguments(self, prepared: Prepared, block: Block) -> tuple:
        """Of Prepared.enqueue, with this result."""
        found = (prepared.handle, self.front + (block.packed or _packed_result(block)), self.at, None)
        self.last = block, found
        return found

    def other(self, x: Tensor, w: Tensor) -> Kept:
        for kept in self.others:
            if kept.check(x, w):
                return kept
        raise LookupError


class Packet(OpOverloadPacket):
    """torch.ops.fcc.gemv_all_reduce."""

    def __call__(self, x: Any = _NOT_GIVEN, w: Any = _NOT_GIVEN, name: Any = _NOT_GIVEN, /, *more: Any, **keywords: Any) -> Any:
        if not more and not keywords and not _function_modes() and not _dispatch_modes() and not _profiled():
            y = again(x, w, name)
            if y is not None:
                return y
        args = (*(given for given in (x, w, name) if given is not _NOT_GIVEN), *more)
        try:
            return self._op(*args, **keywords)
        except Exception as e:
            raise refused(self, e, args, keywords) from None


def again(x: Tensor, w: Tensor, name: str) -> Tensor | None:
    """The result, if there was a call with such tensors before. None: nothing was done, and the long way is to be taken.

    An attribute that is to be called is put into a variable before: calling one that is not a method is what the interpreter
    does not learn to do fast. And is_grad_enabled() is asked only about tensors that could want a gradient."""
    try:
        prepared = _prepared[name]
        connection = prepared.connection
        if connection._pooled and connection._pool_frees.value != connection._seen_frees:
            connection.current()
        if prepared.places is not connection.places:  # before `arguments` are read: remember() replaces them first
            return None
        current_stream = prepared.current_stream
        stream = current_stream(prepared.index)
        kept = prepared.arguments[stream][w.data_ptr()][x.data_ptr()]
        check = kept.check
        if not check(x, w):
            kept = kept.other(x, w)
        if kept.wants and _grad_enabled() or forward_ad._current_level >= 0:
            return None
        blocks = kept.blocks
        block = blocks.popleft()  # taken out, so that no other thread looks at it
        if _references(block.storage) != block.bare or _variables(block.held) != block.alone:
            block = _later(block, blocks)
    except (LookupError, RuntimeError, AttributeError, TypeError):
        return None  # a new call; all results are in use; tensors without an address; no tensors, or no name
    y = block.tensor.data
    blocks.append(block)
    last, arguments = kept.last
    if last is not block:
        arguments = kept.arguments(prepared, block)
    left = prepared.unlooked
    if left > 0:
        prepared.unlooked = left - 1
    elif _looked_and_done(prepared, arguments):
        return y
    enqueue = prepared.enqueue
    status = enqueue(*arguments)
    if status < 0:
        raise prepared.comm.member.error(status)
    return y


def _later(block: Block, blocks: deque[Block]) -> Block:
    """That one, which was the first, is in use: another one, taken out. IndexError: there is none."""
    blocks.append(block)
    for _ in range(len(blocks) - 1):
        if block.lent:  # Pool.take() takes it out of the way
            break
        block = blocks.popleft()  # there may be none: another thread has them
        if block.free():
            return block
        blocks.append(block)
    raise IndexError


def _looked_and_done(prepared: Prepared, arguments: tuple) -> bool:
    """Raise what earlier calls met with, behind this one (Communicator._earlier()). On the cpu, where every call comes by here, make this one, too, and say so."""
    comm = prepared.comm
    if not prepared.on_gpu:
        run(comm, "gemv_all_reduce", arguments[1], 0)
        return True
    if comm._expected:
        earlier = comm._earlier()
    else:
        status = prepared.comm_error(prepared.handle)
        earlier = comm._later_error(status) if status < 0 else None
        prepared.unlooked = UNLOOKED
    if earlier:
        prepared.enqueue(*arguments)  # if that fails the communicator is over, which is the error then
        raise earlier
    return False


def _packed_result(block: Block) -> bytes:
    m, n = block.tensor.shape
    operator = library().operators["gemv_all_reduce"]
    packed = operator.pack(y=(block.handle, block.offset, DTYPES[block.tensor.dtype], 2, m, n, 0, 0, n, 1, 0, 0))
    block.packed = packed[operator.offsets["y"]:]
    return block.packed


def remember(c: Communicator, places: Any, x: Tensor, w: Tensor, at_x: tuple, at_w: tuple, stream: int) -> None:
    """The operator has run with them: both lie in the daemon's memory, at_x and at_w, as long as `places` are the
    connection's."""
    prepared = c._prepared
    if _dispatch_modes() or _function_modes() or torch._C._dispatch_tls_local_include_set().raw_repr() not in plain_threads:
        return
    if not _is_ordinary(x) or not _is_ordinary(w) or x.is_neg() or w.is_neg() or places is not c._member.connection.places:
        return
    check = _check(x, w)
    if check is None:
        return
    if prepared.places is not places or prepared.count >= KEPT:
        prepared.arguments, prepared.count = {}, 0
        prepared.places = places
    blocks = c._heap.ready((x.shape[0], w.shape[0]), x.dtype, stream)
    operator = library().operators["gemv_all_reduce"]
    front = operator.pack(x=at_x, w=at_w)[:operator.offsets["y"]]
    beside = prepared.arguments.setdefault(stream, {}).setdefault(w.data_ptr(), {})
    first = beside.get(x.data_ptr())
    prepared.count += first is None
    others = () if first is None else (first, *first.others)
    beside[x.data_ptr()] = Kept(x, w, check, front, blocks, stream, others[:SHAPES - 1])


def avoid() -> None:
    """A graph in forward mode is traced: from now on no call takes the short way, as its own look like any other when it runs."""
    global _prepared
    none_is_plain()
    _prepared = {}


def _is_ordinary(tensor: Tensor) -> bool:
    """Is there no __torch_function__ that wants to see its calls, and to make a tensor of its own kind of their results?"""
    kind = type(tensor)
    return kind is Tensor or kind.__torch_function__ is torch._C._disabled_torch_function_impl


def _no_check(*_: Tensor) -> None:
    return None


def _guard(*tensors: Tensor) -> Callable[..., bool]:
    """Is it true of other tensors what is true of these? But for their addresses, and modes. (It keeps none of them.)"""
    from torch._C._dynamo.guards import TensorGuards
    sizes: Any = [list(tensor.shape) for tensor in tensors]
    strides: Any = [list(tensor.stride()) for tensor in tensors]
    return TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check


def _guard_works() -> bool:
    """Does this torch have it, and does it see what it must?"""
    first, second = torch.zeros(2, 4, device="cpu"), torch.zeros(3, 4, device="cpu")
    others = (torch.zeros(2, 5), torch.zeros(4), torch.zeros(1, 2, 4), torch.zeros(4, 2).t(), torch.zeros(2, 8)[:, ::2],
              first.half(), first.clone().requires_grad_(), torch.nn.Parameter(first), torch._neg_view(first), first.to("meta"))
    frozen, trained = torch.nn.Parameter(first, requires_grad=False), torch.nn.Parameter(first)
    try:
        check = _guard(first, second)
        if _guard(frozen, second)(trained, second) or _guard(trained, second)(frozen, second):
            return False
        return (check(first.clone(), second.clone()) is True and not any(check(other, second) for other in others)
                and not check(first, torch.zeros(4, 4)))
    except (ImportError, AttributeError, TypeError, RuntimeError):
        return False


_check: Callable[..., Callable[..., bool] | None] = _no_check
with torch.inference_mode(False), torch._C._DisableTorchDispatch():
    if _guard_works():
        _check = _guard

__all__ = ["Packet", "again", "avoid", "remember"]
