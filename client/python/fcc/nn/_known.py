# SPDX-License-Identifier: MIT
"""Which models parallelize() knows, and whether it can take one: all that is checked before anything is changed. (parallelize() puts the
rank and its name in front of the errors' texts.)"""
from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from .._calls import FLOATS
from ..communicator import Communicator
from ..errors import ArgumentError
from ._decoder import hooked
from ._linear import RowParallelLinear

FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3")  # whose classes in transformers are named LlamaModel, LlamaDecoderLayer, ...
OLDEST = (4, 56)  # of transformers
QUERY_KEY_VALUE, GATE_UP = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")
COLUMNS, ROWS = (*QUERY_KEY_VALUE, *GATE_UP), ("o_proj", "down_proj")
HEAD_NORMS = ("q_norm", "k_norm")  # of Qwen3
LINEARS = {"self_attn": (*QUERY_KEY_VALUE, "o_proj"), "mlp": (*GATE_UP, "down_proj")}


def family_of(module: nn.Module, part: str) -> str | None:
    """"Llama" if part is "Model" and the module is transformers' LlamaModel itself, not a class that is derived from it."""
    kind = type(module)
    name = kind.__name__.removesuffix(part)
    return name if name in FAMILIES and kind.__name__ == name + part and kind.__module__.startswith("transformers.models.") else None


def backbones_of(model: Any) -> dict[str, Any]:
    """{name: module} of the decoders in the model that can be made parallel; there is one at least."""
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model: {type(model).__name__}: allowed is a model of transformers")
    for name, module in model.named_modules():
        if isinstance(module, RowParallelLinear):
            raise ArgumentError(f"model: {name}: {type(module).__name__}: the model is spread over ranks already: allowed are whole ones")
    found = {name: module for name, module in model.named_modules() if family_of(module, "Model")}
    if not found:
        raise ArgumentError(f"model: {type(model).__name__}: it has no decoder that is known here: allowed are models of transformers with "
                            f"one of {', '.join(f'{family}Model' for family in FAMILIES)}")
    version = sys.modules["transformers"].__version__
    if tuple(int(number) for number in version.split(".")[:2]) < OLDEST:
        raise ArgumentError(f"model: of transformers {version}: allowed are {'.'.join(map(str, OLDEST))} and later")
    return found


def left_whole(model: nn.Module, prefix: str = "") -> Iterator[str]:
    """Modules beside the decoders, other than lm_head, as "name (class)". They have the same inputs on all ranks, so they are right as they
    are: whole on each rank."""
    for name, module in model.named_children():
        if any(family_of(one, "Model") for one in module.modules()):
            yield from () if family_of(module, "Model") else left_whole(module, f"{prefix}{name}.")
        elif name != "lm_head":
            yield f"{prefix}{name} ({type(module).__name__})"


def check_decoder(comm: Communicator, prefix: str, model: Any) -> None:
    """Raises ArgumentError if the decoder cannot be spread over the ranks."""
    for name, module in _modules(prefix, model):
        if getattr(module, "_hf_hook", None) is not None:
            raise ArgumentError(f"model: {name}: accelerate has hooks there: allowed are models without device_map")
    expected = {"embed_tokens": "Embedding", "layers": "ModuleList", "norm": "RMSNorm", "rotary_emb": "RotaryEmbedding"}
    family = family_of(model, "Model") or ""
    _check_children(prefix, model, family, expected)
    for number, layer in enumerate(model.layers):
        name = f"{prefix}layers.{number}"
        _check_kind(name, layer, family, "DecoderLayer")
        _check_children(f"{name}.", layer, family, {"self_attn": "Attention", "mlp": "MLP", "input_layernorm": "RMSNorm",
                                                    "post_attention_layernorm": "RMSNorm"})
        _check_children(f"{name}.self_attn.", layer.self_attn, family, {
            **dict.fromkeys(LINEARS["self_attn"], "Linear"), **dict.fromkeys(HEAD_NORMS, "RMSNorm" if family == "Qwen3" else "")})
        _check_children(f"{name}.mlp.", layer.mlp, family, {**dict.fromkeys(LINEARS["mlp"], "Linear"), "act_fn": ""})
        _check_heads(comm, f"{name}.self_attn", layer.self_attn)
    _check_places(f"{prefix}layers.", model.layers)
    _check_tensors(comm, prefix, model)


def _modules(prefix: str, model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    return ((prefix + name, module) for name, module in model.named_modules())


def _check_children(prefix: str, module: nn.Module, family: str, expected: dict[str, str]) -> None:
    """expected: {name: kind}; "" for any module, or none."""
    there = {name: child for name, child in module._modules.items() if child is not None}  # named_children() leaves out what is there twice
    for name, child in there.items():
        if name not in expected:
            raise ArgumentError(f"model: {prefix}{name}: {type(child).__name__}: it is not known here: {prefix.rstrip('.')} may have "
                                f"{', '.join(expected)}")
    for name, kind in expected.items():
        if kind:
            _check_kind(prefix + name, there.get(name), family, kind)


def _check_kind(name: str, module: nn.Module | None, family: str, kind: str) -> None:
    torchs = {"Linear": nn.Linear, "Embedding": nn.Embedding, "ModuleList": nn.ModuleList}
    if type(module) is not torchs[kind] if kind in torchs else module is None or family_of(module, kind) != family:
        raise ArgumentError(f"model: {name}: {type(module).__name__}: allowed is {'torch.nn.' if kind in torchs else family}{kind} itself")
    assert module is not None
    if "forward" in module.__dict__:
        raise ArgumentError(f"model: {name}: its forward has been replaced: allowed is that of its class")
    if kind == "Linear" and hooked(module):
        raise ArgumentError(f"model: {name}: it has hooks, and is to be replaced: allowed are hooks that are set afterwards")


def _check_places(prefix: str, layers: Any) -> None:
    """What is to be replaced is at one place. Norms may be at several."""
    places: dict[int, str] = {}
    linears = [f"{block}.{name}" for block, names in LINEARS.items() for name in names]
    for number, layer in enumerate(layers):
        parts = {inside: layer.get_submodule(inside) for inside in ("", *LINEARS, *linears)}
        found = parts | {f"{inside}.{name}": parameter for inside in linears for name, parameter in parts[inside].named_parameters()}
        for inside, part in found.items():
            name = f"{prefix}{number}.{inside}".rstrip(".")
            first = places.setdefault(id(part), name)
            if first != name:
                raise ArgumentError(f"model: {name}: it is {first}, too: allowed are layers that share no more than norms")


def _check_heads(comm: Communicator, name: str, attention: Any) -> None:
    width = attention.head_dim
    for layer, what in (("q_proj", "attention heads"), ("k_proj", "key/value heads"), ("v_proj", "key/value heads")):
        heads = getattr(attention, layer).out_features // width
        if heads % comm.size:
            raise ArgumentError(f"model: {name}: {heads} {what}: allowed with {comm.size} ranks are multiples of {comm.size}")


def _check_tensors(comm: Communicator, prefix: str, model: nn.Module) -> None:
    parameters = dict(model.named_parameters())
    first = next(iter(parameters.values()))
    for name, parameter in parameters.items():
        if parameter.dtype not in FLOATS:
            raise ArgumentError(f"model: {prefix}{name}: {parameter.dtype}: allowed are float32, float16 and bfloat16")
        if parameter.dtype != first.dtype:
            raise ArgumentError(f"model: {prefix}{name}: {parameter.dtype}: allowed is one for all, that of {next(iter(parameters))}: "
                                f"{first.dtype}")
        if parameter.is_meta != first.is_meta:
            raise ArgumentError(f"model: {prefix}{name}: on {parameter.device}: allowed is that all are on meta, or none")
        if not parameter.is_meta and parameter.device.type != "cpu" and parameter.device != comm.device:
            raise ArgumentError(f"model: {prefix}{name}: on {parameter.device}: allowed are {comm.device} (the communicator's), cpu, meta")
