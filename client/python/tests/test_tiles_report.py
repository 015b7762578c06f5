# SPDX-License-Identifier: MIT
"""What tiles_report.py says of results that are wrong in ways that are known."""
from types import SimpleNamespace

import pytest
import torch
from test_streams_tiles import KINDS, Case
from tiles_report import columns, ranges


@pytest.fixture(params=KINDS)
def case(request):
    return Case(SimpleNamespace(device=torch.device("cpu"), rank=1), 3, request.param, even=True, m=512, n=256, k=192)


def said(case, found):
    return "\n".join(case.differences(SimpleNamespace(rank=1), found))


def test_nothing_is_said_of_what_is_right(case):
    assert said(case, case.wanted(1)) == ""


def test_places(case):
    found = case.wanted(1)
    found[130, 129] = float("nan")
    text = said(case, found)
    assert "1 of" in text and "in 1 tiles of 128 x 128" in text and "NaN" in text
    assert "rows from 128, columns from 128: 1 of 16384; in it rows 2, columns 1" in text and "[2][1]: nan, not " in text


def test_what_stands_there(case):
    right = case.wanted(1)
    zeros, shifted = right.clone(), right.clone()
    zeros[:128] = 0
    shifted[8:16] = right[:8]
    assert "nothing but 0" in said(case, zeros)
    assert "what belongs 8 rows above" in said(case, shifted) and "rows 8-15" in said(case, shifted)
    assert "what belongs 64 columns left" in said(case, torch.roll(right, 64, 1))


def test_terms(case):
    short = Case.wanted(SimpleNamespace(**{**vars(case), "a": [a[:, :64] for a in case.a], "b": [b[:64] for b in case.b]}), 1)
    assert "no more than the first 64 of K" in said(case, short)
    if case.gathers:
        return
    mine = case.a[1].double() @ case.b[1].double()
    assert "rank 1's term alone" in said(case, mine[256:].to(case.dtype) if case.kind == "gemm_reduce_scatter" else mine.to(case.dtype))


def test_shape(case):
    assert "was expected" in said(case, case.wanted(1)[:-1])


def test_words():
    assert ranges([0, 1, 2, 5]) == "0-2 5" and "ranges" in ranges(range(0, 40, 2))
    assert columns(512, 256) == 128 and columns(512, 8448) == 256
