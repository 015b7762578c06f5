# SPDX-License-Identifier: MIT
"""fcc.parallelize(): models of transformers, spread over the ranks, do what one process does."""
import contextlib
import copy
import importlib.util
import warnings

import fcc
import pytest
import reference
import torch
from fcc.nn import _decoder

pytestmark = pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="PyPI's package transformers is not installed")

FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3")
HIDDEN, HEADS, KEY_VALUE_HEADS, WIDTH = 72, 12, 6, 8
NEW = 6  # tokens


def config_of(family, **changes):
    import transformers
    given = {"hidden_size": HIDDEN, "intermediate_size": 100, "num_hidden_layers": 3, "num_attention_heads": HEADS,
             "num_key_value_heads": KEY_VALUE_HEADS, "head_dim": WIDTH, "vocab_size": 97, "max_position_embeddings": 128,
             "initializer_range": 0.2, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0, "tie_word_embeddings": False,
             "attn_implementation": "sdpa"}
    if family == "Qwen2":  # its heads are as wide as they come out
        del given["head_dim"]
        given["hidden_size"] = HEADS * WIDTH
    return getattr(transformers, f"{family}Config")(**{**given, **changes})


def model_of(family, seed=1, kind="ForCausalLM", **changes):
    """A small one with random weights, norms and biases included."""
    import transformers
    torch.manual_seed(seed)
    made = getattr(transformers, f"{family}{kind}")(config_of(family, **changes)).eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if parameter.ndim == 1:
                parameter.copy_(torch.rand_like(parameter) - 0.5 if name.endswith("bias") else torch.rand_like(parameter) + 0.5)
    return made


def prompts(batch, length, device):
    """(tokens, mask) of prompts of different lengths, with padding in front."""
    tokens = torch.randint(2, 97, (batch, length), generator=torch.Generator().manual_seed(batch * length))
    mask = torch.ones_like(tokens)
    for i in range(1, batch):
        mask[i, :2 * i] = 0
    return (tokens * mask).to(device), mask.to(device)


def generated(model, tokens, mask, **options):
    with torch.no_grad():
        return model.generate(tokens, attention_mask=mask, max_new_tokens=NEW, do_sample=False, **options)


def logits(model, tokens, mask):
    with torch.no_grad():
        return model(tokens, attention_mask=mask).logits


CHANGES = [("Llama", {}), ("Llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
           ("Llama", {"num_key_value_heads": HEADS, "attn_implementation": "eager"}),
           ("Mistral", {"sliding_window": 8}), ("Qwen2", {}), ("Qwen3", {}),
           ("Qwen3", {"attention_bias": True, "tie_word_embeddings": True})]


def generate_rank(comm):
    """Prompts with padding, and more rows than one gemv_all_reduce takes; with both caches."""
    for family, changes in CHANGES:
        model = model_of(family, **changes)
        want = copy.deepcopy(model).to(comm.device)
        heads = want.config.num_attention_heads, want.config.num_key_value_heads
        with calls_counted() as calls, warnings.catch_warnings():
            warnings.simplefilter("error")
            assert fcc.parallelize(model, comm) is model
            for batch, length in ((1, 5), (3, 9), (3, 40)):
                given = prompts(batch, length, comm.device)
                reference.close(logits(model, *given), logits(want, *given).cpu())
                for options in ({}, {"cache_implementation": "static"}):
                    assert torch.equal(generated(model, *given, **options), generated(want, *given)), (family, changes, length, options)
        assert calls[0] == 2 * 3 * 3 * (1 + 2 * NEW), (family, changes)  # each layer's two, of each prompt
        assert (model.config.num_attention_heads, model.config.num_key_value_heads) == tuple(n // comm.size for n in heads)
        assert (want.config.num_attention_heads, want.config.num_key_value_heads) == heads


@contextlib.contextmanager
def calls_counted():
    """How often row_parallel_norm is called, in a list of one number."""
    calls, function = [0], _decoder.row_parallel_norm

    def counted(*given):
        calls[0] += 1
        return function(*given)
    _decoder.row_parallel_norm = counted
    try:
        yield calls
    finally:
        _decoder.row_parallel_norm = function


def compile_rank(comm):
    """No graph breaks, and two graphs: of the prompts, and of a step at any place of a static cache."""
    model = model_of("Qwen3", num_hidden_layers=2)
    want = copy.deepcopy(model).to(comm.device)
    fcc.parallelize(model, comm)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return torch._inductor.compile(graph, inputs)
    model.forward = torch.compile(model.forward, fullgraph=True, dynamic=False, backend=backend)
    given = prompts(3, 9, comm.device)
    assert torch.equal(generated(model, *given, cache_implementation="static"), generated(want, *given))
    assert len(graphs) == 2


def train_rank(comm):
    """Gradients are those of one process, and the loss falls."""
    for family, changes in (("Llama", {"attention_bias": True, "mlp_bias": True}), ("Qwen3", {"tie_word_embeddings": True})):
        want = model_of(family, **changes).train()
        model = fcc.parallelize(copy.deepcopy(want), comm)
        want.to(comm.device)
        tokens, mask = prompts(3, 30, comm.device)
        losses = []
        for one in (want, model):
            steps = torch.optim.SGD(one.parameters(), lr=0.01)
            losses.append([])
            for _ in range(3):
                steps.zero_grad()
                loss = one(tokens, attention_mask=mask, labels=tokens).loss
                loss.backward()
                steps.step()
                losses[-1].append(loss.detach())
            assert losses[-1][0] > losses[-1][-1]
        reference.close(torch.stack(losses[1]), torch.stack(losses[0]).cpu())
        whole = {name: parameter.grad.cpu() for name, parameter in want.named_parameters()}
        for name, parameter in model.named_parameters():
            layer = model.get_submodule(name.rpartition(".")[0])
            grad = whole[name]
            if isinstance(layer, fcc.nn.ColumnParallelLinear):
                grad = grad[layer.columns]
            elif isinstance(layer, fcc.nn.RowParallelLinear) and grad.ndim == 2:
                grad = grad[:, layer.columns]
            assert (parameter.grad.cpu() - grad).abs().max() <= 1e-5 * max(1, grad.abs().max()), name


@pytest.mark.parametrize("function", [generate_rank, train_rank])
@pytest.mark.parametrize("size", [2, 3])
def test_like_one_process(run, size, function):
    run(size, function)


def test_compile(run):
    run(2, compile_rank)
