# torchrun --nproc_per_node 2 client/python/examples/dlrm.py      # or 4; --device cuda on GPUs
# (after: pip install build/fccd-*.whl)
#
# SPDX-License-Identifier: MIT
"""Trains a recommendation model (DLRM) twice from the same start: with fcc.nn's sharded embedding tables, and with torch.distributed (NCCL
if each rank has a GPU, otherwise gloo). Prints both times of a step, and fails unless both losses are equal to rounding in every step.
With --graphs, before that: the forward step of both in CUDA graphs, which read other ids in each replay, their results and their times.

A sample is a window of a text. Its categorical features are properties of its words, with a table for each; its dense features are numbers
about the window. The model predicts whether the text addresses its reader there. Tables and batch are spread over the ranks. The MLPs are
replicated, and their gradients are summed over the ranks.
"""
import argparse
import pathlib
import re
import statistics
import sys
import time
import warnings
import zlib

import fcc
import torch
import torch.distributed as dist
from torch import nn

TEXT = "/usr/share/common-licenses/GPL-3"
TOLERANCE = 1e-5  # of a loss, relative to it
LOGIT_TOLERANCE = 1e-4
WIDTH = 16  # D of the embedding
READER, BEHIND = (b"you", b"your"), 4  # is one of these in a window, or among so many words behind it?
WINDOW_MIN, WINDOW_MAX = 4, 28
REPLAYS, SAMPLES, PRIME = 20, 40, 7919  # of a graph with the same ids; of times, each with ids that are PRIME further on


# ---- samples: windows of a text ----

def words_of(path):
    """Runs of letters and digits; bytes beyond ASCII count as letters."""
    words = re.findall(rb"[0-9A-Za-z\x80-\xff]+", pathlib.Path(path).read_bytes())
    if not words:
        sys.exit(f"dlrm: {path}: no words: allowed are texts of at least one")
    return words


def code(*parts):
    return zlib.crc32(b" ".join(parts).lower())


# A feature: of the word at i, the numbers that go into the bag. Many bags of "number" are empty.
FEATURES = (
    ("word", 2003, lambda w, i: [code(w[i])]),
    ("bigram", 4001, lambda w, i: [code(w[i], w[i + 1])]),
    ("skip", 3001, lambda w, i: [code(w[i], w[i + 2])]),
    ("prefix", 997, lambda w, i: [code(w[i][:3])]),
    ("suffix", 499, lambda w, i: [code(w[i][-3:])]),
    ("letters", 1009, lambda w, i: [code(w[i][at:at + 3]) for at in range(len(w[i]) - 2)]),
    ("number", 101, lambda w, i: [code(w[i])] if w[i][:1].isdigit() else []),
    ("length", 32, lambda w, i: [len(w[i])]),
)


def windows_of(words, batch, step):
    """[(first word, words)] of a step's samples, spread over the text; the sizes look random, and are the same on all ranks."""
    found = []
    for sample in range(step * batch, (step + 1) * batch):
        size = WINDOW_MIN + zlib.crc32(b"window %d" % sample) % (WINDOW_MAX - WINDOW_MIN + 1)
        found.append((zlib.crc32(b"place %d" % sample) % len(words), size))
    return found


class Text(list):
    """The words, which repeat from the start after the last one."""

    def __getitem__(self, i):
        return super().__getitem__(i % len(self))


def bags_of(words, windows, tables):
    """(ids, offsets) of some features' bags of all windows, with the first feature's first; offsets include the end of the last bag."""
    ids, offsets = [], [0]
    for _, rows, feature in FEATURES[tables]:
        for first, size in windows:
            ids += [number % rows for i in range(first, first + size) for number in feature(words, i)]
            offsets.append(len(ids))
    return torch.tensor(ids, dtype=torch.long), torch.tensor(offsets)


def dense_of(words, windows):
    """([samples][4], [samples]): numbers about each window, and whether the window or what follows addresses the reader."""
    rows, wanted = [], []
    for first, size in windows:
        inside = [words[i] for i in range(first, first + size)]
        rows.append([size / WINDOW_MAX, sum(map(len, inside)) / size / 10, sum(w[:1].isupper() for w in inside) / size,
                     len(set(inside)) / size])
        wanted.append(float(any(words[i].lower() in READER for i in range(first, first + size + BEHIND))))
    return torch.tensor(rows), torch.tensor(wanted)


# ---- the model: plain PyTorch, but for where the embeddings come from ----

class Dlrm(nn.Module):
    """The model. tables(bags) returns the embeddings of this rank's samples [samples][features][WIDTH]."""

    def __init__(self, tables):
        super().__init__()
        self.tables = tables
        vectors = len(FEATURES) + 1
        self.bottom = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, WIDTH), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(WIDTH + vectors * (vectors - 1) // 2, 32), nn.ReLU(), nn.Linear(32, 1))
        self.register_buffer("pairs", torch.tril_indices(vectors, vectors, -1), persistent=False)

    def forward(self, dense, bags):
        low = self.bottom(dense)
        vectors = torch.cat([low.unsqueeze(1), self.tables(bags)], 1)
        products = (vectors @ vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([low, products], 1)).squeeze(1)

    def shared(self):
        """The parameters that all ranks have."""
        return [*self.bottom.parameters(), *self.top.parameters()]


class FccTables(nn.Module):
    def __init__(self, comm):
        super().__init__()
        self.comm = comm
        self.bags = fcc.nn.ShardedEmbeddingBagCollection([rows for _, rows, _ in FEATURES], WIDTH, mode="sum",
                                                         include_last_offset=True, comm=comm)
        with torch.no_grad():
            for number in range(self.bags.tables.start, self.bags.tables.stop):
                table = self.bags.table(number)
                table /= table.shape[0] ** 0.5

    def forward(self, bags):
        return self.bags(*bags)


def reachable(tensor):
    """The tensor where the process group can use it: gloo needs it on the cpu."""
    return tensor.cpu() if dist.get_backend() == "gloo" else tensor


class Exchange(torch.autograd.Function):
    """All-to-All of rows by torch.distributed, with its derivative."""

    @staticmethod
    def forward(ctx, rows, send_rows, recv_rows):
        ctx.send_rows, ctx.recv_rows = send_rows, recv_rows
        sent = reachable(rows.contiguous())
        came = sent.new_empty(sum(recv_rows), rows.shape[1])
        dist.all_to_all_single(came, sent, recv_rows, send_rows)
        return came.to(rows.device)

    @staticmethod
    def backward(ctx, grad):
        return Exchange.apply(grad, ctx.recv_rows, ctx.send_rows), None, None


class TorchTables(nn.Module):
    """The tables in torch: torch.nn.EmbeddingBag, then all_to_all_single. Takes each table's bags separately."""

    def __init__(self, spread, rank, batch):
        super().__init__()
        self.spread, self.rank, self.batch = spread, rank, batch
        first = sum(spread[:rank])
        self.bags = nn.ModuleDict({
            str(number): nn.EmbeddingBag(FEATURES[number][1], WIDTH, mode="sum", include_last_offset=True)
            for number in range(first, first + spread[rank])})

    def forward(self, bags):
        size, mine = len(self.spread), self.batch // len(self.spread)
        pooled = [table(*given) for table, given in zip(self.bags.values(), bags)]
        # [tables][batch][WIDTH] -> for each rank its samples of all tables here
        rows = torch.stack(pooled).view(-1, size, mine, WIDTH).transpose(0, 1).reshape(-1, WIDTH)
        came = Exchange.apply(rows, [len(pooled) * mine] * size, [n * mine for n in self.spread])
        return came.view(-1, mine, WIDTH).transpose(0, 1)


# ---- training ----

def train(comm, model, reduce, steps, rate):
    """([loss of each step], [ms of each step]). reduce(tensor): its sum over the ranks. A loss is that of the whole batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    losses, times = [], []
    for dense, wanted, bags in steps:
        comm.barrier()
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.binary_cross_entropy_with_logits(model(dense, bags), wanted, reduction="sum")
        (loss / (len(wanted) * comm.size)).backward()
        flat = torch.cat([parameter.grad.flatten() for parameter in model.shared()] + [loss.detach().view(1)])
        flat = reduce(flat)  # gradients of tables have been summed on their way to them
        for parameter, part in zip(model.shared(), flat[:-1].split([p.numel() for p in model.shared()])):
            parameter.grad = part.view_as(parameter)
        optimizer.step()
        comm.synchronize()
        times.append((time.perf_counter() - begin) * 1e3)
        losses.append(flat[-1].item() / (len(wanted) * comm.size))
    return losses, times


# ---- the forward step in a CUDA graph ----

def graphed(comm, model, dense, bags, places):
    """(logits [SAMPLES][samples], us of a step). The graph reads the ids of the bags where they lie: places are each table's part of them,
    with its number of rows. Between two samples, and not in their times, all ids become others."""
    first, logits, times = [ids.clone() for ids, _ in places], [], []
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.no_grad():
        model(dense, bags)  # a first call sets up what a capture must not
        comm.synchronize()
        with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
            result = model(dense, bags)
        for number in range(SAMPLES):
            for (ids, rows), at_first in zip(places, first):
                ids.copy_((at_first + number * PRIME) % rows)
            comm.synchronize()
            comm.barrier()
            begin.record()
            for _ in range(REPLAYS):
                graph.replay()
            end.record()
            comm.synchronize()
            times.append(begin.elapsed_time(end) * 1e3 / REPLAYS)
            logits.append(result.clone())
        for (ids, _), at_first in zip(places, first):
            ids.copy_(at_first)
    slowest = fcc.all_reduce(torch.tensor(statistics.median(times), device=comm.device), comm, reduction="max")
    return torch.stack(logits), slowest.item()


def compare_graphs(comm, ours, theirs, step, their_step):
    """Prints both times of the forward step in a CUDA graph. Returns whether all logits are equal to rounding, and others with other ids."""
    (dense, _, bags), (_, _, their_bags) = step, their_step
    rows = [rows for _, rows, _ in FEATURES[ours.tables.bags.tables]]
    parts = bags[0].split([len(ids) for ids, _ in their_bags])
    logits, us = graphed(comm, ours, dense, bags, list(zip(parts, rows)))
    wanted, their_us = graphed(comm, theirs, dense, their_bags, [(ids, number) for (ids, _), number in zip(their_bags, rows)])
    apart = fcc.all_reduce((logits - wanted).abs().max(), comm, reduction="max").item()
    same = apart <= LOGIT_TOLERANCE and all(not torch.equal(a, b) for a, b in zip(wanted, wanted[1:]))
    if comm.rank == 0:
        print(f"a forward step in a CUDA graph takes {us:.1f} us, with torch.distributed ({dist.get_backend()}) {their_us:.1f} us; logits "
              f"differ by at most {apart:.1e}{'' if same else f', allowed are {LOGIT_TOLERANCE}, and other logits with other ids'}", flush=True)
    return same


def summed(tensor):
    moved = reachable(tensor)
    dist.all_reduce(moved)
    return moved.to(tensor.device)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu or cuda [%(default)s]")
    parser.add_argument("--text", default=TEXT, help="a file [%(default)s]")
    parser.add_argument("--batch", type=int, default=256, help="samples of all ranks together [%(default)s]")
    parser.add_argument("--steps", type=int, default=40, help="[%(default)s]")
    parser.add_argument("--rate", type=float, default=0.1, help="of learning [%(default)s]")
    parser.add_argument("--graphs", action="store_true", help="the forward step in CUDA graphs, too; needs a GPU for each rank")
    args = parser.parse_args()
    words = Text(words_of(args.text))
    with fcc.init(device=args.device) as comm:
        if args.batch < 1 or args.batch % comm.size or args.steps < 1:
            sys.exit(f"dlrm: batch {args.batch}, steps {args.steps}: allowed are multiples of {comm.size}, and 1 and more")
        if comm.size > len(FEATURES):
            sys.exit(f"dlrm: {comm.size} ranks: allowed are at most {len(FEATURES)}, a table for each")
        if comm.device.type == "cuda":
            torch.cuda.set_device(comm.device)
        alone = comm.device.type == "cuda" and torch.cuda.device_count() >= comm.size  # NCCL refuses ranks that share a GPU
        if args.graphs and not alone:
            sys.exit(f"dlrm: --graphs: device {comm.device}, {comm.size} ranks: allowed only with --device cuda and a GPU for each rank")
        dist.init_process_group("nccl" if alone else "gloo")
        try:
            same = compare(comm, words, args)
        finally:
            dist.destroy_process_group()
    if not same:
        sys.exit(1)


def compare(comm, words, args):
    """Trains both models and prints the comparison. Returns whether all losses are equal to rounding."""
    warnings.simplefilter("ignore", fcc.CopyWarning)  # of the dense gradients, some KiB
    torch.manual_seed(0)
    ours = Dlrm(FccTables(comm)).to(comm.device)
    theirs = Dlrm(TorchTables(ours.tables.bags.tables_per_rank, comm.rank, args.batch)).to(comm.device)
    for name in ("bottom", "top"):
        getattr(theirs, name).load_state_dict(getattr(ours, name).state_dict())
    theirs.tables.bags.load_state_dict(ours.tables.bags.state_dict())

    here = slice(comm.rank * args.batch // comm.size, (comm.rank + 1) * args.batch // comm.size)
    steps, their_steps = [], []
    for step in range(args.steps):
        windows = windows_of(words, args.batch, step)
        dense, wanted = (tensor.to(comm.device) for tensor in dense_of(words, windows[here]))
        ids, offsets = bags_of(words, windows, ours.tables.bags.tables)
        steps.append((dense, wanted, (fcc.to_daemon(ids, comm), fcc.to_daemon(offsets, comm))))
        tables = [offsets[first:first + args.batch + 1] for first in range(0, len(offsets) - 1, args.batch)]
        bags = [(ids[at[0]:at[-1]].to(comm.device), (at - at[0]).to(comm.device)) for at in tables]
        their_steps.append((dense, wanted, bags))

    same_graphs = not args.graphs or compare_graphs(comm, ours, theirs, steps[0], their_steps[0])
    losses, times = train(comm, ours, lambda tensor: fcc.all_reduce(tensor, comm), steps, args.rate)
    wanted, their_times = train(comm, theirs, summed, their_steps, args.rate)
    apart = max(abs(a - b) / abs(b) for a, b in zip(losses, wanted))
    same = all(abs(a - b) <= TOLERANCE * abs(b) for a, b in zip(losses, wanted))  # which NaN is not
    if comm.rank == 0:
        for step in sorted({*range(0, args.steps, max(1, args.steps // 5)), args.steps - 1}):
            print(f"step {step:3}: loss {losses[step]:.6f}, torch.distributed {wanted[step]:.6f}")
        print(f"{comm.size} ranks, batch {args.batch}, {len(FEATURES)} tables: a step takes {statistics.median(times):.1f} ms, "
              f"with torch.distributed ({dist.get_backend()}) {statistics.median(their_times):.1f} ms; losses differ by at "
              f"most {apart:.1e}{'' if same else f', allowed are {TOLERANCE}'}", flush=True)
    return same and same_graphs


if __name__ == "__main__":
    main()
