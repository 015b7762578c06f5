# SPDX-License-Identifier: MIT
"""fcc.parallelize(): models of transformers, spread over the ranks, do what one process does."""
import contextlib
import copy
import importlib.util
import io
import warnings

import fcc
import pytest
import reference
import torch
from fcc.nn import _decoder
from ranks import gpus

pytestmark = pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="PyPI's package transformers is not installed")

FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3")
HIDDEN, HEADS, KEY_VALUE_HEADS, WIDTH = 72, 12, 6, 8
NEW = 6  # tokens
STATIC = {"cache_implementation": "static", "disable_compile": True}  # on GPUs generate() would else compile by itself


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
            warnings.filterwarnings("error", message="fcc|rank ")
            assert fcc.parallelize(model, comm) is model
            for batch, length in ((1, 5), (3, 9), (3, 40)):
                given = prompts(batch, length, comm.device)
                reference.close(logits(model, *given), logits(want, *given).cpu())
                for options in ({}, STATIC):
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
    """No graph breaks, and two graphs: of the prompts, and of a step at any place of a static cache. Inductor compiles the latter."""
    model = model_of("Qwen3", num_hidden_layers=2)
    want = copy.deepcopy(model).to(comm.device)
    fcc.parallelize(model, comm)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return torch._inductor.compile(graph, inputs) if len(graphs) == 2 else graph.forward
    model.forward = torch.compile(model.forward, fullgraph=True, dynamic=False, backend=backend)
    given = prompts(3, 9, comm.device)
    assert torch.equal(generated(model, *given, **STATIC), generated(want, *given))
    assert len(graphs) == 2


def graph_rank(comm):
    """A step captured into a CUDA graph, whose replays write what one process writes."""
    import transformers
    torch.cuda.set_device(comm.device)
    model, (prompt, _) = model_of("Qwen3").to(comm.device), prompts(1, 9, comm.device)
    want = generated(model, prompt, torch.ones_like(prompt))[:, 9:]
    fcc.parallelize(model, comm)
    with torch.no_grad():
        cache = transformers.StaticCache(config=model.config, max_cache_len=9 + NEW)
        token = model(prompt, None, None, cache).logits[:, -1:].argmax(-1)
        found = [token.clone()]

        def step():
            token.copy_(model(token, None, None, cache).logits[:, -1:].argmax(-1))
        step()  # a communicator's first operators are outside of captures
        found.append(token.clone())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        for _ in range(NEW - 2):
            graph.replay()
            found.append(token.clone())
    assert torch.equal(torch.cat(found, 1), want)


def compiled_by_generate_rank(comm):
    """With a static cache on GPUs generate() compiles a step, with CUDA graphs, by itself."""
    torch.cuda.set_device(comm.device)
    model, given = model_of("Llama").to(comm.device), prompts(3, 9, comm.device)
    want = generated(model, *given)
    fcc.parallelize(model, comm)
    for _ in range(2):
        assert torch.equal(generated(model, *given, cache_implementation="static"), want)


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


def hooks_rank(comm):
    """Who looks at a module sees the tensors of one process, and is told; and hidden states and attentions are those of one process."""
    want = model_of("Llama").to(comm.device)
    given = prompts(2, 9, comm.device)
    for name in ("", "0", "0.self_attn", "1.self_attn.o_proj", "2.mlp", "1.mlp.down_proj", "1.post_attention_layernorm",
                 "1.input_layernorm"):
        model = fcc.parallelize(copy.deepcopy(want), comm)
        seen = [], []
        for one, into in zip((want, model), seen):
            hook = one.model.layers.get_submodule(name) if name else one.model.norm
            handle = hook.register_forward_hook(lambda _, inputs, output, into=into: into.append(output))
            if one is want:
                expected = logits(one, *given)
            else:
                with pytest.warns(UserWarning, match="there are hooks at"):
                    reference.close(logits(one, *given), expected.cpu())
            handle.remove()
        tensors = [[one if isinstance(one, torch.Tensor) else one[0] for one in into] for into in seen]
        assert len(tensors[0]) == len(tensors[1]) == 1, name
        reference.close(tensors[1][0], tensors[0][0].cpu())
        with calls_counted() as calls:
            logits(model, *given)
        assert calls[0] == 6, name  # without the hook as before
    model = fcc.parallelize(copy.deepcopy(want), comm)
    with torch.no_grad():
        outputs = [one(given[0], attention_mask=given[1], output_hidden_states=True).hidden_states for one in (model, want)]
    for got, whole in zip(*outputs, strict=True):
        reference.close(got, whole.cpu())


def changed_rank(comm):
    """What may be done to a spread model: layers are left out, it is copied, it takes weights of a whole one; and what may not."""
    model, given = model_of("Mistral").to(comm.device), prompts(2, 9, comm.device)
    want, whole = copy.deepcopy(model), logits(model, *given)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fcc.parallelize(model, comm)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    reference.close(logits(copied, *given), whole.cpu())
    model.load_state_dict(state)
    reference.close(logits(model, *given), whole.cpu())
    for left in ([0, 2], [0]):  # one is left out in between, and at the end
        for one in (want, model):
            one.model.layers = torch.nn.ModuleList(layer for layer in one.model.layers if layer.self_attn.layer_idx in left)
        reference.close(logits(model, *given), logits(want, *given).cpu())
    with pytest.raises(fcc.UnsupportedError, match="save_pretrained"):
        model.save_pretrained("/dev/null")
    for module in (model, *model.model.layers):
        with pytest.raises((fcc.UnsupportedError, TypeError), match=r"state_dict\(\)"):
            torch.save(module, io.BytesIO())
    copied.train().gradient_checkpointing_enable()
    with pytest.raises(fcc.UnsupportedError, match="gradient checkpointing"):
        copied(given[0])


def load_rank(comm, folder):
    """Weights in one file, in several, of a model without its head, and tied ones: each rank reads its parts, and nothing else of layers."""
    import transformers
    for number, (family, kind, changes) in enumerate((("Llama", "ForCausalLM", {}), ("Qwen3", "ForCausalLM", {"tie_word_embeddings": True}),
                                                      ("Qwen2", "Model", {}))):
        want = model_of(family, **changes)
        place = f"{folder}/{number}"
        if comm.rank == 0:
            want.generation_config.max_new_tokens = 3
            want.save_pretrained(place, max_shard_size="100KB" if number else "1GB")
        comm.barrier()
        with torch.device("meta"):
            model = getattr(transformers, family + kind)(want.config)
        with pytest.raises(fcc.ArgumentError, match="on meta: allowed with checkpoint="):
            fcc.parallelize(model, comm)
        assert fcc.parallelize(model, comm, checkpoint=place).training is False
        given = prompts(2, 9, comm.device)
        want.to(comm.device)
        if kind == "Model":
            with torch.no_grad():
                reference.close(model(*given).last_hidden_state, want.model(*given).last_hidden_state.cpu())
            continue
        assert torch.equal(generated(model, *given), generated(want, *given))
        assert (model.lm_head.weight is model.model.embed_tokens.weight) == bool(changes) and model.generation_config.max_new_tokens == 3


def share_weight(layers):
    layers[1].mlp.gate_proj.weight = layers[0].mlp.up_proj.weight


SHARED = [(lambda layers: layers.__setitem__(2, layers[0]), "2", "0"),
          (lambda layers: setattr(layers[1], "mlp", layers[0].mlp), "1.mlp", "0.mlp"),
          (lambda layers: setattr(layers[1].self_attn, "k_proj", layers[1].self_attn.v_proj), "1.self_attn.v_proj", "1.self_attn.k_proj"),
          (share_weight, "1.mlp.gate_proj.weight", "0.mlp.up_proj.weight")]


def shared_norm_rank(comm):
    """One norm for all, and one for queries and keys: forward and gradients are those of one process."""
    model, given = model_of("Qwen3"), prompts(2, 9, comm.device)
    for layer in model.model.layers:
        layer.input_layernorm = layer.post_attention_layernorm = model.model.norm
        layer.self_attn.q_norm = layer.self_attn.k_norm
    want = copy.deepcopy(model).to(comm.device)
    fcc.parallelize(model, comm)
    reference.close(logits(model, *given), logits(want, *given).cpu())
    for one in model, want:
        one(given[0], labels=given[0]).loss.backward()
    reference.close(model.model.norm.weight.grad, want.model.norm.weight.grad.cpu())
    reference.close(model.model.layers[0].self_attn.q_norm.weight.grad, want.model.layers[0].self_attn.q_norm.weight.grad.cpu())


def refused_rank(comm):
    """Each of these is an error on all ranks, and leaves the model as it was."""
    import transformers

    def refused(text, model, only=None, **options):
        before = str(model)
        with pytest.raises(fcc.ArgumentError, match=text) as e:
            fcc.parallelize(model if only is None or comm.rank == 1 else model_of("Llama"), comm, **options)
        assert e.value.reason.startswith(f"rank {e.value.rank}: parallelize: ") and str(model) == before
        comm.barrier()
    refused(r"model: Linear: it has no decoder that is known here: allowed are models of transformers with one of LlamaModel, MistralModel,",
            torch.nn.Linear(3, 3))
    refused("model: GPT2LMHeadModel: it has no decoder that is known", transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_embd=8, n_layer=1, n_head=1, vocab_size=9)))
    refused("model: str: allowed is a model of transformers", "a path")
    refused(r"model: model.layers.0.self_attn: 9 attention heads: allowed with 2 ranks are multiples of 2",
            model_of("Llama", num_attention_heads=9, num_key_value_heads=3))
    refused(r"3 key/value heads: allowed with 2 ranks", model_of("Llama", num_key_value_heads=3))
    refused(r"model: model.layers.0.self_attn: 9 attention heads", model_of("Llama", num_attention_heads=9, num_key_value_heads=3), only=1)
    refused(r"model: it is not rank 0's: allowed is the same model on all ranks", model_of("Llama", seed=comm.rank))
    refused("rank 1: parallelize: model: it is not rank 0's", model_of("Llama", num_hidden_layers=2 + comm.rank))
    refused(r"lm_head.weight: torch.float64|model: model.embed_tokens.weight: torch.float64: allowed are float32, float16 and bfloat16",
            model_of("Llama").double())
    mixed, lora, more, hook, sub, own, moved = (model_of("Llama") for _ in range(7))
    mixed.model.norm.bfloat16()
    refused(r"model.norm.weight: torch.bfloat16: allowed is one for all, that of embed_tokens.weight: torch.float32", mixed)
    lora.model.layers[1].mlp.up_proj = torch.nn.Sequential(torch.nn.Linear(72, 100))
    refused(r"model.layers.1.mlp.up_proj: Sequential: allowed is torch.nn.Linear itself", lora)
    more.model.layers[2].self_attn.gate = torch.nn.Linear(3, 3)
    refused(r"model.layers.2.self_attn.gate: Linear: it is not known here: model.layers.2.self_attn may have q_proj, k_proj,", more)
    hook.model.layers[0].mlp.up_proj.register_forward_hook(lambda *_: None)
    refused(r"model.layers.0.mlp.up_proj: it has hooks, and is to be replaced", hook)
    sub.model.layers[0].mlp.__class__ = type("Own", (type(sub.model.layers[0].mlp),), {})
    refused(r"model.layers.0.mlp: Own: allowed is LlamaMLP itself", sub)
    own.model.layers[1].mlp.forward = own.model.layers[0].mlp.forward
    refused(r"model.layers.1.mlp: its forward has been replaced", own)
    for change, place, first in SHARED:
        shares = model_of("Llama")
        change(shares.model.layers)
        refused(rf"model: model.layers.{place}: it is model.layers.{first}, too: allowed are layers that share no more than norms", shares)
    moved.model.layers[0].to("meta")
    refused(r"model.layers.0.self_attn.q_proj.weight: on meta: allowed is that all are on meta, or none", moved)
    refused(r"checkpoint: /nowhere: the model has weights: allowed for models on the meta device", model_of("Llama"), checkpoint="/nowhere")
    with torch.device("meta"):
        refused(r"checkpoint: /nowhere: no weights: allowed are a folder", model_of("Llama"), checkpoint="/nowhere")
    with pytest.raises(fcc.ArgumentError, match="parallelize: comm: str: allowed are a Communicator"):
        fcc.parallelize(model_of("Llama"), "cpu")
    twice = fcc.parallelize(model_of("Llama"), comm)
    refused(r"model.layers.0.self_attn.o_proj: LastLinear: the model is spread over ranks already: allowed are whole ones", twice)


def beside_rank(comm):
    """What is not known beside the decoder is whole, works, and is reported."""
    model = model_of("Llama", kind="ForSequenceClassification")
    model.scale = torch.nn.Parameter(torch.tensor(2.0))
    want, given = copy.deepcopy(model).to(comm.device), prompts(2, 9, comm.device)
    with pytest.warns(UserWarning, match=r"whole on each rank, because these are not known: score \(Linear\)$"):
        fcc.parallelize(model, comm)
    reference.close(logits(model, *given), logits(want, *given).cpu())


@pytest.mark.parametrize("function", [generate_rank, train_rank])
@pytest.mark.parametrize("size", [2, 3])
def test_like_one_process(run, size, function):
    run(size, function)


@pytest.mark.parametrize("function", [compile_rank, hooks_rank, changed_rank, refused_rank, shared_norm_rank, beside_rank])
def test_model(run, function):
    run(2, function)


@pytest.mark.parametrize("function", [graph_rank, compiled_by_generate_rank])
def test_cuda_graph(run, device, function):
    gpus(device)
    run(2, function)


@pytest.mark.parametrize("size", [1, 2])
def test_load(run, size, tmp_path):
    run(size, load_rank, str(tmp_path))
