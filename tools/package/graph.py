"""Writes the demonstration model's drafter node by node, over weights that stay in their files.

They are float16, as models/demo and tools/train store them.
"""

import numpy as np
import weights
from onnx import helper, numpy_helper


class Graph:
    """Collects nodes; each call names its node's output after the node."""

    def __init__(self, drafter, target):
        self.stores = {"": drafter, weights.TEXT: target}
        self.nodes, self.initializers = [], {}

    def node(self, kind, inputs, name, domain="", **attributes):
        made = helper.make_node(kind, inputs, [name], name, domain=domain, **attributes)
        self.nodes.append(made)
        return name

    def constant(self, value, dtype=np.int64):
        value = np.array(value, dtype)
        name = f"/constants/{value.dtype}/{value.tolist()}".replace(" ", "")
        self.initializers.setdefault(name, numpy_helper.from_array(value, name))
        return name

    def weight(self, *sources, transpose=False):
        """Stored tensors, concatenated, as float32; the nodes fold when the graph is loaded."""
        prefix = weights.TEXT if sources[0].startswith(weights.TEXT) else ""
        stored, name = self.stores[prefix], "+".join(sources) + (".T" if transpose else ".float")
        for source in sources:
            if stored.entries.get(source, {}).get("dtype") != "F16":
                raise ValueError(f"{stored.path} has no float16 weight {source}")
            self.initializers.setdefault(source, stored.initializer(source))
        if not any(name in node.output for node in self.nodes):
            self.nodes += weights.Recipe(sources, transpose).nodes(stored, name)
        return name

    def linear(self, rows, name, *sources):
        matrix = self.weight(*(f"{s}.weight" for s in sources), transpose=True)
        return self.node("MatMul", [rows, matrix], f"{name}/MatMul")

    def norm(self, rows, source, epsilon):
        name = f"/{source}/SimplifiedLayerNormalization"
        inputs = [rows, self.weight(f"{source}.weight")]
        return self.node("SimplifiedLayerNormalization", inputs, name, axis=-1, epsilon=epsilon)

    def slice(self, rows, begin, end, axis, name):
        bounds = [self.constant([x]) for x in (begin, end, axis)]
        return self.node("Slice", [rows, *bounds], name)

    def reshape(self, rows, shape, name):
        return self.node("Reshape", [rows, self.constant(shape)], name)
