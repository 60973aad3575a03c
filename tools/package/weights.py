"""Where each initializer of the builder's graph comes from in the checkpoint, and how.

The package stores its weights once: the graph's initializers point into model.safetensors, and a
few nodes on constants (Cast, Concat, Transpose, Add) turn what is stored into what the graph reads.
ONNX Runtime folds those nodes when it loads the model, so they cost nothing afterwards.
"""

import json
import math
import re
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from onnx import TensorProto, helper, numpy_helper

DTYPES = {"F16": (TensorProto.FLOAT16, np.float16), "F32": (TensorProto.FLOAT, np.float32)}


class SafeTensors:
    """The header of a safetensors file: shape, type and place of each tensor.

    `location` is the file's path as seen from the graph's folder; `config` that of its checkpoint.
    """

    def __init__(self, folder, location):
        self.path, self.location = folder / location, location
        with open(self.path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            self.entries = json.loads(file.read(length))
        self.begin = 8 + length
        self.config = json.loads((self.path.parent / "config.json").read_text())

    def initializer(self, name, part=None, shape=None):
        """An ONNX initializer whose bytes are those of the file, or of one part of a tensor."""
        entry = self.entries[name]
        begin, end = entry["data_offsets"]
        kind, dtype = DTYPES[entry["dtype"]]
        if part is not None:
            size = math.prod(shape) * np.dtype(dtype).itemsize
            begin, end = begin + part * size, begin + (part + 1) * size
        tensor = TensorProto(
            name=name if part is None else part_name(name, part),
            data_type=kind,
            dims=entry["shape"] if part is None else shape,
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


def part_name(name, part):
    return f"{name}[{part}]"


@dataclass(frozen=True)
class Recipe:
    """Concatenate `sources` along their rows, widen to float32, then transpose or add one.

    With `part`: the part of that number of the one source, cut into parts of `shape`.
    """

    sources: tuple
    transpose: bool = False
    add_one: bool = False
    part: int | None = None
    shape: tuple = ()

    def evaluate(self, stored):
        value = np.concatenate([stored.array(s) for s in self.sources]).astype(np.float32)
        if self.part is not None:
            return value.reshape(-1, *self.shape)[self.part]
        value = value.T if self.transpose else value
        return value + np.float32(1) if self.add_one else value

    def initializers(self, stored):
        return [stored.initializer(source, self.part, self.shape) for source in self.sources]

    def nodes(self, stored, result):
        """The nodes that make `result` out of the stored tensors."""
        steps, value = [], self.sources[0]
        if len(self.sources) > 1:
            steps.append(("Concat", list(self.sources), {"axis": 0}))
        kind = stored.entries[value]["dtype"]
        if self.part is not None:
            value = part_name(value, self.part)
        if kind != "F32":
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


# The stages of a drafter's dynamic convolution, as the builder calls them.
STAGES = ("prepare", "finish")


def recipe(name, shape):
    """How to make the builder's initializer `name`; None when no checkpoint has a part in it."""
    if name == "lm_head.MatMul.weight":
        return Recipe((TEXT + "embed_tokens.weight",), transpose=True)
    if name == "model.embed_tokens.weight":
        return Recipe((TEXT + "embed_tokens.weight",))
    if "dflash2" in name:
        return drafter_recipe(re.sub("^/?dflash2[./]", "", name).replace("/", "."), shape)
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


def drafter_recipe(name, shape):
    """Of a drafter's checkpoint: its projections are transposed, its convolutions cut up."""
    if found := re.fullmatch(r"(.+)\.(\w+)\.base_kernel\.(\d)", name):
        source, stage, tap = f"{found[1]}.base_kernel", STAGES.index(found[2]), int(found[3])
        return Recipe((source,), part=len(STAGES) * stage + tap, shape=tuple(shape))
    source = name.replace(".attn.", ".self_attn.").replace(".MatMul.", ".")
    source = re.sub("^selector", "candidate_selector", source)
    is_product = ".MatMul." in name or name.endswith("_proj.weight")
    return Recipe((source,), transpose=is_product)


def rotary(config, built):
    """Constants and nodes for cos_cache and sin_cache, a few numbers instead of megabytes.

    They are compared with the builder's, which may have a prefix.
    """
    text = config.get("text_config", config)
    rope, rows = text["rope_parameters"], text["max_position_embeddings"]
    dims = int(text["head_dim"] * rope.get("partial_rotary_factor", 1))
    exponents = np.arange(0, dims, 2, dtype=np.float32) / np.float32(dims)
    frequencies = (1 / np.float32(rope["rope_theta"]) ** exponents).astype(np.float32)
    angles = np.arange(rows, dtype=np.float32)[:, None] * frequencies
    caches = [next(n for n in built if n.endswith(name)) for name in ("cos_cache", "sin_cache")]
    for name, function in zip(caches, (np.cos, np.sin), strict=True):
        check(name, function(angles), built[name])
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
        node("Cos", ["rotary/angles"], caches[:1]),
        node("Sin", ["rotary/angles"], caches[1:]),
    ]
    return constants, nodes


def check(name, found, built):
    """Ours must be the builder's value, which was rounded to 16 bits, but for that rounding."""
    if found.shape != built.shape:
        raise ValueError(f"{name}: the recipe gives {found.shape}, the builder {built.shape}")
    difference = np.abs(found.astype(np.float32) - built.astype(np.float32)).max(initial=0)
    # float16 keeps 11 bits, bfloat16 8: what is rounded differs by at most 2^-11 or 2^-8 of itself.
    rounding = 2.0**-8 if built.dtype == ml_dtypes.bfloat16 else 2.0**-11
    if difference > rounding * max(1.0, float(np.abs(built).max(initial=0))):
        raise ValueError(f"{name}: the recipe differs from the builder's value by {difference}")
