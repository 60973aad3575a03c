"""Compares a packaged model with the PyTorch one, and measures both on held-out text.

    check_package.py PACKAGE [--library LIB] [--data corpus.npz] [--tokens 16384]

Prints the largest difference of logits (whole sequences at once, and token by token with the state
carried), how often the best byte agrees, and bits per byte for each source of text.
"""

import argparse
import json
import math
import time
from pathlib import Path

import checkpoint
import numpy as np
import onnxruntime
import torch
from model import END

PAGE = 32  # positions of a cache page; any number works here


class Package:
    """One model.onnx under plain ONNX Runtime: the caller packs tokens, pages and states."""

    def __init__(self, folder, library, threads=1):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.register_custom_ops_library(str(library))
        begin = time.perf_counter()
        self.session = onnxruntime.InferenceSession(
            str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )
        self.load_seconds = time.perf_counter() - begin
        self.inputs = {i.name: i for i in self.session.get_inputs()}
        self.outputs = [o.name for o in self.session.get_outputs()]

    def new_state(self, sequences, positions):
        """Zeroed caches and states; sequence s owns the s-th run of consecutive pages."""
        pages = -(-positions // PAGE)
        sizes = {"batch_size": sequences, "num_blocks": sequences * pages, "block_size": PAGE}
        state = {
            name: np.zeros([sizes.get(d, d) for d in info.shape], np.float32)
            for name, info in self.inputs.items()
            if name.startswith("past") and name != "past_sequence_lengths"
        }
        state["block_table"] = np.arange(sequences * pages, dtype=np.int32).reshape(-1, pages)
        return state

    def step(self, ids, past, state):
        """Logits [sequences, tokens, vocabulary]; the state moves on in place."""
        sequences, tokens = ids.shape
        positions = np.tile(np.arange(past, past + tokens, dtype=np.int64), sequences)
        length = past + tokens
        feeds = dict(
            state,
            input_ids=ids.reshape(-1).astype(np.int64),
            position_ids=np.stack([positions] * 3),
            cumulative_sequence_lengths=np.arange(sequences + 1, dtype=np.int32) * tokens,
            past_sequence_lengths=np.full(sequences, past, np.int32),
            attention_metadata=np.array([tokens, length, length], np.int32),
            state_update_capture_count=np.zeros(sequences, np.int32),
            state_update_active=np.zeros(1, np.int32),
        )
        results = dict(zip(self.outputs, self.session.run(None, feeds), strict=True))
        for name in state:
            if name != "block_table":
                kind = "past_key_values" if name.startswith("past_key_values") else "past"
                state[name] = results["present" + name.removeprefix(kind)]
        return results["logits"].reshape(sequences, tokens, -1)


def compare(package, model, ids, prompt):
    """Differences of logits on ids [sequences, tokens]: at once, and one token at a time."""
    with torch.no_grad():
        expected = model(torch.from_numpy(ids)).numpy()
    state = package.new_state(*ids.shape)
    whole = package.step(ids, 0, state)
    state = package.new_state(*ids.shape)
    parts = [package.step(ids[:, :prompt], 0, state)]
    parts += [package.step(ids[:, t : t + 1], t, state) for t in range(prompt, ids.shape[1])]
    for name, found in (("at once", whole), ("stepwise", np.concatenate(parts, 1))):
        agree = (found.argmax(-1) == expected.argmax(-1)).mean()
        print(
            f"logits {name}: largest difference {np.abs(found - expected).max():.2e}, "
            f"best byte agrees {agree:.2%} of {ids.size}"
        )
    print(f"logits: largest magnitude {np.abs(expected).max():.1f}")


def bits_per_byte(logits_of, ids, window):
    """Mean over windows that start afresh, as in training; ids is one long row."""
    count = (len(ids) - 1) // window
    total = 0.0
    for begin in range(0, count * window, window):
        logits = torch.from_numpy(logits_of(ids[None, begin : begin + window]))[0]
        target = torch.from_numpy(ids[begin + 1 : begin + window + 1])
        total += torch.nn.functional.cross_entropy(logits, target, reduction="sum").item()
    return total / (count * window) / math.log(2)


def read_corpus(path):
    data = np.load(path)
    names = [n for n in data.files if n.startswith("heldout_")]
    return {n.removeprefix("heldout_"): data[n].astype(np.int64) for n in names}


def read_text(path):
    """A form feed stands between documents: it is read as END."""
    ids = np.frombuffer(b"\f" + path.read_bytes(), np.uint8).astype(np.int64)
    return {path.name: np.where(ids == ord("\f"), END, ids)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("package", type=Path)
    parser.add_argument("--library", type=Path, default=Path("libdeltaworks_onnxruntime.so"))
    parser.add_argument("--data", type=Path, help="corpus.npz, for bits per byte by source")
    parser.add_argument("--tokens", type=int, default=16384, help="at most so many a source")
    parser.add_argument("--window", type=int, default=1024)
    args = parser.parse_args()
    torch.set_num_threads(1)
    package, model = Package(args.package, args.library), checkpoint.load(args.package)
    print(f"loaded in {package.load_seconds:.2f} s")
    sources = read_corpus(args.data) if args.data else read_text(args.package / "heldout.txt")
    rows = [np.concatenate([[END], ids[2000:2255]]) for ids in sources.values()]
    compare(package, model, np.stack(rows), prompt=192)

    def logits_of(ids):
        return package.step(ids, 0, package.new_state(*ids.shape))

    found = {}
    for name, ids in sources.items():
        found[name] = bits_per_byte(logits_of, ids[: args.tokens + 1], args.window)
        print(f"{name:12} {found[name]:.4f} bits per byte", flush=True)
    print(json.dumps({**found, "mean": sum(found.values()) / len(found)}))


if __name__ == "__main__":
    main()
