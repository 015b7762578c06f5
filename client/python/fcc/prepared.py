# SPDX-License-Identifier: MIT
"""Operators that are prepared once and run many times: MPI calls them persistent collectives (C: fcc_prepared).

This process launches each run itself, onto the current stream. Nothing is handed over to the daemon, so a run costs one launch, with or
without MPS. For inference only: there are no gradients, and tensors with tangents or of torch.vmap and torch.func are refused.

    step = fcc.prepare_gemv_all_reduce(x, layer.weight)   # all ranks; x and the weight stay where they are
    for token in tokens:
        x.copy_(...)
        y = step()                                        # the same tensor each time
"""
from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import communicator
from ._calls import check_floats
from ._connection import Member, interruptible
from ._dispatch import has_tangent, is_wrapped
from ._library import library
from ._staging import is_plain, place
from .communicator import Communicator
from .errors import ArgumentError
from .memory import stream_of


class PreparedOperator:
    """An operator with fixed arguments. Each call is one run. All ranks call each of their prepared operators the same number of times. On
    a stream, all ranks have the same order of runs and other operators.

    A run begins after the earlier work on the current stream, reads the inputs as they are then, and overwrites `result`. Inputs and result
    must keep their memory. After one of them has been given other memory (`.data = ...`, set_(), share_memory_()) a run is refused; this
    aborts the communicator, because the other ranks' runs have begun. At most 64 prepared operators are open at a time.

    CUDA graphs. A call under torch.cuda.graph() adds a run to the graph, and each replay() is a run then, also between calls; the other
    ranks replay, or call, equally often. Runs of one operator must not overlap, as those of two graphs on two streams would without an
    event between them: that ends the communicator (ArgumentError). close() and the communicator's end let later replays end at once, with
    undefined results.

    Attributes:
        result: y or c, in the daemon's memory
        comm: the Communicator

    Raises, when called: AbortedError, TimeLimitError or WorkerLostError once the communicator has ended (as do Communicator.check() and
        synchronize()), ArgumentError after close().
    """

    def __init__(self, comm: Communicator, op: str, packed: bytes, result: Tensor, inputs: dict[str, Tensor]) -> None:
        member, handle, prepare = comm.member, ctypes.c_void_p(), library().operators[op].prepare
        status, text = interruptible(lambda: prepare(member.handle, packed, ctypes.byref(handle)),
                                     member.interrupted)
        if status < 0:
            raise member.error(status, text)
        self.comm, self.result = comm, result
        self._member, self._handle, self._op = member, handle, op
        self._tensors = {**inputs, "result": result}
        # The objects that keep the tensors' memory, whatever becomes of the tensors.
        find, owner = member.connection.find, member.connection.owner
        self._memory = [(tensor.detach(), owner(found[0]) if (found := find(tensor.data_ptr())) else None)
                        for tensor in self._tensors.values()]
        self._first, self._second = (tensor.data_ptr for tensor in inputs.values())
        self._places = self._first(), self._second(), result.data_ptr()
        self._enqueue = library().prepared_enqueue
        self._lock = threading.RLock()  # of a call, and close(), which frees what the call uses
        self._end = weakref.finalize(self, bound_end, os.getpid(), member, library().prepared_free, handle)
        self._end.atexit = False
        comm._operators.add(self)

    def __call__(self) -> Tensor:
        """One run, on the current stream. Does not wait for the run. Returns `result`."""
        if communicator._parents:
            communicator.forked_check(self.comm.name)
        with self._lock:
            if not self._end.alive:
                raise ArgumentError("prepared: it has been closed", rank=self._member.rank)
            if (self._first(), self._second(), self.result.data_ptr()) != self._places:
                raise self._moved()
            status = self._enqueue(self._handle, stream_of(self.comm))
        if status < 0:
            raise self._member.error(status)
        return self.result

    def _moved(self) -> ArgumentError:
        """The error for a tensor whose memory has changed. Tells the other ranks, whose runs wait for this one."""
        names = [name for (name, tensor), place in zip(self._tensors.items(), self._places) if tensor.data_ptr() != place]
        why = (f"rank {self._member.rank}: {self._op}: {', '.join(names)}: it has been given other memory than the operator was "
               "prepared with")
        self._member.abort(why)
        return ArgumentError(why, rank=self._member.rank, remedy="Copy into the tensor instead, or prepare the operator anew.")

    def close(self) -> None:
        """Ends the operator after waiting for a call that another thread is within, and for its runs on the GPU. Not collective. The communicator's close() and the
        end of the last reference to the operator do the same."""
        end_between_calls(self.comm, self._lock, self._end)


def end_between_calls(comm: Communicator, lock: Any, *ends: Callable[[], object]) -> None:
    """Frees an operator's handle when no other thread is within a call that uses it, which the communicator's time limit ends. In a forked child nothing is freed, and the
    lock may be one that a thread of the parent's has."""
    if comm.name not in communicator._parents:
        with lock:
            for end in ends:
                end()


def bound_end(pid: int, member: Member, free: Callable[[Any], object], handle: Any) -> None:
    """Frees a handle whose runs may still be on their way, in the process that made it."""
    if os.getpid() != pid:
        return
    if member.on_gpu:
        try:
            torch.cuda.synchronize(member.device)
        except RuntimeError:  # not possible while a stream is captured: the communicator's end frees it. A failed GPU needs no care
            return
    free(handle)


def there(comm: Communicator, op: str, name: str, tensor: Tensor, stream: int) -> tuple:
    """The tensor's place in the daemon's memory. Each run reads it there, so it is not copied."""
    if is_wrapped(tensor) or has_tangent(tensor):
        what = "it is one of torch.vmap's or torch.func's" if is_wrapped(tensor) else "it has a tangent"
        raise ArgumentError(f"rank {comm.rank}: {op}: {name}: {what}: a prepared operator has no derivatives, and reads memory as it is",
                            remedy=f"Call fcc.{op.removeprefix('prepare_')}() there.")
    check_floats(comm, op, name, tensor, 2)
    if tensor.is_neg():
        raise ArgumentError(f"rank {comm.rank}: {op}: {name}: it is a view that torch negates when it is read: a prepared "
                            f"operator reads memory as it is", remedy="Give it Tensor.resolve_neg().")
    if tensor.device == comm.device and tensor.numel() and not (
            is_plain(tensor) and comm.member.connection.find(tensor.data_ptr())):
        raise ArgumentError(f"rank {comm.rank}: {op}: {name}: it does not lie in the daemon's memory, with dense rows: a "
                            f"prepared operator reads it where it is",
                            remedy="Make it with fcc.empty(), or move it with fcc.to_daemon().")
    at, _ = place(comm, op, name, tensor, stream)
    return at
