# SPDX-License-Identifier: MIT
"""Programs on a communicator: fcc_program_open(), fcc_program_run()."""
from __future__ import annotations

import ctypes
import enum
import math
import os
import re
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from .. import communicator
from .._connection import Buffer, Member, interruptible
from .._dispatch import is_wrapped
from .._library import RESULT, CTensor, library
from .._place import INT64_MOST, whole
from .._communicator.refusals import TOLD, refuse
from ..communicator import Communicator
from ..errors import ArgumentError, Error, OutOfMemoryError, UnsupportedError
from ..memory import DTYPES, empty, raw_stream_of
from ..prepared import end_between_calls
from .program import Program, sizes_packed
from .turns import capture_check, turns_of

if TYPE_CHECKING:
    from .bound import BoundProgram

_OP = "program_step"
_BOUND = "FCC_BOUND"
FIRST = "Call it once before the capture, on all ranks: there they agree on it"


class Launcher(enum.Enum):
    """Who launches a program's runs."""
    FCCD = "by fccd"
    ANY = "by ranks where they can"
    RANKS = "by ranks"


def _launcher(bound: Any) -> Launcher:
    said = os.environ.get(_BOUND, "0")
    if bound not in (None, True, False) or isinstance(bound, int) and not isinstance(bound, bool):
        raise ArgumentError(f"bound: {bound!r:.40}: allowed are True, False and None")
    if bound is None and said not in ("", "0", "1"):
        raise ArgumentError(f"{_BOUND}: {said!r:.40}: allowed are 0 and 1", remedy=f"Set the environment variable {_BOUND} to one of them, or leave it out.")
    return Launcher.RANKS if bound else Launcher.ANY if bound is None and said == "1" else Launcher.FCCD
_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i32": torch.int32, "i64": torch.int64}


def _shape(program: str, written: str, sliced: str, rank: int, ranks: int) -> tuple[int, ...]:
    """A rank's shape of a parameter that a bound program's text declares as [written] sliced(dimension), or without that."""
    values = {name: int(value) for name, value in re.findall(r"(\w+) = (\d+)", program.partition("\n")[0])} | {"ranks": ranks}

    def size(text: str) -> int:
        product, _, plus = text.partition(" + ")
        value = 1
        for sign, factor in re.findall(r"(^|[*/])(\w+)", product):
            number = values[factor] if factor in values else int(factor)
            value = value // number if sign == "/" else value * number
        return value + int(plus or 0)
    groups = re.search(r"^groups (.*)$", program, re.M)
    values["ranks"] = ranks // (size(groups[1]) if groups else 1)
    whole = [size(text) for text in written.split(", ")] if written else []
    if sliced:
        n, d, own = values["ranks"], int(sliced), rank % values["ranks"]
        whole[d] = whole[d] * (own + 1) // n - whole[d] * own // n
    return tuple(whole)


class Parameter:
    """A tensor of a compiled program, as its scheduled text declares it."""

    def __init__(self, kind: str, name: str, dtype: torch.dtype, shape: tuple[int, ...], shared: bool, scattered: bool) -> None:
        self.kind, self.name, self.dtype, self.shape, self.shared, self.scattered = kind, name, dtype, shape, shared, scattered
        self.elements = math.prod(shape)  # of this rank's part, as the shape is
        self.at: Any = None  # the address that the library was told; of scattered tensors a list of theirs
        self.places: Any = None  # the Connection's, for which that is so: another buffer may lie there later
        self.copy: torch.Tensor | None = None  # in the daemon's memory, where the caller's tensor does not lie right


def _described(x: Any) -> str:
    """An argument that is not allowed, for its error."""
    if isinstance(x, torch.Tensor):
        if x.is_nested or is_wrapped(x) or x.layout != torch.strided:
            return f"{x.dtype}, {'nested' if x.is_nested else 'of torch.vmap or torch.func' if is_wrapped(x) else str(x.layout)}, on {x.device}"
        return f"{x.dtype}, {x.numel()} elements, on {x.device}" + ("" if x.is_contiguous() else f", strides {tuple(x.stride())}")
    try:
        return f"{type(x).__name__} {x!r:.40}"
    except Exception:  # raised by its own method
        return type(x).__name__


def changed_note(tensors: torch.Tensor | Sequence[torch.Tensor]) -> None:
    """Lets autograd know that they have been changed in place, so that it refuses what was saved of them before."""
    for x in (tensors,) if isinstance(tensors, torch.Tensor) else tensors:
        if not x.is_inference():  # such have no versions
            torch.autograd.graph.increment_version(x)


class CompiledProgram:
    """A program on a communicator. A call runs it: all ranks call it, with the same numbers.

        step = sgd.compile(comm, N=1000)
        step(g=gradient, p=parameters, m=momenta, lr=0.1, momentum=0.9)

    Arguments are given by name, or in the order of the program's parameters. Tensors may lie in any memory, have the declared dtype, are contiguous, and have as
    many elements as this rank's part of the declared shape (elements()). What lies elsewhere than empty() makes is copied to the daemon's memory and back in every call. An Out that is not
    given is allocated. A scattered parameter is a list of its tensors, or one tensor that has all of them one behind the other; table() says how long they
    are, if no argument is a list. All ranks give a parameter in the same way. Returns the Outs: None, one tensor, or a tuple.

    Tensors that are stored into lie apart from all others, but for such as are copied, whose results come when all has been read. Programs have no derivatives: outside of
    torch.no_grad() an In that requires a gradient is refused where there are Outs. In torch.compile's functions a call is a cut.

    On a GPU tensors are on the communicator's GPU. A call takes its turn on the current stream: the run sees what was put onto it before, copies among it, and the
    call returns when the run is done; copies back are put onto the stream. So results need no event on the current stream, and none on another one where
    they lie in the daemon's memory. A stream that is being captured into a CUDA graph is refused: bind() makes what is captured.

    Bound. compile(bound=True), or $FCC_BOUND=1, lets the ranks' processes launch the runs, on CUDA GPUs of one node with one rank on each. The ranks agree on that in the first call,
    which waits. Then a call puts a run onto torch's current stream, or, under torch.cuda.graph(), into the graph, and returns at once; whoever uses its results is behind it on a stream.
    - Tensors in the daemon's memory are used where they lie, and are the same ones in all calls; others are copied there and back, as part of each run. Numbers are those of the call, and a
      replay takes those that set(), or a call outside of the capture, has put onto the stream in front of it.
    - All ranks compare what they are about to run, on the GPU, before they run it. Where they differ (the program, its sizes, its numbers, another collective), or a rank's call has raised an
      error, no rank runs it, no tensor changes, and all ranks hear why: with a later call on any stream, Communicator.check() or synchronize(). The communicator goes on.
    - All ranks capture a call, or none does, and all replay it, also after close(). Runs and collectives of a communicator follow each other on streams. A rank that makes no call
      at all, or dies, ends the communicator by the time limit, as everywhere.

    Attributes: text, the scheduled program; comm; parameters and scalars, the names; unbound: why the ranks do not launch it although they were asked to: None: they do, or were not asked.

    Raises, when called: ArgumentError (on all ranks), CaptureError, TimeLimitError, AbortedError, WorkerLostError.
    """

    unbound: str | None = None

    def __init__(self, program: Program, comm: Communicator | None, sizes: dict[str, Any], bound: bool | None = None) -> None:
        if not isinstance(program, Program):
            raise ArgumentError(f"CompiledProgram: program: {type(program).__name__}: allowed is a Program, whose compile() makes one")
        self.comm = communicator.chosen(comm, f"program {program.name}")
        self._program, member, handle = program, self.comm.member, ctypes.c_void_p()
        self._sizes = dict(sizes)
        text = program._whole()
        try:
            packed = sizes_packed(sizes)
            self._launcher = _launcher(bound)
        except ArgumentError as e:
            raise refuse(self.comm, _OP, e, launched=False) from None
        if self._launcher != Launcher.FCCD:  # which the ranks compare, as they do the text
            text += f"\n# launched {self._launcher.value}\n"
        packed_text = text.encode(errors="replace")
        status, said = interruptible(lambda: library().program_open(member.handle, packed_text, len(packed_text), packed, len(sizes), ctypes.byref(handle)),
                                     member.interrupted)
        if status < 0:
            raise program._located(self._launchers_told(self._worded(member.error(status, said)), program._whole()))
        self._step: BoundProgram | None = None  # that all ranks have agreed on
        self._member, self._handle, self._turns = member, handle, turns_of(self.comm, f"program {program.name}")
        self._end = weakref.finalize(self, _program_end, os.getpid(), member, handle)
        self._end.atexit = False
        self.text: str = library().program_text(handle).decode()
        self._lengths: list[int] | None = None  # of the scattered tensors
        self._lock = threading.RLock()  # of a call, and close(): what it has told the library is for its run
        self._told_anew = False  # whether tensors have come to lie elsewhere, and have not been looked at together
        found = re.findall(r"^(in|out|inout|scalar) (\w+)(?:: (\w+)\[(.*)\] (?:local|replicated|sliced\((\d+)\))( scattered\()?)?", self.text, re.M)
        self.scalars = [name for kind, name, *_ in found if kind == "scalar"]
        self._tensors = {name: Parameter(kind, name, _DTYPES[dtype], _shape(self.text, shape, sliced, self.comm.rank, self.comm.size),
                                         library().program_shares(handle, name.encode()) == 1, bool(scattered and not sliced))
                         for kind, name, dtype, shape, sliced, scattered in found if kind != "scalar"}
        self.parameters = [name for _, name, *_ in found]
        self.comm._operators.add(self)  # whose close() frees the handle, in any thread: not before it has been read

    def _worded(self, error: Error) -> Error:
        name = f"program {self._program.name}: "
        reason = re.sub(rf"\bprepare_{_OP}: (?:a program: )?", f"{name}bind: ", error.reason)
        reason = re.sub(rf"\b{_OP}\b", name[:-2], reason)
        if reason.count(name) > 1:  # a refusal, behind the name of the operator whose turn it took; and that operator's line
            reason = re.sub(rf"^(rank \d+: )?{name}(?:rank \d+: )?(?={name})", r"\1", reason)
            reason = re.sub(r" \(line \d+ of program `\w+`\)$", "", reason)
        error.reason = reason
        error.args = (error.reason,)
        return error

    def _launchers_told(self, error: Error, text: str) -> Error:
        """Of ranks that differ in what lies behind the text: who launches the program."""
        error.reason = re.sub(rf"has another text than (rank \d+), from line (?:{text.count(chr(10)) + 1}|{text.count(chr(10)) + 2}) on",
                              rf"is to be launched otherwise than \1's: compile(bound=...) or ${_BOUND}: allowed is the same on all ranks", error.reason)
        error.args = (error.reason,)
        return error

    def _live(self) -> Member:
        if not self._end.alive:
            raise ArgumentError(f"program {self._program.name}: it has been closed", rank=self.comm.rank)
        return self.comm.member

    def __copy__(self) -> CompiledProgram:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledProgram:
        """Returns itself, as a communicator does."""
        return self

    def __reduce__(self) -> Any:
        raise TypeError("a compiled program belongs to its process and cannot be pickled: a Program can, and another process compiles it")

    def __repr__(self) -> str:
        return f"<fcc.CompiledProgram {self._program.name} on {self.comm.name}>"

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of this rank's part of a parameter."""
        return self._tensor(name).shape

    def elements(self, name: str) -> int:
        """The elements of this rank's part of a parameter."""
        return self._tensor(name).elements

    def _tensor(self, name: str) -> Parameter:
        try:
            return self._tensors[name]
        except (KeyError, TypeError):
            raise ArgumentError(f"program {self._program.name}: `{name!s:.40}`: allowed are its tensors, {', '.join(self._tensors)}", rank=self.comm.rank) from None

    def empty(self, name: str) -> torch.Tensor:
        """A tensor of shape() for a parameter, in memory where runs use it without a copy."""
        t = self._tensor(name)
        if not t.shared:
            return empty(t.elements, dtype=t.dtype, comm=self.comm).view(t.shape)
        nbytes = t.elements * t.dtype.itemsize
        return Buffer(self.comm.member, max(1, nbytes), RESULT).view(0, max(1, nbytes))[:nbytes].view(t.dtype).view(t.shape)

    def table(self, elements: Sequence[int]) -> None:
        """Of a program with scattered tensors: how many elements each of these has, the same on all ranks."""
        self._live()
        given = [whole(n, 0, INT64_MOST) for n in elements] if isinstance(elements, (list, tuple)) else [None]
        lengths = [n for n in given if n is not None]
        if len(lengths) < len(given):
            raise ArgumentError(f"program {self._program.name}: table: {elements!r:.60}: allowed is a list of numbers of elements", rank=self.comm.rank)
        if lengths == self._lengths:
            return
        status = library().program_table(self._handle, (ctypes.c_int64 * max(1, len(lengths)))(*lengths), len(lengths))
        if status < 0:
            raise self._member.error(status)
        self._lengths = lengths
        for t in self._tensors.values():
            if isinstance(t.at, list):
                t.at = t.copy = None

    def _arguments(self, given: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        if len(given) > len(self.parameters):
            raise ArgumentError(f"{len(given)} arguments: allowed are {len(self.parameters)}: {', '.join(self.parameters)}")
        found = dict(zip(self.parameters, given))
        for name, value in named.items():
            if name in found or name not in self.parameters:
                raise ArgumentError(f"`{name}`: {'given twice' if name in found else 'not a parameter'}: allowed are {', '.join(self.parameters)}, each once")
            found[name] = value
        for name in self.parameters:
            if name not in found and (name in self.scalars or self._tensors[name].kind != "out"):
                raise ArgumentError(f"`{name}`: not given")
        return found

    def _checked(self, t: Parameter, given: Any) -> None:
        if isinstance(given, (list, tuple)):
            if not t.scattered:
                raise ArgumentError(f"`{t.name}`: a list of tensors: allowed is a torch.Tensor; lists are for scattered ones that are not sliced")
            for x in given:
                if not self._fits(t, x) or not x.is_contiguous():
                    raise ArgumentError(f"`{t.name}`: {_described(x)}: allowed are contiguous tensors of {t.dtype} on {self.comm.device}")
            if sum(x.numel() for x in given) != t.elements:
                raise ArgumentError(f"`{t.name}`: {sum(x.numel() for x in given)} elements: allowed are tensors of {t.elements} elements together")
        elif not isinstance(given, torch.Tensor):
            raise ArgumentError(f"`{t.name}`: {_described(given)}: allowed is a torch.Tensor")
        elif not self._fits(t, given) or given.numel() != t.elements:
            raise ArgumentError(f"`{t.name}`: {_described(given)}: allowed are {t.dtype}, {t.elements} elements, on {self.comm.device}")
        elif not given.is_contiguous() and t.kind != "in":
            raise ArgumentError(f"`{t.name}`: strides {tuple(given.stride())}: allowed is a contiguous tensor, where results are stored")
        for x in given if isinstance(given, (list, tuple)) else (given,):
            if t.kind != "in" and x.is_inference() and not torch.is_inference_mode_enabled():
                raise ArgumentError(f"`{t.name}`: a tensor of torch.inference_mode() outside of that: allowed are others, where results are stored")

    def _fits(self, t: Parameter, x: Any) -> bool:
        """A dense tensor of the right dtype, where the communicator is."""
        return (isinstance(x, torch.Tensor) and x.layout == torch.strided and not x.is_nested and not is_wrapped(x) and x.dtype == t.dtype
                and x.device == self.comm.device)

    def _derivatives_check(self, tensors: dict[str, Any], graded: bool) -> None:
        """Results would silently have no gradients. (What is updated in place has none to lose: an optimizer's parameters.)"""
        if not graded or all(t.kind != "out" for t in self._tensors.values()):
            return
        for t in self._tensors.values():
            given = tensors[t.name]
            if t.kind == "in" and any(x.requires_grad for x in (given if isinstance(given, (list, tuple)) else (given,))):
                raise ArgumentError(f"`{t.name}`: it requires a gradient, and programs have none: allowed is {t.name}.detach(), or the call in torch.no_grad()")

    def _apart(self, tensors: dict[str, Any], what: str) -> None:
        """No tensor that is stored into shares memory with another one."""
        spans = sorted((x.data_ptr(), x.data_ptr() + x.numel() * x.element_size(), t.kind != "in", t.name) for t in self._tensors.values() if t.name in tensors
                       for x in (tensors[t.name] if isinstance(tensors[t.name], (list, tuple)) else (tensors[t.name],)) if x.numel())
        ends: list[tuple[int, str]] = [(0, ""), (0, "")]  # the farthest so far of those that are read, and of those that are stored into
        for begin, end, stored, name in spans:
            for of in (0, 1) if stored else (1,):
                if begin < ends[of][0]:
                    raise ArgumentError(f"`{name}` and `{ends[of][1]}`{what}: they share memory: allowed are tensors that lie apart, where results are stored")
            ends[stored] = max(ends[stored], (end, name))

    def _place(self, t: Parameter, tensor: torch.Tensor) -> tuple[int, int] | None:
        """(fcc_buffer *, offset), if runs can use the tensor where it lies."""
        if not tensor.numel() or not tensor.is_contiguous() or tensor.is_neg():
            return None
        found = self._member.connection.find(tensor.data_ptr())
        owner = self._member.connection.owner(found[0]) if found else None
        return None if found is None or t.shared and (owner is None or owner.kind != RESULT) else found

    def _told(self, t: Parameter, at: Any) -> bool:
        """The library knows that the caller's tensors lie there."""
        return t.copy is None and t.at == at and t.places is self._member.connection.current()

    def _tell(self, t: Parameter, at: Any, places: Sequence[tuple[int, int]], elements: Sequence[int]) -> None:
        """Tells the library where the parameter lies: one tensor, or (at: a list) those that are scattered."""
        packed = (CTensor * max(1, len(places)))(*(CTensor(*place, DTYPES[t.dtype], 1, (n,)) for place, n in zip(places, elements)))
        status = (library().program_tensors(self._handle, t.name.encode(), packed, len(places)) if isinstance(at, list) else
                  library().program_tensor(self._handle, t.name.encode(), packed))
        if status < 0:
            raise self._member.error(status)
        t.at, t.places, self._told_anew = at, self._member.connection.current(), True

    def _copy(self, t: Parameter, example: torch.Tensor) -> torch.Tensor:
        """The parameter's memory for callers' tensors that do not lie right. It stays for the calls that follow."""
        if t.copy is None:
            with torch.inference_mode(False):  # for calls outside of that mode, too
                t.copy, t.at = self.empty(t.name).view(-1), None
            if t.elements:
                self.comm._copies.warn(self.comm, f"program {self._program.name}", t.name, example, False)
        return t.copy

    def _put_list(self, t: Parameter, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """_put() of scattered tensors. If they do not lie in one buffer of the right kind, all are copied to one."""
        at, some = [x.data_ptr() for x in tensors], [x for x in tensors if x.numel()]
        if self._told(t, at) and not any(x.is_neg() for x in some):
            return tensors
        found = [self._place(t, x) for x in some]
        if None in found or len({place[0] for place in found if place}) > 1:
            own = [part.view(x.shape) for part, x in zip(self._copy(t, some[0]).split([x.numel() for x in tensors]), tensors)]
            if t.kind != "out":
                torch._foreach_copy_(own, [x.detach() for x in tensors])
            if isinstance(t.at, list):
                return own
            tensors, at, some = own, [0], [x for x in own if x.numel()]
            found = [self._member.connection.find(x.data_ptr()) for x in some]
        else:
            t.copy = None
        places = iter(place for place in found if place)
        self._tell(t, at, [next(places) if x.numel() else (0, 0) for x in tensors], [x.numel() for x in tensors])
        return tensors

    def _put(self, t: Parameter, tensor: torch.Tensor) -> torch.Tensor:
        """Lets the run find the parameter. Returns the tensor that it uses."""
        if self._told(t, tensor.data_ptr()) and tensor.is_contiguous() and tensor.numel() and not tensor.is_neg():
            return tensor
        place = self._place(t, tensor)
        if place is None:
            own = self._copy(t, tensor)
            if t.kind != "out" and t.elements:
                own.copy_(tensor.detach().reshape(-1))
            if isinstance(t.at, int):
                return own
            tensor = own
            place = self._member.connection.find(tensor.data_ptr()) if tensor.numel() else None
            if place is None:  # an empty tensor has no address: any will do
                place = (self.comm._heap if t.shared else self.comm._local).take((1,), t.dtype, 0)[1:]
        else:
            t.copy = None
        self._tell(t, tensor.data_ptr(), [place], [t.elements])
        return tensor

    def _scalars_set(self, arguments: dict[str, Any]) -> None:
        values = {}
        for name in [name for name in self.scalars if name in arguments]:
            try:
                if isinstance(arguments[name], complex) or not hasattr(arguments[name], "__float__"):
                    raise TypeError
                values[name] = float(arguments[name])
            except Exception:  # of a string, an array, a tensor of several elements, what an object's own method raises
                raise ArgumentError(f"`{name}`: {_described(arguments[name])}: allowed is a number") from None
        for name, value in values.items():  # all, or none
            library().program_scalar(self._handle, name.encode(), value)

    def _prepare(self, given: tuple[Any, ...], named: dict[str, Any], graded: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        """Checks the arguments, and tells the library of them. Returns by parameter the caller's tensors, and those that the run uses."""
        arguments = self._arguments(given, named)
        self._turns.begin()
        try:
            return self._taken(arguments, graded)
        except BaseException:
            self._turns.end()  # copies may be under way
            raise

    def _taken(self, arguments: dict[str, Any], graded: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        self._scalars_set(arguments)
        tensors: dict[str, Any] = {}
        for t in self._tensors.values():
            tensors[t.name] = arguments.get(t.name)
            if tensors[t.name] is None and t.kind == "out":
                tensors[t.name] = self.comm._heap.take(t.shape, t.dtype, raw_stream_of(self.comm))[0]  # as results of operators
            self._checked(t, tensors[t.name])
        self._derivatives_check(tensors, graded)
        lists = {name: [x.numel() for x in value] for name, value in tensors.items() if isinstance(value, (list, tuple))}
        for name, lengths in lists.items():
            first = next(iter(lists))
            if lengths != lists[first]:
                raise ArgumentError(f"`{name}`: tensors of {lengths[:8]} elements, `{first}`'s have {lists[first][:8]}: allowed are tensors of equal lengths")
        if lists:
            self.table(next(iter(lists.values())))
        used = {t.name: (self._put_list if isinstance(tensors[t.name], (list, tuple)) and t.elements else self._put)(t, tensors[t.name])
                for t in self._tensors.values()}
        copied = {name: tensors[name] for name in tensors if used[name] is not tensors[name]}
        if len(copied) < len(tensors) and self._told_anew:
            self._apart(used, "")
        self._told_anew = False
        self._apart({t.name: copied[t.name] for t in self._tensors.values() if t.name in copied and t.kind != "in"}, ", which are copied,")
        self._turns.ready()
        return tensors, used

    @torch.compiler.disable  # a compiled function is cut here
    def __call__(self, *given: Any, **named: Any) -> Any:
        graded = torch.is_grad_enabled()
        with self._lock, torch.no_grad():
            step = self._agreed(given, named, graded)
            return self._run(given, named, graded) if step is None else step.again(given, named, graded)

    def _agreed(self, given: tuple[Any, ...], named: dict[str, Any], graded: bool) -> BoundProgram | None:
        """The program as the ranks launch it; None: fccd does. The first call decides that, the same on all ranks."""
        if self._step is not None or self._launcher == Launcher.FCCD or self.unbound is not None:
            return self._step
        from .bound import BoundProgram
        self._live()
        capture_check(self.comm, f"program {self._program.name}: its first call", FIRST)
        try:
            self._step = BoundProgram(self, given, named, graded)
        except (UnsupportedError, OutOfMemoryError) as e:  # all ranks have the same
            if self._launcher == Launcher.RANKS:
                raise
            self.unbound = self._turns.unbound = e.reason
        return self._step

    def set(self, **numbers: Any) -> None:
        """Of a bound program that has been called: puts numbers onto the current stream, as BoundProgram.set() does."""
        if self._step is None:
            why = f"it is not bound: {self.unbound}" if self.unbound else "fccd launches it" if self._launcher == Launcher.FCCD else "it has not been called yet"
            raise ArgumentError(f"program {self._program.name}: set: {why}: allowed behind the first call of what compile(bound=True) has made", rank=self.comm.rank)
        self._step.set(**numbers)

    def _run(self, given: tuple[Any, ...], named: dict[str, Any], graded: bool) -> Any:
        member = self._live()
        try:
            tensors, used = self._prepare(given, named, graded)
        except Exception as e:
            if isinstance(e, Error):
                reason = re.sub(r"^rank \d+: (?:program(?: `?\w+`?)?: )?", "", e.reason)
                e.reason = f"rank {self.comm.rank}: program {self._program.name}: {reason}"
                e.rank, e.args = self.comm.rank, (e.reason,)
            raise e if getattr(e, TOLD, False) else refuse(self.comm, _OP, e, launched=False) from None
        status, said = interruptible(lambda: library().program_run(self._handle), member.interrupted)
        if status < 0:
            raise self._program._located(self._worded(member.error(status, said)))
        for t in self._tensors.values():
            if t.kind == "in" or not t.elements:
                continue
            if used[t.name] is tensors[t.name]:
                changed_note(used[t.name])
            elif isinstance(used[t.name], list):
                torch._foreach_copy_(list(tensors[t.name]), used[t.name])
            else:
                tensors[t.name].view(-1).copy_(used[t.name])
        self._turns.end()
        outs = [tensors[t.name] for t in self._tensors.values() if t.kind == "out"]
        return None if not outs else outs[0] if len(outs) == 1 else tuple(outs)

    def bind(self, *given: Any, **named: Any) -> BoundProgram:
        """The same program with these arguments, which a call takes as well, for runs that this process launches itself: on torch's current stream, without waiting, and in
        CUDA graphs (BoundProgram). On CUDA GPUs of one node with one rank on each. Collective.

        Raises: UnsupportedError, on all ranks: it cannot be bound, and why; calls of this object run as before. ArgumentError."""
        from .bound import BoundProgram
        try:
            return BoundProgram(self, given, named)
        except UnsupportedError as e:
            self._turns.unbound = e.reason
            raise

    def close(self) -> None:
        """Gives the program's memory back. Not collective. The communicator's close() and the end of the last reference do the same."""
        end_between_calls(self.comm, self._lock, *([self._step.close] if self._step else []), self._end)


def _program_end(pid: int, member: Member, handle: ctypes.c_void_p) -> None:
    if os.getpid() == pid:
        library().program_close(handle)
