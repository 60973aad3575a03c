"""Adds a DFlash2 block drafter to the demonstration model's package.

    dflash2.py DRAFTER PACKAGE

DRAFTER  folder with the drafter's config.json and model.safetensors (tools/train/train_drafter.py)
PACKAGE  what retarget.py wrote, of a graph built with `aux_hidden_state_layers`

Writes PACKAGE/dflash2.onnx over PACKAGE/dflash2/model.safetensors and the target's embedding, and
`model.dflash2` of genai_config.json. Names, inputs and outputs are those that ONNX Runtime GenAI's
own exporter gives (its option dflash2_fuse_qkv), so that its Engine can run the graph; the body is
float32, and each dynamic convolution is one node of deltaworks::DFlash2DynamicConv.
"""

import argparse
import json
import shutil
from pathlib import Path

import onnx
import weights
from graph import Graph
from onnx import TensorProto, helper
from retarget import BATCHING, LIBRARY

FLOAT, INT32, INT64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64
VOCABULARY = 264
LAST_TEXT_ID = 256  # MASK and the unused ids above the end of a document are never proposed


class Drafter:
    """The shapes of a drafter, and its graph piece by piece.

    The Engine wants to read in the graph how many positions a cache block has.
    """

    def __init__(self, config, graph, cache_block):
        self.cache_block = cache_block
        d, self.graph, self.config = config["dflash_config"], graph, config
        self.hidden, self.layers = config["hidden_size"], config["num_hidden_layers"]
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.dim, self.epsilon = config["head_dim"], config["rms_norm_eps"]
        self.block, self.top_k = d["block_size"], d["selector_top_k"]
        self.rank, self.taps = d["selector_rank"], d["target_layer_ids"]
        self.groups = self.hidden // d["conv_group_size"]

    def conv(self, rows, dynamic, source, stage, residual=None):
        return self.graph.node(
            "DFlash2DynamicConv",
            [rows, dynamic, self.graph.weight(f"{source}.base_kernel"), *filter(None, [residual])],
            f"/{source}/{stage}/DFlash2DynamicConv",
            domain="deltaworks",
            stage=stage,
            rows_per_lane=self.block,
            groups=self.groups,
        )

    def sublayer(self, x, norm, conv, body):
        """x + what `body` makes of its norm, between the two stages of a dynamic convolution."""
        normed = self.graph.norm(x, norm, self.epsilon)
        dynamic = self.graph.linear(normed, f"/{conv}", f"{conv}.kernel_projection")
        out = body(self.conv(normed, dynamic, conv, "prepare"))
        return self.conv(out, dynamic, conv, "residual", residual=x)

    def attention(self, rows, context, layer):
        """Rows of the block attend to each other, to the new context rows and to the cache."""
        g, p = self.graph, f"layers.{layer}.self_attn"
        both = g.node("Concat", [rows, context], f"/{p}/rows/Concat", axis=0)
        packed = g.linear(both, f"/{p}/qkv_proj", *(f"{p}.{x}_proj" for x in "qkv"))
        packed = g.node("Gather", [packed, "qkv_row_map"], f"/{p}/rows/Gather", axis=0)
        caches = [f"past_key_values.{layer}.{x}" for x in ("key", "value")]
        call = ["cumulative_sequence_lengths", "past_sequence_lengths", "block_table"]
        norms = [g.weight(f"{p}.{x}_norm.weight") for x in "qk"]
        name = f"/{p}/PagedAttention"
        inputs = [packed, "", "", *caches, *call, "cos_cache", "sin_cache", "", "", *norms, "", ""]
        g.nodes.append(
            helper.make_node(
                "PagedAttention",
                [*inputs, "attention_metadata"],
                [name, f"present.{layer}.key", f"present.{layer}.value"],
                name,
                domain="com.microsoft",
                num_heads=self.heads,
                kv_num_heads=self.kv_heads,
                local_window_size=self.config["sliding_window"],
                is_causal=0,
                do_rotary=1,
                rotary_interleaved=0,
                qk_norm_epsilon=self.epsilon,
            )
        )
        mixed = g.node("Gather", [name, "block_row_index"], f"/{p}/block/Gather", axis=0)
        return g.linear(mixed, f"/{p}/o_proj", f"{p}.o_proj")

    def mlp(self, rows, layer):
        g, p = self.graph, f"layers.{layer}.mlp"
        both = g.linear(rows, f"/{p}/gate_up_proj", f"{p}.gate_proj", f"{p}.up_proj")
        parts = [f"/{p}/gate", f"/{p}/up"]
        g.nodes.append(
            helper.make_node("Split", [both], parts, f"/{p}/Split", axis=-1, num_outputs=2)
        )
        sigmoid = g.node("Sigmoid", [parts[0]], f"/{p}/act/Sigmoid")
        gate = g.node("Mul", [parts[0], sigmoid], f"/{p}/act/Mul")
        product = g.node("Mul", [gate, parts[1]], f"/{p}/Mul")
        return g.linear(product, f"/{p}/down_proj", f"{p}.down_proj")

    def body(self):
        """The block's last hidden rows."""
        g = self.graph
        context = g.linear("aux_hidden_states", "/fc", "fc")
        context = g.norm(context, "hidden_norm", self.epsilon)
        embedding = g.weight(f"{weights.TEXT}embed_tokens.weight")
        x = g.node("Gather", [embedding, "input_ids"], "/embed_tokens/Gather", axis=0)
        for i in range(self.layers):
            p = f"layers.{i}"
            x = self.sublayer(
                x,
                f"{p}.input_layernorm",
                f"{p}.attention_conv",
                lambda rows, i=i: self.attention(rows, context, i),
            )
            x = self.sublayer(
                x,
                f"{p}.post_attention_layernorm",
                f"{p}.mlp_conv",
                lambda rows, i=i: self.mlp(rows, i),
            )
        return g.norm(x, "norm", self.epsilon)

    def candidates(self, hidden):
        """The rows of the slots, their best ids [batch, slots, k] and those ids' logits."""
        g, slots = self.graph, self.block - 1
        rows = g.reshape(hidden, [-1, self.block, self.hidden], "/select/Reshape")
        rows = g.slice(rows, 1, self.block, 1, "/select/Slice")
        rows = g.reshape(rows, [-1, self.hidden], "/select/Flatten")
        head = g.weight(f"{weights.TEXT}embed_tokens.weight", transpose=True)
        head = g.slice(head, 0, LAST_TEXT_ID + 1, 1, "/lm_head/Slice")
        logits = g.node("MatMul", [rows, head], "/lm_head/MatMul")
        found = ["/topk/values", "/topk/indices"]
        inputs = [logits, self.graph.constant([self.top_k])]
        g.nodes.append(helper.make_node("TopK", inputs, found, "/topk/TopK", axis=-1))
        scores = g.reshape(found[0], [-1, slots, 1, self.top_k], "/topk/scores")
        ids = g.reshape(found[1], [-1, slots, self.top_k], "/topk/ids")
        g.node("Cast", [ids], "draft_candidate_ids", to=INT32)
        return rows, ids, scores

    def select(self, rows, ids, scores):
        """scores[b, t, a, c]: candidate c of slot t behind candidate a of slot t - 1."""
        g, p, slots, k = self.graph, "candidate_selector", self.block - 1, self.top_k
        projected = g.linear(rows, f"/{p}/hidden_projection", f"{p}.hidden_projection")
        projected = g.reshape(projected, [-1, slots, 1, self.rank], f"/{p}/projected")
        blocks = g.reshape("input_ids", [-1, self.block, 1], f"/{p}/blocks")
        anchor = g.slice(blocks, 0, 1, 1, f"/{p}/anchor")
        anchor = g.node("Tile", [anchor, g.constant([1, 1, k])], f"/{p}/Tile")
        before = g.slice(ids, 0, slots - 1, 1, f"/{p}/before")
        before = g.node("Concat", [anchor, before], f"/{p}/Concat", axis=1)
        codebooks = [g.weight(f"{p}.{x}_codebook") for x in ("predecessor", "successor")]
        left = g.node("Gather", [codebooks[0], before], f"/{p}/predecessor/Gather", axis=0)
        left = g.node("Mul", [left, projected], f"/{p}/Mul")
        right = g.node("Gather", [codebooks[1], ids], f"/{p}/successor/Gather", axis=0)
        right = g.node("Transpose", [right], f"/{p}/Transpose", perm=[0, 1, 3, 2])
        pairs = g.node("MatMul", [left, right], f"/{p}/MatMul")
        g.node("Add", [pairs, scores], "draft_scores")

    def inputs(self):
        value = helper.make_tensor_value_info
        aux = self.hidden * len(self.taps)
        yield value("aux_hidden_states", FLOAT, ["num_ctx", aux])
        yield value("input_ids", INT64, ["num_block"])
        yield value("qkv_row_map", INT32, ["num_tokens"])
        yield value("block_row_index", INT32, ["num_block"])
        yield value("cumulative_sequence_lengths", INT32, ["batch_size + 1"])
        yield value("past_sequence_lengths", INT32, ["batch_size"])
        yield value("block_table", INT32, ["batch_size", "max_num_blocks"])
        yield value("attention_metadata", INT32, [3])
        yield from self.caches("past_key_values")

    def outputs(self):
        value, slots, k = helper.make_tensor_value_info, self.block - 1, self.top_k
        yield value("draft_candidate_ids", INT32, ["batch_size", slots, k])
        yield value("draft_scores", FLOAT, ["batch_size", slots, k, k])
        yield from self.caches("present")

    def caches(self, kind):
        shape = ["num_blocks", self.cache_block, self.kv_heads, self.dim]
        for layer in range(self.layers):
            for part in ("key", "value"):
                yield helper.make_tensor_value_info(f"{kind}.{layer}.{part}", FLOAT, shape)

    def model(self):
        g = self.graph
        rope, rows = self.config["rope_parameters"], self.config["max_position_embeddings"]
        frequencies = weights.rotary_frequencies(rope["rope_theta"], self.dim)
        constants, g.nodes = weights.rotary_nodes(frequencies, rows)
        self.select(*self.candidates(self.body()))
        initializers = [*constants, *g.initializers.values()]
        graph = helper.make_graph(
            g.nodes, "dflash2", list(self.inputs()), list(self.outputs()), initializers
        )
        domains = {"": 21, "com.microsoft": 1, "deltaworks": 1}
        opsets = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
        return helper.make_model(
            graph, producer_name="deltaworks", opset_imports=opsets, ir_version=10
        )

    def genai_section(self):
        names = [value.name for value in self.inputs() if "past_key" not in value.name]
        return {
            "filename": "dflash2.onnx",
            "session_options": {"provider_options": [], "custom_ops_library": LIBRARY},
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "head_size": self.dim,
            "block_size": self.block,
            "num_draft_tokens": self.block - 1,
            "selector_top_k": self.top_k,
            "mask_token_id": self.config["dflash_config"]["mask_token_id"],
            "sliding_window": self.config["sliding_window"],
            "main_aux_hidden_states": "aux_hidden_states",
            "inputs": {name: name for name in names}
            | {
                "past_key_names": "past_key_values.%d.key",
                "past_value_names": "past_key_values.%d.value",
            },
            "outputs": {
                "candidate_ids": "draft_candidate_ids",
                "scores": "draft_scores",
                "present_key_names": "present.%d.key",
                "present_value_names": "present.%d.value",
            },
            # An entry is the layer that the tapped values enter, one after the one they leave.
            "aux_hidden_state_layers": [tap + 1 for tap in self.taps],
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("drafter", "package"):
        parser.add_argument(name, type=Path)
    args = parser.parse_args()
    folder = args.package / "dflash2"
    folder.mkdir(exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        if (args.drafter / name).resolve() != (folder / name).resolve():
            shutil.copyfile(args.drafter / name, folder / name)
    stored = weights.SafeTensors(folder / "model.safetensors", "dflash2/model.safetensors")
    target = weights.SafeTensors(args.package / "model.safetensors")
    path = args.package / "genai_config.json"
    config = json.loads(path.read_text())
    batching = config["engine"]["dynamic_batching"]
    cache_block = batching["block_size"]
    of_drafter = json.loads((folder / "config.json").read_text())
    rows = target.entries[f"{weights.TEXT}embed_tokens.weight"]["shape"][0]
    if rows != VOCABULARY:
        raise ValueError(
            f"{target.path} embeds {rows} ids, expected the {VOCABULARY} of models/demo"
        )
    drafter = Drafter(of_drafter, Graph(stored, target), cache_block)
    onnx.save(drafter.model(), args.package / "dflash2.onnx")
    # The Engine keeps a window of the drafter's own for each request, out of the same blocks.
    window = -(-of_drafter["sliding_window"] // cache_block) + 2
    batching["num_blocks"] = BATCHING["num_blocks"] + batching["max_batch_size"] * window
    config["model"]["decoder"]["outputs"]["aux_hidden_states"] = "aux_hidden_states"
    config["model"]["dflash2"] = drafter.genai_section()
    config["speculative"] = {"max_draft_tokens": drafter.block - 1}  # 4 by default
    path.write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    main()
