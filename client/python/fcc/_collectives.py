# SPDX-License-Identifier: MIT
"""Plain collectives as torch.ops.fcc.*: operators that compute nothing, on the C library's operators of the same names.

To the C library all tensors are vectors. Here they have shapes, and counts are in rows of the first dimension. ROWS has one row for each
collective: what its arguments are, and, by a pure function of shapes, what one rank sends and receives (Way). All else is common: checks,
places, the call, and the errors, which are in rows again.
"""
from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _packets
from ._calls import WRONG_KIND, check_counts, choice, in_words, numbers, run, run_many
from ._library import ADDRESS, REDUCTIONS, library
from ._names import Called, Rule, argument, results_of
from ._staging import NO_ADDRESS
from ._communicator.refusals import refuse
from .communicator import Communicator, find
from .errors import ArgumentError, CaptureError
from .memory import raw_stream_of, stream_of

NUMBERS = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 3, torch.int32: 4, torch.int64: 5, torch.uint8: 6, torch.bool: 6, torch.int8: 7,
           torch.float64: 8, torch.float8_e4m3fn: 9, torch.float8_e5m2: 10}  # enum fcc_dtype; a bool is a byte
ADDED_BOOLS = ("sum", "average")  # what makes numbers of bools that are none


class Way(NamedTuple):
    """What one rank does in a call."""

    shape: tuple[int, ...]  # the result's
    sends: bool = True  # whether the C library gets x; otherwise x is only like what the others have
    receives: bool = True  # whether this rank has a result; otherwise an empty tensor stands for it
    send: Sequence[int] | None = None  # how many rows go to each rank
    expected: Sequence[int] | None = None  # how many rows must come from each rank; of send_receive elements


class Collective(NamedTuple):
    """A row of the table.

    way(c, x, **arguments) gives the Way. It checks nothing, and works with sizes that are symbols.
    divides: the argument that says how x is divided among the ranks: how many rows each one gets
    joins: the argument that says of how many rows of each rank the result is made
    words: how the C library's errors are told in terms of the function's arguments
    """

    way: Callable[..., Way]
    signature: str
    divides: str = ""
    joins: str = ""
    words: tuple[Rule, ...] = ()


def shares(c: Communicator, rows: int, counts: Sequence[int] | None) -> list[int]:
    """Each rank's rows of so many; without counts they are equal."""
    return [rows // c.size] * c.size if counts is None else list(counts)


def joined(c: Communicator, x: Tensor, counts: Sequence[int] | None) -> tuple[int, ...]:
    """The shape of all ranks' rows together; without counts all ranks have as many."""
    return (x.shape[0] * c.size if counts is None else sum(counts), *x.shape[1:])


def nothing(x: Tensor) -> tuple[int, ...]:
    """The shape of the empty tensor that a rank without a result returns."""
    return (0, *x.shape[1:])


# ---- what a rank does ----

def all_reduce(c: Communicator, x: Tensor, *, reduction: str = "sum", replicated: bool = False) -> Way:
    return Way(tuple(x.shape))


def reduce_scatter(c: Communicator, x: Tensor, *, counts: Sequence[int] | None = None, reduction: str = "sum") -> Way:
    return Way((shares(c, x.shape[0], counts)[c.rank], *x.shape[1:]))


def all_gather(c: Communicator, x: Tensor, *, counts: Sequence[int] | None = None) -> Way:
    return Way(joined(c, x, counts))


def all_to_all(c: Communicator, x: Tensor, *, send_counts: Sequence[int] | None = None,
               receive_counts: Sequence[int] | None = None) -> Way:
    expected = shares(c, x.shape[0], receive_counts)
    return Way((sum(expected), *x.shape[1:]), send=shares(c, x.shape[0], send_counts), expected=expected)


def broadcast(c: Communicator, x: Tensor, *, root: int = 0) -> Way:
    return Way(tuple(x.shape), sends=c.rank == root)


def reduce(c: Communicator, x: Tensor, *, root: int = 0, reduction: str = "sum") -> Way:
    return Way(tuple(x.shape) if c.rank == root else nothing(x), receives=c.rank == root)


def gather(c: Communicator, x: Tensor, *, root: int = 0, counts: Sequence[int] | None = None) -> Way:
    return Way(joined(c, x, counts) if c.rank == root else nothing(x), receives=c.rank == root)


def scatter(c: Communicator, x: Tensor, *, root: int = 0, counts: Sequence[int] | None = None) -> Way:
    return Way((shares(c, x.shape[0], counts)[c.rank], *x.shape[1:]), sends=c.rank == root)


def send_receive(c: Communicator, x: Tensor, *, destination: int | None = None, source: int | None = None,
                 shape: Sequence[int] | None = None) -> Way:
    wanted = tuple(x.shape if shape is None else shape)
    return Way(nothing(x) if source is None else wanted, sends=destination is not None, receives=source is not None,
               expected=None if source is None else [math.prod(wanted) if rank == source else 0 for rank in range(c.size)])


_OWN, _SAME = r"(rank \d+) has (\d+) elements", r"(rank \d+)'s (?:in|out) has (\d+)"
_TOGETHER = r": the ranks' have (\d+) elements together, "
_COUNTS = "SymInt[]? counts=None"
_INPUTS = (rf"\bin: {_OWN}, {_SAME}", r"x: elements: \1 has \2, \3 has \4")  # all ranks' x have one size
_JOINED = (rf"\bin{_TOGETHER}out has (\d+)", r"x: the ranks' have \1 elements together, expected are \2")
_DIVIDED = (rf"\bout{_TOGETHER}in has (\d+)", r"counts: they are \1 elements together, x has \2")
ROWS = {
    "all_reduce": Collective(all_reduce, "str reduction='sum', bool replicated=False", words=(_INPUTS,)),
    "reduce_scatter": Collective(reduce_scatter, f"{_COUNTS}, str reduction='sum'", divides="counts", words=(_INPUTS, _DIVIDED)),
    "all_gather": Collective(all_gather, _COUNTS, joins="counts", words=(
        _JOINED, (rf"\bout: {_OWN}, {_SAME}", r"x: elements that are expected of all ranks: \1 expects \2, \3 expects \4"))),
    "all_to_all": Collective(all_to_all, "SymInt[]? send_counts=None, SymInt[]? receive_counts=None", divides="send_counts",
                             joins="receive_counts", words=(
                                 (r"\bexpected_counts: (rank \d+) sends (\d+) elements to (rank \d+), which expects (\d+)",
                                  r"receive_counts: \3 expects \4 elements of \1, which sends \2"),
                                 (r"\bdevice_send_counts: (.*) rows of in\b", r"send_counts: \1 rows of x"),
                                 (r"\brow_elements: ", "x: elements of a row: "),
                                 (r"\bout: (rank \d+ receives \d+ elements), its out has (\d+)", r"capacity: \1, its result has \2"))),
    "broadcast": Collective(broadcast, "int root=0", words=((rf"\bout: {_OWN}, {_SAME}", r"x: elements: \1 has \2, \3 has \4"),)),
    "reduce": Collective(reduce, "int root=0, str reduction='sum'", words=(_INPUTS,)),
    "gather": Collective(gather, f"int root=0, {_COUNTS}", joins="counts", words=(_JOINED,)),
    "scatter": Collective(scatter, f"int root=0, {_COUNTS}", divides="counts", words=(_DIVIDED,)),
    "send_receive": Collective(send_receive, "int? destination=None, int? source=None, SymInt[]? shape=None", words=(
        (r"\bexpected_counts: (rank \d+) sends (\d+) elements to (rank \d+), which expects (\d+)",
         r"shape: \3 expects \4 elements of \1, which sends \2"),
        (r"'s (source|destination) is -1\b", r"'s \1 is None"))),
}


# ---- the common part: checks, places, the call ----

def check_tensor(c: Communicator, name: str, x: Tensor) -> None:
    said = f"rank {c.rank}: {name}: "
    if x.dtype not in NUMBERS or x.layout != torch.strided or x.device != c.device:
        allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in NUMBERS)
        raise ArgumentError(f"{said}x: {x.dtype}, {x.layout} on {x.device}: allowed are dense tensors on {c.device} of {allowed}")


def check(c: Communicator, name: str, x: Tensor, given: dict[str, Any]) -> None:
    """Checks what the C library cannot, or only with words that do not fit Python."""
    said = f"rank {c.rank}: {name}: "
    check_tensor(c, name, x)
    if "reduction" in given:
        choice(c, name, "reduction", given["reduction"], REDUCTIONS)
        if x.dtype == torch.bool and given["reduction"] in ADDED_BOOLS:
            raise ArgumentError(f"{said}reduction: {given['reduction']}: not allowed of bool")
    for argument in ("root", "destination", "source"):
        rank = given.get(argument)
        if rank is not None and not 0 <= rank < c.size:
            raise ArgumentError(f"{said}{argument}: {rank}: allowed are 0 to {c.size - 1}{'' if argument == 'root' else ', and None'}")
    if any(n < 0 for n in given.get("shape") or ()):
        raise ArgumentError(f"{said}shape: {list(given['shape'])}: allowed are numbers, 0 and more")
    row = ROWS[name]
    if row.divides or row.joins:
        check_rows(c, name, row, x, given)


def check_rows(c: Communicator, name: str, row: Collective, x: Tensor, given: dict[str, Any]) -> None:
    said = f"rank {c.rank}: {name}: "
    if x.ndim == 0:
        raise ArgumentError(f"{said}x: 0 dimensions: allowed are 1 and more")
    divides = row.divides and given.get("root", c.rank) == c.rank
    counts = {argument: given[argument] for argument in (row.divides, row.joins) if argument}
    if len({given is None for given in counts.values()}) > 1:
        raise ArgumentError(f"{said}{', '.join(counts)}: allowed are both, or none (then all ranks have as many rows, and each rank gets the "
                            "same share)")
    for argument, values in counts.items():
        if values is not None:
            check_counts(c, name, argument, values, x.shape[0] if argument == row.divides and divides else None)
    own = counts.get(row.joins)
    if not row.divides and own is not None and own[c.rank] != x.shape[0]:
        raise ArgumentError(f"{said}{row.joins}: {list(own)}: this rank has {x.shape[0]} rows")
    if divides and counts[row.divides] is None and x.shape[0] % c.size:
        raise ArgumentError(f"{said}x: {x.shape[0]} rows: allowed without {row.divides} are multiples of {c.size}")


def vector(handle: int, offset: int, tensor: Tensor) -> tuple[int, ...]:
    """The fields of struct fcc_tensor for all elements of a dense tensor at that place."""
    return handle, offset, NUMBERS[tensor.dtype], 1, tensor.numel(), *(0,) * 7


def vector_at(tensor: Tensor) -> tuple[int, ...]:
    """The same for a dense tensor anywhere on the GPU, where this process launches collectives (Member.launches())."""
    return vector(ADDRESS, tensor.data_ptr() or NO_ADDRESS, tensor)


def place(c: Communicator, name: str, x: Tensor, stream: int) -> tuple[tuple[int, ...], Tensor]:
    """(the fields of struct fcc_tensor for x's elements, the tensor that has them there). Copies x if it is not dense, or does not lie where
    the operator can read it. The caller holds the tensor until the operator is finished, or enqueued if it is of torch's memory, whose
    allocator gives memory to what follows on the stream."""
    if c._member.launches():
        held = x.detach().contiguous()
        return vector_at(held), held
    if x.numel() == 0:  # an empty tensor has no address; any address will do
        held, handle, offset = c._local.take((0,), x.dtype, stream)
        return vector(handle, offset, held), held
    found = c._member.connection.find(x.data_ptr()) if x.is_contiguous() else None
    if found:
        return vector(*found, x), x
    if c._member.on_gpu and torch.cuda.is_current_stream_capturing():  # otherwise each replay of the graph would copy
        raise CaptureError(f"rank {c.rank}: {name}: x: the stream is being captured into a graph: not allowed")
    held, handle, offset = c._local.take(tuple(x.shape), x.dtype, stream)
    held.copy_(x.detach())
    return vector(handle, offset, held), held


def result_place(c: Communicator, shape: tuple[int, ...], dtype: torch.dtype, stream: int) -> tuple[tuple[int, ...], Tensor]:
    """(the fields of struct fcc_tensor, a new tensor for the result)."""
    if c._member.launches():
        result = torch.empty(shape, dtype=dtype, device=c.device)
        return vector_at(result), result
    result, handle, offset = c._heap.take(shape, dtype, stream)
    return vector(handle, offset, result), result


class Packed(NamedTuple):
    """A call's arguments for the C library, its result, what must live until the operator is enqueued, and the elements of a row, which
    the C library does not know."""

    arguments: bytes
    result: Tensor
    held: list[Any]
    width: int


def pack(c: Communicator, name: str, x: Tensor, given: dict[str, Any], stream: int) -> Packed:
    """Checks a call's arguments, and finds or makes places for its tensors."""
    operator, packed = library().operators[name], {}
    check(c, name, x, given)
    way = ROWS[name].way(c, x, **given)
    held: list[Any] = []
    if way.sends:
        packed["in_"], source = place(c, name, x, stream)
        held.append(source)
    if way.receives:
        packed["out"], result = result_place(c, way.shape, x.dtype, stream)
    else:
        result = x.new_empty(way.shape)
    width = math.prod(x.shape[1:]) if name == "all_to_all" else 1
    values: dict[str, Any] = {"root": given.get("root"), "reduction": REDUCTIONS.get(given.get("reduction", ""))}
    values |= {peer: -1 if given.get(peer) is None else given[peer] for peer in ("destination", "source")}
    for key, counts in (("send_counts", way.send), ("expected_counts", way.expected)):
        if counts is not None:
            array, values[key] = numbers([n * width for n in counts])
            held.append(array)
    packed |= {key: value for key, value in values.items() if key in operator.offsets}
    return Packed(operator.pack(**packed), result, held, width)


def call_many(c: Communicator, name: str, tensors: Sequence[Tensor], given: dict[str, Any]) -> list[Tensor]:
    """Runs collectives that follow each other on this rank, each with the same arguments. All of them take their places, also behind one with
    an error; the first error is raised then."""
    stream, first = raw_stream_of(c), None
    packed: list[Packed] = []
    results: list[Tensor] = []

    def note(error: Exception) -> None:
        nonlocal first
        first = first or error

    def enqueue() -> None:
        try:
            run_many(c, name, [one.arguments for one in packed], stream)
        except ArgumentError as e:
            note(e)
        packed.clear()
    launches = c._member.launches()
    if launches:
        stream_of(c)  # elsewhere each call refuses by itself
    for x in tensors:
        try:
            if launches:
                packed.append(pack(c, name, x, given, stream))
                results.append(packed[-1].result)
                continue
        except Exception as e:
            enqueue()  # in their order
            error = refuse(c, name, e)
            if not isinstance(error, ArgumentError):
                raise error from None
            note(error)
            continue
        try:
            results.append(call(c, name, x, given))
        except ArgumentError as e:  # the other ranks have it, too
            note(e)
    enqueue()
    if first is not None:
        raise first
    return results


def call(c: Communicator, name: str, x: Tensor, given: dict[str, Any], called: Called | None = None) -> Tensor:
    """Runs a collective on this rank. `given` has all its arguments. called: the function that was called, if it is not the collective."""
    c._member.launches()  # all ranks ask first, also those that refuse their arguments
    try:
        stream = stream_of(c)
        arguments, result, held, width = pack(c, name, x, given, stream)
    except WRONG_KIND:
        raise
    except Exception as e:
        raise refuse(c, name, e) from None
    try:
        run(c, name, arguments, stream, called=called, launched=c._member.launches())
        del held
    except ArgumentError as e:  # on GPUs of an earlier call, whose rows are not known any more
        raise (in_rows(c, e, width) if name == "all_to_all" and not c._member.on_gpu else e) from None
    return result


def in_rows(c: Communicator, error: ArgumentError, width: int) -> ArgumentError:
    """The error of an all_to_all in which other rows come than a rank expects, which all ranks have, in rows. The C library knows elements
    only, so the ranks tell each other how many elements their rows have."""
    found = re.search(r"(receive_counts: rank \d+ expects) (\d+) elements (of rank \d+, which sends) (\d+)", error.reason)
    if not found:
        return error
    widths = call(c, "all_gather", torch.tensor([width], device=c.device), {"counts": None}).tolist()
    for rank, other in enumerate(widths):
        if other != widths[0]:
            return ArgumentError(f"all_to_all: x: elements of a row: rank {rank} has {other}, rank 0 has {widths[0]}")
    return ArgumentError(f"{error.reason[:found.start()]}{found[1]} {int(found[2]) // width} rows {found[3]} {int(found[4]) // width}")


# ---- registration ----

def complete(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """All arguments besides x, also those that torch leaves out because they have their default values."""
    return {**(getattr(ROWS[name].way, "__kwdefaults__") or {}), **given}


def kernel_of(name: str) -> Callable[..., Tensor]:
    def kernel(x: Tensor, comm: str, **given: Any) -> Tensor:
        c, given = find(comm), complete(name, given)
        return call(c, name, x, given)
    return kernel


def fake_of(name: str) -> Callable[..., Tensor]:
    def fake(x: Tensor, comm: str, **given: Any) -> Tensor:
        return x.new_empty(ROWS[name].way(find(comm), x, **complete(name, given)).shape)
    return fake


_ROWS = Called("rows_all_to_all", {"all_to_all": (
    (r"\bx: elements of a row", "rows: shape[1]"), argument("x", "rows"), (r"\bsend_counts\b", "send_rows"),
    (r"\breceive_counts\b", "recv_rows"))})
_packets.made_of["rows_all_to_all"] = "all_to_all"


@in_words(_ROWS)
def rows_all_to_all(rows: Tensor, send_rows: Sequence[int], recv_rows: Sequence[int], comm: str) -> Tensor:
    """all_to_all of a matrix, by other names."""
    c = find(comm)
    if rows.ndim != 2:
        raise refuse(c, "all_to_all", ArgumentError(
            f"rank {c.rank}: rows_all_to_all: rows: {rows.ndim} dimensions, {list(rows.shape)}: allowed are 2"))
    return call(c, "all_to_all", rows, {"send_counts": send_rows, "receive_counts": recv_rows}, _ROWS)


def rows_all_to_all_fake(rows: Tensor, send_rows: Sequence[int], recv_rows: Sequence[int], comm: str) -> Tensor:
    return rows.new_empty((sum(recv_rows), rows.shape[1]))


KERNELS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], str]] = {
    "rows_all_to_all": (rows_all_to_all, rows_all_to_all_fake, "(Tensor rows, SymInt[] send_rows, SymInt[] recv_rows, str comm) -> Tensor"),
}
for _name, _row in ROWS.items():
    _kernel, _fake = kernel_of(_name), fake_of(_name)
    for _made in (_kernel, _fake):  # what errors say of arguments of a wrong kind
        _made.__name__ = _made.__qualname__ = _name
        _made.__annotations__ = _row.way.__annotations__
    KERNELS[_name] = _kernel, _fake, f"(Tensor x, str comm, *, {_row.signature}) -> Tensor"
    results_of(_name, *_row.words, (rf"\b{_name}: dtype: ", f"{_name}: x: dtype: "), argument("in", "x"))
