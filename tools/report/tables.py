"""Markdown tables of what `deltaworks bench --json` and model_speed.py wrote. The tables of several
runs have a column for each."""

import json
from dataclasses import dataclass
from pathlib import Path

INSTRUCTION_SETS = {"AVX3": "AVX-512"}  # Highway's name, the usual one
OPERATORS = ("LinearAttention", "CausalConvWithState")  # what the library replaces in a dense graph
SUMMARY = (
    ("gated_delta_net", "1 token"),
    ("gated_delta_net", "1024 tokens"),
    ("linear_attention", "256 tokens"),
    ("varlen_causal_conv", "256 tokens"),
    ("causal_conv_with_state", "256 tokens"),
    ("paged_attention", "1 token after 4095"),
)


@dataclass
class Run:
    """One file. `group` is the first part of its name, the machine."""

    group: str
    data: dict

    @property
    def is_model(self):
        return "package" in self.data

    @property
    def title(self):
        name = self.data["instruction_set"]
        threads = self.data["threads"]
        counted = f"{threads} thread" + ("" if threads == 1 else "s")
        return f"{INSTRUCTION_SETS.get(name, name)}, {counted}"

    def results(self, dtype="float32"):
        """Those of the first shape of each operator and mode, by what identifies a call."""
        first, found = {}, {}
        for result in self.data["results"]:
            mode = result["operator"], "dynamic" in result["shape"]
            model = first.setdefault(mode, result["model"])
            if result["model"] == model and result["type"] == dtype and result["right"]:
                found[result["operator"], result["shape"], model, result["call"]] = result
        return found


def load(path):
    path = Path(path)
    return Run(path.stem.split("-")[0], json.loads(path.read_text()))


def duration(us):
    """Three digits: "2.47 us", "219 us", "12.4 ms", "1.69 s"."""
    for limit, unit, scale in ((1e4, "us", 1), (1e6, "ms", 1e3), (float("inf"), "s", 1e6)):
        if us < limit:
            number = us / scale
            return f"{number:.{2 if number < 9.995 else 1 if number < 99.95 else 0}f} {unit}"


def table(header, rows):
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def times(ratio):
    return f"{ratio:.{2 if ratio < 2 else 1}f}x"


def by_operator(runs, cell, header):
    """A row for each call, under a row for each operator and shape; `cell(result)` is a column's
    text, "" for none. Rows without any text are left out."""
    calls = list(dict.fromkeys(key for run in runs for key in run.results()))
    rows, current = [], None
    for key in calls:
        found = [run.results().get(key) for run in runs]
        cells = [cell(result) if result else "" for result in found]
        if not any(cells):
            continue
        operator, shape, model, call = key
        if (operator, shape) != current:
            current = operator, shape
            rows.append([f"**{operator}**: {shape} ({model})", *[""] * (len(header) - 1)])
        shown = next(result for result in found if result)
        rows.append([call, *([shown["ceiling"]] if "bound by" in header else []), *cells])
    return table(header, rows)


def machines(runs):
    """What was measured on, a line for each different machine or program."""
    lines = []
    for run in runs:
        data = run.data
        caches = ", ".join(f"{name} {size // 1024} KiB" for name, size in data["caches"].items())
        parts = [data["processor"], f"{data['cores']} cores", caches, data["compiler"]]
        parts += [data.get("peer", ""), data.get("ggml", {}).get("name", "")]
        lines.append(f"* {'; '.join(filter(None, parts))}\n")
    return "".join(dict.fromkeys(lines))


def ceilings(runs):
    kinds = [kind for kind in runs[0].data["ceilings"] if kind != "fma peak"]
    rows = [
        ["fma peak", "", *[f"{run.data['ceilings']['fma peak'] / 1e9:.0f} GFLOP/s" for run in runs]]
    ]
    for kind in kinds:
        for size in sorted(runs[0].data["ceilings"][kind], key=int):
            rates = [run.data["ceilings"][kind][size] / 1e9 for run in runs]
            rows.append([kind, f"{int(size) >> 20} MiB", *[f"{rate:.1f} GB/s" for rate in rates]])
    return table(["ceiling", "of", *[run.title for run in runs]], rows)


def operators(runs):
    def cell(result):
        spread = f" ± {result['spread']:.0%}" if result["spread"] >= 0.05 else ""
        return f"{duration(result['median_us'])}{spread}, **{result['share']:.0%}**"

    return by_operator(runs, cell, ["call", "bound by", *[run.title for run in runs]])


def comparison(figures):
    ours, theirs = (duration(figures[side]["median_us"]) for side in ("ours", "theirs"))
    return f"{theirs} : {ours} = **{times(figures['ratio'])}**"


def peers(runs):
    """ONNX Runtime's kernels, then ggml's."""

    def cell(result):
        peer = result.get("peer", {})
        if "missing" in peer:
            return "it has none"
        return comparison(peer) if peer else ""

    text = by_operator(runs, cell, ["call", *[run.title for run in runs]])
    columns = [ggml_rows(run) for run in runs]
    calls = list(dict.fromkeys(key for column in columns for key in column))
    if not calls:
        return text
    rows = [[*key, *[column.get(key, "") for column in columns]] for key in calls]
    name = next(run.data["ggml"]["name"] for run in runs if "ggml" in run.data)
    return text + "\n" + table([f"beside {name}", "call", *[run.title for run in runs]], rows)


def ggml_rows(run):
    return {
        (f"{operator['operator']}: {operator['shape']}", row["call"]): comparison(row)
        for operator in run.data.get("ggml", {}).get("operators", [])
        for row in operator["results"]
    }


def variants(runs):
    """The same work done in another way: how many times as long that takes."""

    def cell(result):
        variant = result.get("variant")
        return f"{variant['name']}: {times(variant['ratio'])}" if variant else ""

    return by_operator(runs, cell, ["call", *[run.title for run in runs]])


def types(runs):
    """16-bit element types: times over those of float32 in the same run."""
    header, columns = ["call"], []
    for run in runs:
        for dtype in ("float16", "bfloat16"):
            if found := run.results(dtype):
                header.append(f"{dtype}, {run.title}")
                columns.append((run.results(), found))
    rows = []
    for key in dict.fromkeys(key for _, found in columns for key in found):
        ratios = [
            found[key]["median_us"] / base[key]["median_us"] if key in base and key in found else 0
            for base, found in columns
        ]
        rows.append([f"{key[0]}, {key[3]}", *[f"{ratio:.2f}" if ratio else "" for ratio in ratios]])
    return table(header, rows) if rows else ""


def threads(runs):
    """How many times as fast several threads are as one, in turns."""
    runs = [run for run in runs if run.data["threads"] > 1]
    rows = []
    for key in dict.fromkeys(key for run in runs for key in run.results()):
        found = [run.results().get(key) for run in runs]
        ratios = [result["alone"]["ratio"] if result else 0 for result in found]
        cells = [f"{ratio:.2f}x" if ratio else "" for ratio in ratios]
        rows.append([f"{key[0]}, {key[3]}", *cells])
    return table(["call", *[run.title for run in runs]], rows) if rows else ""


def models(runs):
    header = ["package", "threads", "", "stock tokens/s", "with this library", "ratio"]
    header += ["its operators' part of the time", "before"]
    rows = []
    for run in runs:
        data = run.data
        for phase in ("prefill", "decode"):
            speed = [data[side][phase]["tokens_per_second"] for side in ("stock", "ours")]
            parts = [
                sum(data[side]["shares"][phase].get(name, 0) for name in OPERATORS)
                for side in ("ours", "stock")
            ]
            what = f"{data['prompt']} tokens" if phase == "prefill" else "one by one"
            cells = [data["package"], data["threads"], f"{phase}, {what}"]
            cells += [f"{value:.1f}" for value in speed] + [f"**{times(speed[1] / speed[0])}**"]
            rows.append([*cells, *[f"{part:.0%}" for part in parts]])
    return table(header, rows)


def summary(runs):
    """A few lines for the front page: runs of one thread with peers."""
    runs = [run for run in runs if run.data["threads"] == 1]
    header = ["call"]
    for run in runs:
        header.append(run.title.split(",")[0])
        header.append(f"beside {run.data['peer']}")
    rows = []
    for operator, call in SUMMARY:
        cells = []
        for run in runs:
            for key, result in run.results().items():
                if (key[0], key[3]) == (operator, call):
                    cells.append(f"{result['share']:.0%} of {result['ceiling']}")
                    cells.append(times(result["peer"]["ratio"]))
        if len(cells) == 2 * len(runs):
            rows.append([f"{operator}, {call}", *cells])
    return table(header, rows) if rows else ""


TABLES = {
    function.__name__: function
    for function in (
        *(machines, ceilings, operators, peers, variants, types, threads),
        *(models, summary),
    )
}


def make(name, runs):
    """The table of that name from the runs that have something for it."""
    chosen = [run for run in runs if run.is_model == (name == "models")]
    if name in ("peers", "variants", "summary"):
        chosen = [run for run in chosen if "peer" in run.data]
    return TABLES[name](chosen) if chosen else ""
