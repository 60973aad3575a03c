"""Where each initializer of the builder's graph comes from in the checkpoint, and how.

The package stores its weights once: the graph's initializers point into model.safetensors, and a
few nodes on constants (Cast, Concat, Transpose, Add) turn what is stored into what the graph reads.
ONNX Runtime folds those nodes when it loads the model, so they cost nothing afterwards.
"""

import json
import re
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper, numpy_helper

DTYPES = {"F16": (TensorProto.FLOAT16, np.float16), "F32": (TensorProto.FLOAT, np.float32)}


class SafeTensors:
    """The header of a safetensors file: shape, type and place of each tensor.

    `location` is the file's path as seen from the graph's folder.
    """

    def __init__(self, path, location=None):
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            self.entries = json.loads(file.read(length))
        self.path, self.begin = path, 8 + length
        self.location = location or path.name

    def initializer(self, name):
        """An ONNX initializer whose bytes are those of the file."""
        entry = self.entries[name]
        begin, end = entry["data_offsets"]
        tensor = TensorProto(
            name=name,
            data_type=DTYPES[entry["dtype"]][0],
            dims=entry["shape"],
            data_location=TensorProto.EXTERNAL,
        )
        where = {
            "location": self.location,
            "offset": str(self.begin + begin),
            "length": str(end - begin),
        }
        for key, value in where.items():
            tensor.external_data.add(key=key, value=value)
        return tensor

    def array(self, name):
        entry = self.entries[name]
        begin, end = entry["data_offsets"]
        dtype = DTYPES[entry["dtype"]][1]
        count = (end - begin) // np.dtype(dtype).itemsize
        flat = np.fromfile(self.path, dtype, count, offset=self.begin + begin)
        return flat.reshape(entry["shape"])


@dataclass(frozen=True)
class Recipe:
    """Concatenate `sources` along their rows, widen to float32, then transpose or add one."""

    sources: tuple
    transpose: bool = False
    add_one: bool = False

    def evaluate(self, stored):
        value = np.concatenate([stored.array(s) for s in self.sources]).astype(np.float32)
        value = value.T if self.transpose else value
        return value + np.float32(1) if self.add_one else value

    def nodes(self, stored, result):
        """The nodes that make `result` out of the stored tensors."""
        steps, value = [], self.sources[0]
        if len(self.sources) > 1:
            steps.append(("Concat", list(self.sources), {"axis": 0}))
        if stored.entries[value]["dtype"] != "F32":
            steps.append(("Cast", [], {"to": TensorProto.FLOAT}))
        if self.transpose:
            steps.append(("Transpose", [], {"perm": [1, 0]}))
        if self.add_one:
            steps.append(("Add", [ONE], {}))
        nodes = []
        for position, (kind, inputs, attributes) in enumerate(steps):
            inputs = [value, *inputs] if kind != "Concat" else inputs
            value = result if position + 1 == len(steps) else f"{result}/{kind}"
            nodes.append(helper.make_node(kind, inputs, [value], f"{result}/{kind}", **attributes))
        return nodes


ONE = "one"
TEXT = "model.language_model."

# Builder's name in a layer -> names in the checkpoint's layer.
MATRICES = {
    "linear_attn.qkv_proj": ("linear_attn.in_proj_qkv",),
    "linear_attn.z_proj": ("linear_attn.in_proj_z",),
    "linear_attn.b_proj": ("linear_attn.in_proj_b",),
    "linear_attn.a_proj": ("linear_attn.in_proj_a",),
    "linear_attn.out_proj": ("linear_attn.out_proj",),
    "attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attn.o_proj": ("self_attn.o_proj",),
    "mlp.gate_proj": ("mlp.gate_proj",),
    "mlp.up_proj": ("mlp.up_proj",),
    "mlp.down_proj": ("mlp.down_proj",),
}
NORMS = {
    "input_layernorm": "input_layernorm",
    "post_attention_layernorm": "post_attention_layernorm",
    "attn.q_norm.layernorm": "self_attn.q_norm",
    "attn.k_norm.layernorm": "self_attn.k_norm",
}
PLAIN = (
    "linear_attn.conv1d.weight",
    "linear_attn.norm.weight",
    "linear_attn.A_log",
    "linear_attn.dt_bias",
)


def recipe(name):
    """How to make the builder's initializer `name`; None when the checkpoint has no part in it."""
    if name == "lm_head.MatMul.weight":
        return Recipe((TEXT + "embed_tokens.weight",), transpose=True)
    found = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name)
    if not found:
        return None
    layer, part = f"{TEXT}layers.{found[1]}.", found[2]
    if part == "final_norm_layernorm.weight":
        return Recipe((TEXT + "norm.weight",), add_one=True)
    if part.removesuffix(".MatMul.weight") in MATRICES:
        sources = MATRICES[part.removesuffix(".MatMul.weight")]
        return Recipe(tuple(f"{layer}{s}.weight" for s in sources), transpose=True)
    if part.removesuffix(".weight") in NORMS:
        return Recipe((f"{layer}{NORMS[part.removesuffix('.weight')]}.weight",), add_one=True)
    return Recipe((layer + part,)) if part in PLAIN else None


def rotary(config, built):
    """Constants and nodes for cos_cache and sin_cache, compared with the builder's."""
    text = config["text_config"]
    rope, rows = text["rope_parameters"], text["max_position_embeddings"]
    dims = int(text["head_dim"] * rope["partial_rotary_factor"])
    frequencies = rotary_frequencies(rope["rope_theta"], dims)
    angles = np.arange(rows, dtype=np.float32)[:, None] * frequencies
    for name, function in (("cos_cache", np.cos), ("sin_cache", np.sin)):
        check(name, function(angles), built[name])
    return rotary_nodes(frequencies, rows)


def rotary_frequencies(base, dims):
    exponents = np.arange(0, dims, 2, dtype=np.float32) / np.float32(dims)
    return (1 / np.float32(base) ** exponents).astype(np.float32)


def rotary_nodes(frequencies, rows):
    """Constants and nodes for cos_cache and sin_cache: a few numbers instead of megabytes."""
    values = {
        "begin": np.float32(0),
        "end": np.float32(rows),
        "step": np.float32(1),
        "last_axis": np.array([1], np.int64),
        "frequencies": frequencies,
    }
    constants = [numpy_helper.from_array(v, f"rotary/{k}") for k, v in values.items()]
    node = helper.make_node
    nodes = [
        node("Range", [f"rotary/{k}" for k in ("begin", "end", "step")], ["rotary/positions"]),
        node("Unsqueeze", ["rotary/positions", "rotary/last_axis"], ["rotary/column"]),
        node("Mul", ["rotary/column", "rotary/frequencies"], ["rotary/angles"]),
        node("Cos", ["rotary/angles"], ["cos_cache"]),
        node("Sin", ["rotary/angles"], ["sin_cache"]),
    ]
    return constants, nodes


def check(name, found, built):
    """Ours must be the builder's value, which was rounded to float16, but for that rounding."""
    if found.shape != built.shape:
        raise ValueError(f"{name}: the recipe gives {found.shape}, the builder {built.shape}")
    difference = np.abs(found.astype(np.float32) - built.astype(np.float32)).max(initial=0)
    # float16 keeps 11 bits: a rounded weight differs by at most 2^-11 of itself.
    if difference > 2.0**-11 * max(1.0, float(np.abs(built).max(initial=0))):
        raise ValueError(f"{name}: the recipe differs from the builder's value by {difference}")
