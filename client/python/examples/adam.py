# torchrun --nproc_per_node 2 client/python/examples/adam.py [--steps 40] [--device cuda]
# SPDX-License-Identifier: MIT
"""Data-parallel training with fcc.optim.AdamW: gradients are summed, the state updated and the parameters distributed in one pass, and each rank has
its share of the state. Beside it the same with all gradients reduced first and torch.optim.AdamW; the parameters are compared."""
import argparse
import sys

import fcc
import torch

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--device", default="cpu", help="cpu or cuda")
arguments = parser.parse_args()
steps = arguments.steps
with fcc.init(device=arguments.device) as comm:
    torch.set_num_threads(1)
    models = []
    for _ in range(2):
        torch.manual_seed(1)
        models.append(torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1)).to(comm.device))
    ours, theirs = models
    optimizers = fcc.optim.AdamW(ours.parameters(), lr=1e-2, grads_in_place=True), torch.optim.AdamW(theirs.parameters(), lr=1e-2)
    for step in range(steps):
        x = torch.randn(64, 32, generator=torch.Generator().manual_seed(step * comm.size + comm.rank)).to(comm.device)  # this rank's samples
        losses = []
        for model, optimizer in zip(models, optimizers):
            optimizer.zero_grad(set_to_none=False)
            loss = (model(x) - x[:, :1] * x[:, 1:2]).square().mean()
            loss.backward()
            if model is theirs:
                for p in model.parameters():
                    p.grad = fcc.all_reduce(fcc.to_daemon(p.grad)) / comm.size
            optimizer.step()
            losses.append(loss.item())
        if comm.rank == 0 and step % 10 == 0:
            sys.stdout.write(f"step {step}: loss {losses[0]:.4f}, all_reduce and torch.optim {losses[1]:.4f}\n")
            sys.stdout.flush()
    difference = max((p - q).abs().max().item() for p, q in zip(ours.parameters(), theirs.parameters()))
    sys.stdout.write(f"rank {comm.rank} of {comm.size}: the largest difference of a parameter is {difference:.1e}\n")  # one write: the ranks share the terminal
    sys.stdout.flush()
    assert difference < 1e-3, "the parameters differ"
