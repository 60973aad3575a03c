"""Makes the small dense packages that the tests decode with and without this library.

    tiny_dense.py FOLDER

Writes FOLDER/float32 and FOLDER/int4: a Qwen3.5 of 70 thousand random parameters (seed 0), exported
by the stock builder of ONNX Runtime GenAI for the CPU; nothing is changed afterwards, but the
tokenizer, which no token needs, stays behind. A minute on tools/train/requirements.txt:

    python tools/package/tiny_dense.py onnxruntime/tests/data/dense
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.models.qwen3_5 import configuration_qwen3_5, modeling_qwen3_5

# Two key heads on four states, as the large models have fewer key heads than states; widths that
# are no multiple of a vector's on every instruction set. No Linear may have as many outputs as the
# vocabulary, which the builder would take for the output layer.
TEXT = {
    "vocab_size": 136,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 20,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
    "dtype": "float32",
    # Large enough that greedy tokens do not settle on one.
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.5,
        "mrope_section": [3, 3, 2],
        "mrope_interleaved": True,
    },
}
# The class that the builder knows has a vision tower, which the export leaves out.
VISION = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": 32,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [],
}
PRECISIONS = {"float32": "fp32", "int4": "int4"}
KEPT = ("genai_config.json", "model.onnx", "model.onnx.data")


def checkpoint(folder):
    torch.manual_seed(0)
    config = configuration_qwen3_5.Qwen3_5Config(
        text_config=TEXT, vision_config=VISION, tie_word_embeddings=True
    )
    model = modeling_qwen3_5.Qwen3_5ForConditionalGeneration(config).float().eval()
    model.save_pretrained(folder)
    words = {f"<{token}>": token for token in range(TEXT["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<0>"))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<0>", bos_token="<1>", eos_token="<2>"
    ).save_pretrained(folder)


def export(source, precision, target):
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", source]
    command += ["-o", target, "-p", precision, "-e", "cpu", "-c", Path(source) / "cache"]
    subprocess.run(command, check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        checkpoint(temporary)
        for name, precision in PRECISIONS.items():
            built = Path(temporary) / name
            export(temporary, precision, built)
            target = arguments.folder / name
            target.mkdir(parents=True, exist_ok=True)
            for file in KEPT:
                shutil.copyfile(built / file, target / file)
            size = sum((target / file).stat().st_size for file in KEPT)
            print(f"{target}: {size} bytes")


if __name__ == "__main__":
    main()
