# SPDX-License-Identifier: MIT
"""The shipped programs in Python, and their schedules; and two small ones."""
import inspect

import fcc
import torch
from daemon import ROOT
from fcc import InOut, In, Out
from fcc.language import all_to_all, as_slice, dropout, norm, select, send, tensor_norm

SHIPPED = ROOT / "client" / "programs"


@fcc.program
def sgd(g: In("f32[N] local"), p: InOut("f32[N]"), m: InOut("f32[N]"), lr, momentum, *, N=1 << 20):
    s = fcc.all_reduce(g)
    m = momentum * m + s
    p = p - lr * m


@fcc.program
def adam(g: In("f32[N] local"), p: InOut(torch.float32, "N"), m: InOut("f32[N]"), v: InOut("f32[N]"), lr, beta1, beta2, epsilon, step, scale, *, N=1 << 20):
    s = fcc.all_reduce(g)
    a = s * scale
    m = beta1 * m + (1 - beta1) * a
    v = beta2 * v + (1 - beta2) * a * a
    p = p - lr * (m / (1 - beta1**step)) / ((v / (1 - beta2**step)).sqrt() + epsilon)


@fcc.program
def lamb(g: In("f32[N] local"), p: InOut("f32[N]"), m: InOut("f32[N]"), v: InOut("f32[N]"), lr, beta1, beta2, epsilon, step, scale, decay, *, N=1 << 20):
    s = fcc.all_reduce(g)
    a = s * scale
    m = beta1 * m + (1 - beta1) * a
    v = beta2 * v + (1 - beta2) * a * a
    u = m / (1 - beta1**step) / (torch.sqrt(v / (1 - beta2**step)) + epsilon) + decay * p
    wide, long = norm(as_slice(p, 0)), norm(u)
    p = p - lr * select(wide > 0, select(long > 0, wide / long, 1), 1) * u


@fcc.program
def lamb_tensors(g: In("f32[N] local scattered(T)"), p: InOut("f32[N] scattered(T)"), m: InOut("f32[N] scattered(T)"), v: InOut("f32[N] scattered(T)"), lr, beta1, beta2,
                 epsilon, step, scale, decay, *, N=1 << 20, T=16):
    s = fcc.all_reduce(g)
    a = s * scale
    m = beta1 * m + (1 - beta1) * a
    v = beta2 * v + (1 - beta2) * a * a
    u = m / (1 - beta1**step) / (torch.sqrt(v / (1 - beta2**step)) + epsilon) + decay * p
    wide, long = tensor_norm(as_slice(p, 0)), tensor_norm(u)
    ratio = select(wide > 0, select(long > 0, wide / long, 1), 1)
    p = p - lr * ratio * u


@fcc.program
def epilogue(x: In("f32[M, H] local"), bias: In("f32[H]"), residual: In("f32[M, H]"), y: Out("f32[M, H]"), seed, step, *, M=64, H=128):
    s = fcc.all_reduce(x)
    y = dropout(s + bias, 0.1, seed, step) + residual


@fcc.program
def mlp(x: In("f32[M, K] sliced(1)"), w: In("f32[K, H] sliced(0)"), bias: In("f32[H]"), residual: In("f32[M, H]"), y: Out("f32[M, H]"), seed, step, *, M=64, K=256, H=128):
    product = x @ w
    s = fcc.all_reduce(product)
    y = dropout(s + bias, 0.1, seed, step) + residual


@fcc.program
def attention(x: In("f32[B, S, H] sliced(2)"), w: In("f32[H, H] sliced(0)"), bias: In("f32[H]"), residual: In("f32[B, S, H]"), y: Out("f32[B, S, H]"), seed, step, *, B=4, S=16, H=64):
    product = x @ w
    s = fcc.all_reduce(product)
    y = dropout(s + bias, 0.1, seed, step) + residual


@fcc.program
def mlp_slices(x: In("f32[M, K] sliced(1)"), w: In("f32[K, H] sliced(0)"), bias: In("f32[H]"), residual: In("f32[M, H]"), y: Out("f32[M, H]"), seed, step, *, M=64, K=256, H=128):
    product = x @ w
    s = fcc.all_reduce(product)
    y = dropout(s + bias, 0.1, seed, step) + residual


@fcc.program(groups="S")
def pipeline(x: In("f32[M, H] local"), bias: In("f32[H]"), residual: In("f32[M, H]"), next: Out("f32[M, H]"), seed, step, *, M=64, H=128, S=2):
    s = fcc.all_reduce(x)
    y = dropout(s + bias, 0.1, seed, step) + residual
    next = send(y, 1)


_T, _B = fcc.language.Size("T"), fcc.language.Size("B")


@fcc.program
def embedding(tables: In("f32[T, V, D] sliced(0)"), indices: In(torch.int64, "N", layout="local"), offsets: In(torch.int64, _T / fcc.language.ranks * _B + 1, layout="local"),
              y: Out("f32[B, T, D] sliced(0)"), *, T=12, V=100, D=16, B=32, N=600):
    bags = fcc.language.embedding(tables, indices, offsets)
    y = all_to_all(bags, 0)


@fcc.program
def halved(x: In("f32[M, H]"), y: Out("f32[M/2, H]"), *, M=4, H=4):
    y = x[0:2] * 2


@fcc.program
def transposed(x: In("f32[M, H]"), y: Out("f32[H, M]"), *, M=4, H=4):
    y = x.T


SCHEDULED = {
    "sgd": sgd.split("s").reorder("s").as_slice("m").fuse("s_part", "m_part", "m", "p", name="step"),
    "adam": adam.split("s").reorder("s").as_slice("m", "v").fuse("s_part", "a", "m_part", "v_part", "m", "v", "p", name="step"),
    "lamb": lamb.split("s").reorder("s").as_slice("m").as_slice("v").fuse("s_part", "a", "m_part", "v_part", "m", "v", "u", "wide", "long", name="moments"),
    "lamb_tensors": lamb_tensors.split("s").reorder("s").as_slice("m").as_slice("v").fuse("s_part", "a", "m_part", "v_part", "m", "v", "u", name="moments")
                                .fuse("wide", "long", name="norms"),
    "epilogue": epilogue.split("s").reorder("s").fuse("s_part", "y"),
    "mlp": mlp,
    "attention": attention.split("s").reorder("s").overlap("product", "s_part"),
    "mlp_slices": mlp_slices.split("s").reorder("s"),
    "pipeline": pipeline.split("s").reorder("s"),
    "embedding": embedding,
}


def line_of(function, text):
    """The number of the function's first line that has the text."""
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)
