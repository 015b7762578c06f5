# SPDX-License-Identifier: MIT
"""What the compilers for NVIDIA and AMD make of fcc.triton, which needs no GPU. Without Triton the tests are skipped."""
from __future__ import annotations

import re

import pytest

pytest.importorskip("torch")
triton = pytest.importorskip("triton")
tl = triton.language

import fcc.triton  # noqa: E402
from fcc.triton import peer, put_tile, signal, trigger, wait, wait_all  # noqa: E402


@triton.jit
def whole(data, flags, fifo, status, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    put_tile(data, 1, at, (at * 2).to(tl.float16), at < n)
    signal(flags, 1, 3, 7)
    come = wait(flags, 0, 4, 7, status)
    tl.store(out + at, tl.load(peer(data, 0, tl.float16) + at, mask=come & (at < n)))
    if wait_all(flags, 0, 5, n, 9, status, 256):
        tl.store(out + at, tl.load(peer(data, 0, tl.float16) + at + BLOCK))
    trigger(fifo, n, 11, status)


def compiled(backend, arch, warp, monkeypatch):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    monkeypatch.setattr(fcc.triton.device, "HIP", tl.constexpr(backend == "hip"))
    whole.hash = None  # the constant is a part of it
    source = ASTSource(whole, {"data": "*i64", "flags": "*i64", "fifo": "*i64", "status": "i64", "out": "*fp16", "n": "i32", "BLOCK": "constexpr"},
                       {"BLOCK": 256})
    asm = triton.compile(source, target=GPUTarget(backend, arch, warp)).asm
    return asm["ptx" if backend == "cuda" else "amdgcn"]


def in_order(text, *patterns):
    at = 0
    for pattern in patterns:
        found = re.compile(pattern).search(text, at)
        assert found, f"no {pattern} behind character {at}"
        at = found.end()


def assert_looks_again(text, *patterns):
    """Some loop, from a label to a branch back to it, has all of them: no compiler has moved them out of it."""
    labels = {m.group(1): m.start() for m in re.finditer(r"^\s*(\$?[.\w]+):", text, re.M)}
    loops = [text[labels[m.group(1)]:m.end()] for m in re.finditer(r"\b(?:bra(?:\.uni)?|s_cbranch_\w+|s_branch)\s+(\$?[.\w]+)", text)
             if m.group(1) in labels and labels[m.group(1)] < m.start()]
    assert any(all(re.search(pattern, loop) for pattern in patterns) for loop in loops), (len(labels), len(loops))


def test_compiled_for_nvidia(monkeypatch):
    text = compiled("cuda", 90, 32, monkeypatch)
    in_order(text, r"st\.global\.b16", r"bar\.sync", r"atom\.global\.sys\.release\.exch\.b64",  # put_tile, signal
             r"ld\.volatile\.global\.b64", r"ld\.volatile\.global\.b32", r"%globaltimer", r"\bbra\b",  # the loop of wait
             r"(ld\.global\.sys\.acquire\.b64|atom\.global\.sys\.acquire\.add\.u64)", r"bar\.sync", r"ld\.global\.b16",  # its end
             r"atom\.global\.sys\.acquire\.add\.u64", r"bar\.sync", r"ld\.global\.b16",  # wait_all's
             r"bar\.sync", r"atom\.global\.sys\.acq_rel\.add\.u64", r"ld\.volatile\.global\.b64",  # trigger's place, and room for it
             r"atom\.global\.sys\.relaxed\.exch\.b64", r"atom\.global\.sys\.release\.exch\.b64")  # its words
    assert "s_waitcnt" not in text
    assert_looks_again(text, r"ld\.volatile\.global\.b64", r"ld\.volatile\.global\.b32", r"%globaltimer")


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942"])
def test_compiled_for_amd(monkeypatch, arch):
    text = compiled("hip", arch, 64, monkeypatch)
    in_order(text, r"(buffer|global)_store_short", r"s_waitcnt vmcnt\(0\)", r"s_barrier", r"buffer_wbl2", r"global_atomic_swap_x2",
             r"global_load_dwordx2 .*(sc1|glc)", r"s_cbranch", r"global_atomic_add_x2", r"s_waitcnt vmcnt\(0\)",
             r"buffer_inv", r"s_barrier")
    assert_looks_again(text, r"global_load_dwordx2", r"global_load_dword ", r"s_memrealtime")
