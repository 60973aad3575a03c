"""Muon (orthogonalised momentum) for matrices; everything else belongs to AdamW."""

import math

import torch

# Five steps of this odd quintic bring singular values from (0, 1] close to 1 (Jordan et al., 2024).
QUINTIC = (3.4445, -4.7750, 2.0315)


def _orthogonalise(update):
    wide = update.mT if update.shape[-2] > update.shape[-1] else update
    wide = wide / (wide.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    a, b, c = QUINTIC
    for _ in range(5):
        gram = wide @ wide.mT
        wide = a * wide + (b * gram + c * gram @ gram) @ wide
    return wide.mT if update.shape[-2] > update.shape[-1] else wide


class Muon:
    """One batched step for all matrices of equal shape; the step's RMS matches AdamW's (0.2)."""

    def __init__(self, parameters, momentum=0.95, weight_decay=0.1):
        self.momentum, self.weight_decay = momentum, weight_decay
        self.groups = {}
        for parameter in parameters:
            self.groups.setdefault(tuple(parameter.shape), []).append(parameter)
        self.averages = {
            shape: torch.zeros(len(group), *shape, device=group[0].device)
            for shape, group in self.groups.items()
        }

    @torch.no_grad()
    def step(self, learning_rate):
        for shape, group in self.groups.items():
            gradient = torch.stack([p.grad for p in group])
            average = self.averages[shape].lerp_(gradient, 1 - self.momentum)
            nesterov = gradient.lerp(average, self.momentum).bfloat16()
            update = _orthogonalise(nesterov).float() * (0.2 * math.sqrt(max(shape)))
            torch._foreach_mul_(group, 1 - learning_rate * self.weight_decay)
            torch._foreach_add_(group, list(update.unbind(0)), alpha=-learning_rate)
