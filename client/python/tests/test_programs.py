# SPDX-License-Identifier: MIT
"""Programs in Python that run: results are those of torch or of a float64 reference, and errors name the Python line."""
import copy
import gc
import math
import pickle
import re

import fake_gpus
import fcc
import pytest
import torch
from daemon import ROOT
from fcc import In, Out
from ranks import Ranks
from shipped_programs import sgd, adam, pipeline, embedding, halved, transposed, SHIPPED, SCHEDULED


def randn(seed, *shape):
    """The same on all ranks and devices; on the default one."""
    return torch.randn(shape, generator=torch.Generator("cpu").manual_seed(seed), device="cpu").to(torch.get_default_device())


def adam_reference(p, gradients, steps, lr, b1, b2, eps, scale):
    p, m, v = p.double(), 0, 0
    for t in range(1, steps + 1):
        g = sum(gradients(r, t).double() for r in range(len(gradients.ranks))) * scale
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        p = p - lr * (m / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + eps)
    return p


def thin_function(x: In("f32[M, K] sliced(1)"), w: In("f32[N, K] sliced(1)"), b: In("f32[N]"), y: Out("f32[M, N]"), *, M=2, K=30, N=70):
    product = x @ w.T
    s = fcc.all_reduce(product)
    y = torch.relu(s + b)


thin_function.__name__ = "thin"
thin = fcc.program(thin_function)

THIN_FUSED = thin.fuse("product", "s", "y", name="gemv")


def products_of(comm, *programs):
    assert "product = matmul(x, transpose(w))" in str(thin)
    torch.set_default_device(comm.device)
    x, w, b = randn(3, 2, 30), randn(4, 70, 30), randn(5, 70)
    own = slice(30 * comm.rank // comm.size, 30 * (comm.rank + 1) // comm.size)
    for program in programs:
        y = program.compile(comm)(x[:, own].contiguous(), w[:, own].contiguous(), b)
        assert torch.allclose(y.view(2, 70), torch.relu(x @ w.T + b), atol=1e-5)


def thin_rank(comm):
    products_of(comm, thin, THIN_FUSED)


@pytest.mark.filterwarnings("ignore::fcc.CopyWarning")
def test_transposed(run):
    run(2, thin_rank)


class Gradients:
    def __init__(self, ranks, n):
        self.ranks, self.n = range(ranks), n

    def __call__(self, rank, step):
        return randn(100 * step + rank, self.n)


def adam_rank(comm, memory):
    torch.set_default_device(comm.device)
    n, gradients = 1003, Gradients(comm.size, 1003)
    step = SCHEDULED["adam"].compile(comm, N=n)
    part = step.elements("m")
    make = step.empty if memory == "daemon" else lambda name: torch.empty(step.elements(name))
    p, m, v = make("p").copy_(torch.linspace(-1, 1, n)), make("m").zero_(), make("v").zero_()
    for t in range(1, 4):
        g = gradients(comm.rank, t)
        assert step(g, p, m, v, lr=1e-2, beta1=0.9, beta2=0.99, epsilon=1e-8, step=t, scale=1 / comm.size) is None
    want = adam_reference(torch.linspace(-1, 1, n), gradients, 3, 1e-2, 0.9, 0.99, 1e-8, 1 / comm.size)
    assert torch.allclose(p.double(), want, atol=1e-5, rtol=1e-5) and part in (n // comm.size, n // comm.size + 1)
    return p.tolist()


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("memory", ["daemon", "torch"])
@pytest.mark.filterwarnings("ignore::fcc.CopyWarning")
def test_adam(run_there, size, memory):
    results = run_there(size, adam_rank, memory)
    assert all(results[0] == p for p in results)


def tensors_rank(comm, memory):
    """Gradients and parameters that are many tensors, in the daemon's memory or elsewhere."""
    torch.set_default_device(comm.device)
    shapes = [(40, 7), (3,), (0, 4), (1,), (300,)]
    sizes = [math.prod(shape) for shape in shapes]
    n, hyper = sum(sizes), dict(lr=1e-2, beta1=0.9, beta2=0.99, epsilon=1e-6, scale=1 / comm.size, decay=0.1)
    step = SCHEDULED["lamb_tensors"].compile(comm, N=n, T=len(shapes))
    whole = {name: step.empty(name) if memory == "daemon" else torch.empty(n) for name in ("g", "p")}
    backwards = {name: [part.view(shape) for part, shape in zip(reversed(x.split(sizes[::-1])), shapes)] for name, x in whole.items()}
    m, v, p, g = step.empty("m").zero_(), step.empty("v").zero_(), backwards["p"], backwards["g"]
    for i, x in enumerate(p):
        x.copy_(torch.linspace(-1, 1, x.numel()).view(x.shape) + i)
    want, state = [x.double() for x in p], [(0, 0)] * len(p)
    for t in range(1, 4):
        grads = [[randn(100 * t + 10 * i + r, *shape) for i, shape in enumerate(shapes)] for r in range(comm.size)]
        for x, y in zip(g, grads[comm.rank]):
            x.copy_(y)
        step(g, p, m, v, step=t, **hyper)
        for i, x in enumerate(want):
            mean = sum(grad[i].double() for grad in grads) / comm.size
            state[i] = 0.9 * state[i][0] + 0.1 * mean, 0.99 * state[i][1] + 0.01 * mean * mean
            u = state[i][0] / (1 - 0.9**t) / ((state[i][1] / (1 - 0.99**t)).sqrt() + 1e-6) + 0.1 * x
            want[i] = x - 1e-2 * (x.norm() / u.norm() if x.norm() > 0 and u.norm() > 0 else 1) * u
    for x, y in zip(p, want):
        torch.testing.assert_close(x.double(), y, atol=1e-5, rtol=1e-5)
    for wrong, reason in (({"m": [m]}, "`m`: a list of tensors: allowed is a torch.Tensor"), ({"g": [*g, 3]}, "`g`: int 3: allowed are contiguous tensors of torch.float32"),
                          ({"g": g[:-1]}, "`g`: 284 elements: allowed are tensors of 584 elements"), ({"p": g[::-1]}, "`p`: tensors of .300, 1, 0, 3, 280. elements, `g`'s have .280"), ({"g": g + [m[:0]], "p": p + [m[:0]]}, "a table of 6 tensors: allowed are 5")):
        with pytest.raises(fcc.ArgumentError, match=reason):
            step(**({"g": g, "p": p, "m": m, "v": v, "step": 1} | hyper | (wrong if comm.rank == comm.size - 1 else {})))
    step(whole["g"], whole["p"], m, v, step=4, **hyper)  # as one tensor
    return [x.tolist() for x in p]


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("memory", ["daemon", "torch"])
@pytest.mark.filterwarnings("ignore::fcc.CopyWarning")
def test_scattered(run_there, size, memory):
    results = run_there(size, tensors_rank, memory)
    assert all(results[0] == p for p in results)


def epilogue_rank(comm):
    torch.set_default_device(comm.device)
    run = SCHEDULED["epilogue"].compile(comm, M=8, H=16)
    x, bias, residual = torch.ones(8, 16) * (comm.rank + 1), torch.arange(16.0), torch.ones(8, 16)
    y = run(x, bias, residual, seed=1, step=2)
    total = sum(range(1, comm.size + 1)) + bias.expand(8, 16)
    dropped = (y - 1).view(8, 16) == 0
    assert torch.allclose(y.view(8, 16), torch.where(dropped, torch.zeros(()), total / 0.9) + 1) and 0 < dropped.sum() < 64
    run.close()
    with pytest.raises(fcc.ArgumentError, match="program epilogue: it has been closed"):
        run(x, bias, residual, seed=1, step=2)
    return y.tolist()


@pytest.mark.filterwarnings("ignore::fcc.CopyWarning")
def test_epilogue(run_there):
    one, two = run_there(2, epilogue_rank)
    assert one == two


def pipeline_rank(comm):
    torch.set_default_device(comm.device)
    run = SCHEDULED["pipeline"].compile(comm, M=5, H=6)
    x, residual = torch.ones(5, 6) * (comm.rank + 1), torch.full((5, 6), 100.0 * (comm.rank // 2))
    y = run(x, torch.zeros(6), residual, seed=comm.rank // 2, step=0)  # seeds may differ between the groups
    before = (comm.rank // 2 + 1) % 2
    total = (sum((1, 2)) if before == 0 else sum((3, 4))) / 0.9
    assert y.shape == (5, 6) and all(v in (100.0 * before, pytest.approx(100.0 * before + total)) for v in y.flatten().tolist())
    return y.tolist()


@pytest.mark.filterwarnings("ignore::fcc.CopyWarning")
def test_pipeline(run_there):
    results = run_there(4, pipeline_rank)
    assert results[0] == results[1] and results[2] == results[3] and results[0] != results[2]
    with pytest.raises(fcc.ArgumentError, match="2 groups of 3 ranks"):
        pipeline.scheduled(3)


def embedding_rank(comm):
    torch.set_default_device(comm.device)
    run = embedding.compile(comm, T=4, V=9, D=3, B=5, N=40)
    own = 4 // comm.size
    tables, indices = torch.arange(4.0 * 9 * 3).view(4, 9, 3), torch.arange(40) * 7 % 9
    offsets = torch.arange(own * 5 + 1) * 2
    y = run(tables[own * comm.rank:own * (comm.rank + 1)].contiguous(), indices, offsets)
    want = torch.stack([torch.stack([tables[t][indices[2 * (t % own * 5 + s):2 * (t % own * 5 + s) + 2]].sum(0) for t in range(4)]) for s in range(5)])
    begin, end = 5 * comm.rank // comm.size, 5 * (comm.rank + 1) // comm.size
    assert torch.equal(y, want[begin:end])


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.filterwarnings("ignore::fcc.CopyWarning")
def test_embedding(run, size):
    run(size, embedding_rank)


@fcc.program
def mean(x: In("f32[B, S, K] sliced(2)"), w: In("f32[K, N] sliced(0)"), y: Out("f32[B, S, N]"), *, B=3, S=2, K=8, N=5):
    product = x @ w
    s = fcc.all_reduce(product)
    y = s / K + N * s / fcc.language.ranks


def mean_rank(comm):
    torch.set_default_device(comm.device)
    assert "y = s / K + N * s / ranks" in str(mean)
    x, w = randn(1, 3, 2, 8), randn(2, 8, 5)
    own = slice(8 * comm.rank // comm.size, 8 * (comm.rank + 1) // comm.size)
    y = mean.compile(comm)(x[..., own].contiguous(), w[own].contiguous())
    assert y.shape == (3, 2, 5) and torch.allclose(y, x @ w / 8 + 5 * (x @ w) / comm.size, atol=1e-5)


@pytest.mark.filterwarnings("ignore::fcc.CopyWarning")
def test_sizes_as_numbers(run):
    run(2, mean_rank)


def halved_rank(comm):
    torch.set_default_device(comm.device)
    assert halved.compile(comm)(torch.arange(16.0).view(4, 4)).tolist() == (torch.arange(8.0).view(2, 4) * 2).tolist()


@pytest.mark.filterwarnings("ignore::fcc.CopyWarning")
def test_sliced(run_there):
    run_there(2, halved_rank)


def told_rank(comm):
    """What is wrong on one rank is an error on all, and the communicator goes on."""
    torch.set_default_device(comm.device)
    step, other = SCHEDULED["sgd"].compile(comm, N=10), "meta" if comm.device.type == "cpu" else "cpu"
    g, p, m = torch.ones(10), torch.zeros(10), torch.zeros(step.elements("m"))
    wrong = [({"g": torch.ones(9)}, f"rank 1: program sgd: `g`: torch.float32, 9 elements, on {comm.device}: allowed are torch.float32, 10 elements"),
             ({"g": torch.ones(10, device=other)}, f"rank 1: program sgd: `g`: torch.float32, 10 elements, on {other}: allowed are torch.float32, 10 elements, on {comm.device}"),
             ({"lr": torch.ones(2)}, f"rank 1: program sgd: `lr`: torch.float32, 2 elements, on {comm.device}: allowed is a number"), ({"lr": 10**400}, "rank 1: program sgd: `lr`: int 1000"), ({"lr": None}, "`lr`: NoneType None: allowed is a number"),
             ({"g": torch.ones(10).double()}, "rank 1: program sgd: `g`: torch.float64"), ({"g": 3}, "rank 1: program sgd: `g`: int 3: allowed is a torch.Tensor"),
             ({"lr": "1"}, "rank 1: program sgd: `lr`: str '1': allowed is a number"), ({"q": 1}, "rank 1: program sgd: `q`: not a parameter"),
             ({"p": torch.zeros(20)[::2]}, "rank 1: program sgd: `p`: strides (2,): allowed is a contiguous tensor")]
    for given, reason in wrong:
        good = {"g": g, "p": p, "m": m, "lr": 0.1, "momentum": 0.5}
        with pytest.raises(fcc.ArgumentError) as e:
            step(**(good | given if comm.rank == 1 else good))
        assert reason in e.value.reason, e.value.reason
    step(g, p, m, lr=0.1, momentum=0.5)
    assert torch.allclose(p, torch.full((10,), -0.1 * comm.size))
    with pytest.raises(fcc.ArgumentError) as e:
        (sgd if comm.rank == 1 else adam).compile(comm)
    assert "line" in e.value.reason or ".py:" in e.value.reason, e.value.reason
    with pytest.raises(fcc.ArgumentError):
        sgd.compile(comm, N=10 + comm.rank)
    with pytest.raises(fcc.UnsupportedError) as e:
        transposed.compile(comm)
    return re.sub(r"^.*?(?=\w+\.py)", "", e.value.reason)


def hostile_rank(comm):
    """What one rank has wrong, all hear in words, and none waits; and what would silently be wrong is refused."""
    torch.set_default_device(comm.device)
    step, wrong = SCHEDULED["sgd"].compile(comm, N=10), comm.rank == 1

    class Number:
        def __float__(self):
            raise ZeroDivisionError

        def __repr__(self):
            raise ValueError
    good = lambda: {"g": torch.ones(10), "p": torch.zeros(10), "m": torch.zeros(step.elements("m")), "lr": 0.1, "momentum": 0.5}  # noqa: E731
    for given, reason in (({"g": torch.ones(10).to_sparse()}, "`g`: torch.float32, torch.sparse_coo, on"), ({"lr": Number()}, "`lr`: Number: allowed is a number"),
                          ({"g": torch.nested.nested_tensor([torch.ones(5), torch.ones(5)])}, "`g`: torch.float32, nested, on"), ({"g": [torch.ones(10)]}, "`g`: a list of tensors"),
                          ({"p": torch.inference_mode()(lambda: torch.zeros(10))()}, "`p`: a tensor of torch.inference_mode.. outside of that")):
        with pytest.raises(fcc.ArgumentError, match=f"rank 1: program sgd: {reason}"):
            step(**good() | (given if wrong else {}))
    for transformed in (lambda: torch.vmap(lambda g: step(**good() | {"g": g}) or g)(torch.ones(3, 10)), lambda: torch.func.grad(lambda g: (step(**good() | {"g": g}), g.sum())[1])(torch.ones(10))):
        with pytest.raises(fcc.ArgumentError, match="`g`: torch.float32, of torch.vmap or torch.func, on"):
            transformed()
    with torch.inference_mode():
        step(**good())
    end = SCHEDULED["epilogue"].compile(comm, M=2, H=4)
    x, bias, residual = torch.ones(2, 4, requires_grad=True), torch.zeros(4), torch.zeros(2, 4)
    with pytest.raises(fcc.ArgumentError, match="rank [01]: program epilogue: `x`: it requires a gradient, and programs have none: allowed is x.detach"):
        end(x, bias, residual, seed=1, step=1)
    with torch.no_grad():
        end(x, bias, residual, seed=1, step=1)
    y = end.empty("y").zero_()
    with pytest.raises(fcc.ArgumentError, match="`y` and `(x|residual)`: they share memory: allowed are tensors that lie apart"):
        end(y, bias, y, y, seed=1, step=1)
    assert end(residual, bias, residual, residual, seed=1, step=1) is residual  # copied before the result comes
    lists, hyper = SCHEDULED["lamb_tensors"].compile(comm, N=10, T=2), dict(lr=0.1, beta1=0.9, beta2=0.9, epsilon=1e-6, step=1, scale=1, decay=0)
    w, two = torch.ones(10), [torch.ones(4), torch.ones(6)]
    state = {"m": torch.zeros(lists.elements("m")), "v": torch.zeros(lists.elements("v"))} | hyper
    with pytest.raises(fcc.ArgumentError, match="`p` and `p`, which are copied,: they share memory"):
        lists(two, [w[:4], w[2:8]], **state)
    with pytest.raises(fcc.ArgumentError, match="rank 1: program lamb_tensors: `g`: NoneType None: allowed are contiguous tensors"):
        lists([None, None] if wrong else two, two, **state)
    for bad in "ab", None, [1.5, 8], [-1, 11]:
        with pytest.raises(fcc.ArgumentError, match="table: .*: allowed is a list of numbers of elements"):
            lists.table(bad)
    with pytest.raises(fcc.ArgumentError, match="allowed are its tensors"):
        lists.empty([])
    assert copy.deepcopy(step) is step and copy.copy(step) is step
    with pytest.raises(TypeError, match="a Program can"):
        pickle.dumps(step)
    assert str(pickle.loads(pickle.dumps(SCHEDULED["sgd"]))) == str(SCHEDULED["sgd"])
    tensors = {name: step.empty(name).zero_().requires_grad_(name == "p") for name in "gpm"}
    loss = (tensors["p"] * tensors["p"]).sum()
    step(**tensors, lr=0.1, momentum=0.5)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    torch.compile(lambda g: (step(**good() | {"g": g}), g + 1)[1], backend="eager")(torch.ones(10))
    step.close()
    for call in (lambda: step.table([1]), lambda: step(**good())):
        with pytest.raises(fcc.ArgumentError, match="program sgd: it has been closed"):
            call()
    comm.barrier()


@pytest.mark.filterwarnings("ignore::fcc.CopyWarning", "ignore::UserWarning")
def test_hostile(run_there):
    run_there(2, hostile_rank)


@pytest.mark.filterwarnings("ignore::fcc.CopyWarning")
def test_told(run_there):
    for reason in run_there(2, told_rank):
        assert re.match(r"shipped_programs\.py:\d+: ", reason), reason


def turns_rank(comm):
    """Each run is behind what the stream had, and begins behind the copies back of the one before; a stream that is captured is refused, on all ranks."""
    step = SCHEDULED["sgd"].compile(comm, N=10)
    g, p, m = torch.ones(10), torch.zeros(10), torch.zeros(step.elements("m"))
    library = fcc._library.library()
    program_run = library.program_run
    library.program_run = lambda handle: (fake_gpus.events.append("run"), program_run(handle))[1]
    first = fake_gpus.Event.made + 1
    fake_gpus.events.clear()
    for _ in range(2):
        step(g, p, m, lr=0.5, momentum=0.0)
    assert fake_gpus.events == [f"record {first}", f"query {first}", "run", f"record {first + 1}",
                                f"wait {first + 1}", f"record {first + 2}", f"query {first + 2}", "run", f"record {first + 3}"], fake_gpus.events
    assert p.tolist() == [-2.0] * 10
    with pytest.raises(fcc.ArgumentError, match="rank 1: program sgd: `lr`"):
        step(g, p, m, lr="1" if comm.rank == 1 else 0.5, momentum=0.0)
    if comm.rank == 1:
        assert fake_gpus.events[-1] == f"record {fake_gpus.Event.made}" and fake_gpus.events.count("run") == 2  # copies may be under way
    capturing = torch.cuda.is_current_stream_capturing
    torch.cuda.is_current_stream_capturing = lambda: comm.rank == 1
    before = list(fake_gpus.events)
    with pytest.raises(fcc.CaptureError if comm.rank == 1 else fcc.ArgumentError, match="rank 1: program sgd: the stream is being captured into a graph: not allowed"):
        step(g, p, m, lr=0.5, momentum=0.0)
    assert comm.rank == 0 or fake_gpus.events == before
    torch.cuda.is_current_stream_capturing = capturing
    step(g, p, m, lr=0.5, momentum=0.0)
    assert p.tolist() == [-3.0] * 10


@pytest.mark.filterwarnings("ignore::fcc.CopyWarning")
def test_turns(fakes):
    Ranks(fakes, "cuda", 2, turns_rank).results()


def streams_rank(comm):
    """On GPUs: a run sees what the current stream had before, though that takes long; its results are there for all streams; in the daemon's memory and in torch's."""
    torch.cuda.set_device(comm.device)  # torch.cuda.graph() captures a stream of the current GPU
    step = SCHEDULED["sgd"].compile(comm, N=1 << 20)
    for make in (lambda name: step.empty(name).zero_(), lambda name: torch.zeros(step.elements(name), device=comm.device)):
        g, p, m = make("g"), make("p"), make("m")
        torch.cuda.synchronize(comm.device)
        for run in range(1, 6):
            side = torch.cuda.Stream(comm.device)
            with torch.cuda.stream(side):
                torch.cuda._sleep(20_000_000)
                g.fill_(comm.rank + run)
                step(g, p, m, lr=1.0, momentum=0.0)
                if step._tensors["p"].copy is not None:
                    torch.cuda.current_stream(comm.device).synchronize()
            want = -sum(sum(r + k for r in range(comm.size)) for k in range(1, run + 1))
            assert (p == want).all(), (run, p[:4], want)
    with pytest.raises(fcc.CaptureError, match="program sgd: the stream is being captured"):
        with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
            step(g, p, m, lr=1.0, momentum=0.0)
    comm.barrier()
    step(g, p, m, lr=0.0, momentum=0.0)
    assert (p == want).all()


@pytest.mark.filterwarnings("ignore::fcc.CopyWarning")
def test_streams(run, device):
    if device == "cpu":
        pytest.skip("of GPUs")
    run(2, streams_rank)


def moved_rank(comm):
    """Another buffer comes to lie where the one before was, and holds the tensors elsewhere; views with other signs; a parameter comes as a list, then as one."""
    torch.set_default_device(comm.device)
    step = SCHEDULED["sgd"].compile(comm, N=1 << 18)
    g, m = step.empty("g"), step.empty("m")
    for run in range(1, 4):
        p = step.empty("p").zero_()
        g.fill_(run)
        m.zero_()
        step(g, p, m, lr=1.0, momentum=0.0)
        assert (p == -run * comm.size).all()
        del p
        gc.collect()
    p = step.empty("p").zero_()
    turned = torch.complex(torch.zeros(1 << 18), g).conj().imag
    assert turned.is_neg()
    step(turned.contiguous() if comm.rank else turned, p, m.zero_(), lr=1.0, momentum=0.0)
    assert (p == 3 * comm.size).all()
    with torch.no_grad():
        view = torch._neg_view(g)  # of the same address
    step(g, p, m.zero_(), lr=0.0, momentum=0.0)
    step(view, p, m.zero_(), lr=1.0, momentum=0.0)
    assert (p == 6 * comm.size).all(), p[:4]


@pytest.mark.filterwarnings("ignore::fcc.CopyWarning")
def test_moved(run_there):
    run_there(2, moved_rank)


def test_page():
    """The functions of client/PROGRAMS.md make the shipped programs."""
    made = {"fcc": fcc, "torch": torch}
    for code in re.findall(r"```python\n(.*?)```", (ROOT / "client" / "PROGRAMS.md").read_text(), re.S):
        exec(compile(code, "PROGRAMS.md", "exec"), made)
    for name, file in ("fast", "adam"), ("mlp", "mlp"), ("staged", "pipeline"):
        assert str(made[name]) == str(fcc.Program.read(SHIPPED / f"{file}.fcc"))
