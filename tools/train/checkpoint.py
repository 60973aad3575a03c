"""Checkpoints in the layout of Hugging Face's Qwen3_5ForConditionalGeneration.

That class, and no text-only one, is what ONNX Runtime GenAI's model builder accepts. It brings a
vision tower; ours is the smallest legal one, filled with zeros (21 KB) and never called.
"""

import argparse
import json
from pathlib import Path

import torch
from model import END, Config, Model
from safetensors.torch import load_file, save_file

PREFIX = "model.language_model."
FLOAT32 = ("A_log", "dt_bias")  # the operators read these as float32


def text_config(c):
    return dict(
        model_type="qwen3_5_text",
        vocab_size=c.vocabulary,
        hidden_size=c.hidden,
        intermediate_size=c.mlp,
        num_hidden_layers=c.layers,
        num_attention_heads=c.query_heads,
        num_key_value_heads=c.kv_heads,
        head_dim=c.head_dim,
        linear_num_key_heads=c.key_heads,
        linear_num_value_heads=c.value_heads,
        linear_key_head_dim=c.key_dim,
        linear_value_head_dim=c.value_dim,
        linear_conv_kernel_dim=c.conv_width,
        full_attention_interval=4,
        layer_types=[
            "full_attention" if c.is_attention(i) else "linear_attention" for i in range(c.layers)
        ],
        max_position_embeddings=c.max_positions,
        rms_norm_eps=c.epsilon,
        hidden_act="silu",
        attention_bias=False,
        tie_word_embeddings=True,
        dtype="float16",
        bos_token_id=END,
        eos_token_id=END,
        pad_token_id=END,
        rope_parameters=dict(
            rope_type="default",
            rope_theta=c.rotary_base,
            partial_rotary_factor=c.rotary_dim / c.head_dim,
            mrope_section=mrope_section(c.rotary_dim // 2),
            mrope_interleaved=True,
        ),
    )


def mrope_section(pairs):
    """Three nearly equal parts, the longer ones first; for text all three positions are equal."""
    return [(pairs + 2) // 3, (pairs + 1) // 3, pairs // 3]


def vision_config(c):
    return dict(
        model_type="qwen3_5_vision",
        depth=1,
        hidden_size=8,
        intermediate_size=8,
        num_heads=1,
        out_hidden_size=c.hidden,
        num_position_embeddings=4,
        patch_size=2,
        temporal_patch_size=1,
        spatial_merge_size=2,
        in_channels=3,
        deepstack_visual_indexes=[],
    )


def config_json(c):
    return dict(
        architectures=["Qwen3_5ForConditionalGeneration"],
        model_type="qwen3_5",
        dtype="float16",
        tie_word_embeddings=True,
        bos_token_id=END,
        eos_token_id=END,
        pad_token_id=END,
        image_token_id=258,
        video_token_id=259,
        vision_start_token_id=260,
        vision_end_token_id=261,
        text_config=text_config(c),
        vision_config=vision_config(c),
    )


def _vision_zeros(config):
    """Names and shapes come from transformers itself, so that none is missing when it loads."""
    from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

    with torch.device("meta"):
        whole = Qwen3_5ForConditionalGeneration(Qwen3_5Config(**config))
    return {
        name: torch.zeros(value.shape, dtype=torch.float16)
        for name, value in whole.state_dict().items()
        if name.startswith("model.visual.")
    }


def write_tokenizer(folder):
    """Byte-level tokenizer: the id of a byte is its value. No merges, no added prefix."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    # GPT-2's printable stand-ins: bytes that print keep their character, the rest follow from 256.
    printing = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    stand_in = {b: chr(b) for b in printing}
    others = (b for b in range(256) if b not in stand_in)
    stand_in.update({b: chr(256 + i) for i, b in enumerate(others)})
    tokenizer = Tokenizer(models.BPE(vocab={stand_in[b]: b for b in range(256)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = ["<|end|>", "<|mask|>", *(f"<|unused{i}|>" for i in range(258, 264))]
    tokenizer.add_special_tokens([AddedToken(n, special=True, normalized=False) for n in names])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=names[0],
        eos_token=names[0],
        pad_token=names[0],
        mask_token=names[1],
        # Left unset, transformers adds a token of its own beyond the vocabulary.
        unk_token=names[0],
        clean_up_tokenization_spaces=False,
    )
    fast.save_pretrained(folder)


def half(state):
    """A state dict as it is stored: float16, but for the gates."""
    return {
        name: value.detach()
        .cpu()
        .contiguous()
        .to(torch.float32 if name.endswith(FLOAT32) else torch.float16)
        for name, value in state.items()
    }


def save(model_state, config, folder):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    whole = config_json(config)
    tensors = {PREFIX + name: value for name, value in half(model_state).items()}
    tensors.update(_vision_zeros(whole))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(whole, indent=2) + "\n")
    write_tokenizer(folder)


def load(folder, dtype=torch.float32):
    """The PyTorch model of a checkpoint folder."""
    t = json.loads((Path(folder) / "config.json").read_text())["text_config"]
    rope = t["rope_parameters"]
    config = Config(
        vocabulary=t["vocab_size"],
        hidden=t["hidden_size"],
        layers=t["num_hidden_layers"],
        key_heads=t["linear_num_key_heads"],
        value_heads=t["linear_num_value_heads"],
        key_dim=t["linear_key_head_dim"],
        value_dim=t["linear_value_head_dim"],
        conv_width=t["linear_conv_kernel_dim"],
        query_heads=t["num_attention_heads"],
        kv_heads=t["num_key_value_heads"],
        head_dim=t["head_dim"],
        rotary_dim=int(t["head_dim"] * rope["partial_rotary_factor"]),
        rotary_base=rope["rope_theta"],
        mlp=t["intermediate_size"],
        epsilon=t["rms_norm_eps"],
        max_positions=t["max_position_embeddings"],
    )
    model = Model(config, dtype)
    stored = load_file(Path(folder) / "model.safetensors")
    text = {n.removeprefix(PREFIX): v.float() for n, v in stored.items() if n.startswith(PREFIX)}
    model.load_state_dict(text)
    return model.requires_grad_(False).eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights", help="weights.safetensors of train.py, or 'random'")
    parser.add_argument("folder", help="where the checkpoint goes")
    args = parser.parse_args()
    config = Config()
    if args.weights == "random":
        torch.manual_seed(1)
        state = Model(config).state_dict()
    else:
        state = load_file(args.weights)
    save(state, config, args.folder)
    print(f"{args.folder}: {sum(v.numel() for v in state.values()):,} parameters")


if __name__ == "__main__":
    main()
