"""Random checkpoints for tiny_packages.py: Qwen3.5, dense and with experts; a DFlash2 drafter."""

import json
import shutil

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.models.qwen3_5 import configuration_qwen3_5, modeling_qwen3_5
from transformers.models.qwen3_5_moe import configuration_qwen3_5_moe, modeling_qwen3_5_moe

VOCABULARY, HIDDEN, CONTEXT = 136, 32, 512
# Two key heads on four states, as the large models have fewer key heads than states; widths that
# are no multiple of a vector's on every instruction set. No Linear may have as many outputs as the
# vocabulary, which the builder would take for the output layer.
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 20,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": True,
    "dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.5,
        "mrope_section": [3, 3, 2],
        "mrope_interleaved": True,
    },
}
# The class that the builder knows has a vision tower, which the export leaves out.
VISION = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": HIDDEN,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [],
}
EXPERTS = {
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}
KINDS = {
    "dense": (
        configuration_qwen3_5.Qwen3_5Config,
        modeling_qwen3_5.Qwen3_5ForConditionalGeneration,
        {"intermediate_size": 64},
    ),
    "moe": (
        configuration_qwen3_5_moe.Qwen3_5MoeConfig,
        modeling_qwen3_5_moe.Qwen3_5MoeForConditionalGeneration,
        EXPERTS,
    ),
}
BLOCK = 32  # of the builder's four bits

LAYERS, HEADS, HEAD_DIM, INTERMEDIATE = 2, 2, 32, 64  # of the drafter, with one key-value head
DRAFTER = {
    "architectures": ["DFlash2DraftModel"],
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 1,
    "head_dim": HEAD_DIM,
    "intermediate_size": INTERMEDIATE,
    "vocab_size": VOCABULARY,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": CONTEXT,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "is_causal": False,
    "use_sliding_window": True,
    "sliding_window": 64,
    "dflash_config": {
        "conv_kernel_size": 2,
        "conv_group_size": 8,
        "selector_rank": 8,
        "selector_top_k": 4,
        "mask_token_id": VOCABULARY - 1,
        "target_layer_ids": [0, 2],
        "block_size": 8,
    },
}

# Ragged, one longer than a page of 16 positions; the last text crosses 20 of them.
PROMPTS = [[10, 20, 30, 40, 50, 60, 70, 80], [7], list(range(3, 40)), [5, 4, 3]]
NEW_TOKENS = [60, 60, 60, 320]


def exact(shape, generator, scale=2.0**-4):
    """Integers from -8 to 7 times `scale`, the least in each block: its scale for four bits."""
    values = torch.randint(-8, 8, shape, generator=generator).float()
    values[..., ::BLOCK] = -8
    return values * scale


def make(kind, folder):
    """Writes the checkpoint; returns the model."""
    config, model, extra = KINDS[kind]
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    settings = config(text_config=TEXT | extra, vision_config=VISION, tie_word_embeddings=True)
    model = model(settings).float().eval()
    for name, value in model.named_parameters():
        if "A_log" in name or "dt_bias" in name:
            continue
        if value.dim() == 1:
            step = torch.randint(-8, 8, value.shape, generator=generator).float() / 32
            value.data = value.data.round() + step
        elif "conv1d" in name:
            value.data = torch.randint(-8, 8, value.shape, generator=generator).float() / 16
        else:
            value.data = exact(value.shape, generator)
        if "embed_tokens" in name:
            value.data[TEXT["eos_token_id"]] /= 64  # near 0, so that no text ends early
    model.save_pretrained(folder)
    store_output_layer(folder)
    words = {f"<{token}>": token for token in range(VOCABULARY)}
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<0>")),
        pad_token="<0>",
        bos_token="<1>",
        eos_token="<2>",
    ).save_pretrained(folder)
    return model


def store_output_layer(folder):
    """The builder of a drafter looks for it by this name, also where it is tied."""
    stored = load_file(folder / "model.safetensors")
    (embedding,) = (name for name in stored if name.endswith("embed_tokens.weight"))
    stored["lm_head.weight"] = stored[embedding].clone()
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})


def add_head(source, folder):
    """The checkpoint with a head that predicts a second token: its attention layer once more."""
    shutil.copytree(source, folder)
    stored = load_file(folder / "model.safetensors")
    last = f".layers.{len(TEXT['layer_types']) - 1}."
    for name in [name for name in stored if last in name]:
        stored[f"mtp.layers.0.{name.split(last)[1]}"] = stored[name].clone()
    generator = torch.Generator().manual_seed(3)
    stored["mtp.fc.weight"] = exact((HIDDEN, 2 * HIDDEN), generator)
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        stored[f"mtp.{name}.weight"] = torch.zeros(HIDDEN)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["mtp_num_hidden_layers"] = 1
    (folder / "config.json").write_text(json.dumps(config))


def greedy(model):
    """Prompts, and what transformers writes after each."""
    texts = []
    for prompt, count in zip(PROMPTS, NEW_TOKENS, strict=True):
        with torch.no_grad():
            output = model.generate(
                torch.tensor([prompt]), max_new_tokens=count, do_sample=False, pad_token_id=0
            )
        texts.append({"prompt": prompt, "tokens": output[0, len(prompt) :].tolist()})
    return texts


def make_drafter(folder):
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(1)

    def random(*shape):
        return torch.randn(*shape, generator=generator) * 0.2

    conv = DRAFTER["dflash_config"]
    rows = 2 * conv["conv_kernel_size"] * HIDDEN // conv["conv_group_size"]
    weights = {
        "fc.weight": random(HIDDEN, 2 * HIDDEN),
        "hidden_norm.weight": torch.ones(HIDDEN),
        "norm.weight": torch.ones(HIDDEN),
        "candidate_selector.hidden_projection.weight": random(conv["selector_rank"], HIDDEN),
    }
    for side in ("predecessor", "successor"):
        name = f"candidate_selector.{side}_codebook"
        weights[name] = random(VOCABULARY, conv["selector_rank"])
    for layer in range(LAYERS):
        of = f"layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{of}{name}.weight"] = torch.ones(HIDDEN)
        for name in ("attention_conv", "mlp_conv"):
            weights[f"{of}{name}.kernel_projection.weight"] = random(rows, HIDDEN)
            weights[f"{of}{name}.base_kernel"] = random(2, conv["conv_kernel_size"], HIDDEN)
        shapes = {
            "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
            "self_attn.k_proj": (HEAD_DIM, HIDDEN),
            "self_attn.v_proj": (HEAD_DIM, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
            "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
            "mlp.up_proj": (INTERMEDIATE, HIDDEN),
            "mlp.down_proj": (HIDDEN, INTERMEDIATE),
        }
        weights |= {f"{of}{name}.weight": random(*shape) for name, shape in shapes.items()}
        for name in ("q_norm", "k_norm"):
            weights[f"{of}self_attn.{name}.weight"] = torch.ones(HEAD_DIM)
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(DRAFTER))
