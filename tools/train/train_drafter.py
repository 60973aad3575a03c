"""Trains the block drafter of the demonstration model: one GPU, five minutes.

    train_drafter.py PACKAGE corpus.npz OUT_FOLDER [--seconds 300]

PACKAGE is the target's checkpoint folder, models/demo. Writes a DFlash2 checkpoint (config.json,
model.safetensors) and train.json, then prints how many tokens a verification yields.
`--sequences 4 --window 192 --batch 3 --anchors 4 --steps 3` runs the same code on a CPU.
"""

import argparse
import json
import time
from pathlib import Path

import checkpoint
import drafter_checkpoint
import numpy as np
import torch
import torch.nn.functional as F
from drafter import Drafter, DrafterConfig
from generate import generate
from model import END
from muon import Muon

SAMPLED = 0.7  # the temperature of rows that the target writes; half of them turn greedy on the way
PROMPTS = (24, 64, 160)  # bytes that a round of the target's sequences begins with
DECAY = 4.0  # a slot weighs e^(1/4) times the next: a later one counts only if this one is accepted
EVERY = 100  # steps between two lines of the log


class Text:
    """Rows of ids with what the target says of them, computed once.

    `temperature`, of each id, is that at which the target's distribution is to be imitated there;
    0: its choice.
    """

    def __init__(self, model, ids, temperature, taps, rows=64):
        self.ids, self.temperature, tapped, logits = ids, temperature, [], []
        with torch.no_grad():
            for part in ids.split(rows):
                scores, hidden = model(part.long(), taps=taps)
                scores[..., END + 1 :] = -1e4
                tapped.append(hidden)
                logits.append(scores.half())
        self.tapped, self.logits = torch.cat(tapped), torch.cat(logits)

    def draw(self, count):
        rows = torch.randint(0, len(self.ids), (count,), device=self.ids.device)
        return (
            self.ids[rows].long(),
            self.tapped[rows],
            self.logits[rows],
            self.temperature[rows],
        )


def windows(corpus, count, length):
    """Random places of the corpus; every other one begins with a document and so with its tag."""
    last = len(corpus) - length
    at = torch.randint(0, last, (count,), device=corpus.device)
    starts = torch.nonzero(corpus[:last] == END).squeeze(-1)
    at[::2] = starts[torch.randint(0, len(starts), (len(at[::2]),), device=corpus.device)]
    return corpus[at[:, None] + torch.arange(length, device=corpus.device)]


def written(model, corpus, args, late):
    """What the target writes after pieces of the corpus, and each id's temperature.

    Greedy text soon repeats itself: half of the rows are sampled first and turn greedy at a random
    place, so that the little before the loop is seen often enough. The others are sampled.
    """
    ids, temperatures = [], []
    for prompt in PROMPTS:
        place = torch.arange(args.window, device=corpus.device)
        turn = torch.randint(0, args.window * 7 // 8, (args.sequences, 1), device=corpus.device)
        turn[: len(turn) // 2] = args.window
        temperature = (place < turn) * SAMPLED
        prompts = windows(corpus, args.sequences, prompt).long()
        text = generate(model, prompts, args.window - prompt, temperature[:, prompt:])
        ids.append(text.to(corpus.dtype))
        temperatures.append(temperature)
        print(f"{ids[-1].numel():,} ids written after {prompt} bytes", flush=True)
        if late():
            break
    return torch.cat(ids), torch.cat(temperatures)


def soft_loss(scores, target, temperature):
    """Cross entropy with the distribution `target` at the temperature where it was formed."""
    return -(target * (scores / temperature).log_softmax(-1)).sum(-1)


def losses(drafter, embedding, batch, at):
    """Loss, and how often each slot's best candidate is the token, its predecessor being known.

    The target's distribution in place of the one token that was drawn from it has the same mean
    gradient and less noise.
    """
    ids, tapped, logits, temperature = batch
    block = drafter.config.block
    inside = at[..., None] + torch.arange(block, device=at.device)
    row = torch.arange(len(ids), device=at.device)[:, None, None]
    tokens = ids[row, inside]
    hidden = drafter(embedding, tapped, tokens[..., 0], at)
    scores, truth = drafter.logits(hidden, embedding), tokens[..., 1:]
    chosen_at = temperature[row, inside[..., 1:], None]
    greedy = chosen_at == 0
    at_temperature = torch.where(greedy, 1.0, chosen_at)
    target = (logits[row, inside[..., :-1]].float() / at_temperature).softmax(-1)
    target = torch.where(greedy, F.one_hot(truth, target.shape[-1]).float(), target)
    weight = torch.exp(-torch.arange(block - 1, device=at.device) / DECAY)
    weight = weight / weight.sum()
    loss = (soft_loss(scores, target, at_temperature) * weight).sum(-1).mean()

    best, candidates = scores.topk(drafter.config.selector_top_k, -1)
    paths = best + drafter.edges(hidden[..., 1:, :], tokens[..., :-1], candidates)
    among = target.gather(-1, candidates)  # the selector learns nothing of what is no candidate
    loss = loss + (soft_loss(paths, among, at_temperature) * weight).sum(-1).mean()
    chosen = candidates.gather(-1, paths.argmax(-1, keepdim=True)).squeeze(-1)
    return loss, (chosen == truth).float().mean((0, 1))


class Optimizer:
    """Muon for the large matrices of the layers, AdamW for the rest."""

    def __init__(self, drafter, rate, device):
        named = dict(drafter.named_parameters())
        special = ("codebook", "selector", "conv", "norm")
        matrices = [p for n, p in named.items() if not any(s in n for s in special)]
        taken = {id(p) for p in matrices}
        others = [p for p in named.values() if id(p) not in taken]
        self.rate, self.muon = rate, Muon(matrices, weight_decay=0.05)
        self.adam = torch.optim.AdamW(
            others, lr=rate, betas=(0.9, 0.95), weight_decay=0.0, fused=device == "cuda"
        )

    def step(self, step, share):
        """100 steps of warm-up; constant to 30 %, then linear to 1 %."""
        rate = self.rate * min(1, (step + 1) / 100)
        rate *= 1 if share < 0.3 else max(0.01, (1 - share) / 0.7)
        for group in self.adam.param_groups:
            group["lr"] = rate
        self.muon.step(2 * rate)
        self.adam.step()


def fit(drafter, embedding, texts, args, device):
    """The training loop; the clock starts after the first step, which compiles."""
    optimizer, block = Optimizer(drafter, args.rate, device), drafter.config.block
    log, total, accuracy, step, begin = [], 0.0, 0.0, 0, None
    while True:
        seconds = time.time() - begin if begin else 0.0
        share = max(seconds / args.seconds, step / args.steps)
        if share >= 1:
            return {"log": log, "steps": step, "seconds": round(seconds, 1)}
        count = args.batch // 3  # of the corpus; two thirds are the target's own
        parts = zip(texts[0].draw(args.batch - count), texts[1].draw(count), strict=True)
        batch = [torch.cat(part) for part in parts]
        at = torch.randint(
            16, args.window - block, (args.batch, args.anchors), device=batch[0].device
        )
        loss, right = losses(drafter, embedding, batch, at)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0, foreach=True)
        optimizer.step(step, share)
        drafter.zero_grad(set_to_none=True)
        total, accuracy, step = total + loss.detach(), accuracy + right.detach(), step + 1
        if begin is None:
            if device == "cuda":
                torch.cuda.synchronize()
            begin = time.time()
        if step % EVERY == 0:
            slots = [round(x, 3) for x in (accuracy / EVERY).tolist()]
            entry = {"step": step, "seconds": round(seconds, 1), "slots": slots}
            log.append(entry | {"loss": round(float(total) / EVERY, 4)})
            total = accuracy = 0.0
            if step % (5 * EVERY) == 0:
                print(json.dumps(log[-1]), flush=True)


@torch.no_grad()
def accepted_lengths(model, drafter, embedding, prompts, tokens, temperature):
    """Mean tokens of a verification when each draft is the greedy path, on text written here."""
    ids = generate(model, prompts, tokens, temperature)
    first, block = prompts.shape[1], drafter.config.block
    padding = ids[:, : -ids.shape[1] % 64]  # the chunked rule takes whole chunks
    tapped = model(torch.cat([ids, padding], 1), taps=drafter.config.taps)[1]
    at = torch.arange(first, ids.shape[1] - block + 1, device=ids.device).expand(len(ids), -1)
    paths = drafter.propose(embedding, tapped, ids.gather(1, at), at)
    truth = ids[:, at[0, :, None] + torch.arange(1, block, device=ids.device)]
    matches = (paths == truth).cumprod(-1).sum(-1).tolist()
    calls = accepted = 0
    for row in matches:
        place = 0
        while place < len(row):
            calls, accepted, place = calls + 1, accepted + row[place], place + row[place] + 1
    return round(1 + accepted / calls, 3)


def evaluate(model, drafter, embedding, data, args, device):
    """By temperature, after pieces of held-out text."""
    rows = []
    for name in data.files:
        if name.startswith("heldout_"):
            ids = torch.from_numpy(data[name].astype(np.int64)).to(device)
            length = min(256, args.window // 2)
            rows += [ids[at : at + length] for at in range(2000, 14000, 3000)]
    prompts = torch.stack(rows)
    tokens = min(256, args.window // 2)
    return {
        str(temperature): accepted_lengths(model, drafter, embedding, prompts, tokens, temperature)
        for temperature in (0.0, SAMPLED)
    }


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("package", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=300, help="text and training together")
    parser.add_argument("--steps", type=int, default=10**9)
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--anchors", type=int, default=64, help="of each sequence and step")
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--sequences", type=int, default=4096, help="written in each round")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--eager", action="store_true", help="compile nothing")
    return parser.parse_args()


def main():
    args, device = parse(), "cuda" if torch.cuda.is_available() else "cpu"
    begin = time.time()
    torch.manual_seed(99)
    torch.backends.cuda.matmul.allow_tf32 = True
    data = np.load(args.data)
    corpus = torch.from_numpy(data["train"].astype(np.int16)).to(device)
    model = checkpoint.load(args.package).to(device)
    model.dtype = torch.bfloat16 if device == "cuda" else torch.float32
    embedding = model.embed_tokens.weight

    def elapsed():
        return time.time() - begin

    # A round takes a minute: what is left trains.
    own, temperatures = written(model, corpus, args, lambda: elapsed() > args.seconds / 6)
    print(f"text after {elapsed():.0f} s", flush=True)
    drafter = Drafter(DrafterConfig()).to(device)
    taps = drafter.config.taps
    real = windows(corpus, len(own) // 2, args.window)
    texts = [
        Text(model, own, temperatures, taps),
        Text(model, real, torch.ones(real.shape, device=device), taps),
    ]
    if device == "cuda" and not args.eager:
        drafter.use_functions(compiled=True)
    print(f"hidden states after {elapsed():.0f} s", flush=True)

    args.seconds -= elapsed()
    result = fit(drafter, embedding, texts, args, device)
    result["parameters"] = sum(p.numel() for p in drafter.parameters())
    result["written"] = own.numel()
    # Saved before anything else can fail.
    drafter_checkpoint.save(drafter, args.out)
    (args.out / "train.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({k: v for k, v in result.items() if k != "log"}), flush=True)
    print(f"trained after {elapsed():.0f} s", flush=True)
    drafter.use_functions(compiled=False)
    print("accepted:", evaluate(model, drafter, embedding, data, args, device), flush=True)
    print(f"all after {elapsed():.0f} s", flush=True)


if __name__ == "__main__":
    main()
