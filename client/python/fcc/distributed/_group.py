# SPDX-License-Identifier: MIT
"""The process group: what torch.distributed calls, under all the names that it has had, as operations on communicators.

It is a torch.distributed.ProcessGroup, not a Backend within one: a Backend's Works reach Python programs as C++ objects that know of wait()
and get_future() only, and Python subclasses of Backend need a PyTorch of 2026.
"""
from __future__ import annotations

import errno
import functools
import importlib
import os
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .._connection import Connection
from .._communicator.refusals import TOLD
from ..communicator import Communicator
from ..errors import ArgumentError, Error, ForkedError
from ._barrier import monitored_barrier
from ._checks import unfit
from ._collectives import Collectives
from ._device import Device
from ._meeting import Meetings
from ._messages import Messages
from ._pairs import Pairs
from ._vectors import Vector, factor, reduction
from ._work import Work, Works, as_torch_error

_c10d: Any = importlib.import_module("torch._C._distributed_c10d")
Tensors = Sequence[torch.Tensor]


def _list(tensors: torch.Tensor | Tensors) -> Tensors:
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors


class ProcessGroup(dist.ProcessGroup):
    """One rank's membership in a group of ranks, for tensors on the cpu and on CUDA GPUs.

    Args:
        store: where the ranks meet: theirs alone
        rank, size: in the group
        timeout: how long an operation may wait for its ranks, and then run. It is the communicators' time limit

    Communicators are made when the first operation needs one: one for each kind of device, and two for each pair of ranks that sends
    messages. Operations run in the order of the calls, as do messages from one rank to another that have the same tag.
    """

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        try:
            super().__init__(store, rank, size)
        except TypeError:  # an older PyTorch, which takes a store from C++ only
            super().__init__(rank, size)
        world = dist.group.WORLD if dist.is_initialized() else None
        if isinstance(world, ProcessGroup):
            world._may_call("new_group")
        self._pid = os.getpid()
        try:
            self._connection = Connection.of(None, None)  # so that a missing daemon is noticed here
        except Error as e:
            raise dist.DistBackendError(str(e)) from e
        self._store_, self._rank_, self._size_ = store, rank, size
        self._meetings = meetings = Meetings(store, rank, size, timeout)  # which know nothing of the group, so that it goes when nobody has it
        self._name_, self._desc, self._sequence, self._barriers = "", "", 0, 0
        self._devices = {kind: Device(f"fcc {kind}", kind, functools.partial(meetings.of_all, kind)) for kind in ("cpu", "cuda")}
        self._pairs = Pairs("fcc", rank, functools.partial(meetings.of_two, "cpu"), meetings.refuse)
        self._messages = Messages("fcc", rank, functools.partial(meetings.of_two, "cuda"), meetings.refuse)
        self._coalescing = threading.local()
        self._closed = self._shut = False

    def _is_parents(self) -> bool:
        """This process was forked from the one that the group is of."""
        return self._pid != os.getpid()

    def _own_check(self, name: str) -> None:
        """Raises ForkedError in a forked child: it would come in its parent's place, or wait for threads that only the parent has."""
        if self._is_parents():
            raise ForkedError(
                f"rank {self._rank_}: {name}: the process group is of the process (pid {self._pid}) from which this one (pid {os.getpid()}) was forked: "
                "a child cannot use it", code=errno.ECHILD, rank=self._rank_,
                remedy="Leave collectives and messages to the parent (as with workers of a DataLoader), or call dist.destroy_process_group() in the child, which "
                "ends nothing of the parent's, and dist.init_process_group() with a store of the child's own.")

    def _may_call(self, name: str) -> None:
        """The same, as torch's users know errors."""
        try:
            self._own_check(name)
        except ForkedError as e:
            raise as_torch_error(e) from e

    @property
    def _limit(self) -> timedelta:
        return self._meetings.limit

    # ---- what kind of group it is ----

    def getBackendName(self) -> str:
        return "fcc"

    name = getBackendName

    def getRank(self) -> int:
        return self._rank_

    def getSize(self) -> int:
        return self._size_

    rank, size = getRank, getSize

    def getGroupName(self) -> str:
        return self._name_

    def setGroupName(self, name: str) -> None:
        self._name_ = name

    def getGroupDesc(self) -> str:
        return self._desc

    def setGroupDesc(self, desc: str) -> None:
        self._desc = desc

    _set_group_name, _set_group_desc = setGroupName, setGroupDesc

    @property
    def group_name(self) -> str:
        return self._name_

    @property
    def group_desc(self) -> str:
        return self._desc

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu"), torch.device("cuda")] if torch.cuda.is_available() else [torch.device("cpu")]

    supports_splitting = supports_coalescing = supports_shrinking = supports_reconfigure = supports_window = False
    supports_time_estimate = _supports_time_estimate = False

    def _get_backend(self, device: torch.device) -> ProcessGroup:
        """torch asks a group's backend for what it can do."""
        return self

    get_backend = _get_backend

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        return False

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def set_timeout(self, timeout: timedelta) -> None:
        """For communicators that are yet to be made: the others keep the limit that their ranks agreed on."""
        self._meetings.limit = timeout

    _set_default_timeout = set_timeout

    # ---- how an operation gets to its lane ----

    def _submit(self, name: str, tensors: Tensors, opts: Any, operation: Callable[[Collectives], None], outputs: Tensors = (),
                written: Tensors | None = None) -> Work:
        """tensors: all that it has, which are held until it is done. outputs: what its work gives. written: those of the tensors that this
        rank writes to; None: the outputs."""
        self._may_call(name)
        self._sequence += 1
        kind = tensors[0].device.type if tensors and isinstance(tensors[0], torch.Tensor) else "cpu"
        error = unfit(self._rank_, name, tensors, outputs if written is None else written, self._devices)
        if error is not None:
            kind, tensors, outputs, operation = self._place_of(error, kind), tensors[:1], (), _raising(error)
        at_once = not getattr(opts, "asyncOp", True)
        return self._noted(self._devices[kind].submit(name, operation, tensors, outputs, at_once))

    def _place_of(self, error: Exception, kind: str) -> str:
        """On which kind of device the other ranks are that are to hear of the error. Raises it where that cannot be told."""
        if kind not in self._devices:
            if torch.cuda.is_available() and not self._devices["cpu"].has_joined():
                raise error
            return "cpu"
        return kind

    def _noted(self, work: Work) -> Work:
        works = getattr(self._coalescing, "works", None)
        if works is not None:
            works.append(work)
        return work

    def start_coalescing(self, device: Any = None) -> None:
        self._coalescing.works = []

    def end_coalescing(self, device: Any = None) -> Work:
        works, self._coalescing.works = getattr(self._coalescing, "works", None), None
        return Works(works or [])

    _start_coalescing, _end_coalescing = start_coalescing, end_coalescing

    # ---- all_reduce, reduce, broadcast ----

    def allreduce(self, tensors: Any, opts: Any = _c10d.AllreduceOptions()) -> Work:
        tensors = _list(tensors)
        asked = getattr(opts, "reduceOp", opts)

        def operation(on: Collectives) -> None:
            for alike in _by_dtype(tensors):
                on.all_reduce_together(alike, reduction("all_reduce", asked, alike[0]), factor(asked))
        return self._submit("all_reduce", tensors, opts, operation, tensors)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Any, opts: Any = _c10d.ReduceOptions()) -> Work:
        tensors = _list(tensors)
        asked, root = opts.reduceOp, opts.rootRank

        def operation(on: Collectives) -> None:
            on.reduce(Vector("reduce", tensors), reduction("reduce", asked, tensors[0]), root, factor(asked))
        return self._submit("reduce", tensors, opts, operation, tensors, tensors if root == self._rank_ else ())

    def broadcast(self, tensors: Any, opts: Any = _c10d.BroadcastOptions()) -> Work:
        tensors, root = _list(tensors), opts.rootRank
        return self._submit("broadcast", tensors, opts, lambda on: on.broadcast(Vector("broadcast", tensors), root), tensors,
                            () if root == self._rank_ else tensors)

    # ---- all_gather ----

    def allgather(self, outputs: Any, inputs: Any, opts: Any = _c10d.AllgatherOptions()) -> Work:
        """One list of outputs for each input; each has a tensor for each rank."""
        inputs = _list(inputs)

        def operation(on: Collectives) -> None:
            for outs, own in zip(outputs, inputs, strict=True):
                on.all_gather([Vector("all_gather", [out]) for out in outs], Vector("all_gather", [own]))
        flat = [out for outs in outputs for out in outs]
        return self._submit("all_gather", [*inputs, *flat], opts, operation, flat)

    def allgather_coalesced(self, outputs: Any, inputs: Tensors, opts: Any = _c10d.AllgatherOptions()) -> Work:
        """One list of outputs for each rank; each has a tensor for each input."""
        return self.allgather([list(outs) for outs in zip(*outputs, strict=True)], inputs, opts)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = _c10d.AllgatherOptions()) -> Work:
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = _c10d.AllgatherOptions()) -> Work:
        """Each output has the inputs of all ranks, one after the other."""
        def operation(on: Collectives) -> None:
            for outs, ins in _pairs_by_dtype(outputs, inputs):
                own = Vector("all_gather", ins)
                parts, done = self._parts("all_gather", "output", outs, ins)
                on.all_gather(parts, own)
                done()
        return self._submit("all_gather", [*inputs, *outputs], opts, operation, outputs)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    # ---- reduce_scatter ----

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = _c10d.ReduceScatterOptions()) -> Work:
        outputs, asked = _list(outputs), opts.reduceOp

        def operation(on: Collectives) -> None:
            for out, ins in zip(outputs, inputs, strict=True):
                on.reduce_scatter(Vector("reduce_scatter", [out]), [Vector("reduce_scatter", [part]) for part in ins],
                                  reduction("reduce_scatter", asked, out), factor(asked))
        return self._submit("reduce_scatter", [*outputs, *(part for ins in inputs for part in ins)], opts, operation, outputs)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = _c10d.ReduceScatterOptions()) -> Work:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = _c10d.ReduceScatterOptions()) -> Work:
        asked = opts.reduceOp

        def operation(on: Collectives) -> None:
            for outs, ins in _pairs_by_dtype(outputs, inputs):
                parts, _ = self._parts("reduce_scatter", "input", ins, outs)
                on.reduce_scatter(Vector("reduce_scatter", outs), parts, reduction("reduce_scatter", asked, outs[0]), factor(asked))
        return self._submit("reduce_scatter", [*outputs, *inputs], opts, operation, outputs)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # ---- all_to_all ----

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = _c10d.AllToAllOptions()) -> Work:
        def operation(on: Collectives) -> None:
            on.all_to_all([Vector("all_to_all", [out]) for out in outputs], [Vector("all_to_all", [own]) for own in inputs], even=False)
        return self._submit("all_to_all", [*outputs, *inputs], opts, operation, outputs)

    def all_to_all_single(self, output: torch.Tensor, input: torch.Tensor, output_splits: Sequence[int] | None = None,
                          input_splits: Sequence[int] | None = None, opts: Any = _c10d.AllToAllOptions()) -> Work:
        """Splits are rows of the first dimension; none: equal parts."""
        def operation(on: Collectives) -> None:
            outs, done = self._split(output, output_splits, "output")
            ins, _ = self._split(input, input_splits, "input")
            on.all_to_all(outs, ins, even=not output_splits and not input_splits)
            done()
        return self._submit("all_to_all", [output, input], opts, operation, [output])

    alltoall_base = all_to_all_single

    # ---- gather, scatter ----

    def gather(self, outputs: Any, inputs: Any, opts: Any = _c10d.GatherOptions()) -> Work:
        inputs, root = _list(inputs), opts.rootRank
        outs = list(outputs[0]) if outputs and root == self._rank_ else None

        def operation(on: Collectives) -> None:
            on.gather([Vector("gather", [out]) for out in outs] if outs is not None else None, Vector("gather", inputs), root)
        return self._submit("gather", [*inputs, *(outs or ())], opts, operation, outs or ())

    def gather_single(self, output: Any, input: torch.Tensor, opts: Any = _c10d.GatherOptions()) -> Work:
        root = opts.rootRank

        def operation(on: Collectives) -> None:
            if root != self._rank_:
                on.gather(None, Vector("gather", [input]), root)
                return
            parts, done = self._parts("gather", "output", [output], [input])
            on.gather(parts, Vector("gather", [input]), root)
            done()
        results = [output] if root == self._rank_ else []
        return self._submit("gather", [input, *results], opts, operation, results)

    gather_into_tensor = gather_single

    def scatter(self, outputs: Any, inputs: Any, opts: Any = _c10d.ScatterOptions()) -> Work:
        outputs, root = _list(outputs), opts.rootRank
        ins = list(inputs[0]) if inputs and root == self._rank_ else None

        def operation(on: Collectives) -> None:
            on.scatter(Vector("scatter", outputs), [Vector("scatter", [part]) for part in ins] if ins is not None else None, root)
        return self._submit("scatter", [*outputs, *(ins or ())], opts, operation, outputs)

    # ---- messages ----

    def send(self, tensors: Any, peer: int, tag: int = 0) -> Work:
        tensor = self._message("send", tensors, peer)
        return self._noted(self._messages.send(tensor, peer) if tensor.is_cuda else self._pairs.send(tensor, peer, tag))

    def recv(self, tensors: Any, peer: int, tag: int = 0) -> Work:
        tensor = self._message("recv", tensors, peer)
        return self._noted(self._messages.receive(tensor, peer) if tensor.is_cuda else self._pairs.receive(tensor, peer, tag))

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        raise NotImplementedError("fcc: recv_anysource: a receive from whichever rank sends first: not supported; name the rank")

    recvAnysource = recv_anysource

    def _message(self, name: str, tensors: Any, peer: int) -> torch.Tensor:
        self._may_call(name)
        tensors = _list(tensors)
        if self._closed:
            raise RuntimeError("fcc: the process group has been destroyed or aborted")
        if len(tensors) != 1 or tensors[0].layout != torch.strided or tensors[0].is_quantized:
            raise ValueError(f"fcc: {name}: allowed is one dense tensor")
        if not 0 <= peer < self._size_ or peer == self._rank_:
            raise ValueError(f"fcc: {name}: rank {peer}: allowed are the other ranks of the group, 0 to {self._size_ - 1}")
        if tensors[0].device.type not in self._devices:
            raise NotImplementedError(f"fcc: {name}: a tensor on {tensors[0].device}: not supported, only cpu and cuda")
        self._sequence += 1
        found: torch.Tensor = tensors[0]
        return found

    # ---- barriers, ends ----

    def barrier(self, opts: Any = _c10d.BarrierOptions()) -> Work:
        """All ranks have come here, and all operations that were called before are done; those on a GPU, too."""
        def operation(on: Collectives) -> None:
            wrong = None
            try:
                self._devices["cuda"].synchronize()
                self._messages.synchronize()
            except Error as e:  # the other ranks wait at the barrier all the same
                wrong = e
            on.barrier()
            if wrong is not None:
                setattr(wrong, TOLD, True)
                raise wrong
        return self._submit("barrier", (), opts, operation)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        self._may_call("monitored_barrier")
        self._barriers += 1
        limit = timeout if isinstance(timeout, timedelta) and timeout.total_seconds() >= 0 else self._limit
        monitored_barrier(self._store_, f"fcc/barrier{self._barriers}", self._rank_, self._size_, limit, wait_all_ranks)

    def communicator(self) -> tuple[str, Communicator]:
        """A communicator that the group has, first on the cpu, and on which kind of device. Raises ArgumentError if no operation has needed
        one yet."""
        self._own_check("shrink")
        for kind, device in self._devices.items():
            if device.has_joined():
                return kind, device.communicator()
        raise ArgumentError("shrink: group: it has run nothing yet: it has no communicator")

    def of_left(self, store: dist.Store, kind: str, made: Communicator) -> ProcessGroup:
        """A group of the ranks of `made`, which has taken the place of this group's communicator on such a device. On another kind it meets anew."""
        group = type(self)(store, made.rank, made.size, self._limit)
        group._devices[kind].take(made)
        return group

    def shutdown(self) -> None:
        """Ends the group on this rank when the collectives that were called are done. Nothing in a forked child: the rank is its parent."""
        if self._shut or self._is_parents():
            return
        self._closed = self._shut = True
        error = dist.DistBackendError("fcc: the process group has been destroyed")
        self._pairs.close(error)
        self._messages.close(error)
        for device in self._devices.values():
            device.close()

    def abort(self) -> None:
        """Ends the group on all ranks at once: their operations end with an error that names this rank. Nothing in a forked child."""
        if self._is_parents():
            return
        self._closed = True
        error = dist.DistBackendError(f"fcc: rank {self._rank_} has aborted the process group")
        self._pairs.close(error)
        self._messages.abort(error)
        for device in self._devices.values():
            device.abort(error)

    # ---- parts of tensors ----

    def _parts(self, op: str, name: str, whole: Tensors, own: Tensors) -> tuple[list[Vector], Callable[[], None]]:
        """Cuts each tensor into a part for each rank, and puts together the parts of each. Returns also what to call when the parts have
        been written."""
        flats = []
        for tensor, part in zip(whole, own, strict=True):
            if tensor.numel() != part.numel() * self._size_ or tensor.dtype != part.dtype:
                raise ArgumentError(f"rank {self._rank_}: {op}: {name}: {tensor.numel()} elements of {tensor.dtype}: allowed are "
                                    f"{part.numel() * self._size_} of {part.dtype}: {self._size_} times the other tensor")
            flats.append((tensor, tensor.contiguous().view(-1), part.numel()))

        def done() -> None:
            for tensor, flat, _ in flats:
                if not tensor.is_contiguous():
                    tensor.copy_(flat.view(tensor.shape))
        return [Vector(op, [flat[r * n:(r + 1) * n] for _, flat, n in flats]) for r in range(self._size_)], done

    def _split(self, tensor: torch.Tensor, splits: Sequence[int] | None, name: str) -> tuple[list[Vector], Callable[[], None]]:
        rows = tensor.shape[0] if tensor.dim() else 0
        if not splits:
            if rows % self._size_:
                raise ArgumentError(f"rank {self._rank_}: all_to_all: {name}: {rows} rows: allowed without splits are multiples of "
                                    f"{self._size_}")
            splits = [rows // self._size_] * self._size_
        if len(splits) != self._size_ or sum(splits) != rows or min(splits) < 0:
            raise ArgumentError(f"rank {self._rank_}: all_to_all: {name} splits: {list(splits)}: allowed are {self._size_} numbers, 0 and "
                                f"more, {rows} in all")
        whole = tensor.contiguous()
        found, at = [], 0
        for n in splits:
            found.append(Vector("all_to_all", [whole[at:at + n]]))
            at += n
        return found, lambda: None if tensor.is_contiguous() else tensor.copy_(whole) and None


def _raising(error: Exception) -> Callable[[Collectives], None]:
    def operation(on: Collectives) -> None:
        raise error
    return operation


def _by_dtype(tensors: Tensors) -> list[Tensors]:
    """Tensors that one operator can take together."""
    found: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        found.setdefault(tensor.dtype, []).append(tensor)
    return list(found.values())


def _pairs_by_dtype(first: Tensors, second: Tensors) -> list[tuple[Tensors, Tensors]]:
    found: dict[torch.dtype, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for one, other in zip(first, second, strict=True):
        lists = found.setdefault(other.dtype, ([], []))
        lists[0].append(one)
        lists[1].append(other)
    return list(found.values())
