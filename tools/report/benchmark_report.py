"""Markdown tables and a roofline picture of measured runs.

    build/release/bin/deltaworks bench --peers --json >mine.json
    .venv/bin/python tools/report/benchmark_report.py mine.json

prints the tables of one run, or of several beside each other. The picture needs what
tools/report/requirements.txt lists. docs/performance.md is kept with

    python tools/report/benchmark_report.py docs/performance/*.json --page docs/performance.md \\
      --page README.md
    python tools/report/benchmark_report.py docs/performance/xeonvm-*.json \\
      --picture docs/roofline.svg

which replaces what stands between `<!-- begin TABLE MACHINE -->` and `<!-- end -->`; MACHINE is
what the names of the runs' files begin with.
"""

import argparse
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import tables  # noqa: E402

SECTION = re.compile(r"(<!-- begin (\w+) (\w+) -->\n).*?(?=<!-- end -->)", re.DOTALL)


def filled(page, runs):
    """The page with its tables made anew. Raises ValueError for a section that no run fills."""

    def section(match):
        name, group = match[2], match[3]
        made = name in tables.TABLES and tables.make(
            name, [run for run in runs if run.group == group]
        )
        if not made:
            raise ValueError(f"no run has a table {name} of {group}")
        return f"{match[1]}\n{made}\n"

    return SECTION.sub(section, page)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="JSON of deltaworks bench")
    parser.add_argument(
        "--page", type=Path, action="append", help="Markdown whose tables are replaced; repeats"
    )
    parser.add_argument("--picture", type=Path, help="roofline (.svg or .png) of runs with peers")
    arguments = parser.parse_args()
    runs = [tables.load(path) for path in arguments.runs]
    for page in arguments.page or []:
        page.write_text(filled(page.read_text(), runs))
    if not arguments.page:
        for name in tables.TABLES:
            if made := tables.make(name, runs):
                print(f"### {name}\n\n{made}")
    if arguments.picture:
        import roofline  # needs matplotlib

        roofline.draw(
            [run for run in runs if not run.is_model and "peer" in run.data], arguments.picture
        )


if __name__ == "__main__":
    main()
