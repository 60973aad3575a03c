"""Makes the demonstration model's package, models/demo, the way a user would, and smaller.

    demo_package.py CHECKPOINT DRAFTER PACKAGE

CHECKPOINT  folder with the model's config.json, model.safetensors and tokenizer
DRAFTER     folder with the drafter's config.json and model.safetensors
PACKAGE     where the package goes; may be CHECKPOINT, with DRAFTER in PACKAGE/dflash2

The stock builder makes a float16 package for CUDA with the drafter, deltaworks.retarget one for the
CPU. Then the weights are taken out: each graph reads the float16 ranges of the checkpoints, which
are copied. Remade from itself, models/demo comes out byte for byte (scripts/test_genai.sh):

    python tools/package/demo_package.py models/demo models/demo/dflash2 .cache/demo
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import onnx
import weights
from deltaworks.retarget import retarget
from deltaworks.retarget.graph import Graph
from onnx import TensorProto, numpy_helper
from tiny_checkpoint import store_output_layer
from tiny_packages import PACKAGES, export

NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
CHECKPOINT_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
DRAFTER_FILES = ("config.json", "model.safetensors")
# A request keeps its place in the batch until it is released: 24 prompts need 24 places of 0.9 MB.
# 32 places have windows of 18 blocks of 64 KB; as many again hold two full contexts.
BATCH, CACHE_BYTES = 32, 72 << 20


class Weights:
    """Collects what stands in for the builder's initializers."""

    def __init__(self, *stores):
        self.stores, self.nodes, self.renamed = stores, [], {}
        self.initializers = {weights.ONE: numpy_helper.from_array(np.float32(1), weights.ONE)}

    def add(self, name, built):
        how = weights.recipe(name, built.shape)
        if how is None:
            self.add_zeros(name, built)
            return
        stored = next(s for s in self.stores if how.sources[0] in s.entries)
        weights.check(name, how.evaluate(stored), built)
        for tensor in how.initializers(stored):
            self.initializers[tensor.name] = tensor
        nodes = how.nodes(stored, name)
        self.nodes += nodes
        if not nodes:
            self.renamed[name] = how.sources[0]

    def add_zeros(self, name, built):
        """The convolution has no bias, but the builder writes one: share it among the layers."""
        if built.any():
            raise ValueError(f"no recipe for the initializer {name}")
        shared = "zeros/" + "x".join(map(str, built.shape))
        zeros = np.zeros(built.shape, np.float32)
        self.initializers[shared] = numpy_helper.from_array(zeros, shared)
        self.renamed[name] = shared


def without_casts(graph):
    """The graph's nodes without casts to float32: values are that already, weights will be."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type in NARROW:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    found, renamed, kept = Graph(graph), {}, []
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        if node.op_type == "Cast" and found.element_type(node.input[0]) in (
            TensorProto.FLOAT,
            *NARROW,
        ):
            renamed[node.output[0]] = node.input[0]
        else:
            kept.append(node)
    if clash := set(renamed) & found.outputs:
        raise ValueError(f"a Cast writes the graph's output {clash}")
    described = [v for v in graph.value_info if not v.name.endswith("/float32")]
    del graph.value_info[:]
    graph.value_info.extend(described)
    return kept


def over_checkpoints(folder, name, *stores):
    """A retargeted graph, its initializers being ranges of the checkpoints' files."""
    model = onnx.load(folder / name, load_external_data=False)
    graph = model.graph
    values = {t.name: numpy_helper.to_array(t, base_dir=str(folder)) for t in graph.initializer}
    shapes = [t for t in graph.initializer if t.data_type == TensorProto.INT64]
    body, found = without_casts(graph), Weights(*stores)
    constants, nodes = weights.rotary(stores[0].config, values)
    caches = {output for node in nodes for output in node.output}
    for tensor in graph.initializer:
        if tensor not in shapes and tensor.name not in caches:
            found.add(tensor.name, values[tensor.name])
    for node in body:
        node.input[:] = [found.renamed.get(name, name) for name in node.input]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes + found.nodes + body)
    graph.initializer.extend([*constants, *found.initializers.values(), *shapes])
    model.producer_name = "deltaworks"
    return model


def built_for_the_cpu(checkpoint, drafter, folder):
    copy_files(CHECKPOINT_FILES, checkpoint, folder / "checkpoint")
    store_output_layer(folder / "checkpoint")
    export(folder / "checkpoint", drafter, PACKAGES["demo/float16"], folder / "cuda")
    target = folder / "cpu"
    print(
        *retarget(folder / "cuda", target, cache_bytes=CACHE_BYTES, max_batch_size=BATCH), sep="\n"
    )
    return target


def copy_files(names, source, target):
    target.mkdir(parents=True, exist_ok=True)
    for name in names:
        if (source / name).resolve() != (target / name).resolve():
            shutil.copyfile(source / name, target / name)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("checkpoint", "drafter", "package"):
        parser.add_argument(name, type=Path)
    args = parser.parse_args()
    copy_files(CHECKPOINT_FILES, args.checkpoint, args.package)
    copy_files(DRAFTER_FILES, args.drafter, args.package / "dflash2")
    target = weights.SafeTensors(args.package, "model.safetensors")
    drafter = weights.SafeTensors(args.package, "dflash2/model.safetensors")
    with tempfile.TemporaryDirectory() as temporary:
        built = built_for_the_cpu(args.package, args.package / "dflash2", Path(temporary))
        models = {
            "model.onnx": over_checkpoints(built, "model.onnx", target),
            "dflash2.onnx": over_checkpoints(built, "dflash2.onnx", drafter, target),
        }
        config = json.loads((built / "genai_config.json").read_text())
    for name, model in models.items():
        onnx.save(model, args.package / name)
    (args.package / "genai_config.json").write_text(json.dumps(config, indent=2) + "\n")
    size = sum(f.stat().st_size for f in args.package.rglob("*") if f.is_file())
    print(f"{args.package}: {size:,} bytes")


if __name__ == "__main__":
    main()
