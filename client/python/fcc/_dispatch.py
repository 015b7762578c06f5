# SPDX-License-Identifier: MIT
"""The library of torch.ops.fcc.*, the detection of plain calls (which need nothing of torch except their arguments), and of forward
mode."""
from __future__ import annotations

import functools
import threading
from typing import Any

import torch

lib = torch.library.Library("fcc", "DEF")

autocast_keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.AutocastCUDA)

plain_threads: set[int] = set()  # what a thread adds to the dispatch keys of its calls outside of all modes
plain: set[int] = set()  # the dispatch keys of calls with ordinary tensors, outside of torch.compile's and other modes


def learn(tensor: torch.Tensor) -> None:
    """Learn the dispatch keys of an ordinary tensor on this device, as an operator registered like ours sees them."""
    with torch.inference_mode(False), torch._C._DisableTorchDispatch():
        torch.ops.fcc._keys(tensor)


def _learn_kernel(keyset: Any, tensor: torch.Tensor) -> torch.Tensor:
    if _is_any_plain:
        plain.add(keyset.raw_repr())
    return torch.empty(0)


_look = (functools.partial(torch._C._enter_dual_level), functools.partial(torch._C._exit_dual_level, 0))


def is_forward_mode() -> bool:
    """Whether forward mode is on, whoever began it: a graph of torch.compile does so without torch.autograd.forward_ad's knowledge.
    (Only one level is allowed.)"""
    try:
        # A single C call, so that no other thread runs between the two: beginning forward mode there would fail or be mistaken for this
        # one.
        list(map(functools.partial.__call__, _look))
    except RuntimeError:
        return True
    return False


def has_tangent(tensor: torch.Tensor) -> bool:
    return is_forward_mode() and torch._VF._unpack_dual(tensor, level=0)[1] is not None


def is_wrapped(tensor: torch.Tensor) -> bool:
    """Whether the tensor wraps another one, for torch.vmap or a transformation of torch.func. It has no address then."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


_is_any_plain = True


def none_is_plain() -> None:
    """From now on a call with ordinary tensors outside of all modes may be in forward mode, in a graph that was traced in it."""
    global _is_any_plain
    _is_any_plain = False
    plain.clear()


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


_fresh = threading.Thread(target=_learn_thread)  # a fresh thread is in no modes, whatever modes this one is in
_fresh.start()
_fresh.join()
