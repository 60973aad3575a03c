"""A roofline of measured runs: this library's calls and the same calls of other kernels."""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402

# Calls at the shapes of one model, far enough apart to be read: label and where it stands beside
# the point, in points.
CALLS = {
    ("gated_delta_net", "1 token"): ("1", (7, 2)),
    ("gated_delta_net", "8 tokens, 7 captured"): ("8", (-11, 5)),
    ("gated_delta_net", "1024 tokens"): ("1024", (8, -2)),
    ("gated_delta_net", "1024 tokens, chunked"): ("chunked", (8, -2)),
    ("linear_attention", "1 token"): ("1", (-12, -4)),
    ("linear_attention", "16 tokens"): ("16", (8, -3)),
    ("varlen_causal_conv", "256 tokens"): ("256", (7, -9)),
    ("paged_attention", "1 token after 4095"): ("1 after 4095", (8, -3)),
    ("paged_attention", "256 tokens"): ("256", (-23, 1)),
}
# Their labels keep apart, the faster one's above.
NEAR = [("gated_delta_net", "1024 tokens"), ("gated_delta_net", "1024 tokens, chunked")]
COLOURS = {
    "gated_delta_net": "#1f5fbf",
    "linear_attention": "#c2410c",
    "varlen_causal_conv": "#15803d",
    "paged_attention": "#7c3aed",
}
MARKERS = {"ours": "o", "runtime": "s", "ggml": "^"}
INTENSITIES = (0.1, 300)


def roofs(axes, ceilings):
    """The peak, and a slope for memory near and far: bytes updated in place."""
    peak = ceilings["fma peak"] / 1e9
    for size, rate in sorted(ceilings["update in place"].items(), key=lambda item: int(item[0])):
        slope = rate / 1e9
        ridge = peak / slope
        xs = (INTENSITIES[0], min(ridge, INTENSITIES[1]))
        axes.plot(xs, [x * slope for x in xs], color="#94a3b8", linewidth=1.2, zorder=1)
        axes.annotate(
            f"{int(size) >> 20} MiB in place: {slope:.0f} GB/s",
            (xs[0] * 1.1, xs[0] * 1.1 * slope),
            xytext=(0, 5),
            textcoords="offset points",
            rotation=45,
            rotation_mode="anchor",
            transform_rotates_text=True,
            fontsize=8,
            color="#64748b",
        )
    nearest = max(ceilings["update in place"].values()) / 1e9
    axes.plot((peak / nearest, INTENSITIES[1]), (peak, peak), color="#94a3b8", linewidth=1.2)
    axes.annotate(
        f"peak of fma: {peak:.0f} GFLOP/s",
        (INTENSITIES[1], peak),
        xytext=(-4, 4),
        textcoords="offset points",
        ha="right",
        fontsize=8,
        color="#64748b",
    )


def point(axes, result, side, microseconds, filled):
    x, y = result["flops"] / result["bytes"], result["flops"] / microseconds / 1e3
    colour = COLOURS[result["operator"]]
    axes.plot(
        x,
        y,
        MARKERS[side],
        color=colour,
        markerfacecolor=colour if filled else "white",
        markersize=7 if filled else 6,
        zorder=3,
    )
    return x, y


def panel(axes, run):
    roofs(axes, run.data["ceilings"])
    theirs_of_ggml = {
        (operator["operator"], row["call"].split(",")[0]): row["theirs"]["median_us"]
        for operator in run.data.get("ggml", {}).get("operators", [])
        for row in operator["results"]
    }
    medians = {(key[0], key[3]): result["median_us"] for key, result in run.results().items()}
    for (operator, _, _, call), result in run.results().items():
        label, offset = CALLS.get((operator, call), (None, None))
        if label is None or not result["flops"] or not result["bytes"]:
            continue
        if (operator, call) in NEAR:
            fastest = min(NEAR, key=lambda one: medians.get(one, result["median_us"]))
            offset = (8, 6 if (operator, call) == fastest else -10)
        x, y = point(axes, result, "ours", result["median_us"], True)
        axes.annotate(
            label,
            (x, y),
            xytext=offset,
            textcoords="offset points",
            fontsize=8,
            color=COLOURS[operator],
        )
        lowest = y
        others = {"ggml": theirs_of_ggml.get((operator, call.split(",")[0]))}
        others["runtime"] = result.get("peer", {}).get("theirs", {}).get("median_us")
        for side, microseconds in others.items():
            if microseconds:
                lowest = min(lowest, point(axes, result, side, microseconds, False)[1])
        axes.plot((x, x), (lowest, y), color=COLOURS[operator], linewidth=0.7, alpha=0.5, zorder=2)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*INTENSITIES)
    axes.set_ylim(0.3, 400)
    axes.set_title(run.title, fontsize=10)
    axes.set_xlabel("operations for each byte that must move")
    axes.grid(True, which="major", color="#e2e8f0", linewidth=0.6)


def legend(figure, run):
    entries = [
        Line2D([], [], color=colour, marker="o", linestyle="", label=name)
        for name, colour in COLOURS.items()
    ]
    names = {"ours": "this library", "runtime": f"the same in {run.data['peer']}"}
    if "ggml" in run.data:
        names["ggml"] = f"the same in {run.data['ggml']['name']}"
    entries += [
        Line2D(
            [],
            [],
            color="#334155",
            marker=MARKERS[side],
            markerfacecolor="#334155" if side == "ours" else "white",
            linestyle="",
            label=label,
        )
        for side, label in names.items()
    ]
    figure.legend(handles=entries, loc="lower center", ncols=4, frameon=False, fontsize=8.5)


def draw(runs, path):
    """One panel for each run of one thread."""
    runs = [run for run in runs if run.data["threads"] == 1]
    if not runs:
        raise SystemExit("a picture needs a run of `deltaworks bench --peers` with one thread")
    figure, panels = plt.subplots(
        1, len(runs), figsize=(5.6 * len(runs), 5.2), sharey=True, squeeze=False
    )
    figure.patch.set_facecolor("white")
    for axes, run in zip(panels[0], runs, strict=True):
        panel(axes, run)
    panels[0][0].set_ylabel("GFLOP/s")
    figure.suptitle(f"{runs[0].data['processor']}; numbers are tokens of a call", fontsize=10)
    legend(figure, next((run for run in runs if "ggml" in run.data), runs[0]))
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    plt.rcParams["svg.hashsalt"] = "deltaworks"  # equal runs give equal files
    plt.rcParams["svg.fonttype"] = "none"
    figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
