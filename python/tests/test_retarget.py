"""deltaworks.retarget: what it changes, what it leaves alone and what it refuses."""

import json
import subprocess
import sys

import deltaworks
import onnx
import pytest
from deltaworks.retarget import Refused, retarget
from genai import PACKAGES, change_configuration, change_graph, copy_of
from onnx import TensorProto, helper

SOURCE = PACKAGES / "paged/float16"
LIBRARY = "libdeltaworks_onnxruntime.so"


def graph_of(path):
    return onnx.load(path, load_external_data=False).graph


def run(*arguments):
    command = [sys.executable, "-m", "deltaworks.retarget", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_configuration_is_for_the_cpu(tmp_path):
    retarget(SOURCE, tmp_path / "target", cache_bytes=1 << 20, max_batch_size=5)
    config = json.loads((tmp_path / "target/genai_config.json").read_text())
    for part in ("decoder", "dflash2"):
        options = config["model"][part]["session_options"]
        assert options.pop("log_id", None) == ("onnxruntime-genai" if part == "decoder" else None)
        assert options == {"provider_options": [], "custom_ops_library": LIBRARY}
        assert "shared_initializers" not in config["model"][part]
    # A request fills 512 / 16 blocks, and a window of 64 / 16 + 2 in each of two layers.
    expected = {"block_size": 16, "max_batch_size": 5, "num_blocks": 5 * (32 + 2 * 6)}
    assert config["engine"]["dynamic_batching"] == expected
    library = (tmp_path / "target" / LIBRARY).read_bytes()
    with open(deltaworks.onnxruntime_library(), "rb") as file:
        assert library == file.read()


def test_the_memory_of_the_caches_is_told(tmp_path):
    """A position has 256 bytes in the decoder; 5 requests fill 5 * (32 + 12) blocks of 4 KiB."""
    for cache_bytes, told in (
        (1 << 30, "0.9 MiB, all that 5 requests of 512 positions need, 60 of them for the"),
        (200 * 4096, "0.8 MiB, 60 of them for the"),
    ):
        changes = retarget(SOURCE, tmp_path / "target", cache_bytes=cache_bytes, max_batch_size=5)
        assert any(f"gpu_utilization_factor, {told}" in change for change in changes), changes


def test_the_drafters_windows_bound_the_requests(tmp_path):
    """Keys and values of 16 positions, 32 float32 each, are a block: 4 KiB; a window has 12."""
    target = tmp_path / "target"
    changes = retarget(SOURCE, target, cache_bytes=100 * 4096, max_batch_size=30)
    assert any("4 requests at once instead of 30, whose windows take" in c for c in changes)
    batching = json.loads((target / "genai_config.json").read_text())["engine"]["dynamic_batching"]
    assert batching == {"block_size": 16, "max_batch_size": 4, "num_blocks": 100}
    with pytest.raises(Refused, match="one request needs more than 0.0 MiB for the"):
        retarget(SOURCE, target, cache_bytes=12 * 4096)
    source = copy_of("paged/float16", tmp_path / "source")
    change_configuration(source, lambda c: c["model"]["dflash2"].pop("sliding_window"))
    with pytest.raises(Refused, match="window of 512 positions: give larger caches"):
        retarget(source, target, cache_bytes=2 * 34 * 4096)


def test_a_tokenizer_class_that_genai_does_not_know_is_renamed(tmp_path):
    source = copy_of("paged/int4", tmp_path / "source")
    path = source / "tokenizer_config.json"
    for written, expected in (
        ("Qwen3_5Tokenizer", "Qwen2Tokenizer"),
        ("TokenizersBackend", "TokenizersBackend"),
    ):
        path.write_text(json.dumps({"tokenizer_class": written, "model_max_length": 8}))
        retarget(source, tmp_path / "target")
        settings = json.loads((tmp_path / "target/tokenizer_config.json").read_text())
        assert settings == {"tokenizer_class": expected, "model_max_length": 8}


def test_activations_are_float32_and_weights_stay_as_they_are_stored(tmp_path):
    retarget(SOURCE, tmp_path / "target")
    narrow = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
    for name in ("model.onnx", "dflash2.onnx"):
        source, target = graph_of(SOURCE / name), graph_of(tmp_path / "target" / name)
        for value in (*target.input, *target.output):
            assert value.type.tensor_type.elem_type not in narrow
        stored = {tensor.name: tensor for tensor in source.initializer}
        kept = [tensor for tensor in target.initializer if tensor.external_data]
        assert kept and all(tensor == stored[tensor.name] for tensor in kept)
        data = f"{name}.data"
        assert (tmp_path / "target" / data).read_bytes() == (SOURCE / data).read_bytes()


def test_keep_float16_leaves_the_decoder_and_what_it_hands_the_drafter(tmp_path):
    retarget(SOURCE, tmp_path / "target", keep_float16=True)
    assert graph_of(tmp_path / "target/model.onnx") == graph_of(SOURCE / "model.onnx")
    inputs = graph_of(tmp_path / "target/dflash2.onnx").input
    types = {value.name: value.type.tensor_type.elem_type for value in inputs}
    assert types["aux_hidden_states"] == TensorProto.FLOAT16
    assert types["past_key_values.0.key"] == TensorProto.FLOAT


def test_activations_of_eight_bits_are_asked_for(tmp_path):
    for wanted, levels in ((False, {None}), (True, {4})):
        retarget(PACKAGES / "paged/int4", tmp_path / "target", int8_activations=wanted)
        nodes = graph_of(tmp_path / "target/model.onnx").node
        products = [node for node in nodes if node.op_type == "MatMulNBits"]
        assert len(products) > 20
        named = [{a.name: a.i for a in node.attribute} for node in products]
        assert {attributes.get("accuracy_level") for attributes in named} == levels


@pytest.mark.parametrize(
    "change, reason",
    [
        (lambda c: c["engine"].clear(), "use_paged_attention=true"),
        (
            lambda c: c["model"].update(dspark={"filename": "d.onnx"}),
            "model.dspark is not supported",
        ),
        (lambda c: c["model"].update(decoder={}), "no model.decoder.filename"),
        (lambda c: c["model"].pop("context_length"), "no model.context_length"),
        (lambda c: c["model"]["decoder"].update(filename="other.onnx"), "other.onnx is missing"),
        (
            lambda c: c["model"]["decoder"]["shared_initializers"][0].update(offset="0"),
            "does not share the weight lm_head.MatMul.weight",
        ),
    ],
    ids=["dense", "other drafter", "no decoder", "no context", "no graph", "shared"],
)
def test_a_configuration_that_it_cannot_serve(tmp_path, change, reason):
    source = copy_of("paged/float16", tmp_path / "source")
    change_configuration(source, change)
    with pytest.raises(Refused, match=reason):
        retarget(source, tmp_path / "target")
    assert not (tmp_path / "target").exists()


def set_attribute(operator, name, value):
    def change(graph):
        for node in graph.node:
            if node.op_type == operator:
                kept = [a for a in node.attribute if a.name != name]
                del node.attribute[:]
                node.attribute.extend([*kept, helper.make_attribute(name, value)])

    return change


@pytest.mark.parametrize(
    "change, reason",
    [
        (
            set_attribute("PagedAttention", "k_quant_type", "PER_TENSOR"),
            'node "/model/layers.3/attn/PagedAttention": PagedAttention: k_quant_type',
        ),
        (
            set_attribute("GatedDeltaNet", "update_rule", "other"),
            'linear_attn/GatedDeltaNet" and 2 more like it: GatedDeltaNet: update_rule is "other", '
            "expected one of",
        ),
        (
            set_attribute("MatMulNBits", "bits", 3),
            "MatMul_Q4.*ONNX Runtime .* does not run it on the CPU: ",
        ),
        (
            set_attribute("MatMulNBits", "weight_prepacked", 1),
            "weight_prepacked is 1, a layout for GPUs.*matmulnbits_weights_prepacked=0",
        ),
        (
            set_attribute("QMoE", "weights_prepacked", -1),
            "weights_prepacked is -1, a layout for GPUs.*qmoe_weights_prepacked=0",
        ),
    ],
    ids=["paged attention", "delta net", "bits", "prepacked", "prepacked experts"],
)
def test_a_node_that_would_not_run_is_named_with_the_reason(tmp_path, change, reason):
    source = copy_of("moe/int4", tmp_path / "source")
    change_graph(source / "model.onnx", change)
    with pytest.raises(Refused, match=reason):
        retarget(source, tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_nodes_of_unknown_types_are_counted(tmp_path):
    source = copy_of("paged/int4", tmp_path / "source")
    assert not any("not asked about" in change for change in retarget(source, tmp_path / "target"))

    def forget_a_type(graph):
        product = next(node for node in graph.node if node.op_type == "MatMulNBits")
        value = next(value for value in graph.value_info if value.name == product.input[0])
        graph.value_info.remove(value)

    change_graph(source / "model.onnx", forget_a_type)
    notes = [c for c in retarget(source, tmp_path / "target") if "not asked about" in c]
    assert len(notes) == 1 and notes[0].startswith("model.onnx: note: ")


def test_the_command_line(tmp_path):
    done = run(SOURCE, tmp_path / "target")
    assert done.returncode == 0 and done.stderr == ""
    assert "8 dynamic convolutions, now deltaworks::DFlash2DynamicConv" in done.stdout
    assert done.stdout.endswith("is ready for the CPU\n")
    refused = run(PACKAGES / "dense/int4", tmp_path / "other")
    assert refused.returncode == 1 and refused.stdout == ""
    assert "use_paged_attention=true" in refused.stderr and "Traceback" not in refused.stderr
    assert run(SOURCE).returncode == 2
    nowhere = run(SOURCE, "/proc/target")
    assert nowhere.returncode == 1
    assert nowhere.stderr.startswith("/proc/target is as it was: ")
    assert "its parent folder cannot be written (" in nowhere.stderr
    assert "'/proc'" in nowhere.stderr and "partial" not in nowhere.stderr


def test_without_onnx_it_says_what_to_install(tmp_path):
    code = (
        "import runpy, sys; sys.modules['onnx'] = None; sys.argv[1:] = ['a', 'b'];"
        "runpy.run_module('deltaworks.retarget', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install 'deltaworks[retarget]'" in done.stderr and "Traceback" not in done.stderr
