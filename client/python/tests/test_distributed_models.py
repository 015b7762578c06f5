# SPDX-License-Identifier: MIT
"""What trains on torch.distributed trains on the backend fcc unchanged, to the parameters that gloo gives."""
import pytest
import torch
import torch.distributed as dist
from torch import nn

SIZES = pytest.mark.parametrize("size", [2, 4])
OLDEST = torch.__version__.startswith("2.7.")
STEPS = 3


def model_of(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16, bias=False), nn.ReLU(), nn.Linear(16, 4))


def batches():
    random, here = torch.Generator("cpu").manual_seed(100 + dist.get_rank()), torch.get_default_device()
    return [tuple(torch.randn(6, width, generator=random, device="cpu").to(here) for width in (8, 4)) for _ in range(STEPS)]


def trained(model, optimizer):
    for x, y in batches():
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()


def numbers_of(parameters):
    return [p.detach().flatten().tolist() for p in parameters]


def ddp(**options):
    model = model_of(seed=dist.get_rank())  # which DDP makes alike
    wrapped = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.001, **options)
    trained(wrapped, torch.optim.SGD(model.parameters(), 0.1))
    with wrapped.no_sync():
        wrapped(batches()[0][0]).sum().backward()
    wrapped(batches()[1][0]).sum().backward()
    return numbers_of([*model.parameters(), *(p.grad for p in model.parameters())])


def ddp_views():
    return ddp(gradient_as_bucket_view=True, static_graph=True)


def ddp_norm():
    """Buffers are broadcast, SyncBatchNorm is replaced by BatchNorm (it is for GPUs); some parameters are unused."""
    torch.manual_seed(0)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.used, self.unused = nn.BatchNorm1d(8), nn.Linear(8, 4), nn.Linear(8, 4)

        def forward(self, x):
            return (self.used if dist.get_rank() == 0 else self.unused)(self.norm(x))
    model = Model()
    wrapped = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    trained(wrapped, torch.optim.SGD(model.parameters(), 0.1))
    return numbers_of([*model.parameters()])


def ddp_hook():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    model = model_of()
    wrapped = nn.parallel.DistributedDataParallel(model)
    wrapped.register_comm_hook(None, default_hooks.bf16_compress_hook)
    trained(wrapped, torch.optim.SGD(model.parameters(), 0.1))
    return numbers_of(model.parameters())


def fsdp(mixed=False, shards=None):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    model = model_of()
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,) if shards is None else (size // shards, shards),
                            mesh_dim_names=("shard",) if shards is None else ("replicate", "shard"))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if mixed else MixedPrecisionPolicy()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    trained(model, torch.optim.Adam(model.parameters(), 0.01))
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor().item()
    if OLDEST and dist.get_backend() == "gloo":
        norm /= size  # its gloo adds up where reduce_scatter_tensor() is to average, which changes nothing of what Adam does
    return numbers_of([p.full_tensor() for p in model.parameters()]) + [[norm]]


def fsdp_mixed():
    return fsdp(mixed=True)


def fsdp_hybrid():
    return fsdp(shards=2)


def zero():
    from torch.distributed.optim import ZeroRedundancyOptimizer
    model = model_of()
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    trained(wrapped, optimizer)
    optimizer.consolidate_state_dict(to=0)
    states = len(optimizer.state_dict()["state"]) if dist.get_rank() == 0 else 5
    return numbers_of(model.parameters()) + [[float(states)]]


def zero_overlap():
    from torch.distributed.optim import ZeroRedundancyOptimizer
    model = model_of()
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.01, parameters_as_bucket_view=True)
    trained(wrapped, optimizer)
    return numbers_of(model.parameters())


def tensor_parallel():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = nn.ModuleDict({"norm": nn.LayerNorm(8), "up": nn.Linear(8, 16), "down": nn.Linear(16, 8)})
    parallelize_module(model, mesh, {"norm": SequenceParallel(sequence_dim=0), "up": ColwiseParallel(input_layouts=Shard(0)),
                                     "down": RowwiseParallel(output_layouts=Replicate())})
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    random = torch.Generator().manual_seed(7)
    for _ in range(STEPS):
        x = torch.randn(8, 8, generator=random)
        optimizer.zero_grad()
        x_here = distribute_tensor(x, mesh, [Shard(0)])
        model["down"](model["up"](model["norm"](x_here)).relu()).pow(2).sum().backward()
        optimizer.step()
    found = [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]
    moved = distribute_tensor(torch.arange(64.0).view(8, 8), mesh, [Shard(0)]).redistribute(mesh, [Shard(1)])  # an All-to-All
    assert torch.equal(moved.full_tensor(), torch.arange(64.0).view(8, 8))
    return numbers_of([*found, moved.to_local()])


def pipeline():
    """Stages send each other activations and gradients."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
    rank, size = dist.get_rank(), dist.get_world_size()
    layers = [model_of(seed=s)[0] if s == 0 else nn.Linear(16, 16) for s in range(size)]
    torch.manual_seed(rank)
    layer = nn.Sequential(layers[rank], nn.ReLU())
    for p in layer.parameters():
        nn.init.constant_(p, 0.05 + 0.01 * rank)
    stage = PipelineStage(layer, rank, size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 4, loss_fn=lambda y, t: (y - t).pow(2).sum())
    x, t = torch.arange(64.0).view(8, 8) / 64, torch.ones(8, 16)
    if rank == 0:
        schedule.step(x)
    elif rank == size - 1:
        schedule.step(target=t)
    else:
        schedule.step()
    return numbers_of(p.grad for p in layer.parameters())


MODELS = [ddp, ddp_views, ddp_norm, ddp_hook, fsdp, fsdp_mixed, fsdp_hybrid, zero, zero_overlap, tensor_parallel, pipeline]


# gloo rounds a sum of bfloat16 after each rank, fccd once. Adam makes much of small differences.
LIMITS = {ddp_hook: (1e-2, 1e-3), **dict.fromkeys((fsdp, fsdp_mixed, fsdp_hybrid, zero), (1e-3, 1e-4))}


def close(found, wanted, rtol=2e-5, atol=2e-6):
    assert [len(one) for one in found] == [len(one) for one in wanted]
    for one, other in zip(found, wanted):
        torch.testing.assert_close(torch.tensor(one), torch.tensor(other), rtol=rtol, atol=atol)


@SIZES
@pytest.mark.parametrize("train", MODELS, ids=lambda f: f.__name__)
def test_as_gloo(group, device, size, train):
    if device != "cpu" and train not in (ddp, ddp_views, ddp_norm, ddp_hook):
        pytest.skip("gloo has not all that it needs on GPUs, or it is written for the cpu")
    if train is fsdp_hybrid and OLDEST:
        pytest.skip("its FSDP2 has no hybrid sharding on the cpu")
    found, wanted = group(size, train), group(size, train, backend="gloo")
    for rank in range(size):
        close(found[rank], wanted[rank], *LIMITS.get(train, ()))
        if train not in (tensor_parallel, pipeline):
            close(found[rank], found[0])


# ---- TorchRec ----

def embeddings():
    """Tables that TorchRec's planner spreads over the ranks: by table and by column, or that all ranks have."""
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
    from torchrec.distributed.planner.types import ParameterConstraints
    from torchrec.distributed.types import ShardingEnv
    size = dist.get_world_size()
    kinds = {"table": "table_wise", "column": "column_wise", "copy": "data_parallel"}
    torch.manual_seed(0)
    tables = EmbeddingBagCollection(device=torch.device("cpu"), tables=[
        EmbeddingBagConfig(name=name, embedding_dim=64, num_embeddings=40, feature_names=[f"f_{name}"]) for name in kinds])
    constraints = {name: ParameterConstraints(sharding_types=[kind], **{"min_partition": 32} if name == "column" else {})
                   for name, kind in kinds.items()}
    sharder = EmbeddingBagCollectionSharder()
    plan = EmbeddingShardingPlanner(topology=Topology(world_size=size, compute_device="cpu"), constraints=constraints).collective_plan(
        tables, [sharder], dist.group.WORLD)
    model = DistributedModelParallel(tables, env=ShardingEnv.from_process_group(dist.group.WORLD), device=torch.device("cpu"), plan=plan,
                                     sharders=[sharder])
    random = torch.Generator().manual_seed(dist.get_rank())
    found = []
    for _ in range(STEPS):
        lengths = torch.randint(0, 4, (3 * 5,), generator=random)
        indices = torch.randint(0, 40, (int(lengths.sum()),), generator=random)
        pooled = model(KeyedJaggedTensor(keys=[f"f_{name}" for name in kinds], values=indices, lengths=lengths)).wait().values()
        pooled.pow(2).mean().backward()  # the tables' optimizer is fused with it
        found.append(pooled)
    return numbers_of(found)


@SIZES
def test_torchrec(group, on_cpu, size):
    try:
        import torchrec  # noqa: F401
    except Exception as e:  # it may be there for another PyTorch
        pytest.skip(f"TorchRec cannot be imported: {e}")
    found, wanted = group(size, embeddings), group(size, embeddings, backend="gloo")
    for rank in range(size):
        close(found[rank], wanted[rank])
