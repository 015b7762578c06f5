# SPDX-License-Identifier: MIT
"""Tensors as the vectors that collectives move and combine, and their way into the daemon's memory and out of it.

A collective's tensors may lie anywhere, be of any size and have any strides. They pass through the daemon's memory in pieces of at most
PIECE_BYTES, so that a call needs no more of it, however large its tensors are.
"""
from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from .. import _collectives as collectives
from .._connection import Buffer
from .._library import REDUCTIONS, RESULT
from ..communicator import Communicator
from ..errors import ArgumentError

PIECE_BYTES = 64 << 20
_LEAST_BYTES = 64 << 10  # of a communicator's memory for pieces
ALIGNMENT = 64  # bytes

NO_ADDRESS = collectives.NO_ADDRESS
# enum fcc_dtype of what travels as it is
NUMBERS = {dtype: number for dtype, number in collectives.NUMBERS.items() if dtype is not torch.bool}
# enum fcc_reduction of torch's ReduceOp
_REDUCTIONS = {name: REDUCTIONS[ours] for name, ours in {
    "SUM": "sum", "PRODUCT": "product", "MIN": "min", "MAX": "max", "AVG": "average", "BAND": "and", "BOR": "or", "BXOR": "xor",
    "PREMUL_SUM": "sum"}.items()}
_BITS = frozenset(("BAND", "BOR", "BXOR"))
_INTEGERS = frozenset((torch.uint8, torch.int8, torch.int32, torch.int64, torch.bool))
_FLOATS = frozenset((torch.float32, torch.float16, torch.bfloat16, torch.float64))

Place = tuple[int, ...]  # the fields of struct fcc_tensor


class Vector:
    """Dense tensors of one dtype, one after the other, as a single vector.

    Attributes:
        tensors: as given; put() writes to them
        dtype: the dtype that the C library gets: bool travels as uint8, and what the library has no number for as bytes
        count: elements of that dtype
    """

    def __init__(self, op: str, tensors: Sequence[torch.Tensor]) -> None:
        self.tensors = tensors
        first = tensors[0].dtype
        for tensor in tensors:
            if not isinstance(tensor, torch.Tensor):
                raise ArgumentError(f"{op}: {type(tensor).__name__}: allowed are tensors")
            if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
                raise ArgumentError(f"{op}: {tensor.dtype}, {tensor.layout}: allowed are dense tensors that are not quantized")
            if tensor.dtype != first or tensor.device != tensors[0].device:
                raise ArgumentError(f"{op}: {first} on {tensors[0].device} and {tensor.dtype} on {tensor.device}: allowed are tensors of "
                                    "one dtype on one device")
        self.dtype = first if first in NUMBERS else torch.uint8
        self._flat = [self._bytes(tensor if tensor.is_contiguous() else tensor.contiguous()) for tensor in tensors]
        self._copied = [(tensor, flat) for tensor, flat in zip(tensors, self._flat)
                        if flat.numel() and flat.data_ptr() != tensor.data_ptr()]
        self.count = sum(flat.numel() for flat in self._flat)

    def _bytes(self, tensor: torch.Tensor) -> torch.Tensor:
        flat = tensor.detach().view(-1)
        if flat.is_conj() or flat.is_neg():
            flat = flat.resolve_conj().resolve_neg()
        if flat.numel() == 1:  # a single element is contiguous whatever its stride, and only with stride 1 has it a view as bytes
            flat = flat.as_strided((1,), (1,))
        return flat if flat.dtype == self.dtype else flat.view(self.dtype)

    def parts(self, begin: int, count: int) -> list[torch.Tensor]:
        """The elements from `begin` on, as views of the tensors that have them."""
        found, at = [], 0
        for flat in self._flat:
            n = flat.numel()
            low, high = max(begin - at, 0), min(begin + count - at, n)
            if low < high:
                found.append(flat if high - low == n else flat[low:high])
            at += n
        return found

    def take(self, begin: int, count: int, to: torch.Tensor) -> None:
        """Copies elements to a vector."""
        at = 0
        for part in self.parts(begin, count):
            to[at:at + part.numel()].copy_(part)
            at += part.numel()

    def put(self, begin: int, count: int, source: torch.Tensor) -> None:
        """Copies elements from a vector."""
        at = 0
        for part in self.parts(begin, count):
            part.copy_(source[at:at + part.numel()])
            at += part.numel()

    def done(self) -> None:
        """Writes to the tensors that are not contiguous what has come for them."""
        for tensor, flat in self._copied:
            tensor.detach().copy_(flat.view(tensor.dtype).view(tensor.shape))


    def alike(self) -> Vector:
        """A copy, in memory of its own."""
        return Vector("", [tensor.clone(memory_format=torch.contiguous_format) for tensor in self.tensors])

    def ranges(self) -> list[tuple[int, int]]:
        """Where the elements lie: addresses."""
        return [(flat.data_ptr(), flat.data_ptr() + flat.numel() * flat.element_size()) for flat in self._flat if flat.numel()]


def apart(sources: Sequence[Vector], targets: Sequence[Vector]) -> list[Vector]:
    """The sources; those that pieces which are written before would spoil as copies. What lies exactly in a target's place is read there before
    it is written."""
    written = sorted(found for target in targets for found in target.ranges())

    def is_spoilt(begin: int, end: int) -> bool:
        return any(low < end and begin < high and (low, high) != (begin, end) for low, high in written)
    return [source.alike() if any(is_spoilt(*found) for found in source.ranges()) else source for source in sources]


def adjacent(flats: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Vectors that follow each other in one storage, as one vector over it; None if they do not."""
    flats = [flat for flat in flats if flat.numel()] or list(flats[:1])
    first, at = flats[0], flats[0].data_ptr()
    if len(flats) == 1:
        return first
    storage = first.untyped_storage().data_ptr()
    for flat in flats:
        if flat.data_ptr() != at or flat.untyped_storage().data_ptr() != storage:
            return None
        at += flat.numel() * flat.element_size()
    return first.as_strided((sum(flat.numel() for flat in flats),), (1,))


def joined(vectors: Sequence[Vector]) -> torch.Tensor:
    """The elements of vectors of one dtype, one after the other: in place if they lie so, otherwise a copy."""
    flats = [flat for vector in vectors for flat in vector._flat]
    found = adjacent(flats)
    return torch.cat(flats) if found is None else found


def room(vectors: Sequence[Vector]) -> torch.Tensor:
    """Where the elements of vectors can be written, one after the other: in place if they lie so, otherwise a new tensor. Then spread()
    brings them where they belong."""
    flats = [flat for vector in vectors for flat in vector._flat]
    found = adjacent(flats)
    return flats[0].new_empty(sum(flat.numel() for flat in flats)) if found is None else found


def spread(source: torch.Tensor, vectors: Sequence[Vector]) -> None:
    """Copies elements to vectors, one after the other, if they are not there already."""
    if adjacent([flat for vector in vectors for flat in vector._flat]) is None:
        at = 0
        for vector in vectors:
            vector.put(0, vector.count, source[at:at + vector.count])
            at += vector.count
    for vector in vectors:
        vector.done()


def pieces(count: int, most: int) -> list[tuple[int, int]]:
    """Cuts a vector into pieces: [(begin, elements)], at least one. The pieces' size follows from their number, so that ranks with
    different numbers of elements differ in the first piece already, or have equally many: whoever is wrong, no rank is left waiting."""
    if count <= most:
        return [(0, count)]
    step = 16 if most >= 1 << 16 else 1
    number = -(-count // most)
    while number * (most - number * step) < count:
        number += 1
        if number * step * 2 > most:  # very small pieces only
            number, step = -(-count // most), 0
    size = most - number * step
    return [(begin, min(size, count - begin)) for begin in range(0, count, size)]


def reduction(op: str, asked: object, tensor: torch.Tensor) -> int:
    """enum fcc_reduction. ArgumentError if the dtype does not have it."""
    name = getattr(getattr(asked, "op", asked), "name", str(asked))
    dtype = tensor.dtype
    if name not in _REDUCTIONS:
        raise ArgumentError(f"{op}: ReduceOp.{name}: allowed are {', '.join(_REDUCTIONS)}")
    allowed = _INTEGERS if name in _BITS else _FLOATS if name in ("AVG", "PREMUL_SUM") else _INTEGERS | _FLOATS
    if dtype not in allowed:
        words = ", ".join(sorted(str(one).removeprefix("torch.") for one in allowed))
        raise ArgumentError(f"{op}: ReduceOp.{name} of {dtype}: allowed are {words}")
    if dtype == torch.bool:  # the sum of truths is whether any is true, as with NCCL
        name = {"SUM": "MAX", "PRODUCT": "MIN"}.get(name, name)
    return _REDUCTIONS[name]


def factor(asked: object) -> float | torch.Tensor | None:
    """What PREMUL_SUM multiplies by; None: it is another reduction."""
    kind = getattr(asked, "op", asked)
    if getattr(kind, "name", "") != "PREMUL_SUM":
        return None
    if hasattr(asked, "factor"):
        return asked.factor  # type: ignore[no-any-return]
    return asked.__getstate__()[1] if isinstance(asked, dist.ReduceOp) else None  # type: ignore[no-any-return,index]


class Pieces:
    """The part of the daemon's memory that a communicator's collectives pass through. It grows to PIECE_BYTES as it is needed."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._buffer: Buffer | None = None
        self._bytes = torch.empty(0, dtype=torch.uint8, device="cpu")

    def reserve(self, nbytes: int) -> None:
        """Makes it at least that large, and a byte: at() is asked for vectors without elements, too. What is in it is lost."""
        nbytes = max(1, nbytes)
        if nbytes <= self._bytes.numel():
            return
        if self._comm.member.on_gpu:
            torch.cuda.synchronize(self._comm.device)  # operators on streams may still use the old one
        self._bytes, self._buffer = torch.empty(0, dtype=torch.uint8, device="cpu"), None
        size = max(_LEAST_BYTES, 1 << (nbytes - 1).bit_length())
        buffer = Buffer(self._comm.member, size, RESULT)
        self._bytes, self._buffer = buffer.view(0, size), buffer

    def at(self, offset: int, count: int, dtype: torch.dtype) -> tuple[Place, torch.Tensor]:
        """The place of a vector, and a tensor over it."""
        assert self._buffer is not None
        place = (self._buffer.handle, offset, NUMBERS[dtype], 1, count, 0, 0, 0, 0, 0, 0, 0)
        return place, self._bytes[offset:offset + count * dtype.itemsize].view(dtype)


def aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
