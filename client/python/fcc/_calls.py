# SPDX-License-Identifier: MIT
"""Calls of the C library's operators, and checks of their arguments. All ranks are told of wrong arguments (refusals.refuse())."""
from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from ._library import POOLINGS, SCHEDULES, library
from ._names import Called
from ._staging import is_there
from ._communicator.refusals import IN_PIECES, TOLD, refuse
from ._communicator.waits import request_wait
from .communicator import Communicator, Expected, rank_of, rows_check
from .errors import ArgumentError, Error
from .memory import DTYPES

FLOATS = frozenset((torch.float32, torch.float16, torch.bfloat16))
_PRODUCTS = ("gemv_all_reduce", "gemm_all_reduce", "gemm_reduce_scatter", "gemm_all_to_all", "all_gather_gemm")
WRONG_KIND = (AttributeError, TypeError)  # raised for an argument: unsubmitted() tells the ranks, in the terms of the call


def in_words(called: Called) -> Callable[[Callable[..., torch.Tensor]], Callable[..., torch.Tensor]]:
    """Decorates a kernel whose last positional argument is the communicator's name. The kernel is made of another operator; its errors
    are worded as errors of `called`."""
    def worded(kernel: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        @functools.wraps(kernel)
        def call(*args: Any, **keywords: Any) -> torch.Tensor:
            try:
                return kernel(*args, **keywords)
            except Error as e:
                raise e.renamed(called, rank_of(args[-1])) from None
        return call
    return worded


def unsubmitted(comm: Communicator, op: str, function: Callable[..., Any], error: Exception, **arguments: Any) -> Exception:
    """Turns an exception that Python or torch raised before the operator could be submitted into the error to raise; mostly an argument
    of a wrong kind. The other ranks are told, as of any wrong argument."""
    name = function.__qualname__.partition(".")[0]  # a method's qualified name begins with its module's name
    if getattr(error, TOLD, False):
        return error
    try:
        found = _wrong_kind(comm, name, function.__annotations__, arguments)
    except Exception:  # raised by a method of the argument
        found = None
    plain = arguments.get("bias") is None and arguments.get("residual") is None  # what the other ranks launch themselves (ops.launches_product())
    return refuse(comm, op, found or error, op not in IN_PIECES or plain)


def _is_number(value: Any) -> bool:
    return isinstance(value, torch.SymInt) or isinstance(value, int) and -1 << 63 <= value < 1 << 63


def _are_numbers(value: Any) -> bool:
    try:
        return not isinstance(value, str) and isinstance(value, Iterable) and all(_is_number(n) for n in value)
    except Exception:  # raised by the argument's iterator
        return False


# The allowed kinds in words: the annotations without "| None".
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "Tensor": (lambda value: isinstance(value, torch.Tensor), "a torch.Tensor"),
    "Sequence[Tensor]": (lambda value: isinstance(value, (list, tuple)) and all(isinstance(one, torch.Tensor) for one in value),
                         "a list of torch.Tensor"),
    "Sequence[int]": (_are_numbers, "a list of whole numbers"),
    "int": (_is_number, "a whole number"),
    "str": (lambda value: isinstance(value, str), "a string"),
    "bool": (lambda value: isinstance(value, bool), "True or False"),
}


def _wrong_kind(comm: Communicator, name: str, kinds: dict[str, str], arguments: dict[str, Any]) -> ArgumentError | None:
    """The first argument of a wrong kind."""
    for argument, value in arguments.items():
        kind = kinds[argument].removesuffix(" | None")
        if value is None and kind != kinds[argument]:
            continue
        fits, allowed = _KINDS[kind]
        if not fits(value):
            shown = repr(value)
            limit = " of 64 bits" if kind == "int" and isinstance(value, int) else ""
            return ArgumentError(f"rank {comm.rank}: {name}: {argument}: {type(value).__name__} "
                                 f"{shown if len(shown) <= 40 else shown[:37] + '...'}: allowed is {allowed}{limit}")
        if isinstance(value, torch.Tensor) and (value.layout != torch.strided or value.is_quantized or value.is_nested):
            return ArgumentError(f"rank {comm.rank}: {name}: {argument}: {value.dtype}, {value.layout}: allowed are dense tensors")
    return None


_thread = threading.local()


@contextlib.contextmanager
def at_once(comm: Communicator) -> Iterator[None]:
    """A context in which the thread's operators are finished when run() returns, also on a GPU: for callers that must know before the
    next call whether the ranks' arguments fit. Not while the stream is captured, which operators refuse."""
    _thread.at_once = comm._member.on_gpu and not torch.cuda.is_current_stream_capturing()
    try:
        yield
    finally:
        _thread.at_once = False


def run(comm: Communicator, op: str, packed: bytes, stream: int, received: ctypes.Array | None = None,
        expected: Expected | None = None, called: Called | None = None, epilogue: bytes | None = None,
        launched: bool = False) -> None:
    """Run an operator. On the cpu it is finished on return; on a GPU it is enqueued (except in at_once()). `received`, which `packed`
    points to, must become the expected values; on a GPU this is checked later (Communicator.check()). called: the function that was
    called, if it is not the operator. launched: this process launches it, and no request says when it is finished."""
    member = comm._member
    now = getattr(_thread, "at_once", False)
    if now:
        torch.cuda.current_stream(comm.device).synchronize()  # work on the stream may produce the arguments, or use the result's memory
    if (now and not launched) or not member.on_gpu:
        request = ctypes.c_void_p()
        operator = library().operators[op]
        status = (operator.start(member.handle, packed, ctypes.byref(request)) if epilogue is None else
                  operator.epilogue_start(member.handle, packed, epilogue, ctypes.byref(request)))
        if status < 0:
            raise member.error(status)
        request_wait(member, request)
        if received is not None and expected is not None:
            rows_check(member, list(received), expected)
        return
    comm._calls.setdefault(op, {})[called.name if called else op] = called
    # Errors may have to be copied from the GPU, which a capture does not permit: they are for the next call that is not captured.
    earlier = None if torch.cuda.is_current_stream_capturing() else comm._earlier()
    later = None if received is None else ctypes.c_void_p()
    operator, request_at = library().operators[op], None if later is None else ctypes.byref(later)
    status = (operator.enqueue(member.handle, packed, stream, request_at) if epilogue is None else
              operator.epilogue_enqueue(member.handle, packed, epilogue, stream, request_at))
    if status < 0:
        raise earlier or member.error(status)
    if later is not None:
        comm._expected.append((later, received, expected))
    if earlier:
        raise earlier
    if now:
        torch.cuda.current_stream(comm.device).synchronize()
        comm.check()


def run_many(comm: Communicator, op: str, packed: Sequence[bytes], stream: int) -> None:
    """Enqueue collectives of one kind that this process launches, with one call of the C library."""
    if not packed:
        return
    member = comm._member
    comm._calls.setdefault(op, {})[op] = None
    earlier = None if torch.cuda.is_current_stream_capturing() else comm._earlier()
    status = library().operators[op].many_enqueue(member.handle, b"".join(packed), len(packed), stream)
    if status < 0:
        raise earlier or member.error(status)
    if earlier:
        raise earlier


@contextlib.contextmanager
def group(comm: Communicator, *inputs: torch.Tensor) -> Iterator[None]:
    """A context for consecutive operators on these tensors whose results are used after it. On a GPU they form a group
    (fcc_group_begin). Not if tensors would be copied to the daemon's memory for each operator: the copies would be on the stream in
    between, and share memory. Not while tracing."""
    if torch.compiler.is_compiling() or not comm._member.on_gpu or not all(is_there(comm, tensor) for tensor in inputs):
        yield
        return
    library().group_begin()
    try:
        yield
    finally:
        status = library().group_end()
    if status < 0:
        raise comm._member.error(status)


def dense(handle: int, offset: int, dtype: torch.dtype, *shape: int) -> tuple[int, ...]:
    """The fields of struct fcc_tensor for a dense tensor."""
    return handle, offset, DTYPES[dtype], len(shape), *shape, *(0,) * (8 - len(shape))


def numbers(values: Sequence[int]) -> tuple[ctypes.Array, int]:
    """An array for C and its address. The caller holds the array while the address is used."""
    array = (ctypes.c_int64 * max(1, len(values)))(*values)
    return array, ctypes.addressof(array)


# ---- checks that the daemon cannot make, or only with texts that do not fit Python ----

def choice(comm: Communicator, op: str, name: str, value: str, allowed: dict[str, int]) -> int:
    if value not in allowed:
        raise ArgumentError(f"rank {comm.rank}: {op}: {name}: \"{value}\": allowed are {', '.join(allowed)}")
    return allowed[value]


def schedule_number(comm: Communicator, op: str, schedule: str) -> int:
    return choice(comm, op, "schedule", schedule, SCHEDULES)


def pooling_number(comm: Communicator, op: str, pooling: str) -> int:
    return choice(comm, op, "pooling", pooling, POOLINGS)


def check_counts(comm: Communicator, op: str, name: str, counts: Sequence[int], total: int | None = None) -> None:
    if len(counts) != comm.size or any(n < 0 for n in counts) or total is not None and sum(counts) != total:
        wanted = "" if total is None else f", {total} in all"
        raise ArgumentError(f"rank {comm.rank}: {op}: {name}: {list(counts)}: allowed are {comm.size} numbers, 0 and more, one "
                            f"for each rank{wanted}")


def check_floats(comm: Communicator, op: str, name: str, tensor: torch.Tensor, ndim: int) -> None:
    if tensor.ndim != ndim:
        raise ArgumentError(f"rank {comm.rank}: {op}: {name}: {tensor.ndim} dimensions, {list(tensor.shape)}: allowed are {ndim}")
    if tensor.dtype not in FLOATS:
        remedy = f"fcc.{op}_epilogue() takes factors in float8_e4m3fn, with fcc.Epilogue's x_scale and w_scale."
        raise ArgumentError(f"rank {comm.rank}: {op}: {name}: {tensor.dtype}: allowed are float32, float16 and bfloat16",
                            remedy=remedy if tensor.dtype == torch.float8_e4m3fn and op in _PRODUCTS else "")
