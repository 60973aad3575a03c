"""Makes the small packages that the tests decode with: the stock builder's, of random weights.

    tiny_packages.py [--only NAME] FOLDER

NAME, a folder in FOLDER, is one of

    dense/float32, dense/int4   what `-e cpu` makes
    paged/float16               what `-e cuda` makes with paged attention, and a DFlash2 drafter
    paged/bfloat16, paged/int4  the same in other precisions, without a drafter
    mtp/int4                    the same with a head that predicts a second token
    moe/float16, moe/int4       the same with four experts
    demo/float16, demo/bfloat16, demo/int4
                                the demonstration model with its trained drafter

Nothing is changed afterwards, but of random models the tokenizer stays behind. Beside them,
dense.json and moe.json have what transformers decodes greedily from the same checkpoint. Ten
seconds a package on requirements-genai.txt, with one thread (OMP_NUM_THREADS=1):

    python tools/package/tiny_packages.py onnxruntime/tests/data

The weights are small integers times a power of two, which float16, bfloat16 and the builder's four
bits in blocks of 32 hold exactly: every package has the very weights that transformers has.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import tiny_checkpoint as checkpoint

PAGED = ("-e", "cuda", "--extra_options", "use_paged_attention=true", "state_update_capacity=7")
DRAFTS = "max_draft_tokens=7"
DEMO = (*PAGED, "paged_block_size=32", DRAFTS)
# Pages of 16 positions, so that a short text crosses their borders.
PAGED += ("paged_block_size=16",)
PACKAGES = {
    "dense/float32": ("-p", "fp32", "-e", "cpu"),
    "dense/int4": ("-p", "int4", "-e", "cpu"),
    "paged/float16": ("-p", "fp16", *PAGED, DRAFTS),
    "paged/bfloat16": ("-p", "bf16", *PAGED),
    "paged/int4": ("-p", "int4", *PAGED),
    "mtp/int4": ("-p", "int4", *PAGED),
    "moe/float16": ("-p", "fp16", *PAGED),
    # The experts' plain layout; the default one is for a GPU's tensor cores.
    "moe/int4": ("-p", "int4", *PAGED, "qmoe_weights_prepacked=0"),
    "demo/float16": ("-p", "fp16", *DEMO),
    "demo/bfloat16": ("-p", "bf16", *DEMO),
    "demo/int4": ("-p", "int4", *DEMO),
}
MODEL = Path(__file__).resolve().parents[2] / "models/demo"
LEFT_BEHIND = ("tokenizer.json", "tokenizer_config.json")


def export(source, drafter, arguments, target):
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", source]
    command += ["-o", target, "-c", target / "cache", *arguments]
    if DRAFTS in arguments:
        settings = json.loads((drafter / "config.json").read_text())["dflash_config"]
        # One more than the drafter's own numbers (docs/genai.md, "Drafts").
        layers = ",".join(str(layer + 1) for layer in settings["target_layer_ids"])
        command += [f"dflash2_path={drafter}", f"aux_hidden_state_layers={layers}"]
    subprocess.run(command, check=True)
    shutil.rmtree(target / "cache", ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=PACKAGES, help="repeats")
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    names = arguments.only or list(PACKAGES)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        checkpoint.make_drafter(folder / "drafter")
        for kind in ("dense", "moe"):
            model = checkpoint.make(kind, folder / kind)
            arguments.folder.mkdir(parents=True, exist_ok=True)
            expected = json.dumps(checkpoint.greedy(model))
            (arguments.folder / f"{kind}.json").write_text(expected + "\n")
        checkpoint.add_head(folder / "dense", folder / "mtp")
        demo = folder / "demo"
        shutil.copytree(MODEL, demo)
        checkpoint.store_output_layer(demo)
        for name in names:
            kind = name.split("/")[0]
            source = folder / (kind if kind in ("moe", "mtp", "demo") else "dense")
            drafter = demo / "dflash2" if source == demo else folder / "drafter"
            target = arguments.folder / name
            shutil.rmtree(target, ignore_errors=True)
            export(source, drafter, PACKAGES[name], target)
            for left in LEFT_BEHIND if source != demo else ():
                (target / left).unlink(missing_ok=True)
            size = sum(file.stat().st_size for file in target.iterdir())
            print(f"{target}: {size:,} bytes")


if __name__ == "__main__":
    main()
