"""Drafter checkpoints in the layout of published DFlash2 drafters."""

import json

from model import MASK
from safetensors.torch import save_file


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
