"""One gated-delta-net layer and two sequences: decodes a token, then verifies a draft of four and
takes back what is rejected. Needs the Python package: pip install . (docs/python.md)."""

import deltaworks
import numpy as np

# The heads of Qwen3.5-4B's recurrent layers: two value heads share a key head.
SEQUENCES, TOKENS, KEY_HEADS, VALUE_HEADS, DIM = 2, 4, 16, 32, 128
rng = np.random.default_rng(1)


def projections(tokens):
    """What the layer's projections would give for these many tokens of both sequences."""
    rows = tokens * SEQUENCES
    return {
        "query": rng.standard_normal((rows, KEY_HEADS, DIM), np.float32),
        "key": rng.standard_normal((rows, KEY_HEADS, DIM), np.float32),
        "value": rng.standard_normal((rows, VALUE_HEADS, DIM), np.float32),
        "decay": -rng.random((rows, VALUE_HEADS), np.float32),  # natural logarithms
        "beta": rng.random((rows, VALUE_HEADS), np.float32),
    }


state = np.zeros((SEQUENCES, VALUE_HEADS, DIM, DIM), np.float32)
starts = np.arange(SEQUENCES + 1, dtype=np.int32)

# One token for each sequence; the state is updated where it is.
step = deltaworks.gated_delta_net(
    **projections(1),
    cu_seqlens=starts,
    qk_l2_norm=True,
    initial_state=state,
    out=(None, state, None),
)
print(f"deltaworks {deltaworks.__version__}, {deltaworks.cpu_target()}: {step.output[0, 0, :3]}")

# Four drafted tokens in one call, which keeps what each did to the state.
draft = projections(TOKENS)
captured = np.full(SEQUENCES, TOKENS, np.int32)
options = {"qk_l2_norm": True, "initial_state": state, "threads": 2}
verified = deltaworks.gated_delta_net(
    **draft,
    cu_seqlens=starts * TOKENS,
    **options,
    state_update_capacity=TOKENS,
    capture_count=captured,
)

# The model accepts three tokens of the first sequence and none of the second.
accepted = np.array([3, 0], np.int32)
deltaworks.replay_gated_delta_state(
    state,
    verified.state_update,
    accepted,
    key_heads=KEY_HEADS,
    state_update_capacity=TOKENS,
    out=state,
)
print(f"accepted {accepted.tolist()} of {TOKENS} tokens; the states are those of having run them")
