"""Makes packages for the CPU in which tools/report/model_speed.py times whole models.

    dense_packages.py qwen3.5-0.8b FOLDER    that model's shape, random weights (seed 0)
    dense_packages.py CHECKPOINT FOLDER      of a checkpoint, such as models/demo

Writes FOLDER/float32 and FOLDER/int4 with the stock builder of ONNX Runtime GenAI, and changes
nothing afterwards. On requirements-genai.txt; the first takes a few minutes, 10 GB in FOLDER
(3.5 GB of them stay) and 8 GB of memory:

    python tools/package/dense_packages.py qwen3.5-0.8b .cache/models/qwen3.5-0.8b
    python tools/package/dense_packages.py models/demo .cache/models/demo
"""

import argparse
import tempfile
from pathlib import Path

import tiny_checkpoint
import torch
from tiny_packages import PACKAGES, export
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

SHAPES = {
    "qwen3.5-0.8b": {
        "vocab_size": 248320,
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "num_hidden_layers": 24,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 6,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "max_position_embeddings": 8192,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10],
            "mrope_interleaved": True,
        },
    }
}


def random_checkpoint(shape, folder):
    torch.manual_seed(0)
    config, model, _ = tiny_checkpoint.KINDS["dense"]
    settings = config(
        text_config=tiny_checkpoint.TEXT | shape,
        vision_config=tiny_checkpoint.VISION | {"out_hidden_size": shape["hidden_size"]},
        tie_word_embeddings=True,
    )
    model(settings).float().eval().save_pretrained(folder)
    words = {f"<{token}>": token for token in range(shape["vocab_size"])}
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<0>")), pad_token="<0>"
    ).save_pretrained(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help=f"{', '.join(SHAPES)}, or the folder of a checkpoint")
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    source = Path(arguments.model)
    if arguments.model not in SHAPES and not (source / "config.json").is_file():
        parser.error(f"{source} is no checkpoint, and none of {', '.join(SHAPES)}")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        if arguments.model in SHAPES:
            source = Path(temporary)
            print(f"random weights of {arguments.model}", flush=True)
            random_checkpoint(SHAPES[arguments.model], source)
        for name in ("dense/float32", "dense/int4"):
            target = arguments.folder / Path(name).name
            export(source, None, PACKAGES[name], target)
            size = sum(file.stat().st_size for file in target.iterdir())
            print(f"{target}: {size:,} bytes", flush=True)


if __name__ == "__main__":
    main()
