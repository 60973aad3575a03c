"""Trains the demonstration model: one GPU, five minutes.

    train.py corpus.npz OUT_FOLDER [--seconds 280]

Writes weights.safetensors (float16), train.json (the log) and samples.txt. `--tiny --steps 3` runs
the same code on a CPU.
"""

import argparse
import json
import math
import time
from pathlib import Path

import checkpoint
import delta_rule
import numpy as np
import torch
import torch.nn.functional as F
from generate import decode, encode, generate
from model import END, TINY, Config, Model
from muon import Muon
from safetensors.torch import save_file

SAMPLES = (
    "[tale]\nOnce upon a time there was",
    "[novel]\nCHAPTER I\n\n",
    "[play]\nACT I. Scene I. ",
    "[poem]\n",
    "[scripture]\n1 And the LORD said unto ",
    "[speech]\nTo the Congress of the United States:\n\n",
    "[dictionary]\nlantern (noun):",
    "[satire]\nPOLITICIAN, n.",
    "[jargon]\nhacker n.\n\n",
    "[science]\nPROP. I. ",
)


class Optimizer:
    """Muon for the large matrices, AdamW for the rest; one schedule for both."""

    def __init__(self, model, rate, warmup, device):
        self.rate, self.warmup = rate, warmup
        named = [(n, p) for n, p in model.named_parameters()]
        matrices = [p for n, p in named if p.ndim == 2 and min(p.shape) > 16 and "embed" not in n]
        taken = {id(p) for p in matrices}
        others = [p for _, p in named if id(p) not in taken]
        groups = [
            {"params": [p for p in others if p.ndim > 1], "weight_decay": 0.01},
            {"params": [p for p in others if p.ndim == 1], "weight_decay": 0.0},
        ]
        self.muon = Muon(matrices)
        self.adam = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=device == "cuda")

    def step(self, step, share):
        """Warm-up by steps; constant to 40 % of the time, then linear to 1 %."""
        rate = self.rate * min(1, (step + 1) / self.warmup)
        rate *= 1 if share < 0.4 else max(0.01, (1 - share) / 0.6)
        for group in self.adam.param_groups:
            group["lr"] = rate
        self.muon.step(2 * rate)
        self.adam.step()


class Batches:
    """Windows at random offsets; one in eight begins with a document and so with its tag."""

    def __init__(self, ids, batch, window, device):
        self.ids, self.batch, self.device = ids, batch, device
        self.offsets = torch.arange(window + 1, device=device)
        self.last = len(ids) - window - 1
        starts = torch.nonzero(ids == END).squeeze(-1)
        self.starts = starts[starts < self.last]

    def draw(self):
        at = torch.randint(0, self.last, (self.batch,), device=self.device)
        count = self.batch // 8
        chosen = torch.randint(0, len(self.starts), (count,), device=self.device)
        at[:count] = self.starts[chosen]
        rows = self.ids[at[:, None] + self.offsets].long()
        return rows[:, :-1], rows[:, 1:]


def loss_of(logits, target):
    return F.cross_entropy(logits.float().flatten(0, 1), target.flatten())


@torch.no_grad()
def evaluate(model, heldout, window, rows=24):
    """Bits per byte for each source, over windows that start afresh."""
    result = {}
    for name, ids in heldout.items():
        count = (len(ids) - 1) // window
        inputs = ids[: count * window].reshape(count, window)
        targets = ids[1 : count * window + 1].reshape(count, window)
        total = 0.0
        for begin in range(0, count, rows):
            part = inputs[begin : begin + rows]
            padding = part.new_zeros(rows - len(part), window)  # one shape: compiled once
            logits = model(torch.cat([part, padding]))[: len(part)].float().flatten(0, 1)
            target = targets[begin : begin + rows].flatten()
            total += F.cross_entropy(logits, target, reduction="sum").item()
        result[name] = total / (count * window) / math.log(2)
    result["mean"] = sum(result.values()) / len(result)
    return {name: round(value, 4) for name, value in result.items()}


def fit(model, batches, heldout, args, device):
    """The training loop; the clock excludes compilation and evaluations."""
    optimizer = Optimizer(model, args.rate, args.warmup, device)
    loss_function = torch.compile(loss_of, dynamic=False) if device == "cuda" else loss_of
    inputs, target = batches.draw()
    loss_function(model(inputs), target).backward()  # compiles and autotunes
    model.zero_grad(set_to_none=True)
    log, total, step, paused, begin = [], 0.0, 0, 0.0, time.time()
    evaluations = [0.25, 0.5, 0.75]
    while True:
        seconds = time.time() - begin - paused
        share = max(seconds / args.seconds, step / args.steps)
        if share >= 1:
            break
        inputs, target = batches.draw()
        loss = loss_function(model(inputs), target)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step(step, share)
        model.zero_grad(set_to_none=True)
        total, step = total + loss.detach(), step + 1
        if step % 200 == 0:
            bits = float(total) / 200 / math.log(2)
            total = 0.0
            log.append({"step": step, "seconds": round(seconds, 1), "train": round(bits, 4)})
            print(f"step {step} {seconds:.0f} s, {bits:.4f} bits, norm {norm:.2f}", flush=True)
        if evaluations and share > evaluations[0]:
            evaluations.pop(0)
            pause = time.time()
            log.append({"step": step, "heldout": evaluate(model, heldout, args.window)})
            print(json.dumps(log[-1]), flush=True)
            paused += time.time() - pause
    return {"log": log, "steps": step, "seconds": round(time.time() - begin - paused, 1)}


def write_samples(model, path, device, tokens):
    with open(path, "w") as file:
        for temperature in (0.7, 0.0):
            for prompt in SAMPLES:
                ids = torch.tensor([encode(prompt)], device=device)
                generator = torch.Generator(device=device).manual_seed(7)
                out = generate(model, ids, tokens, temperature, generator)[0, 1:].tolist()
                text = f"=== temperature {temperature}\n{decode(out)}\n"
                file.write(text)
                print(text, flush=True)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=280)
    parser.add_argument("--steps", type=int, default=10**9)
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--warmup", type=int, default=150)
    parser.add_argument("--samples", type=int, default=400, help="bytes of each sample")
    parser.add_argument("--tiny", action="store_true")
    return parser.parse_args()


def main():
    args, device = parse(), "cuda" if torch.cuda.is_available() else "cpu"
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1234)
    torch.backends.cuda.matmul.allow_tf32 = True
    data = np.load(args.data)
    ids = torch.from_numpy(data["train"].astype(np.int16)).to(device)
    heldout = {
        name.removeprefix("heldout_"): torch.from_numpy(data[name].astype(np.int64)).to(device)
        for name in data.files
        if name.startswith("heldout_")
    }
    config = TINY if args.tiny else Config()
    model = Model(config, torch.bfloat16 if device == "cuda" else torch.float32).to(device)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters:,} parameters, {len(ids):,} training ids", flush=True)
    model.rule, why = delta_rule.choose(device)
    print("gated delta rule:", why, flush=True)
    if device == "cuda":
        model.use_functions(compiled=True)
    result = fit(model, Batches(ids, args.batch, args.window, device), heldout, args, device)
    result |= {"parameters": parameters, "tokens": result["steps"] * args.batch * args.window}
    result["epochs"] = round(result["tokens"] / len(ids), 2)
    # Saved before anything else can fail.
    save_file(checkpoint.half(model.state_dict()), args.out / "weights.safetensors")
    result["heldout"] = evaluate(model, heldout, args.window)
    print(json.dumps({k: v for k, v in result.items() if k != "log"}), flush=True)
    (args.out / "train.json").write_text(json.dumps(result, indent=1) + "\n")
    model.use_functions(compiled=False)
    write_samples(model, args.out / "samples.txt", device, args.samples)


if __name__ == "__main__":
    main()
