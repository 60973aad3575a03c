"""flash-linear-attention with one gradient kernel replaced.

Triton 3.4 up to before 3.7.1 miscompiles fla's gated `chunk_bwd_dqkwg` on Hopper; fla 0.6 therefore
refuses to run it there. The same gradient in compiled torch costs little at our sizes.
Remove this file when the pinned Triton is 3.7.1 or newer.
"""

import importlib

import torch

CHUNK = 64


def _gradient(q, k, v, do, states, dstates, g, dv, scale):
    """dq, dk, dw, dg of one chunked gated delta rule; `g` holds log2 decays summed within chunks.

    states [batch, chunks, heads, key_dim, value_dim] are those before each chunk.
    """
    batch, tokens, key_heads, key_dim = k.shape
    heads, chunks = v.shape[2], tokens // CHUNK
    share = heads // key_heads

    def split(x):
        x = x.float().reshape(batch, chunks, CHUNK, x.shape[2], -1).transpose(2, 3)
        return x.repeat_interleave(heads // x.shape[2], 2)

    def join(x):
        return x.transpose(2, 3).reshape(batch, tokens, heads, -1)

    q_, k_, v_, do_, dv_ = (split(x) for x in (q, k, v, do, dv))
    total = split(g[..., None]).squeeze(-1)
    last = total[..., -1:]
    states, dstates = states.float(), dstates.float()
    # The part through the chunk's incoming and outgoing state.
    dq = do_ @ states.mT * torch.exp2(total)[..., None] * scale
    dk = v_ @ dstates.mT * torch.exp2(last - total)[..., None]
    dw = -(dv_ @ states.mT)
    dlast = (states * dstates).sum((-2, -1)) * torch.exp2(last[..., 0]) + (dk * k_).sum((-2, -1))
    # The part within the chunk.
    causal = torch.ones(CHUNK, CHUNK, device=q.device, dtype=torch.bool).tril()
    span = (total[..., :, None] - total[..., None, :]).masked_fill(~causal, -1e30)
    dscore = do_ @ v_.mT * torch.exp2(span) * scale
    dq, dk = dq + dscore @ k_, dk + dscore.mT @ q_
    dg = (dq * q_).sum(-1) - (dk * k_).sum(-1)
    dg = torch.cat([dg[..., :-1], dg[..., -1:] + dlast[..., None]], -1)

    def shared(x, like):
        return join(x).reshape(batch, tokens, key_heads, share, key_dim).sum(3).to(like.dtype)

    dg = join(dg[..., None]).squeeze(-1).contiguous()
    return shared(dq, q), shared(dk, k), join(dw).to(v.dtype), dg


def flash_rule():
    """A function like `delta_rule.plain` that runs fla with the replaced gradient."""
    chunk = importlib.import_module("fla.ops.gated_delta_rule.chunk")
    gradient = torch.compile(_gradient, dynamic=False)

    def replacement(q, k, v, do, h, dh, w=None, g=None, dv=None, scale=None, **_):
        return gradient(q, k, v, do, h, dh, g, dv, float(scale))

    chunk.chunk_bwd_dqkwg = replacement

    def rule(q, k, v, log_decay, beta):
        return chunk.chunk_gated_delta_rule(q, k, v, log_decay, beta)[0]

    return rule
