# SPDX-License-Identifier: MIT
"""all_to_all whose counts lie in a tensor, as torch.ops.fcc.all_to_all_v. Where this process launches collectives their kernel reads the
counts, so the host neither knows nor waits for them, and a CUDA graph can replay the call with others; on the cpu the C library reads them."""
from __future__ import annotations

import math
import re

import torch
from torch import Tensor

from . import _packets
from ._calls import WRONG_KIND, in_words, run
from ._collectives import check_tensor, place, result_place
from ._library import library
from ._names import Called
from ._communicator.refusals import refuse
from .communicator import Communicator, find
from .errors import ArgumentError
from .memory import stream_of

_CALLED = Called("all_to_all_v", {"all_to_all": ()})
_TOO_MANY = r"(capacity: rank \d+ receives) (\d+) elements, its result has (\d+)"
_packets.made_of["all_to_all_v"] = "all_to_all"


def check_counted(c: Communicator, x: Tensor, send_counts: Tensor, capacity: int) -> None:
    said = f"rank {c.rank}: all_to_all_v: "
    check_tensor(c, "all_to_all_v", x)
    if x.ndim == 0:
        raise ArgumentError(f"{said}x: 0 dimensions: allowed are 1 and more")
    if send_counts.dtype != torch.int64 or send_counts.layout != torch.strided or send_counts.device != c.device or send_counts.shape != (c.size,):
        raise ArgumentError(f"{said}send_counts: {send_counts.dtype}, {list(send_counts.shape)} on {send_counts.device}: allowed are "
                            f"{c.size} numbers of torch.int64 on {c.device}, one for each rank")
    if capacity < 0:
        raise ArgumentError(f"{said}capacity: {capacity}: allowed are 0 and more")


@in_words(_CALLED)
def all_to_all_v(x: Tensor, send_counts: Tensor, capacity: int, comm: str) -> tuple[Tensor, Tensor]:
    c = find(comm)
    stream = stream_of(c)
    launched = c._member.launches()  # all ranks ask first, also those that refuse their arguments
    try:
        check_counted(c, x, send_counts, capacity)
        counts, width = send_counts.contiguous(), math.prod(x.shape[1:])
        rows = x if width else x.new_zeros((x.shape[0], 1))  # rows of no elements are counted, too
        source, held = place(c, "all_to_all", rows, stream)
        target, came = result_place(c, (capacity, *rows.shape[1:]), x.dtype, stream)
        received = torch.empty(c.size, dtype=torch.int64, device=c.device)
    except WRONG_KIND:
        raise
    except Exception as e:
        raise refuse(c, "all_to_all", e) from None
    packed = library().operators["all_to_all"].pack(
        in_=source, out=target, device_send_counts=counts.data_ptr(), device_receive_counts=received.data_ptr(), row_elements=max(1, width))
    try:
        run(c, "all_to_all", packed, stream, called=_CALLED, launched=launched)
    except ArgumentError as e:
        if not c._member.on_gpu:  # there it may be an earlier call's, whose rows are not known any more
            e.reason = re.sub(_TOO_MANY, lambda found: f"{found[1]} {int(found[2]) // max(1, width)} rows, allowed are {int(found[3]) // max(1, width)}", e.reason)
            e.args = (e.reason,)
        raise
    del held
    return came if width else x.new_empty((capacity, *x.shape[1:])), received


def all_to_all_v_fake(x: Tensor, send_counts: Tensor, capacity: int, comm: str) -> tuple[Tensor, Tensor]:
    return x.new_empty((capacity, *x.shape[1:])), send_counts.new_empty(send_counts.shape)


KERNELS = {"all_to_all_v": (all_to_all_v, all_to_all_v_fake, "(Tensor x, Tensor send_counts, SymInt capacity, str comm) -> (Tensor, Tensor)")}
