#!/usr/bin/env python3
"""Names parts that an operator lacks, files that are too long and links that lead nowhere.

CONTRIBUTING.md has these rules. An operator is a header in include/deltaworks that declares a
function of the header's own name.
Prints one line for each finding; the exit status is 1 when there is any.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# The parts of an operator; one with a folder of its own counts once that folder exists.
PARTS = [
    ("include/deltaworks/{op}.hpp", None),
    ("src/{op}.cpp", None),
    ("src/contract/{op}.hpp", None),
    ("src/reference/{op}.cpp", None),
    ("src/cpu/{op}.cpp", None),
    ("tests/{op}_test.cpp", None),
    ("bench/{op}_bench.cpp", None),
    ("docs/ops/{op}.md", None),
    ("cli/check_{op}.cpp", None),
    ("cli/bench_{op}.cpp", None),
    ("onnxruntime/{op}.cpp", "onnxruntime"),
    ("python/src/{op}.cpp", "python/src"),
    ("src/cuda/{op}.cu", "src/cuda"),
]
# What an operator does without, and why.
WITHOUT = {
    "src/cuda/paged_attention.cu": "it is for the CPU, where the GenAI Engine lacks it",
    "src/cuda/linear_attention.cu": "it is for CPU exports; ONNX Runtime has it on CUDA",
    "src/cuda/causal_conv_with_state.cu": "likewise",
}

CODE = {".cpp", ".hpp", ".h", ".cu", ".cuh", ".py", ".sh"}
KERNELS = ("src/cpu/", "src/cuda/")
LINES, KERNEL_LINES = 300, 500
# A longer file says why near its top, in these words.
EXCUSE = re.compile(r"Longer than (300|500) lines:")
# A Markdown link's target without its fragment; those with a scheme lead out of the tree.
LINK = re.compile(r"\]\((?![a-z]+:)([^)#\s]+)")


def operators() -> list[str]:
    headers = sorted((ROOT / "include/deltaworks").glob("*.hpp"))
    return [h.stem for h in headers if re.search(rf"\bvoid {h.stem}\(", h.read_text())]


def missing_parts() -> list[str]:
    findings = []
    for op in operators():
        for pattern, folder in PARTS:
            part = pattern.format(op=op)
            if part in WITHOUT or (folder and not (ROOT / folder).is_dir()):
                continue
            if not (ROOT / part).is_file():
                findings.append(f"{op} lacks {part}")
        if "access_ranges(" not in (ROOT / f"include/deltaworks/{op}.hpp").read_text():
            findings.append(f"{op} lacks access_ranges in its header")
    return findings


def tracked_files() -> list[str]:
    command = ["git", "ls-files"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def long_files() -> list[str]:
    findings = []
    for name in tracked_files():
        if Path(name).suffix not in CODE:
            continue
        lines = (ROOT / name).read_text().splitlines()
        limit = KERNEL_LINES if name.startswith(KERNELS) else LINES
        if len(lines) > limit and not EXCUSE.search("\n".join(lines[:20])):
            findings.append(
                f"{name} has {len(lines)} lines, at most {limit} (or say why at its top)"
            )
    return findings


def dead_links() -> list[str]:
    """Links of Markdown files to what no commit has, such as a file that was renamed."""
    tracked = {ROOT / name for name in tracked_files()}
    known = tracked.union(*(path.parents for path in tracked))
    return [
        f"{path.relative_to(ROOT)} links to {link}, which is not there"
        for path in sorted(tracked)
        if path.suffix == ".md"
        for link in LINK.findall(path.read_text())
        if (path.parent / link).resolve() not in known
    ]


def main() -> int:
    findings = missing_parts() + long_files() + dead_links()
    for finding in findings:
        print(finding)
    print(f"layout: {len(operators())} operators, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
