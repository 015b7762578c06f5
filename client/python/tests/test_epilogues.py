# SPDX-License-Identifier: MIT
"""Epilogues: drawn at random, fused and by torch's functions, against float64; gradients; torch.compile; what is refused."""
import dataclasses
import random
import warnings

import fcc
import pytest
import torch
from reference import random as normal

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
DTYPES = list(TOLERANCE)


def drawn(seed, puts, m, n, dtype):
    """An epilogue and, for puts, that of each rank: (Epilogue of a rank) by rank."""
    r = random.Random(seed)
    norm = r.choice((None, "rms", "layer"))
    wants_sum = r.random() < 0.4
    gate = r.random() < 0.4 and not (puts and (norm or wants_sum))
    numbers = {"norm": norm, "sum": wants_sum, "norm_eps": r.choice((0.0, 1e-5, 0.3)) or 1e-6, "activation": r.choice((None, None, "relu", "gelu", "gelu_tanh", "silu")),
               "scale": r.choice((1.0, 1.0, -0.5, 2.0)), "quantization": r.choice((None, "row", "static"))}
    has = {name: r.random() < 0.5 for name in ("bias", "residual", "norm_weight", "norm_bias")}

    def of(rank):
        at = seed * 100 + (rank if puts else 0)
        rows = m[rank] if puts else m
        return fcc.Epilogue(**numbers,
                            bias=normal(at, n, dtype=dtype) if has["bias"] else None,
                            residual=normal(at + 10, rows, n, dtype=dtype) if has["residual"] else None,
                            gate=normal(at + 20, rows, n, dtype=dtype) if gate else None,
                            norm_weight=normal(seed + 30, n, dtype=dtype) if norm and has["norm_weight"] else None,
                            norm_bias=normal(seed + 40, n, dtype=dtype) if norm == "layer" and has["norm_bias"] else None,
                            quantized_scale=torch.tensor([0.01]) if numbers["quantization"] == "static" else None)
    return of


def wanted(z, e, dtype):
    """(y, sum) in float64, of the sum in float64 with what is added to it; `sum` is rounded, as the operator does, where it is said to be."""
    f = torch.nn.functional
    total = z.to(dtype).double() if e.norm or e.sum else z
    y = total
    if e.norm == "rms":
        y = f.rms_norm(y, y.shape[-1:], None if e.norm_weight is None else e.norm_weight.double(), e.norm_eps)
    elif e.norm == "layer":
        y = f.layer_norm(y, y.shape[-1:], None if e.norm_weight is None else e.norm_weight.double(),
                         None if e.norm_bias is None else e.norm_bias.double(), e.norm_eps)
    y = {None: lambda v: v, "relu": f.relu, "gelu": f.gelu, "gelu_tanh": lambda v: f.gelu(v, approximate="tanh"), "silu": f.silu}[e.activation](y)
    return (y if e.gate is None else y * f.silu(e.gate.double())) * e.scale, total


def added(z, e):
    return z + sum(0 if stage is None else stage.double() for stage in (e.bias, e.residual))


def near(got, want, dtype):
    assert got.dtype == dtype and got.shape == want.shape, (got.shape, want.shape)
    if want.numel():
        error = ((got.double().cpu() - want).abs() / (want.abs() + 1)).max().item()
        assert error <= TOLERANCE[dtype], error


def quantized_well(result, e):
    """Of the result as it is, so exact; torch's cast does not saturate, and on GPUs it divides by a number by its reciprocal."""
    if e.quantization is None:
        assert result.quantized is None and result.quantized_scale is None
        return
    y = result.y.float().cpu()
    scale = result.quantized_scale.cpu()
    if e.quantization == "row":
        most = y.abs().amax(1) if y.shape[1] else y.new_zeros(len(y))
        assert torch.equal(scale, torch.where(most / 448 > 0, most / 448, torch.ones_like(most)))
        scale = scale[:, None]
    want = (y / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    assert torch.equal(result.quantized.cpu().view(torch.uint8), want.view(torch.uint8))


def placed(e, device):
    tensors = {f.name: getattr(e, f.name).to(device) for f in dataclasses.fields(e) if isinstance(getattr(e, f.name), torch.Tensor)}
    return dataclasses.replace(e, **tensors)


def values_rank(comm, cases):
    warnings.simplefilter("ignore", fcc.CopyWarning)
    size, device = comm.size, comm.device
    for case in range(cases):
        r = random.Random(case)
        dtype, m, n = r.choice(DTYPES), r.randint(1, 20), r.choice((1, 7, 64, 65, 300))
        k = [r.choice((0, 3, 16, 33)) for _ in range(size)]
        sums, plain = r.random() < 0.7, r.random() < 0.3
        rows = [[r.randint(0, 6) for _ in range(size)] for _ in range(size)]
        m = m if sums else [sum(sent) for sent in rows]
        e = drawn(case, not sums, m, n, dtype)
        a = [normal(case * 7 + p, m if sums else m[p], k[p], dtype=dtype) / 4 for p in range(size)]
        b = [normal(case * 11 + p, k[p], n, dtype=dtype) for p in range(size)]
        products = [x.double() @ y.double() for x, y in zip(a, b)]
        own = placed(e(comm.rank), device)
        if sums:
            z = added(sum(p.to(dtype).double() if plain else p for p in products), e(0))
            given = (a[comm.rank].to(device), b[comm.rank].to(device))
            result = (fcc.all_reduce_epilogue(products[comm.rank].to(dtype).to(device), own, comm) if plain else
                      fcc.gemv_all_reduce_epilogue(given[0], given[1].t().contiguous(), own, comm) if r.random() < 0.5 else
                      fcc.gemm_all_reduce_epilogue(*given, own, comm))
            y, total = wanted(z, e(0), dtype)
            if not plain and r.random() < 0.5:  # the same, of which each rank has some rows
                parts = [m // size + (p < m % size) for p in range(size)]
                some = slice(sum(parts[:comm.rank]), sum(parts[:comm.rank + 1]))
                shared = dataclasses.replace(own, **{name: None if getattr(own, name) is None else getattr(own, name)[some] for name in ("residual", "gate")})
                result = fcc.gemm_reduce_scatter_epilogue(*given, shared, comm)
                y, total = y[some], None if total is None else total[some]
        else:
            result = fcc.gemm_all_to_all_epilogue(a[comm.rank].to(device), b[comm.rank].to(device), own, comm, send_rows=rows[comm.rank],
                                                  recv_rows=[sent[comm.rank] for sent in rows])
            came = [added(product, e(p)) if e(p).gate is None else
                    wanted(added(product, e(p)), e(p), dtype)[0] for p, product in enumerate(products)]
            z = torch.cat([part.split(rows[p])[comm.rank] for p, part in enumerate(came)])
            y, total = (z, z) if e(0).gate is not None else wanted(z, e(0), dtype)
        near(result.y, y, dtype)
        assert (result.sum is None) == (not own.sum)
        if own.sum:
            near(result.sum, total, dtype)
        quantized_well(result, own)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_values(run, size):
    run(size, values_rank, 60)


def gather_rank(comm, cases):
    """all_gather_gemm: each rank has columns and stages of its own, and rows of all."""
    warnings.simplefilter("ignore", fcc.CopyWarning)
    size, device = comm.size, comm.device
    for case in range(cases):
        r = random.Random(case + 1000)
        dtype, k, n = r.choice(DTYPES), r.choice((0, 3, 33)), [r.choice((1, 7, 64)) for _ in range(size)]
        rows = [r.randint(0, 6) for _ in range(size)]
        e = drawn(case, False, sum(rows), n[comm.rank], dtype)(0)
        a = [normal(case * 7 + p, rows[p], k, dtype=dtype) / 4 for p in range(size)]
        b = normal(case * 11 + comm.rank, k, n[comm.rank], dtype=dtype)
        own = placed(e, device)
        result = fcc.all_gather_gemm_epilogue(a[comm.rank].to(device), b.to(device), own, comm, rows=rows)
        y, total = wanted(added(torch.cat(a).double() @ b.double(), e), e, dtype)
        near(result.y, y, dtype)
        if own.sum:
            near(result.sum, total, dtype)
        quantized_well(result, own)
    x, w = torch.randn(3, 8, generator=torch.Generator().manual_seed(comm.rank)), torch.randn(8, 5, generator=torch.Generator().manual_seed(99))
    leaves = [t.to(device).requires_grad_() for t in (x, w)]  # torch's functions behind the operator, with gradients
    fcc.all_gather_gemm_epilogue(*leaves, fcc.Epilogue(activation="relu", scale=0.5), comm).y.sum().backward()
    every = [torch.randn(3, 8, generator=torch.Generator().manual_seed(p)).requires_grad_() for p in range(size)]
    other = w.detach().clone().requires_grad_()
    (torch.nn.functional.relu(torch.cat(every) @ other) * 0.5).sum().backward()
    near(leaves[0].grad, every[comm.rank].grad.double() * size, torch.float32)
    near(leaves[1].grad, other.grad.double(), torch.float32)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_gather(run, size):
    run(size, gather_rank, 40)


def gradients_rank(comm):
    """By torch's functions behind the operator, the same values, and the gradients of one process."""
    warnings.simplefilter("ignore", fcc.CopyWarning)
    torch.manual_seed(5)
    x, w = torch.randn(comm.size, 3, 16), torch.randn(comm.size, 24, 16)
    residual, weight = torch.randn(3, 24), torch.randn(24)
    e = fcc.Epilogue(residual=residual.to(comm.device), norm="rms", norm_weight=weight.to(comm.device), norm_eps=1e-5, sum=True, activation="silu")
    fused = fcc.gemv_all_reduce_epilogue(x[comm.rank].to(comm.device), w[comm.rank].to(comm.device), e, comm)
    assert e.fuses("gemv_all_reduce", comm) == (comm.device.type == "cpu" or comm._member.launches())
    leaves = [t.clone().to(comm.device).requires_grad_() for t in (x[comm.rank], w[comm.rank], residual, weight)]
    wants = dataclasses.replace(e, residual=leaves[2], norm_weight=leaves[3])
    assert not wants.fuses("gemv_all_reduce", comm)
    got = fcc.gemv_all_reduce_epilogue(leaves[0], leaves[1], wants, comm)
    for one, other in ((fused.y, got.y), (fused.sum, got.sum)):
        torch.testing.assert_close(one, other.detach(), atol=1e-5, rtol=1e-5)
    (got.y.sum() + 2 * got.sum.sum()).backward()
    plain = [t.clone().requires_grad_() for t in (x, w, residual, weight)]
    total = torch.einsum("pmk,pnk->mn", plain[0], plain[1]) + plain[2]
    y = torch.nn.functional.silu(torch.nn.functional.rms_norm(total, (24,), plain[3], 1e-5))
    (y.sum() + 2 * total.sum()).backward()
    for leaf, whole in zip(leaves, plain):
        grad = whole.grad[comm.rank] if whole.dim() == 3 else whole.grad
        torch.testing.assert_close(leaf.grad.cpu(), grad, atol=1e-4, rtol=1e-4)
    with pytest.raises(fcc.ArgumentError, match="has no derivatives"):
        torch.ops.fcc.gemv_all_reduce_epilogue(leaves[0], leaves[1], comm.name, None, None, None, None, None, None, sum=False, norm="rms", norm_eps=0.0,
                                               activation="", scale=1.0, quantization="", schedule="auto")


@pytest.mark.parametrize("size", [1, 2])
def test_gradients(run, size):
    run(size, gradients_rank)


def compiled_rank(comm):
    warnings.simplefilter("ignore", fcc.CopyWarning)
    e = fcc.Epilogue(norm="rms", norm_eps=1e-5, sum=True, quantization="row")
    x, w = normal(comm.rank, 4, 16).to(comm.device), normal(10 + comm.rank, 24, 16).to(comm.device)

    def step(x, w):
        result = fcc.gemv_all_reduce_epilogue(x * 2, w, e, comm)
        return result.y + 1, result.sum, result.quantized_scale

    with torch.no_grad():
        for one, other in zip(torch.compile(step, fullgraph=True)(x, w), step(x, w)):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("size", [2])
def test_compiled(run, size):
    run(size, compiled_rank)


def odd_rank(comm):
    """The same fused and by torch's functions, of values and shapes at the edges."""
    warnings.simplefilter("ignore", fcc.CopyWarning)
    device = comm.device
    rows = torch.tensor([[1.0, 10.0, -3.0], [100.0, 7.0, 1.0]], device=device)
    for n in 3, 1, 0:
        for e in fcc.Epilogue(norm="rms", norm_eps=1e-5), fcc.Epilogue(norm="layer", norm_eps=1e-5, scale=2.0), fcc.Epilogue(quantization="row"):
            both = [fcc.all_reduce_epilogue(x, e, comm) for x in (rows[:, :n], rows[:, :n].clone().requires_grad_())]
            near(both[0].y, wanted(comm.size * rows[:, :n].cpu().double(), e, torch.float32)[0], torch.float32)
            torch.testing.assert_close(both[0].y, both[1].y.detach(), atol=1e-5, rtol=1e-5)
            quantized_well(both[0], e)
            quantized_well(both[1], e)
    least, nan, inf = 2.0 ** -149, float("nan"), float("inf")
    given = torch.tensor([[least, 0.0, 0.0], [nan, 4.48, 0.0], [nan, nan, nan], [inf, 1.0, 0.0]], device=device)
    e = fcc.Epilogue(residual=given, quantization="row")
    x, w = torch.zeros(4, 2, device=device), torch.zeros(3, 2, device=device)
    for factor in x, x.clone().requires_grad_():
        result = fcc.gemv_all_reduce_epilogue(factor, w, e, comm)
        torch.testing.assert_close(result.quantized_scale.cpu(), torch.tensor([1.0, 0.01, 1.0, inf]))
        torch.testing.assert_close(result.quantized.float().cpu(), torch.tensor([[0.0, 0.0, 0.0], [nan, 448.0, 0.0], [nan] * 3, [nan, 0.0, 0.0]]), equal_nan=True)


@pytest.mark.parametrize("size", [1, 2])
def test_odd(run, size):
    run(size, odd_rank)


def refused(comm, call, text):
    """The last rank's arguments are wrong: all ranks hear, on streams by synchronize() and 159 characters of the reason, and the communicator goes on."""
    with pytest.raises(fcc.ArgumentError) as caught:
        call()
        comm.synchronize()
    text = f"rank {comm.size - 1}: {text}"
    assert text[:None if comm.device.type == "cpu" or comm.rank == comm.size - 1 else 150] in str(caught.value), str(caught.value)
    comm.barrier()


def refused_rank(comm):
    warnings.simplefilter("ignore", fcc.CopyWarning)
    last = comm.rank == comm.size - 1
    x, w = torch.ones(3, 8, device=comm.device), torch.ones(6, 8, device=comm.device)
    good = fcc.Epilogue(norm="rms", norm_eps=1e-5)
    for wrong, text in (({"norm": "batch"}, "norm: \"batch\": allowed are None, rms, layer"),
                        ({"activation": "tanh"}, "activation: \"tanh\": allowed are None, relu, gelu, gelu_tanh, silu"),
                        ({"quantization": "tensor"}, "quantization: \"tensor\": allowed are None, static, row"),
                        ({"norm_weight": torch.ones(7, device=comm.device)}, "norm_weight: [7]: allowed is [6]"),
                        ({"norm_bias": torch.ones(6, device=comm.device)}, "norm_bias: given: allowed only with norm \"layer\""),
                        ({"gate": torch.ones(6, device=comm.device)}, "gate: [6]: allowed is [3, 6]"),
                        ({"scale": 0.0}, "scale: 0: allowed are finite numbers other than 0"),
                        ({"scale": 1e-60}, "scale: 1e-60: allowed are finite numbers other than 0"),
                        ({"scale": float("nan")}, "scale: nan: allowed are finite numbers other than 0"),
                        ({"norm_eps": 1e39}, "norm_eps: 1e+39: allowed are finite numbers, 0 and more"),
                        ({"quantization": "static"}, "quantized_scale: needed with quantization \"static\"")):
        epilogue = dataclasses.replace(good, **wrong) if last else good
        refused(comm, lambda: fcc.gemv_all_reduce_epilogue(x, w, epilogue, comm), f"gemv_all_reduce: {text}")
    for wrong, text in (([1.0], "x: list: allowed are tensors of 2 dimensions"), (x[0], "x: 1 dimensions, [8]: allowed are tensors of 2 dimensions")):
        refused(comm, lambda: fcc.gemv_all_reduce_epilogue(wrong if last else x, w, good, comm), f"gemv_all_reduce: {text}")
    stages = ("bias", torch.ones(4)), ("residual", torch.ones(6, 4)), ("bias", torch.ones(8).half()), ("norm_weight", torch.ones(2))
    texts = "bias: [4]: allowed is [8]", "residual: [6, 4]: allowed is [3, 8]", "bias: torch.float16: allowed is torch.float32 (x's)", "norm_weight: [2]: allowed is [8]"
    for (name, tensor), text in zip(stages, texts):
        for given in x, x.clone().requires_grad_():
            epilogue = dataclasses.replace(good, **{name: tensor.to(x.device)}) if last else good
            refused(comm, lambda: fcc.all_reduce_epilogue(given, epilogue, comm), f"all_reduce: {text}")
    if comm.device.type == "cpu":
        with pytest.raises(fcc.ArgumentError) as caught:
            fcc.gemv_all_reduce_epilogue(x, w, dataclasses.replace(good, norm_eps=0.5) if last else good, comm)
        assert f"norm_eps: rank {comm.size - 1} has 0.5, rank 0 has 1e-05" in str(caught.value)
    kinds = (("bias", 3, "int: allowed are a torch.Tensor, and None"), ("norm", ["rms"], "list: allowed are a string, and None"),
             ("sum", 1, "int: allowed are True and False"), ("scale", "2", "str: allowed are a number"),
             ("norm_eps", None, "NoneType: allowed are a number"), ("dtype", "f16", "str: allowed are a torch.dtype, and None"))
    for name, value, text in kinds:
        epilogue = dataclasses.replace(good, **{name: value}) if last else good
        refused(comm, lambda: fcc.gemv_all_reduce_epilogue(x, w, epilogue, comm), f"gemv_all_reduce: {name}: {text}")
    y = fcc.gemv_all_reduce_epilogue(x, w, good, comm).y
    torch.testing.assert_close(y, torch.ones_like(y), atol=1e-4, rtol=0)


@pytest.mark.parametrize("size", [2, 3])
def test_refused(run, size):
    run(size, refused_rank)


# ---- factors in float8_e4m3fn ----

F8 = torch.float8_e4m3fn


def codes(seed, *shape, most=0x7e):
    """All finite codes up to `most` in magnitude."""
    g = torch.Generator().manual_seed(seed)
    magnitude = torch.randint(0, most + 1, shape, generator=g)
    return (magnitude + 128 * torch.randint(0, 2, shape, generator=g)).to(torch.uint8).view(F8)


def scaled(r, factor, first, by_row):
    """A scale of any form, and what the factor stands for, in float64."""
    rows, cols = factor.shape
    blocks, lines = [-(-n // 128) for n in (rows, cols)], rows if by_row else cols
    forms = [None, (), (1,), (1, 1), (lines,), (rows, 1) if by_row else (1, cols), tuple(blocks)] + [(rows, blocks[1])] * first
    shape = r.choice(forms)
    wide = factor.double()
    if shape is None:
        return None, wide
    scale = torch.rand(shape, generator=torch.Generator().manual_seed(r.randint(0, 1 << 30))) / 100 + 0.001
    whole = torch.empty(rows, cols, dtype=torch.float64)
    for i in range(rows):
        for_row = scale.double()
        if for_row.numel() == 1:
            whole[i] = for_row.reshape(())
        elif shape == (lines,):
            whole[i] = for_row[i] if by_row else for_row
        elif shape == tuple(blocks):
            whole[i] = for_row[i // 128].repeat_interleave(128)[:cols]
        elif first and shape == (rows, blocks[1]):
            whole[i] = for_row[i].repeat_interleave(128)[:cols]
        else:
            whole[i] = for_row.reshape(-1)[i] if by_row else for_row.reshape(-1)
    return scale, wide * whole


def factors_rank(comm, cases):
    warnings.simplefilter("ignore", fcc.CopyWarning)
    size, device = comm.size, comm.device
    for case in range(cases):
        r = random.Random(case)
        dtype, op = r.choice(DTYPES), r.choice(("gemv", "gemm", "puts"))
        n, in_f8 = r.choice((1, 7, 128, 129, 300)), r.choice(((True, True), (False, True), (True, False)))
        k = [r.choice((0, 3, 128, 140, 260)) for _ in range(size)]
        rows = [[r.randint(0, 100) for _ in range(size)] for _ in range(size)]
        m = [sum(sent) for sent in rows] if op == "puts" else [r.choice((1, 2, 5, 64)) if op == "gemv" else r.choice((1, 130, 200))] * size
        bias, residual = (r.random() < 0.5 for _ in range(2))
        calls, products = [], []
        forms = [r.random() < 0.2 for _ in range(2)]  # all ranks have the same scales, of any shape
        for p in range(size):
            own, shapes = random.Random(case * 100 + p), ((m[p], k[p]), (n, k[p]) if op == "gemv" else (k[p], n))
            pair, scales = [], []
            for i, shape in enumerate(shapes):
                scale = None
                factor = normal(case * 7 + p * 3 + i, *shape, dtype=dtype) / 4
                wide = factor.double()
                if in_f8[i]:
                    factor = codes(case * 5 + p * 2 + i, *shape, most=0x38 if forms[i] else 0x7e)
                    wide = factor.double()
                    while not forms[i] and scale is None:
                        scale, wide = scaled(own, factor, i == 0, i == 0 or op == "gemv")
                pair.append((factor, wide))
                scales.append(scale)
            (a, wide_a), (b, wide_b) = pair
            z = wide_a @ (wide_b.t() if op == "gemv" else wide_b)
            e = fcc.Epilogue(bias=normal(case + (p if op == "puts" else 0), n, dtype=dtype) if bias else None,
                             residual=normal(case + 50 + (p if op == "puts" else 0), m[p], n, dtype=dtype) if residual else None,
                             x_scale=scales[0], w_scale=scales[1], dtype=dtype)
            products.append(z if op != "puts" else added(z, e))
            calls.append((a, b, e))
        a, b, e = calls[comm.rank][0].to(device), calls[comm.rank][1].to(device), placed(calls[comm.rank][2], device)
        if op == "puts":
            got = fcc.gemm_all_to_all_epilogue(a, b, e, comm, send_rows=rows[comm.rank], recv_rows=[sent[comm.rank] for sent in rows]).y
            want = torch.cat([part.split(rows[p])[comm.rank] for p, part in enumerate(products)])
        else:
            got = (fcc.gemv_all_reduce_epilogue if op == "gemv" else fcc.gemm_all_reduce_epilogue)(a, b, e, comm).y
            want = added(sum(products), calls[0][2])
        assert got.dtype == dtype and got.shape == want.shape
        if want.numel():  # relative to the largest element; what torch dequantises is rounded to the dtype
            error = ((got.double().cpu() - want).abs().max() / max(1.0, want.abs().max().item())).item()
            assert error <= TOLERANCE[dtype], (case, error)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_factors(run, size):
    run(size, factors_rank, 30)


def weights_rank(comm):
    """Of weights in the daemon's memory nothing is copied; dtypes of results; gradients of what has some; torch.compile."""
    warnings.simplefilter("error", fcc.CopyWarning)
    w = fcc.to_daemon(codes(comm.rank, 24, 160).to(comm.device))
    scale = fcc.to_daemon(torch.rand(1, 2, generator=torch.Generator().manual_seed(comm.rank)).to(comm.device) / 100)
    x = fcc.to_daemon(normal(comm.rank + 5, 4, 160, dtype=torch.bfloat16).to(comm.device))
    assert w.dtype == F8 and fcc.is_daemon_memory(w, comm)
    e = fcc.Epilogue(w_scale=scale)
    y = fcc.gemv_all_reduce_epilogue(x, w, e, comm).y
    assert y.dtype == torch.bfloat16
    with torch.no_grad():
        step = torch.compile(lambda x: fcc.gemv_all_reduce_epilogue(x, w, e, comm).y, fullgraph=True)
        torch.testing.assert_close(step(x), y)
    warnings.simplefilter("ignore", fcc.CopyWarning)
    whole = w.float() * scale.repeat_interleave(128, 1)[:, :160]
    leaf = x.clone().requires_grad_()
    got = fcc.gemv_all_reduce_epilogue(leaf, w, e, comm).y
    torch.testing.assert_close(got.detach(), y, atol=0.1, rtol=0.05)
    got.float().sum().backward()
    torch.testing.assert_close(leaf.grad.float(), whole.sum(0).expand(4, -1), atol=0.1, rtol=0.05)
    both = fcc.gemv_all_reduce_epilogue(codes(comm.rank, 2, 160, most=0x38).to(comm.device), w, e, comm)
    assert both.y.dtype == torch.bfloat16
    half = fcc.Epilogue(w_scale=scale, residual=torch.zeros(2, 24, dtype=torch.float16, device=comm.device))
    assert fcc.gemv_all_reduce_epilogue(codes(comm.rank, 2, 160, most=0x38).to(comm.device), w, half, comm).y.dtype == torch.float16
    wide = dataclasses.replace(e, dtype=torch.float32)
    assert fcc.gemv_all_reduce_epilogue(codes(comm.rank, 2, 160, most=0x38).to(comm.device), w, wide, comm).y.dtype == torch.float32


@pytest.mark.parametrize("size", [1, 2])
def test_weights(run, size):
    run(size, weights_rank)


def factors_refused_rank(comm):
    warnings.simplefilter("ignore", fcc.CopyWarning)
    last, device = comm.rank == comm.size - 1, comm.device
    x, w, at = codes(1, 3, 140).to(device), codes(2, 6, 140).to(device), f"rank {comm.size - 1}: "
    good = fcc.Epilogue(x_scale=torch.ones(3, 2, device=device), w_scale=torch.ones(6, 1, device=device))
    for wrong, text in (({"x_scale": torch.ones(4, device=device)}, "x_scale: [4]: allowed are [1], [3] (each row of x), [1, 2] (each block of 128 x 128), "
                                                                    "[3, 2] (each 128 elements of a row)"),
                        ({"w_scale": torch.ones(6, 2, device=device)}, "w_scale: [6, 2]: allowed are [1], [6] (each row of w), [1, 2] (each block of 128 x 128)"),
                        ({"w_scale": torch.ones(6, dtype=torch.float16, device=device)}, "w_scale: torch.float16: allowed is float32"),
                        ({"dtype": torch.float64}, "dtype: torch.float64: allowed are float32, float16 and bfloat16")):
        epilogue = dataclasses.replace(good, **wrong) if last else good
        refused(comm, lambda: fcc.gemv_all_reduce_epilogue(x, w, epilogue, comm), f"gemv_all_reduce: {text}")
    for factors, wrong, text in (((x.float(), w), {}, "x_scale: given: allowed only where x is float8_e4m3fn"),
                                 ((x.float(), w), {"x_scale": None, "dtype": torch.float16}, "dtype: torch.float16: allowed is torch.float32 (x's)"),
                                 ((x, w.clone().requires_grad_()), {}, "w: torch.float8_e4m3fn that requires a gradient: there is none: allowed without")):
        given, epilogue = factors if last else (x, w), dataclasses.replace(good, **wrong) if last else good
        refused(comm, lambda: fcc.gemv_all_reduce_epilogue(*given, epilogue, comm), f"gemv_all_reduce: {text}")
    epilogue = dataclasses.replace(good, x_scale=None) if last else fcc.Epilogue()
    refused(comm, lambda: fcc.all_reduce_epilogue(torch.ones(2, 3, device=device), epilogue, comm), "all_reduce: w_scale: given: allowed only of products")
    for op in ("gemv_all_reduce", "gemm_all_reduce", "gemm_reduce_scatter", "gemm_all_to_all", "all_gather_gemm"):
        with pytest.raises(fcc.ArgumentError) as caught:
            getattr(fcc, op)(x.repeat(comm.size, 1), w if op == "gemv_all_reduce" else w.t().contiguous(), comm=comm)
        assert f"fcc.{op}_epilogue() takes factors in float8_e4m3fn" in str(caught.value)
    if device.type == "cpu":  # on GPUs it may be another rank that finds the difference
        with pytest.raises(fcc.ArgumentError) as caught:
            fcc.gemv_all_reduce_epilogue(x, w, dataclasses.replace(good, w_scale=None) if last else good, comm)
        assert f"w_scale: {at[:-2]} has none, rank 0 has one" in str(caught.value)
        with pytest.raises(fcc.ArgumentError) as caught:
            fcc.gemv_all_reduce_epilogue(x, w, dataclasses.replace(good, dtype=torch.float16) if last else good, comm)
        assert f"gemv_all_reduce: dtype: {at[:-2]} has f16, rank 0 has bf16" in str(caught.value), str(caught.value)
        with pytest.raises(fcc.ArgumentError) as caught:
            fcc.gemv_all_reduce_epilogue(x.bfloat16() if last else x, w, dataclasses.replace(good, x_scale=None) if last else good, comm)
        assert f"gemv_all_reduce: x: dtype: {at[:-2]} has bf16, rank 0 has f8e4m3" in str(caught.value), str(caught.value)
    y = fcc.gemv_all_reduce_epilogue(x, w, good, comm).y
    assert y.dtype == torch.bfloat16


@pytest.mark.parametrize("size", [2, 3])
def test_factors_refused(run, size):
    run(size, factors_refused_rank)
