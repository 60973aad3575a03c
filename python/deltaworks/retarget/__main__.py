"""The command line of deltaworks.retarget."""

from __future__ import annotations

import argparse
import errno
import sys
from pathlib import Path

from . import Refused, retarget

LARGE = 256 << 20  # bytes: from about a second on
HINTS = {
    errno.ENOSPC: "a target needs the room of its source: free some, give a folder on another "
    "disk, or share the weights with --link",
    errno.EXDEV: "hard links need one file system: leave out --link, or give a target there",
    errno.EACCES: "the source must be readable, and the target's parent folder writable",
    errno.EPERM: "this file system has no such links: leave out --link",
    errno.EROFS: "give a target on a file system that can be written",
}


def bar(file: str, done: int, size: int) -> None:
    """A line of a terminal for each large file."""
    if size >= LARGE:
        end = "\n" if done == size else ""
        print(f"\r{file}: {done >> 20:,} of {size >> 20:,} MiB", end=end, file=sys.stderr)


def quiet(file: str, done: int, size: int) -> None:
    """Where nobody watches."""


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m deltaworks.retarget",
        description="Turns a package of ONNX Runtime GenAI's model builder for CUDA (-e cuda, "
        "use_paged_attention=true) into one for the CPU.",
    )
    parser.add_argument("source", type=Path, help="the builder's folder; it is only read")
    parser.add_argument("target", type=Path, help="the folder to make, or to make again")
    parser.add_argument(
        "--keep-float16", action="store_true", help="leave the decoder's activations in float16"
    )
    parser.add_argument(
        "--int8-activations",
        action="store_true",
        help="round activations to eight bits where they meet weights of four: less exact, but "
        "about twice as fast",
    )
    parser.add_argument(
        "--cache-mib",
        type=positive,
        default=1024,
        help="memory for the caches of all requests (default: %(default)s)",
    )
    parser.add_argument(
        "--max-batch-size", type=positive, help="requests at once (default: the builder's)"
    )
    parser.add_argument(
        "--link",
        action="store_true",
        help="hard links to the source's weights, which the package onnx then refuses to read",
    )
    options = parser.parse_args()
    try:
        changes = retarget(
            options.source,
            options.target,
            keep_float16=options.keep_float16,
            int8_activations=options.int8_activations,
            cache_bytes=options.cache_mib << 20,
            max_batch_size=options.max_batch_size,
            link=options.link,
            progress=bar if sys.stderr.isatty() else quiet,
        )
    except Refused as refused:
        print(f"{options.source} is not turned into a package for the CPU:", file=sys.stderr)
        print(*(f"  {reason}" for reason in refused.reasons), sep="\n", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        if error.name != "onnx":
            raise
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{options.target} is as it was: {error}", file=sys.stderr)
        if error.errno in HINTS:
            print(HINTS[error.errno], file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\nstopped; {options.target} is as it was", file=sys.stderr)
        return 130
    print(*changes, sep="\n")
    print(f"{options.target} is ready for the CPU")
    return 0


if __name__ == "__main__":
    sys.exit(main())
