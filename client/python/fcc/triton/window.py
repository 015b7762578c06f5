# SPDX-License-Identifier: MIT
"""A kernel's view of a symmetric tensor: the addresses of all ranks' parts, and the communicator's status word."""
from __future__ import annotations

import ctypes
from ctypes import POINTER, c_int, c_int32, c_void_p
from typing import TYPE_CHECKING, Any

import torch

from .. import _library, communicator
from .._dispatch import is_wrapped

if TYPE_CHECKING:
    from ..communicator import Communicator

EXDEV = -18
_FUNCTIONS = {
    "fcc_buffer_peer": (c_int, [c_void_p, c_int, POINTER(c_void_p)]),
    "fcc_comm_status": (c_int, [c_void_p, POINTER(POINTER(c_int32))]),
}


def functions() -> Any:
    """libfccclient's functions for the program's own kernels."""
    found = ctypes.CDLL(_library.library().path)  # the library that is loaded already
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    return found


def place(tensor: torch.Tensor, comm: Communicator) -> tuple[int, int]:
    """(fcc_buffer *, offset in bytes) of a tensor in the daemon's memory."""
    if is_wrapped(tensor):
        raise ValueError(f"rank {comm.rank}: the tensor is one of torch.vmap's or torch.func's: allowed are those of which kernels can "
                         f"have the address")
    found = comm.member.connection.find(tensor.data_ptr())
    if found is None:
        raise ValueError(f"rank {comm.rank}: the tensor does not lie in the daemon's memory: make it by fcc.zeros(..., "
                         f"symmetric=True)")
    return found


def memory_of(tensor: torch.Tensor, comm: Communicator) -> tuple:
    """The object that keeps a tensor's memory, also after the tensor gets other memory (`.data = ...`, share_memory_())."""
    handle, _ = place(tensor, comm)
    return tensor.detach(), comm.member.connection.owner(handle)


class Window:
    """All ranks' parts of a symmetric tensor.

    Args:
        tensor: dense, made by fcc.empty or fcc.zeros with symmetric=True, or a view of such a tensor: the same view on all ranks
        comm: its communicator; None: the default one

    Attributes:
        table: int64 [size] on the communicator's device: the address of the tensor on each rank, as this rank's device sees it; 0 for ranks
            on other nodes
        status: the address of the communicator's status word: an int, for the kernel's argument of that name
        remote: the ranks on other nodes

    A Window keeps the tensor and its memory, and must live as long as kernels use it. The other ranks' memory stays as long as the tensor's
    own. No rank may free its tensor before all ranks have made their Windows (Communicator.barrier()).

    Raises: ValueError, and fcc.errors.Error (the other rank has freed its part, or has ended).
    """

    def __init__(self, tensor: torch.Tensor, comm: Communicator | None = None) -> None:
        comm = communicator.chosen(comm, "Window")
        self.tensor = tensor
        if not tensor.is_contiguous() or tensor.is_neg() or tensor.is_conj():
            raise ValueError(f"rank {comm.rank}: tensor: strides {tuple(tensor.stride())} of shape {tuple(tensor.shape)}: it "
                             f"must be dense, and no view that torch negates when it is read")
        _check_gpu(comm.device)
        buffer, offset = place(tensor, comm)
        self._memory = memory_of(tensor, comm)
        lib, addresses, self.remote = functions(), [], []
        for rank in range(comm.size):
            address = c_void_p()
            status = lib.fcc_buffer_peer(buffer, rank, ctypes.byref(address))
            if status == EXDEV:
                self.remote.append(rank)
                addresses.append(0)
                continue
            if status < 0:
                raise comm.member.error(status)
            addresses.append((address.value or 0) + offset)
        word = POINTER(c_int32)()
        status = lib.fcc_comm_status(comm.member.handle, ctypes.byref(word))
        if status < 0:
            raise comm.member.error(status)
        self.status: int = ctypes.cast(word, c_void_p).value or 0
        self.table = torch.tensor(addresses, dtype=torch.int64, device=comm.device)


def _check_gpu(device: torch.device) -> None:
    """Refuses AMD GPUs other than CDNA, which count stores in another way than signal() expects."""
    if device.type == "cpu" or torch.version.hip is None:
        return
    name = torch.cuda.get_device_properties(device).gcnArchName.split(":")[0]
    if not name.startswith("gfx9"):
        raise ValueError(f"{device} is a {name}: fcc.triton works on AMD's CDNA GPUs (gfx9...) only")
