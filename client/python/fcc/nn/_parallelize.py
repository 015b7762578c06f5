# SPDX-License-Identifier: MIT
"""parallelize(): a model of transformers becomes tensor-parallel."""
from __future__ import annotations

import contextlib
import copy
import pathlib
import warnings
import zlib
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch import nn

from .. import communicator
from .._communicator.refusals import refuse
from ..communicator import Communicator
from ..errors import ArgumentError, UnsupportedError
from ..memory import empty
from ._column import ColumnParallelLinear
from ._decoder import FinalNorm, HeadNorm, LastLinear, ParallelLayer, mix
from ._known import COLUMNS, HEAD_NORMS, LINEARS, ROWS, backbones_of, check_decoder, left_whole
from ._weights import OfFiles, OfModel

Model = TypeVar("Model", bound=nn.Module)


def parallelize(model: Model, comm: Communicator | None = None, *, checkpoint: str | pathlib.Path | None = None) -> Model:
    """Spread a decoder of transformers (Llama, Mistral, Qwen2, Qwen3) over the ranks: tensor parallelism. All ranks call it, with the same
    model.

        model = AutoModelForCausalLM.from_pretrained(path)
        fcc.parallelize(model).generate(...)                      # the same tokens on all ranks

        with torch.device("meta"):                                # no rank ever has the whole model
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path))
        fcc.parallelize(model, checkpoint=path)

    Each rank keeps its part of the attention heads and of the MLP's hidden units: q_proj, k_proj, v_proj, gate_proj and up_proj become
    ColumnParallelLinear, o_proj and down_proj RowParallelLinear. The sum over the ranks, the residual and the next RMSNorm are one call,
    row_parallel_norm(). Caches, static ones too, have this rank's heads. Embeddings, norms, lm_head and what is beside the decoder stay
    whole on each rank.

    Args:
        model: is changed in place, and returned. Its weights are on the cpu or on the communicator's device, to which they are moved; or
            all are on the meta device. The numbers of attention heads and key/value heads are multiples of the number of ranks
        comm: None: the default communicator
        checkpoint: for a model on the meta device: a folder of safetensors files, or one file, with the whole model's weights. Each rank
            reads its parts only

    All ranks call the model alike: forward(), generate() with any cache, backward(). With sampling they need the same random numbers
    (torch.manual_seed()). Where the ranks do not launch operators themselves, activations are copied into the daemon's memory.

    Hooks that are set on modules later see tensors as before. A warning says which sums are then computed apart from residual and norm.

    The parameters of spread layers are new objects, so make an optimizer afterwards. state_dict() has this rank's parts; load_state_dict()
    takes those, or the whole model's. save_pretrained() is an error. model.config is a copy, with this rank's numbers of heads.

    Raises: ArgumentError, on all ranks, for a module inside the decoder that is not known (what is unknown beside it is left whole, with a
    warning), for heads that the ranks do not divide, for a model that is spread already, for devices and dtypes that do not fit, and if the
    ranks' models differ; and what empty() does.
    """
    comm = communicator.chosen(comm, "parallelize")
    with _together(comm):
        backbones, weights = _checked(comm, model, checkpoint)
        digest = _digest(model, weights)
    digests = torch.ops.fcc.all_gather(torch.tensor([digest], device=comm.device), comm.name).tolist()
    for rank, other in enumerate(digests):
        if other != digests[0]:
            raise ArgumentError(f"rank {rank}: parallelize: model: it is not rank 0's: allowed is the same model on all ranks", rank=rank,
                                remedy="Load the same weights on all ranks, or seed them alike (torch.manual_seed()).")
    with _together(comm):
        _copy_configs(model)
        for prefix, backbone in backbones.items():
            _spread(comm, prefix, backbone, weights)
        _place(comm, model, weights)
        if isinstance(weights, OfFiles):
            _finish_load(comm, model, backbones, pathlib.Path(str(checkpoint)))
    comm._copies.warned |= {("gemv_all_reduce", "x"), ("gemv_all_reduce", "residual")}  # nobody can make a model's activations elsewhere
    model.save_pretrained = _save_pretrained  # type: ignore[assignment]
    beside = [] if "" in backbones else list(left_whole(model))
    if beside:
        warnings.warn(f"fcc.parallelize: whole on each rank, because these are not known: {', '.join(beside)}", stacklevel=2)
    return model


@contextlib.contextmanager
def _together(comm: Communicator) -> Iterator[None]:
    """A context that all ranks leave together. An error in it is one on all ranks, and gets the rank and the name of the call in front."""
    try:
        yield
    except Exception as e:
        if isinstance(e, ArgumentError) and not e.reason.startswith("rank "):
            e = ArgumentError(f"rank {comm.rank}: parallelize: {e.reason}", rank=comm.rank)
        raise refuse(comm, "noop", e) from None
    comm.barrier()


def _checked(comm: Communicator, model: Any, checkpoint: str | pathlib.Path | None) -> tuple[dict[str, Any], OfModel | OfFiles]:
    """The decoders, by their names' prefixes, and where the weights are."""
    backbones = {f"{name}." if name else "": module for name, module in backbones_of(model).items()}
    for prefix, backbone in backbones.items():
        check_decoder(comm, prefix, backbone)
    meta = [name for name, parameter in model.named_parameters() if parameter.is_meta]
    if checkpoint is None:
        if meta:
            raise ArgumentError(f"model: {meta[0]}: on meta: allowed with checkpoint=, from which the weights are read")
        return backbones, OfModel(model)
    if len(meta) < len(list(model.named_parameters())):
        raise ArgumentError(f"checkpoint: {checkpoint}: the model has weights: allowed for models on the meta device")
    return backbones, OfFiles(checkpoint, model)


def _digest(model: nn.Module, weights: OfModel | OfFiles) -> int:
    """A number that is the same on all ranks if the model is: of all names, sizes and dtypes, and of each weight's first elements."""
    shapes = [(name, tuple(parameter.shape), str(parameter.dtype)) for name, parameter in model.named_parameters()]
    firsts = [weights.part(name, (*[slice(0, 1)] * (len(shape) - 1), slice(0, 16))).flatten().float().cpu()
              for name, shape, _ in shapes if shape]
    return zlib.crc32(bytes(torch.cat(firsts).view(torch.uint8).tolist()), zlib.crc32(repr(shapes).encode()))


def _copy_configs(model: nn.Module) -> None:
    """The model gets configurations of its own, which may be changed."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        if "config" in module.__dict__:
            module.config = copy.deepcopy(module.config, memo)


def _spread(comm: Communicator, prefix: str, backbone: Any, weights: OfModel | OfFiles) -> None:
    """Replaces a decoder's linear layers, sets the number of heads, and folds sums and norms."""
    config, layers = backbone.config, list(backbone.layers)
    if layers:
        config.head_dim = layers[0].self_attn.head_dim  # would else be computed from the number of heads
    config.num_attention_heads //= comm.size
    config.num_key_value_heads //= comm.size
    for number, layer in enumerate(layers):
        for block, names in LINEARS.items():
            inside = getattr(layer, block)
            for name in names:
                place = f"{prefix}layers.{number}.{block}.{name}"
                setattr(inside, name, _part(comm, place, getattr(inside, name), weights))
                if name in ROWS:
                    getattr(inside, name).inside = (inside,)
    mix(FinalNorm, backbone.norm)
    followers = [(layer, layer.input_layernorm) for layer in layers[1:]] + [(backbone.norm,)]
    for layer, after in zip(layers, followers):
        layer.after, layer.comm_name = after, comm.name
        mix(ParallelLayer, layer)
        for name, norm in layer.self_attn.named_children():
            if name in HEAD_NORMS:
                norm.comm_name = comm.name
                mix(HeadNorm, norm)


def _part(comm: Communicator, name: str, linear: nn.Linear, weights: OfModel | OfFiles) -> ColumnParallelLinear | LastLinear:
    """This rank's part of the layer."""
    kind: Any = ColumnParallelLinear if name.rpartition(".")[2] in COLUMNS else LastLinear
    made = kind(linear.in_features, linear.out_features, linear.bias is not None, comm=comm, dtype=linear.weight.dtype, init=False)
    rows = (made.columns,) if isinstance(made, ColumnParallelLinear) else ()
    with torch.no_grad():
        made.weight.copy_(weights.part(f"{name}.weight", rows or (slice(None), made.columns)))
        if made.bias is not None:
            made.bias.copy_(weights.part(f"{name}.bias", rows))
    for old, new in ((linear.weight, made.weight), (linear.bias, made.bias)):
        if new is not None:
            new.requires_grad_(old.requires_grad)
    return made.train(linear.training)


def _place(comm: Communicator, model: nn.Module, weights: OfModel | OfFiles) -> None:
    """Brings what is whole to the device: vectors to the daemon's memory, from which operators take them, matrices to torch's. Tied
    parameters stay tied."""
    made: dict[int, nn.Parameter] = {}
    spread = (ColumnParallelLinear, LastLinear)
    for prefix, module in list(model.named_modules()):
        if isinstance(module, spread):
            continue
        for name, parameter in list(module.named_parameters(recurse=False)):
            if id(parameter) not in made:
                made[id(parameter)] = _placed(comm, parameter, weights, f"{prefix}.{name}" if prefix else name)
            setattr(module, name, made[id(parameter)])
        for name, buffer in module.named_buffers(recurse=False):
            if not buffer.is_meta:
                module._buffers[name] = buffer.to(comm.device)


def _placed(comm: Communicator, parameter: nn.Parameter, weights: OfModel | OfFiles, name: str) -> nn.Parameter:
    source, shape, dtype = weights.part(name), parameter.shape, parameter.dtype
    if parameter.ndim == 1:
        data = empty(*shape, dtype=dtype, comm=comm).copy_(source)
    elif parameter.is_meta:  # a copy, because the source is the file itself, mapped
        data = torch.empty(shape, dtype=dtype, device=comm.device).copy_(source)
    else:
        data = source.to(comm.device)
    if parameter.is_meta:
        return nn.Parameter(data, requires_grad=parameter.requires_grad)
    parameter.data = data
    return parameter


def _finish_load(comm: Communicator, model: Any, backbones: dict[str, Any], folder: pathlib.Path) -> None:
    """What from_pretrained() does besides weights: buffers, generation's settings, and eval()."""
    for backbone in backbones.values():
        with torch.device(comm.device):
            backbone.rotary_emb = type(backbone.rotary_emb)(backbone.config)
    for name, buffer in model.named_buffers():
        if buffer.is_meta:
            raise ArgumentError(f"model: {name}: on meta: allowed are buffers that have their values, beside the decoder")
    if (folder / "generation_config.json").is_file() and getattr(model, "generation_config", None) is not None:
        model.generation_config = type(model.generation_config).from_pretrained(folder)
    model.eval()


def _save_pretrained(*_: Any, **__: Any) -> None:
    raise UnsupportedError("save_pretrained(): a rank of a model that fcc.parallelize() has spread has a part of the weights",
                           remedy="Save the model before; model.state_dict() has this rank's part.")
