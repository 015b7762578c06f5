# torchrun --nproc_per_node 2 client/python/examples/sequence_mlp.py      # or more; --device cuda on GPUs
# (after: pip install build/fccd-*.whl)
#
# SPDX-License-Identifier: MIT
"""Trains the MLP blocks of a transformer with sequence parallelism, to predict a text's next byte, and the same model in one process from the same start.
Fails unless both losses are equal to rounding in every step.

Positions of the text are spread over the ranks: between the blocks each rank has its own only, their embeddings, norms and logits. A block gathers all
positions in front of its first layer, whose columns are spread over the ranks (fcc.nn.ColumnParallelLinear), and each rank gets its own positions of the sum
behind the second one (fcc.nn.RowParallelLinear), one gemm_reduce_scatter with bias and residual.
"""
import argparse
import pathlib
import sys
import time
import warnings

import fcc
import torch
from torch import nn

TEXT = "/usr/share/common-licenses/GPL-3"
TOLERANCE = 1e-4  # of a loss, relative to it
WIDTH, HIDDEN, BLOCKS, CONTEXT = 64, 256, 2, 8
POSITIONS, STEPS, RATE = 509, 30, 3e-3  # a prime: no number of ranks divides it


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x, rows):
        hidden = self.norm(x)
        if rows is None:  # one process
            return x + self.down(nn.functional.gelu(self.up(hidden)))
        return self.down(nn.functional.gelu(self.up(hidden, rows)), x, rows)


class Model(nn.Module):
    """Logits of the bytes that follow [positions][CONTEXT] bytes. rows: of each rank; None: there is one."""

    def __init__(self):
        super().__init__()
        self.bytes = nn.Embedding(256 * CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, context, rows=None):
        x = self.bytes(context + 256 * torch.arange(CONTEXT, device=context.device)).sum(1)
        for block in self.blocks:
            x = block(x, rows)
        return self.head(x)


def spread(model, comm):
    """The MLPs' layers become this rank's parts of them."""
    for block in model.blocks:
        block.up = fcc.nn.ColumnParallelLinear.from_linear(block.up, comm=comm, sequence_parallel=True)
        block.down = fcc.nn.RowParallelLinear.from_linear(block.down, comm=comm, sequence_parallel=True)
    return model


def batch_of(text, step, device):
    """(contexts, next bytes) of a step's positions, one after the other in the text."""
    first = step * POSITIONS
    at = torch.arange(first, first + POSITIONS)
    places = (at.unsqueeze(1) + torch.arange(CONTEXT)) % len(text)
    return text[places].to(device), text[(at + CONTEXT) % len(text)].to(device)


def train(model, text, device, comm=None):
    """The loss of each step, and the time of one."""
    rows = None if comm is None else [POSITIONS // comm.size + (r < POSITIONS % comm.size) for r in range(comm.size)]
    mine = slice(None) if comm is None else slice(sum(rows[:comm.rank]), sum(rows[:comm.rank + 1]))
    shared = [p for name, p in model.named_parameters() if ".up." not in name and ".down." not in name]
    optimizer, losses = torch.optim.Adam(model.parameters(), RATE), []
    began = time.monotonic()
    for step in range(STEPS):
        contexts, following = (part[mine] for part in batch_of(text, step, device))
        loss = nn.functional.cross_entropy(model(contexts, rows), following, reduction="sum") / POSITIONS
        optimizer.zero_grad()
        loss.backward()
        if comm is not None:  # each rank has seen its own positions
            for parameter in shared:
                parameter.grad = fcc.all_reduce(parameter.grad, comm)
            loss = fcc.all_reduce(loss.detach().reshape(1), comm)[0]
        optimizer.step()
        losses.append(loss.item())
    return losses, (time.monotonic() - began) / STEPS


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="what the ranks compute on [cpu]")
    parser.add_argument("--text", default=TEXT, help=f"the text [{TEXT}]")
    args = parser.parse_args()
    content = pathlib.Path(args.text).read_bytes()
    if len(content) <= CONTEXT:
        sys.exit(f"sequence_mlp: {args.text}: {len(content)} bytes: allowed are texts of more than {CONTEXT}")
    text = torch.frombuffer(bytearray(content), dtype=torch.uint8).long()
    warnings.simplefilter("ignore", fcc.CopyWarning)  # results of torch's layers are copied to the daemon's memory
    with fcc.init(device=args.device) as comm:
        torch.manual_seed(0)
        one = Model()
        torch.manual_seed(0)
        many = spread(Model().to(comm.device), comm)
        alone, alone_s = train(one.to(comm.device), text, comm.device)
        together, together_s = train(many, text, comm.device, comm)
        for step, (ours, theirs) in enumerate(zip(together, alone)):
            if comm.rank == 0 and step % 5 == 4:
                print(f"step {step + 1}: loss {ours:.6f}, one process {theirs:.6f}")
            if abs(ours - theirs) > TOLERANCE * abs(theirs):
                sys.exit(f"sequence_mlp: step {step + 1}: loss {ours}, one process {theirs}: differ by more than {TOLERANCE} of it")
        if comm.rank == 0:
            print(f"{comm.size} ranks: a step takes {together_s * 1e3:.1f} ms, in one process {alone_s * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
