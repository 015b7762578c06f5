# SPDX-License-Identifier: MIT
"""Where a model's weights come from when it is made tensor-parallel: the model has them, or files of safetensors, of which each rank reads
its own parts."""
from __future__ import annotations

import importlib
import json
import pathlib
from typing import Any

from torch import Tensor, nn

from ..errors import ArgumentError

Part = tuple[slice, ...]  # of a tensor: a slice for each of its first dimensions


class OfModel:
    """The weights of a model that has them."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def part(self, name: str, part: Part = ()) -> Tensor:
        return self._model.get_parameter(name).detach()[part]


class OfFiles:
    """The weights in a folder that save_pretrained() has written, or in one file.

    The names there are the model's, but for the prefix of a model with a head ("model."), which either may have. Of tied weights, one at
    least is there."""

    def __init__(self, path: str | pathlib.Path, model: nn.Module) -> None:
        self._path, self._open = pathlib.Path(path), dict[pathlib.Path, Any]()
        files = [self._path] if self._path.is_file() else sorted(self._path.glob("*.safetensors"))
        index = self._path / "model.safetensors.index.json"
        if index.is_file():  # there may be other files, with the same weights in another form
            files = sorted({self._path / file for file in json.loads(index.read_text())["weight_map"].values()})
        where = {name: file for file in files for name in self._file(file).keys()}
        if not where:
            raise self._wrong("no weights: allowed are a folder with files of safetensors, and one such file")
        base = f"{getattr(model, 'base_model_prefix', '')}."
        self._places: dict[str, tuple[pathlib.Path, str]] = {}  # of the model's names: the file, and the name there
        for names in _tied(model):
            found = [there for name in names for there in (name, base + name, name.removeprefix(base)) if there in where]
            if not found:
                raise self._wrong(f"{names[0]}: it is missing")
            self._places |= {name: (where[found[0]], found[0]) for name in names}
        for name, parameter in model.named_parameters():
            shape = self._slice(name).get_shape()
            if list(shape) != list(parameter.shape):
                raise self._wrong(f"{name}: {list(shape)}: the model's is {list(parameter.shape)}")

    def _wrong(self, what: str) -> ArgumentError:
        return ArgumentError(f"checkpoint: {self._path}: {what}")

    def _file(self, path: pathlib.Path) -> Any:
        if path not in self._open:
            safetensors = importlib.import_module("safetensors")  # which transformers needs, too
            self._open[path] = safetensors.safe_open(str(path), "pt")
        return self._open[path]

    def _slice(self, name: str) -> Any:
        path, there = self._places[name]
        return self._file(path).get_slice(there)

    def part(self, name: str, part: Part = ()) -> Tensor:
        """Only that part is read."""
        return self._slice(name)[part or ...]


def _tied(model: nn.Module) -> list[list[str]]:
    """The names of each parameter."""
    found: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        found.setdefault(id(parameter), []).append(name)
    return list(found.values())
