"""Token-by-token decoding of the PyTorch model, with its state carried."""

import torch
from model import END


class State:
    """What a batch of equally long sequences has left behind: one dictionary a layer."""

    def __init__(self, model, batch):
        c, device = model.config, model.norm.weight.device
        self.length, self.layers = 0, []
        for index in range(c.layers):
            if c.is_attention(index):
                empty = torch.zeros(
                    batch, 0, c.kv_heads, c.head_dim, device=device, dtype=model.dtype
                )
                self.layers.append({"key": empty, "value": empty})
                continue
            past = torch.zeros(
                batch, c.conv_width - 1, c.conv_channels, device=device, dtype=model.dtype
            )
            matrix = torch.zeros(batch, c.value_heads, c.value_dim, c.key_dim, device=device)
            self.layers.append({"conv": past, "recurrent": matrix})


@torch.no_grad()
def generate(model, prompts, tokens, temperature=0.0, generator=None):
    """Continues prompts [batch, length] by `tokens` ids; `temperature` may be [batch, tokens]."""
    state, ids = State(model, prompts.shape[0]), [prompts]
    heat = torch.as_tensor(temperature, device=prompts.device).expand(len(prompts), tokens)
    logits = model(prompts, state=state)
    for step in range(tokens):
        row = logits[:, -1].float()
        row[:, END + 1 :] = -torch.inf  # MASK and the unused ids are no text
        noise = torch.rand(row.shape, device=row.device, generator=generator).clamp_min(1e-20)
        # Gumbel noise scaled by the temperature: argmax then samples, and 0 is greedy.
        ids.append(
            (row - heat[:, step, None] * torch.log(-torch.log(noise))).argmax(-1, keepdim=True)
        )
        if step + 1 < tokens:
            logits = model(ids[-1], state=state)
    return torch.cat(ids, 1)


def encode(text):
    return [END, *text.encode("latin-1")]


def decode(ids):
    """Text of ids; the end of a document shows as a line of three dashes."""
    return "".join("\n---\n" if i >= END else chr(i) for i in ids)
