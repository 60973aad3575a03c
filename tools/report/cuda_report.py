"""Markdown tables of a report about a GPU, which run.sh of scripts/gpu_test.sh wrote.

    python tools/report/cuda_report.py docs/performance/h200.json --page docs/cuda.md

replaces what stands between `<!-- begin cuda_TABLE -->` and `<!-- end -->`; without a page all
tables are printed.
"""

import argparse
import json
import re
from pathlib import Path

from tables import table

SECTION = re.compile(r"(<!-- begin cuda_(\w+) -->\n).*?(?=<!-- end -->)", re.DOTALL)
HEADS = (32, 48)
LAUNCH_US = (
    0.5  # of an empty kernel in a graph: below it, how many floors a call takes says nothing
)


def number(us):
    return f"{us:.{2 if us < 9.995 else 1 if us < 99.95 else 0}f}"


class Report:
    def __init__(self, path):
        self.data = json.loads(path.read_text())
        self.benchmark = self.data["benchmark"]

    def shapes(self, op, end=""):
        """Shapes that end so, without the end, in the order of the run."""
        names = [row["shape"] for row in self.benchmark["rows"] if row["op"] == op]
        return [name.removesuffix(end) for name in names if name.endswith(end)]

    def cells(self, op, shape):
        """Our time, how many times as long fla takes, how many floors ours is."""
        for row in self.benchmark["rows"]:
            if (row["op"], row["shape"]) == (op, shape):
                us, floor, fla = row["us"], row["floor_us"], row.get("fla_us")
                theirs = f"{number(fla)} = **{fla / us:.1f}x**" if fla else ""
                least = f"{floor:.2g}"
                if floor > LAUNCH_US:
                    least = f"{number(floor)}, {number(us / floor)}x"
                return [f"**{number(us)}**", theirs, least]
        return ["", "", ""]

    def beside(self, op, variants, is_row=lambda name: True):
        """A row for each shape; `variants` are what the names of shapes end with, with a title."""
        header, rows = ["µs"], []
        for title in variants.values():
            header += [title, "fla", "floor"]
        for name in self.shapes(op, next(iter(variants))):
            if is_row(name):
                rows.append([name, *(x for end in variants for x in self.cells(op, name + end))])
        return table(header, rows)


def machine(report):
    found = report.benchmark
    rates = [f"a copy moved {found['copy_tb_per_s']:.2f} TB/s"]
    for name, rate in found.get("matmul_tflop_per_s", {}).items():
        rates.append(
            f"products of {name.removeprefix('torch.')} matrices ran at {rate:.0f} TFLOP/s"
        )
    about = f"One {found['card']}, driver {report.data['driver']}, {report.data['date']}"
    return f"{about}; {', '.join(rates)}.\n"


def is_prompt(name):
    """Of "4 x 2048" and "8 ragged" both are."""
    return int(re.sub(r"^.* x (\d+).*", r"\1", name) if " x " in name else 1000) > 16


def steps(report):
    variants = {f", {heads} heads": f"{heads} heads" for heads in HEADS}
    return report.beside("gated_delta_net", variants, lambda name: not is_prompt(name))


def prompts(report):
    kinds = ("", ", float16")
    return "\n".join(
        report.beside(
            "gated_delta_net",
            {f", {heads} heads{kind}": f"{heads} heads{kind or ', bfloat16'}" for heads in HEADS},
            is_prompt,
        )
        for kind in kinds
    )


def convolution(report):
    variants = {f" x {channels} bfloat16": f"{channels} channels" for channels in (8192, 10240)}
    return report.beside("varlen_causal_conv", variants)


def others(report):
    names = (
        "dflash2_dynamic_conv",
        "gated_delta_rates",
        "replay_conv_state",
        "replay_gated_delta_state",
    )
    calls = [(op, shape) for op in names for shape in report.shapes(op)]
    calls += [
        ("varlen_causal_conv", shape)
        for shape in report.shapes("varlen_causal_conv")
        if not shape.endswith("bfloat16")
    ]
    rows = [[f"`{op}` {shape}", *report.cells(op, shape)[::2]] for op, shape in calls]
    return table(["µs", "ours", "floor"], rows)


def errors(report):
    header, rows = ["relative error"], []
    for what in ("output", "final state"):
        header += [what, "fla", "ours : fla"]
    for found in report.benchmark.get("errors", []):
        row = [found["case"].replace(".", " decay, ")]
        for what in ("output", "state"):
            ours, fla = found[what], found.get(f"fla_{what}")
            row += [f"{ours:.1e}", *((f"{fla:.1e}", f"{ours / fla:.2f}x") if fla else ("", ""))]
        rows.append(row)
    return table(header, rows)


TABLES = {make.__name__: make for make in (machine, steps, prompts, errors, convolution, others)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("--page", type=Path, help="Markdown whose tables are replaced")
    arguments = parser.parse_args()
    report = Report(arguments.report)
    if arguments.page:
        page = arguments.page.read_text()
        arguments.page.write_text(
            SECTION.sub(lambda match: f"{match[1]}\n{TABLES[match[2]](report)}\n", page)
        )
        return
    for name, make in TABLES.items():
        print(f"### {name}\n\n{make(report)}")


if __name__ == "__main__":
    main()
