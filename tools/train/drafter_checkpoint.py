"""Drafter checkpoints in the layout of published DFlash2 drafters."""

import json
from pathlib import Path

from drafter import Drafter, DrafterConfig
from model import MASK
from safetensors.torch import load_file, save_file


def config_json(c):
    return dict(
        architectures=["DFlash2DraftModel"],
        dtype="float16",
        hidden_size=c.hidden,
        num_hidden_layers=c.layers,
        num_attention_heads=c.query_heads,
        num_key_value_heads=c.kv_heads,
        head_dim=c.head_dim,
        intermediate_size=c.mlp,
        vocab_size=c.vocabulary,
        rms_norm_eps=c.epsilon,
        max_position_embeddings=c.max_positions,
        rope_parameters=dict(rope_type="default", rope_theta=c.rotary_base),
        is_causal=False,
        use_sliding_window=True,
        sliding_window=c.window,
        dflash_config=dict(
            block_size=c.block,
            mask_token_id=MASK,
            target_layer_ids=list(c.taps),
            conv_kernel_size=c.conv_taps,
            conv_group_size=c.conv_group,
            selector_rank=c.selector_rank,
            selector_top_k=c.selector_top_k,
        ),
    )


def save(drafter, folder):
    folder.mkdir(parents=True, exist_ok=True)
    state = {n: v.detach().half().cpu().contiguous() for n, v in drafter.state_dict().items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    text = json.dumps(config_json(drafter.config), indent=2)
    (folder / "config.json").write_text(text + "\n")


def load(folder):
    """The float32 drafter of a checkpoint folder."""
    t = json.loads((Path(folder) / "config.json").read_text())
    d = t["dflash_config"]
    drafter = Drafter(
        DrafterConfig(
            vocabulary=t["vocab_size"],
            hidden=t["hidden_size"],
            layers=t["num_hidden_layers"],
            query_heads=t["num_attention_heads"],
            kv_heads=t["num_key_value_heads"],
            head_dim=t["head_dim"],
            rotary_base=t["rope_parameters"]["rope_theta"],
            mlp=t["intermediate_size"],
            taps=tuple(d["target_layer_ids"]),
            block=d["block_size"],
            conv_taps=d["conv_kernel_size"],
            conv_group=d["conv_group_size"],
            selector_rank=d["selector_rank"],
            selector_top_k=d["selector_top_k"],
            window=t["sliding_window"],
            epsilon=t["rms_norm_eps"],
            max_positions=t["max_position_embeddings"],
        )
    )
    stored = load_file(Path(folder) / "model.safetensors")
    drafter.load_state_dict({name: value.float() for name, value in stored.items()})
    return drafter.requires_grad_(False).eval()
