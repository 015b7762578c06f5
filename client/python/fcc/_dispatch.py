# SPDX-License-Identifier: MIT
"""The library of torch.ops.fcc.*, and how a call is known that needs nothing of torch but its arguments."""
from __future__ import annotations

import threading
from typing import Any

import torch

lib = torch.library.Library("fcc", "DEF")

autocast_keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.AutocastCUDA)

plain_threads: set[int] = set()  # what a thread adds to the dispatch keys of its calls, outside of all modes
plain: set[int] = set()  # the dispatch keys of calls with ordinary tensors, outside of torch.compile's and other modes


def learn(tensor: torch.Tensor) -> None:
    """What the keys of an ordinary tensor on this device are: those that an operator sees which is registered as ours are."""
    with torch.inference_mode(False), torch._C._DisableTorchDispatch():
        torch.ops.fcc._keys(tensor)


def _learn_kernel(keyset: Any, tensor: torch.Tensor) -> torch.Tensor:
    plain.add(keyset.raw_repr())
    return torch.empty(0)


lib.define("_keys(Tensor tensor) -> Tensor")
lib.impl("_keys", _learn_kernel, "Autograd", with_keyset=True)
for _key in ("CPU", "CUDA"):
    lib.impl("_keys", lambda tensor: torch.empty(0), _key)
with torch.inference_mode(False):
    learn(torch.empty(0, device="cpu"))


def _learn_thread() -> None:
    for inference in (False, True):
        with torch.inference_mode(inference):
            plain_threads.add(torch._C._dispatch_tls_local_include_set().raw_repr())


_fresh = threading.Thread(target=_learn_thread)  # whatever modes this one is in
_fresh.start()
_fresh.join()
