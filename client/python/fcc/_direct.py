# SPDX-License-Identifier: MIT
"""The short way for calls of gemv_all_reduce like an earlier one, because a decoding step counts in microseconds.

torch.ops passes the dispatcher, which takes longer than all the rest. The dispatcher serves code that watches or changes calls:
autograd, modes, functorch, the tracer, the profiler, tensor wrappers. If none of these is active the operator runs at once (Packet).
Otherwise, and whenever anything is unusual, the call takes torch's way.

The C library's arguments for two tensors are packed once and kept, also together with the last result, which is mostly free again at the
next call. Where this process launches the operator (Member.launches()), results are new tensors of torch's. They are valid for tensors at the same addresses, if torch's own guard (with which torch.compile checks its graphs' inputs)
finds the same type, dtype, device, shape, strides, requires_grad and dispatch keys (including what the thread adds: functorch, the
tracer, inference mode), and while the daemon's buffers are the same: Connection.places is a new object whenever a buffer is added or
removed.
"""
from __future__ import annotations

import ctypes
import functools
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
from ._capture import elsewhere_error
from ._dispatch import none_is_plain, plain_threads
from ._library import library
from ._packets import refused
from ._memory.pool import Block
from ._staging import NO_ADDRESS
from .communicator import Communicator, Prepared
from .memory import DTYPES

KEPT = 4096  # pairs of addresses that are kept; then all are dropped: a program with so many does not reuse them
SHAPES = 8  # shapes kept for one pair of addresses
UNLOOKED = 7  # calls between two checks for errors of operators on streams

_NOT_GIVEN: Any = object()
_prepared = communicator._prepared
_references = torch._C._storage_Use_Count
_variables = sys.getrefcount
_function_modes = torch._C._len_torch_function_stack
_dispatch_modes = torch._C._len_torch_dispatch_stack
_profiled = torch._C._autograd._profiler_enabled
_grad_enabled = torch.is_grad_enabled
_current_gpu: Any = getattr(torch._C, "_cuda_getDevice", None)  # where torch has no GPUs nobody asks


def _nothing() -> Tensor:
    raise LookupError


class Kept:
    """A call that was made: the conditions for reusing it, and the C library's arguments for it."""

    __slots__ = ("at", "blocks", "check", "front", "last", "made", "others", "rest", "wants")

    def __init__(self, x: Tensor, w: Tensor, check: Callable[..., bool], front: bytes, blocks: deque[Block] | None, stream: int,
                 others: tuple[Kept, ...]) -> None:
        self.check, self.front = check, front
        self.blocks: Any = blocks  # None: this process launches the operator, and `made` makes results
        self.made: Callable[[], Tensor] = _nothing
        self.rest = b""  # the arguments behind the address of such a result; `front` has those before
        self.wants = x.requires_grad or w.requires_grad  # a gradient is wanted if gradients are on; `check` notices if it changes
        self.at = ctypes.c_void_p.from_param(stream)
        self.last: tuple[Block | None, tuple] = (None, ())  # a result and its arguments; threads see both or none
        self.others = others  # other kept calls with tensors at the same addresses, on the same stream

    def arguments(self, prepared: Prepared, block: Block) -> tuple:
        """The arguments of Prepared.enqueue for this result."""
        found = (prepared.handle, self.front + (block.packed or _packed_result(block)), self.at, None)
        self.last = block, found
        return found

    def launched(self, x: Tensor, w: Tensor, packed: bytes, offset: int) -> None:
        """Calls go on like this one, whose arguments are packed: the address of its result stands at `offset`."""
        self.front, self.rest = packed[:offset], packed[offset + 8:]
        self.made = functools.partial(torch.empty, (x.shape[0], w.shape[0]), dtype=x.dtype, device=x.device)

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
        if prepared.places is not connection.places:  # checked before `arguments` are read: remember() replaces `places` first
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
        if blocks is not None:
            block = blocks.popleft()  # taken out, so that no other thread looks at it
            if _references(block.storage) != block.bare or _variables(block.held) != block.alone:
                block = _later(block, blocks)
    except (LookupError, RuntimeError, AttributeError, TypeError):
        return None  # a new call, all results in use, tensors without an address, or wrong arguments
    if blocks is None:
        return _made(prepared, kept)
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


def _made(prepared: Prepared, kept: Kept) -> Tensor:
    """again(), where this process launches the operator."""
    if _current_gpu() != prepared.index and torch.cuda.is_current_stream_capturing():
        raise elsewhere_error(f"rank {prepared.comm.rank}: gemv_all_reduce", prepared.comm.device)
    y = kept.made()
    arguments = (prepared.handle, kept.front + (y.data_ptr() or NO_ADDRESS).to_bytes(8, sys.byteorder) + kept.rest, kept.at, None)
    left = prepared.unlooked
    if left > 0:
        prepared.unlooked = left - 1
    elif not torch.cuda.is_current_stream_capturing() and _looked_and_done(prepared, arguments):
        return y
    status = prepared.enqueue(*arguments)
    if status < 0:
        raise prepared.comm.member.error(status)
    return y


def _later(block: Block, blocks: deque[Block]) -> Block:
    """The first block is in use: takes out another one. IndexError: there is none."""
    blocks.append(block)
    for _ in range(len(blocks) - 1):
        if block.lent:  # Pool.take() sorts it out
            break
        block = blocks.popleft()  # may be empty: another thread has the blocks
        if block.free():
            return block
        blocks.append(block)
    raise IndexError


def _looked_and_done(prepared: Prepared, arguments: tuple) -> bool:
    """Raise errors of earlier calls, after this call (Communicator._earlier()). On the cpu, where every call comes through here, also
    makes this call, and returns true."""
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
        prepared.enqueue(*arguments)  # on failure the communicator has ended, which is the error then
        raise earlier
    return False


def _packed_result(block: Block) -> bytes:
    m, n = block.tensor.shape
    operator = library().operators["gemv_all_reduce"]
    packed = operator.pack(y=(block.handle, block.offset, DTYPES[block.tensor.dtype], 2, m, n, 0, 0, n, 1, 0, 0))
    block.packed = packed[operator.offsets["y"]:]
    return block.packed


def remember(c: Communicator, places: Any, x: Tensor, w: Tensor, at_x: tuple, at_w: tuple, stream: int, launched: tuple | None) -> None:
    """Keep a call that has run with both tensors in the daemon's memory, at at_x and at_w, or, if this process launches the operator,
    anywhere; launched is then where its result was. It is valid while `places` are the connection's."""
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
    blocks = None if launched else c._heap.ready((x.shape[0], w.shape[0]), x.dtype, stream)
    operator = library().operators["gemv_all_reduce"]
    front = operator.pack(x=at_x, w=at_w)[:operator.offsets["y"]]
    beside = prepared.arguments.setdefault(stream, {}).setdefault(w.data_ptr(), {})
    first = beside.get(x.data_ptr())
    prepared.count += first is None
    others = () if first is None else (first, *first.others)
    kept = Kept(x, w, check, front, blocks, stream, others[:SHAPES - 1])
    if launched:
        kept.launched(x, w, operator.pack(x=at_x, w=at_w, y=launched), operator.offsets["y"] + 8)
    beside[x.data_ptr()] = kept


def avoid() -> None:
    """A graph in forward mode is being traced: from now on no call takes the short way, because calls of that graph look like any
    others."""
    global _prepared
    none_is_plain()
    _prepared = {}


def _is_ordinary(tensor: Tensor) -> bool:
    """Whether no __torch_function__ wants to see the calls of these tensors, and to make tensors of its own kind of the results."""
    kind = type(tensor)
    return kind is Tensor or kind.__torch_function__ is torch._C._disabled_torch_function_impl


def _no_check(*_: Tensor) -> None:
    return None


def _guard(*tensors: Tensor) -> Callable[..., bool]:
    """A check that other tensors have all properties of these, except addresses and modes. (It keeps no reference to them.)"""
    from torch._C._dynamo.guards import TensorGuards
    sizes: Any = [list(tensor.shape) for tensor in tensors]
    strides: Any = [list(tensor.stride()) for tensor in tensors]
    return TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check


def _guard_works() -> bool:
    """Whether this torch has the guard, and the guard detects what it must."""
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
