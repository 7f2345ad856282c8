"""Digests of released values: SHA-256 of a canonical form that is the same on all machines.

The canonical form is JSON in ASCII with sorted names and no spaces:

* a number as Python writes it (the shortest decimal that is read as the same double); true, false,
  null and text as in JSON; lists and tuples as lists; a configuration as an object;
* a tensor or an array as ``{"dtype", "shape", "sha256"}``, the SHA-256 being that of its elements
  in C order, little-endian;
* a ``torch.nn.Module`` as its ``state_dict``: names to tensors, buffers included. A ``state_dict``
  has the same form;
* a ``pathlib.Path`` as ``{"file": sha256}`` of the file's bytes; a folder as an object of its files
  by their paths in it;
* an object with a method ``published_values()`` as what that returns.

Nothing else has a canonical form. Of an estimator give the published parameters, such as
``{"coef": estimator.coef_, "intercept": estimator.intercept_}``.

The digest is ``"sha256:"`` and the SHA-256 of these bytes. It is computed from what is published
only, never from records.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

#: Files with a public configuration or number are small.
_LARGEST_TEXT = 2**26
_DTYPES = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}


def digest_of(value: object) -> str:
    """The SHA-256 of the canonical form of a released value.

    Example:
        >>> digest_of({"b": 1, "a": 0.5}) == digest_of({"a": 0.5, "b": 1})
        True
    """
    text = json.dumps(_plain(value), sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode('ascii')).hexdigest()}"


def digest_if_any(value: object) -> str | None:
    """Its digest, or None if it has no canonical form."""
    try:
        return digest_of(value)
    except (TypeError, ValueError):
        return None


def kind_of(value: object) -> str:
    """What a released value is, in one word for a receipt."""
    if isinstance(value, nn.Module):
        return "model"
    if isinstance(value, Path):
        return "folder" if value.is_dir() else "file"
    if isinstance(value, Mapping):
        tensors = value and all(isinstance(part, Tensor) for part in value.values())
        return "model" if tensors else "configuration"
    if isinstance(value, Tensor | np.ndarray):
        return "array"
    if isinstance(value, bool | str):
        return "text" if isinstance(value, str) else "truth value"
    if isinstance(value, int | float | np.number):
        return "number"
    return "list" if isinstance(value, list | tuple) else type(value).__name__


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        # Subclasses, as NumPy's doubles, are written as what they are.
        for plain in (bool, int, float, str):
            if isinstance(value, plain):
                return plain(value)
        return None
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, Tensor | np.ndarray):
        return _array(value)
    if isinstance(value, nn.Module):
        return _plain(value.state_dict())
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) for name in value):
            raise TypeError("The names in what was released must be text.")
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, Path):
        return _file(value)
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if hasattr(value, "published_values"):
        return _plain(value.published_values())
    raise TypeError(
        f"A {type(value).__name__} has no canonical form, so a receipt cannot name it by a digest: "
        "give the numbers that are published as `artifact`, such as a dictionary of arrays, or "
        "make a receipt of the guarantee alone, Receipt.of(release.guarantee)."
    )


def _array(value: Tensor | np.ndarray) -> dict[str, Any]:
    if isinstance(value, Tensor):
        value = value.detach().cpu().resolve_conj().resolve_neg()
        if value.layout is not torch.strided or value.is_quantized:
            raise TypeError("A sparse or quantized tensor has no canonical form: make it dense.")
        name, shape = str(value.dtype).removeprefix("torch."), list(value.shape)
        if value.dtype is torch.bfloat16:
            value = value.view(torch.int16)
        array = value.contiguous().numpy()
    else:
        if value.dtype.kind not in _DTYPES:
            raise TypeError(f"An array of {value.dtype} has no canonical form.")
        array, shape = value, list(value.shape)
        bits = "" if value.dtype.kind == "b" else 8 * value.dtype.itemsize
        name = f"{_DTYPES[value.dtype.kind]}{bits}"
    data = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()
    return {"dtype": name, "shape": shape, "sha256": hashlib.sha256(data).hexdigest()}


def _file(path: Path) -> dict[str, Any]:
    if path.is_dir():
        inside = sorted(each for each in path.rglob("*") if each.is_file())
        return {each.relative_to(path).as_posix(): _file(each) for each in inside}
    if not path.is_file():
        raise ValueError(f"There is no file {path}.")
    with path.open("rb") as file:
        return {"file": hashlib.file_digest(file, "sha256").hexdigest()}


def digests_of(artifact: object) -> list[str]:
    """The digests that a receipt may name an artifact by.

    A file has two: that of its bytes, and, if it ends in ``.json``, ``.npy`` or ``.pt``, that of
    the value in it. Nothing in it is executed: torch reads tensors and plain containers only.
    """
    found = [digest_of(artifact)]
    if isinstance(artifact, Path) and artifact.suffix in (".json", ".npy", ".pt", ".pth"):
        try:
            found.append(digest_of(_content(artifact)))
        except Exception as error:  # a damaged file raises whatever its reader stumbles on
            reason = " ".join(str(error).split())[:200]
            raise ValueError(f"{artifact} cannot be read as a released value: {reason}") from error
    return found


def _content(file: Path) -> Any:
    if file.suffix == ".json":
        if file.stat().st_size > _LARGEST_TEXT:
            raise ValueError("it is too large")
        return json.loads(file.read_text(encoding="utf-8"))
    if file.suffix == ".npy":
        return np.load(file, allow_pickle=False)
    return torch.load(file, map_location="cpu", weights_only=True)
