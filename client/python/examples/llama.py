# torchrun --nproc_per_node 2 client/python/examples/llama.py      # or 4; --device cuda on GPUs; --like 8b
# (after: pip install build/fccd-*.whl)
#
# SPDX-License-Identifier: MIT
"""A Llama with random weights writes tokens: in one process, tensor-parallel by fcc.parallelize(), and the same with torch.distributed in
fccd's place (NCCL if each rank has a GPU of its own, where a CUDA graph is replayed for each token; otherwise gloo). Fails unless the
tokens are the same in float32, and the error of the logits in bfloat16 (root mean square) is at most 1.1 of that with torch.distributed."""
import argparse
import time

import fcc
import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

SIZE = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size")
SIZES = {"small": (384, 1024, 4, 24, 12, 1000), "8b": (4096, 14336, 32, 32, 8, 128256), "8b-16-layers": (4096, 14336, 16, 32, 8, 128256)}


class Distributed(fcc.nn.RowParallelLinear):
    def forward(self, x):
        y = x @ self.weight.t()
        dist.all_reduce(y)
        return y


def written(comm, model, prompt, count, graphs):
    """([tokens that the model writes behind the prompt], tokens per second, logits of the prompt)."""
    cache = StaticCache(config=model.config, max_cache_len=prompt.shape[1] + count)
    logits = model(prompt, None, None, cache).logits  # (mask, positions: what follows from the cache)
    token = logits[:, -1:].argmax(-1)
    found = [token.clone()]

    def step():
        token.copy_(model(token, None, None, cache).logits[:, -1:].argmax(-1))
    for number in range(1, count):
        if number == 2:  # the first step has set everything up
            if graphs:
                with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
                    step()
                step = graph.replay
            comm.synchronize()
            begin = time.perf_counter()
        step()
        found.append(token.clone())
    comm.synchronize()
    return torch.cat(found, 1).tolist(), (count - 2) / (time.perf_counter() - begin), logits.float()


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--device", default="cpu", help="cpu or cuda [%(default)s]")
parser.add_argument("--like", default="small", choices=SIZES, help="sizes of the layers [%(default)s]")
args = parser.parse_args()
with fcc.init(device=args.device) as comm, comm.device, torch.no_grad():  # tensors are made on the device
    graphs = comm.device.type == "cuda" and torch.cuda.device_count() >= comm.size
    if graphs:
        torch.cuda.set_device(comm.device)
    dist.init_process_group("nccl" if graphs else "gloo")
    ways, found = ("one process", "fccd", dist.get_backend()), {}
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        prompt = torch.randint(1000, (1, 48))
        model = LlamaForCausalLM(LlamaConfig(**dict(zip(SIZE, SIZES[args.like])))).bfloat16().to(dtype)  # the same weights in both
        for way in ways:
            if way == "fccd":
                fcc.parallelize(model, comm)
            for layer in model.modules() if way == ways[2] else ():
                layer.__class__ = Distributed if isinstance(layer, fcc.nn.RowParallelLinear) else type(layer)
            if way != ways[0] or comm.rank == 0:
                found[dtype, way] = written(comm, model, prompt, 32, graphs)
            if comm.rank == 0:
                print(f"{dtype}, {way}{f' of {comm.size} ranks' * (way != ways[0])}: {found[dtype, way][1]:.1f} tokens/s", flush=True)
    dist.destroy_process_group()
    if comm.rank == 0:
        errors = [(found[torch.bfloat16, way][2] - found[torch.float32, ways[0]][2]).square().mean().sqrt().item() for way in ways]
        print("error in bfloat16:", ", ".join(f"{way} {error:.2e}" for way, error in zip(ways, errors)))
        if len({str(found[torch.float32, way][0]) for way in ways}) > 1 or not errors[1] <= 1.1 * errors[2]:
            raise SystemExit(f"llama: other tokens in float32, or the error with fccd is more than 1.1 of that with {ways[2]}")
