# SPDX-License-Identifier: MIT
"""A step of Adam on a model's list of tensors, on one rank: with NCCL and torch, and with fcc.optim. Gradients and parameters are bf16; the state and the master copy, f32."""
import math

from .. import collectives
from .rows import EACH, FLAT
from .sequences import BETA1, BETA2, EPSILON, LR, Told, compiled, measured, steps, timed

WIDTH, LAYERS, WORDS, PLACES = 512, 12, 32768, 1024
TOLERANCE = 1e-2  # of a parameter of bf16 by 1 and more


def shapes(width=WIDTH, layers=LAYERS, words=WORDS, places=PLACES):
    """148 tensors, 55 million elements: a decoder's embeddings, blocks, and last norm."""
    d = width
    block = [(3 * d, d), (3 * d,), (d, d), (d,), (4 * d, d), (4 * d,), (d, 4 * d), (d,), (d,), (d,), (d,), (d,)]
    return [(words, d), (places, d), *(shape for _ in range(layers) for shape in block), (d,), (d,)]


def random_list(at, seed, of, scale=1.0):
    torch = at.torch
    generator = torch.Generator(at.device).manual_seed(seed)
    return [(torch.randn(shape, device=at.device, generator=generator) * scale).to(torch.bfloat16) for shape in of]


def parameters_of(at, of):
    return random_list(at, at.seed, of)


def gradients_of(at, rank, of):
    return random_list(at, at.seed + 1 + rank, of)


class Flat:
    """Gradients are copied to one tensor, which is summed up; the new parameters are copied back to theirs."""

    def __init__(self, at, of, compiles=compiled):
        torch = at.torch
        self.at, self.p, self.g = at, parameters_of(at, of), gradients_of(at, at.rank, of)
        counts = [math.prod(shape) for shape in of]
        self.flat_p, self.flat_g = (torch.cat([t.flatten() for t in tensors]) for tensors in (self.p, self.g))
        self.views = [[v.view(s) for v, s in zip(t.split(counts), of)] for t in (self.flat_p, self.flat_g)]
        self.w = self.flat_p.float()
        self.m, self.v = torch.zeros_like(self.w), torch.zeros_like(self.w)
        self.step = compiles(torch, steps(torch, at.ranks)["Adam"])

    def compute(self):
        self.step(self.flat_p, self.w, self.m, self.v, self.flat_g)

    def run(self):
        torch = self.at.torch
        torch._foreach_copy_(self.views[1], self.g)
        torch.distributed.all_reduce(self.flat_g)
        self.compute()
        torch._foreach_copy_(self.p, self.views[0])


class Each:
    """No tensor is copied to another place: each is summed up where it is, all in one call of NCCL's, and torch's fused Adam updates the list."""

    def __init__(self, at, of, compiles=compiled):
        del compiles  # it is a kernel of torch's own
        torch = at.torch
        self.at, self.p, self.g = at, parameters_of(at, of), gradients_of(at, at.rank, of)
        self.w = [p.float() for p in self.p]
        for w in self.w:
            w.grad = torch.zeros_like(w)
        self.wide = [w.grad for w in self.w]
        self.optimiser = torch.optim.Adam(self.w, lr=LR, betas=(BETA1, BETA2), eps=EPSILON, fused=True, capturable=at.device.type == "cuda")
        self.optimiser.grad_scale = torch.full((), float(at.ranks), device=at.device)  # divides the sums
        self.optimiser.found_inf = torch.zeros((), device=at.device)

    def compute(self):
        torch = self.at.torch
        torch._foreach_copy_(self.wide, self.g)
        self.optimiser.step()
        torch._foreach_copy_(self.p, self.w)

    def run(self):
        dist = self.at.torch.distributed
        with dist._coalescing_manager(device=self.at.device):
            for g in self.g:
                dist.all_reduce(g)
        self.compute()


MAKERS = {FLAT: Flat, EACH: Each}


def measure(rank, name, limit_s):
    """[us] of one of MAKERS on this rank, of rank.py."""
    return measured(rank, limit_s, lambda: MAKERS[name](rank.at, shapes()))


def wrong_count(at, of, got):
    """Of parameters after Adam's first step, which goes by lr against the sign of each gradient's mean."""
    torch = at.torch
    wrong, everybody = 0, [gradients_of(at, r, of) for r in range(at.ranks)]
    for i, (before, after) in enumerate(zip(parameters_of(at, of), got)):
        mean = sum(gradients[i].double() for gradients in everybody) / at.ranks
        want = before.double() - LR * mean / (mean.abs() + EPSILON)
        wrong += int((~((after.double() - want).abs() <= TOLERANCE * (1 + want.abs()))).sum())
    return wrong


def optimiser_make(fcc, comm, at, of, in_place, capturable):
    torch = at.torch
    parameters = [torch.nn.Parameter(p) for p in parameters_of(at, of)]
    for p, g in zip(parameters, gradients_of(at, at.rank, of)):
        p.grad = g
    return parameters, fcc.optim.Adam(parameters, lr=LR, betas=(BETA1, BETA2), eps=EPSILON, comm=comm, capturable=capturable, grads_in_place=in_place)


def measure_optim(rank, in_place, limit_s):
    """{"us": [of each replay], "wrong": how many parameters after the first step, "checked": of how many} of fcc.optim.Adam on this rank."""
    torch, at, of = rank.torch, rank.at, shapes()
    with Told(limit_s):
        fcc = collectives.package(rank.settings.client_path)
        found = [fcc.unique_id(socket=str(rank.settings.socket), job=collectives.JOB) if rank.rank == 0 else None]
        torch.distributed.broadcast_object_list(found, src=0)
        fcc, comm = collectives.join(rank, found[0])
        try:
            parameters, optimiser = optimiser_make(fcc, comm, at, of, in_place, True)
            torch.cuda.synchronize()
            with torch.cuda.stream(rank.stream):
                optimiser.step()
            rank.stream.synchronize()
            wrong = wrong_count(at, of, parameters)
            us = timed(rank, optimiser.step, optimiser.advance)
            comm.synchronize()
            return {"us": us, "wrong": wrong, "checked": sum(p.numel() for p in parameters)}
        finally:
            parameters = optimiser = None
            comm.close()
            torch.cuda.empty_cache()
