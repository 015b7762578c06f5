# SPDX-License-Identifier: MIT
"""Programs that this process launches itself: fcc_program_prepare(), fcc_program_enqueue(), fcc_program_scalars_enqueue()."""
from __future__ import annotations

import os
import re
import weakref
from typing import Any

import torch

from .._connection import interruptible
from .._library import ADDRESS, library
from .._capture import captures_elsewhere
from .._communicator.refusals import TOLD, refuse, told
from ..errors import ArgumentError, Error
from ..memory import raw_stream_of, stream_of
from ..prepared import bound_end
from .running import _OP, CompiledProgram, Launcher, Parameter, changed_note
from .turns import Host


class BoundProgram(CompiledProgram):
    """A program that the ranks launch themselves, with the tensors that bind() was given. Each call puts a run onto torch's current stream, or, under
    torch.cuda.graph(), into the graph, and returns at once. All ranks make the same runs in the same order.

        step = sgd.compile(comm, N=1000).bind(g=gradient, p=parameters, m=momenta, lr=0.1, momentum=0.9)
        step()                                  # a run
        with torch.cuda.graph(graph):
            step()                              # a part of the graph
        step.set(lr=0.05)                       # behind what the current stream has
        graph.replay()                          # with the new number

    Tensors stay where they are. Those that other ranks read or store into lie in memory that empty() of the compiled program has made; others are copied there and
    back as part of each run, with a CopyWarning at first. All that only this rank uses may lie anywhere on the GPU, as in the memory of PyTorch's allocator, and is used
    where it lies.

    Numbers are those of the call, and those that it leaves out are the last ones. A run that is captured has none of its own: a replay takes those that
    set(), or a call outside of the capture, has put onto the stream in front of it. Whether all ranks have the same numbers nobody checks.

    close(), the end of the last reference and the communicator's end let later replays end at once, with undefined results.

    Of a program that compile() was to bind (bound=True, or $FCC_BOUND=1) the ranks compare each run before they make it: CompiledProgram says what that means for wrong calls.

    Errors otherwise. A call whose arguments are wrong puts nothing onto the stream; it may be made again. A tensor that has been given other memory (`.data = ...`) ends the communicator,
    as the other ranks' runs wait for this one. Errors of runs come with a later call on any stream, or with Communicator.check() and synchronize().

    Attributes: copied, the names of parameters that are copied in each run; and CompiledProgram's.

    Raises, when called: ArgumentError, CaptureError (a stream of another GPU), AbortedError, TimeLimitError, WorkerLostError.
    """

    def __init__(self, run: CompiledProgram, given: tuple[Any, ...], named: dict[str, Any], graded: bool | None = None) -> None:
        """graded: of a call of `run`, whose tensors may be others the next time: whether gradients are recorded. None: of bind()."""
        if type(run) is not CompiledProgram:
            raise ArgumentError(f"BoundProgram: run: {type(run).__name__}: allowed is a CompiledProgram, whose bind() makes one")
        self._again, self._guarded = graded is not None, run._launcher != Launcher.FCCD
        super().__init__(run._program, run.comm, run._sizes, False)
        self._end.detach()
        self._end = weakref.finalize(self, bound_end, os.getpid(), self._member, library().program_close, self._handle)
        self._end.atexit = False
        self._turns = Host()  # nothing waits: copies and runs are on one stream
        self._read = _read_by_others(self.text)
        if run._lengths is not None:
            self.table(run._lengths)
        with torch.no_grad():
            self._bind(given, named, bool(graded))

    def _bind(self, given: tuple[Any, ...], named: dict[str, Any], graded: bool) -> None:
        member = self._live()
        try:
            tensors, used = self._prepare(given, named, graded)
        except Exception as e:
            self._located_here(e)
            raise e if getattr(e, TOLD, False) else refuse(self.comm, _OP, e, launched=False) from None
        prepare = library().program_prepare_guarded if self._guarded else library().program_prepare
        status, said = interruptible(lambda: prepare(self._handle), member.interrupted)
        if status < 0:
            raise self._program._located(self._worded(member.error(status, said)))
        self._bound, self._used = dict(tensors), used
        self._parts = {name: [part.numel() for part in _listed(x)] for name, x in tensors.items()}
        self._at = {name: [x.data_ptr() for x in _listed(x)] for name, x in tensors.items()}
        self.copied = [t.name for t in self._tensors.values() if t.elements and used[t.name] is not tensors[t.name]]
        if self._again:  # an Out that was not given lies in memory of the program's own
            known = self._arguments(given, named)
            self.copied += [t.name for t in self._tensors.values() if t.kind == "out" and t.elements and known.get(t.name) is None and t.name not in self.copied]
        self._changing = {t.name for t in self._tensors.values() if self._again and (t.name in self.copied or not t.elements)}  # whose tensors may be others in each call

    def _place(self, t: Parameter, tensor: torch.Tensor) -> tuple[int, int] | None:
        found = super()._place(t, tensor)
        if found is None and not self._again and not self._others(t) and self.comm.member.on_gpu and tensor.numel() and tensor.is_contiguous() and not tensor.is_neg():
            return ADDRESS, tensor.data_ptr()
        return found

    def _put_list(self, t: Parameter, tensors: Any) -> Any:
        """Scattered tensors that lie in several buffers, or in none, are used by their addresses."""
        some = [x for x in tensors if x.numel()]
        if self._again or self._others(t) or not self.comm.member.on_gpu or len({(place or (None,))[0] for place in (super(BoundProgram, self)._place(t, x) for x in some)}) <= 1:
            return super()._put_list(t, tensors)
        if any(not x.is_contiguous() or x.is_neg() for x in some):
            return super()._put_list(t, tensors)
        self._tell(t, [x.data_ptr() for x in tensors], [(ADDRESS, x.data_ptr()) if x.numel() else (0, 0) for x in tensors], [x.numel() for x in tensors])
        return tensors

    def _others(self, t: Parameter) -> bool:
        """Whether other ranks read the parameter, or store into it."""
        return t.shared or t.name in self._read

    def _located_here(self, e: Exception) -> None:
        if isinstance(e, Error):
            reason = re.sub(r"^rank \d+: (?:program(?: `?\w+`?)?: )?", "", e.reason)
            e.reason = f"rank {self.comm.rank}: program {self._program.name}: {reason}"
            e.rank, e.args = self.comm.rank, (e.reason,)

    def _numbers(self, given: dict[str, Any]) -> None:
        for name in given:
            if name not in self.scalars:
                raise ArgumentError(f"`{name!s:.40}`: not a number of the program: allowed are {', '.join(self.scalars) or 'none'}; tensors are those of bind()")
        self._scalars_set(given)

    def _unmoved(self) -> None:
        for name, x in self._bound.items():
            if name not in self._changing and [part.data_ptr() for part in _listed(x)] != self._at[name]:
                why = f"rank {self.comm.rank}: program {self._program.name}: `{name}`: it has been given other memory than the program was bound with"
                if not self._guarded:
                    self._member.abort(why)
                raise ArgumentError(why, rank=self.comm.rank, remedy="Copy into the tensor instead, or bind the program anew.")

    def refused(self, error: Exception) -> Exception:
        """The error of a call that other ranks make: where the ranks compare runs, they hear of it, and none has a run. Returns the error."""
        self._located_here(error)
        if self._guarded and self._end.alive and not captures_elsewhere(self.comm.device.index):
            _, reason = told(error)
            name = f"program {self._program.name}: ".encode()
            library().program_refuse_enqueue(self._handle, re.sub(rb"^rank \d+: " + re.escape(name), b"", reason), raw_stream_of(self.comm))  # the communicator's end is heard anyway
            setattr(error, TOLD, True)
        return error

    def again(self, given: tuple[Any, ...], named: dict[str, Any], graded: bool) -> Any:
        """A call with all arguments, as the first one had."""
        with self._lock:
            self._live()
            try:
                numbers = self._others_take(given, named, graded)
            except Exception as e:
                raise self.refused(e) from None
            outs = self._launch(numbers)
            self._bound.update({name: self._used[name] for name in self._changing})  # the caller's are not kept
            return outs

    def _others_take(self, given: tuple[Any, ...], named: dict[str, Any], graded: bool) -> dict[str, Any]:
        """The call's tensors take the place of those of the call before. Returns its numbers."""
        arguments = self._arguments(given, named)
        tensors = {t.name: arguments.get(t.name) for t in self._tensors.values()}
        for t in self._tensors.values():
            x = tensors[t.name]
            if x is None and t.kind == "out" and t.name in self._changing:  # a result of its own for each call
                tensors[t.name] = torch.empty(t.shape, dtype=t.dtype, device=self.comm.device)
                continue
            self._checked(t, x)
            if t.name in self._changing:
                if [part.numel() for part in _listed(x)] != self._parts[t.name] and isinstance(x, (list, tuple)):
                    raise ArgumentError(f"`{t.name}`: tensors of {[part.numel() for part in _listed(x)][:8]} elements, which had {self._parts[t.name][:8]} in the first call: "
                                        "allowed are the same lengths")
            elif [part.data_ptr() for part in _listed(x)] != self._at[t.name] or any(part.is_neg() or not part.is_contiguous() for part in _listed(x)):
                raise ArgumentError(f"`{t.name}`: it is not the tensor of the first call, which lies in the daemon's memory: allowed is that one",
                                    remedy="Copy into that tensor; or give tensors of torch's own memory in all calls; or compile(bound=False), where fccd launches the program.")
        self._derivatives_check(tensors, graded)
        self._apart({name: tensors[name] for name in self.copied if self._tensors[name].kind != "in"}, ", which are copied,")
        self._bound.update(tensors)
        return {name: arguments[name] for name in self.scalars}

    @torch.compiler.disable  # a compiled function is cut here
    def __call__(self, **numbers: Any) -> Any:  # type: ignore[override]
        """One run, on the current stream. Does not wait for it. Returns the Outs, the same tensors each time."""
        with self._lock, torch.no_grad():
            self._live()
            return self._launch(numbers)

    def _launch(self, numbers: dict[str, Any]) -> Any:
        try:
            self._numbers(numbers)
            self._unmoved()
            stream = stream_of(self.comm)
        except Exception as e:
            raise self.refused(e) from None
        earlier = None if torch.cuda.is_current_stream_capturing() else self.comm._earlier()
        for name in self.copied:
            if self._tensors[name].kind != "out":
                _copy(self._used[name], self._bound[name])
        status = library().program_enqueue(self._handle, stream)
        if status < 0:
            raise self._program._located(self._worded(self._member.error(status)))
        for t in self._tensors.values():
            if t.kind != "in" and t.elements:
                if t.name in self.copied:
                    _copy(self._bound[t.name], self._used[t.name])
                else:
                    changed_note(self._bound[t.name])
        if earlier:
            raise earlier
        outs = [self._bound[t.name] for t in self._tensors.values() if t.kind == "out"]
        return None if not outs else outs[0] if len(outs) == 1 else tuple(outs)

    def set(self, **numbers: Any) -> None:
        """Puts numbers onto the current stream: runs and replays behind them have them. Not collective, but all ranks' are to be the same."""
        with self._lock:
            self._live()
            try:
                self._numbers(numbers)
            except ArgumentError as e:
                self._located_here(e)
                raise
            status = library().program_scalars_enqueue(self._handle, stream_of(self.comm))
            if status < 0:
                raise self._worded(self._member.error(status))

    def bind(self, *given: Any, **named: Any) -> BoundProgram:
        raise ArgumentError(f"program {self._program.name}: bind: it is bound: allowed is bind() of what compile() made", rank=self.comm.rank)


def _read_by_others(text: str) -> set[str]:
    """The parameters of a scheduled text whose elements the ranks add up in a step that has more than that."""
    fused = {name for names in re.findall(r"^fuse (.*?)(?: as \w+)?$", text, re.M) for name in names.split(", ")}
    return {found for name, expression in re.findall(r"^(\w+) = (.*)$", text, re.M) if name in fused
            for found in re.findall(r"\b(?:all_reduce|reduce_scatter)\((\w+)", expression)}


def _listed(x: Any) -> Any:
    return x if isinstance(x, (list, tuple)) else (x,)


def _copy(to: Any, source: Any) -> None:
    if isinstance(to, (list, tuple)) or isinstance(source, (list, tuple)):
        parts = [x.numel() for x in _listed(to if isinstance(to, (list, tuple)) else source)]
        torch._foreach_copy_(list(_flat(to, parts)), list(_flat(source, parts)))
    else:
        to.view(-1).copy_(source.detach().reshape(-1))


def _flat(x: Any, parts: list[int]) -> Any:
    return [part.detach().reshape(-1) for part in x] if isinstance(x, (list, tuple)) else x.view(-1).split(parts)
