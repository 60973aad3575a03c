"""Relative errors of gated_delta_net, and of flash-linear-attention over the same operands, against
the recurrence in float64."""

import os

import torch
from fla.ops.gated_delta_rule import chunk_gated_delta_rule

KEY_HEADS, HEADS, DIM = 16, 32, 128  # of cuda_bench --results


def relative_error(actual, expected):
    return ((actual.double() - expected).norm() / expected.norm()).item()


def recurrence(q, k, v, log_decay, beta, state, offsets):
    """The definition in float64: outputs, and states [sequences, heads, value_dim, key_dim]."""
    group = v.shape[1] // k.shape[1]
    q, k = ((x / x.norm(dim=-1, keepdim=True)).repeat_interleave(group, 1) for x in (q, k))
    output, states = torch.empty_like(v), state.clone()
    for b in range(len(state)):
        s = states[b]
        for t in range(offsets[b], offsets[b + 1]):
            s *= log_decay[t].exp()[:, None, None]
            delta = beta[t][:, None] * (v[t] - torch.einsum("hvk,hk->hv", s, k[t]))
            s += delta[:, :, None] * k[t][:, None, :]
            output[t] = torch.einsum("hvk,hk->hv", s, q[t]) * DIM**-0.5
    return output, states


def errors(prefix, dtype):
    """Relative errors of what cuda_bench wrote, and of fla over the same operands."""

    def read(name, kind, *shape):
        with open(f"{prefix}.{name}", "rb") as file:
            return torch.frombuffer(bytearray(file.read()), dtype=kind).reshape(shape).cuda()

    q, k = (read(name, dtype, -1, KEY_HEADS, DIM) for name in ("query", "key"))
    v, output = (read(name, dtype, -1, HEADS, DIM) for name in ("value", "output"))
    decay, beta = (read(name, torch.float32, -1, HEADS).double() for name in ("decay", "beta"))
    a_log, bias = (read(name, torch.float32, HEADS).double() for name in ("a_log", "dt_bias"))
    state, final_state = (
        read(name, torch.float32, -1, HEADS, DIM, DIM) for name in ("initial_state", "final_state")
    )
    offsets = read("cu_seqlens", torch.int32, -1)
    log_decay = -a_log.exp() * torch.nn.functional.softplus(decay + bias)
    beta = beta.sigmoid()
    expected, states = recurrence(
        q.double(), k.double(), v.double(), log_decay, beta, state.double(), offsets.tolist()
    )
    found = {
        "case": os.path.basename(prefix),
        "output": relative_error(output, expected),
        "state": relative_error(final_state, states),
    }
    if dtype != torch.float32:  # fla has no chunks of it
        theirs, their_states = chunk_gated_delta_rule(
            q[None],
            k[None],
            v[None],
            log_decay.float()[None],
            beta.float()[None],
            initial_state=state.transpose(-1, -2).contiguous(),
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
            cu_seqlens=offsets.long(),
        )
        found["fla_output"] = relative_error(theirs[0], expected)
        found["fla_state"] = relative_error(their_states.transpose(-1, -2), states)
    return found


def add_errors(report, folder):
    report["errors"] = [
        errors(f"{folder}/{case}.{dtype}", getattr(torch, dtype))
        for dtype in ("bfloat16", "float16", "float32")
        for case in ("slow", "fast")
    ]
    for found in report["errors"]:
        parts = (f"{key} {x:.2e}" if isinstance(x, float) else x for key, x in found.items())
        print("error: ", *parts, flush=True)
