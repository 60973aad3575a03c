"""From a CUDA package of ONNX Runtime GenAI's model builder to one that runs on the CPU.

    python -m deltaworks.retarget SOURCE TARGET

or ``deltaworks.retarget.retarget(source, target)``. docs/genai.md has the whole way from a
checkpoint. Needs the Python package onnx: ``pip install 'deltaworks[retarget]'``. Where
onnxruntime is installed too, it is asked about the nodes that are not this library's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ._refused import Refused

__all__ = ["Refused", "retarget"]

Progress = Callable[[str, int, int], None]


def retarget(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    keep_float16: bool = False,
    int8_activations: bool = False,
    cache_bytes: int = 1 << 30,
    max_batch_size: int | None = None,
    link: bool = False,
    progress: Progress = lambda file, done, size: None,
) -> list[str]:
    """Writes the package `source` to `target` for the CPU; returns what was changed.

    keep_float16      leaves the decoder's activations in float16
    int8_activations  rounds them to eight bits where they meet weights of four, as the builder does
                      in its own packages for CPUs
    cache_bytes       for the paged caches of all requests together
    max_batch_size    requests at once; None keeps the builder's
    link              weights as hard links to the source's files instead of copies
    progress          is called with a file's name, its bytes copied so far and its size

    `source` is only read. `target` is replaced if this function made it, once the new one is whole.
    Raises Refused for what would not run, with a reason for each kind of node of all graphs (where
    the folder, the configuration or a graph cannot be read, with that alone); OSError for what the
    file system refuses, after which the target is as it was; ImportError without onnx.
    """
    try:
        from .configuration import Options
        from .package import convert
    except ModuleNotFoundError as error:
        if error.name != "onnx":
            raise
        raise ModuleNotFoundError(
            "deltaworks.retarget reads ONNX graphs with the Python package onnx, which is missing: "
            "pip install 'deltaworks[retarget]', or pip install onnx",
            name="onnx",
        ) from error
    for name, number in (("cache_bytes", cache_bytes), ("max_batch_size", max_batch_size)):
        if number is not None and number < 1:
            raise ValueError(f"retarget: {name} is {number}, expected at least 1")
    options = Options(keep_float16, int8_activations, cache_bytes, max_batch_size, link)
    return convert(Path(source), Path(target), options, progress)
