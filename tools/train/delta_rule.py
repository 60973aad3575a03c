"""The gated delta rule, three ways: token by token, in chunks, and through flash-linear-attention.

Per value head, for each token:
S *= exp(log_decay);  S += beta * (v - S k) k^T;  o = S q / sqrt(key_dim)
q and k come in normalised; their heads are shared by `value_heads / key_heads` value heads.
Shapes: q, k [batch, tokens, key_heads, key_dim]; v [batch, tokens, value_heads, value_dim];
log_decay, beta [batch, tokens, value_heads]; the float32 state [batch, value_heads, value_dim,
key_dim].
"""

import torch

CHUNK = 64


def recurrent(q, k, v, log_decay, beta, state=None):
    """Token by token in float32: the definition, and the form for decoding. Returns (o, state)."""
    batch, tokens, value_heads, value_dim = v.shape
    share = value_heads // q.shape[2]
    q = q.float().repeat_interleave(share, 2) * q.shape[-1] ** -0.5
    k, v = k.float().repeat_interleave(share, 2), v.float()
    if state is None:
        state = v.new_zeros(batch, value_heads, value_dim, k.shape[-1])
    outputs = []
    for t in range(tokens):
        state = state * log_decay[:, t].exp()[..., None, None]
        recalled = torch.einsum("bhvk,bhk->bhv", state, k[:, t])
        update = beta[:, t, :, None] * (v[:, t] - recalled)
        state = state + update[..., None] * k[:, t, :, None]
        outputs.append(torch.einsum("bhvk,bhk->bhv", state, q[:, t]))
    return torch.stack(outputs, 1), state


def _heads_first(x, share, chunks):
    """[batch, tokens, heads, dim] -> float32 [batch, heads * share, chunks, CHUNK, dim]."""
    x = x.float().repeat_interleave(share, 2)
    return x.reshape(x.shape[0], chunks, CHUNK, *x.shape[2:]).permute(0, 3, 1, 2, 4)


def chunked(q, k, v, log_decay, beta):
    """Chunks of 64 in plain torch, float32, with gradients; tokens must be a multiple of 64."""
    batch, tokens, value_heads, value_dim = v.shape
    if tokens % CHUNK:
        raise ValueError(f"chunked: {tokens} tokens, expected a multiple of {CHUNK}")
    chunks, share, scale = tokens // CHUNK, value_heads // q.shape[2], q.shape[-1] ** -0.5
    q, k = _heads_first(q, share, chunks) * scale, _heads_first(k, share, chunks)
    v, beta = _heads_first(v, 1, chunks), _heads_first(beta[..., None], 1, chunks)
    total = _heads_first(log_decay[..., None], 1, chunks).squeeze(-1).cumsum(-1)
    causal = torch.ones(CHUNK, CHUNK, device=v.device, dtype=torch.bool).tril()
    # Masked before exp: above the diagonal the difference is positive and may overflow.
    decay = (total[..., :, None] - total[..., None, :]).masked_fill(~causal, -1e30).exp()
    since_start = total.exp()[..., None]
    # Each update depends on the earlier ones of its chunk: a unit lower triangular system.
    coupling = (beta * k @ k.mT * decay).tril(-1) + torch.eye(CHUNK, device=v.device)
    right = torch.cat([beta * v, beta * k * since_start], -1)
    solved = torch.linalg.solve_triangular(coupling, right, upper=False, unitriangular=True)
    own, carried = solved[..., :value_dim], solved[..., value_dim:]
    within = q @ k.mT * decay
    until_end = (total[..., -1:] - total).exp()[..., None]
    state = v.new_zeros(batch, value_heads, k.shape[-1], value_dim)
    outputs = []
    for c in range(chunks):
        update = own[:, :, c] - carried[:, :, c] @ state
        past = (q[:, :, c] * since_start[:, :, c]) @ state
        outputs.append(past + within[:, :, c] @ update)
        state = state * total[:, :, c, -1, None, None].exp()
        state = state + (k[:, :, c] * until_end[:, :, c]).mT @ update
    return torch.stack(outputs, 2).permute(0, 2, 3, 1, 4).reshape(batch, tokens, value_heads, -1)


def plain(q, k, v, log_decay, beta):
    """Whatever plain torch can do for this length."""
    if v.shape[1] % CHUNK == 0:
        return chunked(q, k, v, log_decay, beta).to(v.dtype)
    return recurrent(q, k, v, log_decay, beta)[0].to(v.dtype)


def _gradients(rule, dtype, device):
    """Output and gradients of `rule` on one fixed random problem."""
    generator = torch.Generator(device=device).manual_seed(5)

    def draw(*shape):
        return torch.randn(*shape, device=device, generator=generator)

    unit = torch.nn.functional.normalize
    q, k, v = (
        unit(draw(2, 192, 2, 64), dim=-1),
        unit(draw(2, 192, 2, 64), dim=-1),
        draw(2, 192, 4, 64),
    )
    log_decay, beta = -0.3 * draw(2, 192, 4).sigmoid(), draw(2, 192, 4).sigmoid()
    weight = draw(2, 192, 4, 64)
    leaves = [x.to(dtype).float().requires_grad_() for x in (q, k, v)]
    leaves += [log_decay.requires_grad_(), beta.requires_grad_()]
    out = rule(*(x.to(dtype) for x in leaves[:3]), *leaves[3:])
    (out.float() * weight).sum().backward()
    return [out.detach().float()] + [x.grad for x in leaves]


def choose(device):
    """The fastest rule whose gradients agree with the recurrence here, and a line that says why."""
    if torch.device(device).type != "cuda":
        return plain, "plain torch (no GPU)"
    expected = _gradients(lambda *x: recurrent(*x)[0], torch.float32, device)
    try:
        import hopper

        rule = hopper.flash_rule()
        found = _gradients(rule, torch.bfloat16, device)
    except (ImportError, RuntimeError) as error:
        return torch.compile(chunked, dynamic=False), f"plain torch (fla: {error!r:.200})"
    errors = [((x - y).norm() / y.norm()).item() for x, y in zip(found, expected, strict=True)]
    report = "relative errors of o, dq, dk, dv, dlog_decay, dbeta: " + " ".join(
        f"{e:.4f}" for e in errors
    )
    # bfloat16 operands give 1e-3 to 1e-2; a wrong kernel is off by far more.
    if max(errors) < 0.03:
        return rule, "fla; " + report
    return torch.compile(chunked, dynamic=False), "plain torch (fla is wrong here); " + report
