"""Turns the CUDA float16 package of ONNX Runtime GenAI's model builder into one for the CPU.

    retarget.py CHECKPOINT BUILT PACKAGE

CHECKPOINT  folder with the model's config.json, model.safetensors and tokenizer
BUILT       what `onnxruntime_genai.models.builder -e cuda -p fp16` made of it
PACKAGE     where the package goes; it is a checkpoint too, and the graph reads that one's weights

Activations, caches and convolution states become float32 (a CPU has no fast float16 arithmetic);
weights stay float16 in the file. Names, shapes and operators of the graph stay the builder's.
"""

import argparse
import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import weights
from onnx import TensorProto, numpy_helper

LIBRARY = "libdeltaworks_onnxruntime.so"
# 32 positions a block: 512 blocks hold 16,384 positions (two full contexts) in 34 MB. A request
# keeps its place in the batch until it is released: 24 prompts need 24 places of 0.9 MB.
BATCHING = {"block_size": 32, "num_blocks": 512, "max_batch_size": 32}
CHECKPOINT_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def widen(graph):
    """float16 becomes float32 in all values; the Casts between the two go."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT16:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    renamed, kept = {}, []
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        target = node.attribute[0].i if node.op_type == "Cast" else None
        if target in (TensorProto.FLOAT, TensorProto.FLOAT16):
            renamed[node.output[0]] = node.input[0]
        else:
            kept.append(node)
    if clash := set(renamed) & {output.name for output in graph.output}:
        raise ValueError(f"a Cast writes the graph's output {clash}")
    return kept


class Weights:
    """Collects what stands in for the builder's initializers."""

    def __init__(self, stored):
        self.stored, self.nodes, self.renamed = stored, [], {}
        self.initializers = {weights.ONE: numpy_helper.from_array(np.float32(1), weights.ONE)}

    def add(self, name, built):
        how = weights.recipe(name)
        if how is None:
            self.add_zeros(name, built)
            return
        weights.check(name, how.evaluate(self.stored), built)
        for source in how.sources:
            self.initializers[source] = self.stored.initializer(source)
        nodes = how.nodes(self.stored, name)
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


def retarget(checkpoint, built):
    """The CPU model, its initializers being external data in model.safetensors."""
    model = onnx.load(built / "model.onnx", load_external_data=False)
    graph = model.graph
    body = widen(graph)
    values = {t.name: numpy_helper.to_array(t, base_dir=str(built)) for t in graph.initializer}
    config = json.loads((checkpoint / "config.json").read_text())
    constants, nodes = weights.rotary(config, values)
    found = Weights(weights.SafeTensors(checkpoint / "model.safetensors"))
    for name, value in values.items():
        if name not in ("cos_cache", "sin_cache"):
            found.add(name, value)
    for node in body:
        node.input[:] = [found.renamed.get(name, name) for name in node.input]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes + found.nodes + body)
    graph.initializer.extend([*constants, *found.initializers.values()])
    model.producer_name = "deltaworks"
    return model


def genai_config(built):
    """The builder's genai_config.json, for the CPU and with our operators."""
    config = json.loads((built / "genai_config.json").read_text())
    options = config["model"]["decoder"]["session_options"]
    options["provider_options"] = []
    options["custom_ops_library"] = LIBRARY
    batching = config["engine"]["dynamic_batching"]
    batching.pop("gpu_utilization_factor", None)
    batching.update(BATCHING)
    return config


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("checkpoint", "built", "package"):
        parser.add_argument(name, type=Path)
    args = parser.parse_args()
    model = retarget(args.checkpoint, args.built)
    args.package.mkdir(parents=True, exist_ok=True)
    for name in CHECKPOINT_FILES:
        shutil.copyfile(args.checkpoint / name, args.package / name)
    onnx.save(model, args.package / "model.onnx")
    text = json.dumps(genai_config(args.built), indent=2)
    (args.package / "genai_config.json").write_text(text + "\n")
    size = sum(f.stat().st_size for f in args.package.iterdir())
    print(f"{args.package}: {size:,} bytes")


if __name__ == "__main__":
    main()
