#!/usr/bin/env python3
"""Sums up JUnit files: skips with their reasons, failures by name, then one line of counts.

The exit status is 1 when something failed or when a file holds no test.
"""

import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

SHOWN = 8  # names for each reason


def skip_reason(case: ElementTree.Element, skipped: ElementTree.Element) -> str:
    """pytest gives the reason as an attribute, GoogleTest in the line after 'Skipped'."""
    printed = re.search(r": Skipped\n(.+)", case.findtext("system-out") or "")
    return printed.group(1).strip() if printed else skipped.get("message") or "no reason given"


def failure_text(case: ElementTree.Element) -> str:
    """The end of what a failing test printed: pytest's report, or all that a C++ test wrote."""
    report = next((e.text for e in case if e.tag in ("failure", "error") and e.text), None)
    lines = (report or case.findtext("system-out") or "").strip().splitlines()
    return "".join(f"\n    {line}" for line in lines[-30:])


def main(paths: list[str]) -> int:
    passed, failures, skips = 0, [], {}
    for path in paths:
        cases = list(ElementTree.parse(path).getroot().iter("testcase"))
        if not cases:
            failures.append(f"{Path(path).stem}: no test was found")
        for case in cases:
            name = f"{Path(path).stem}: {case.get('name')}"
            skipped = case.find("skipped")
            if skipped is not None:
                skips.setdefault(skip_reason(case, skipped), []).append(name)
            elif case.get("status") == "fail" or any(e.tag in ("failure", "error") for e in case):
                failures.append(name + failure_text(case))
            else:
                passed += 1
    for reason, names in skips.items():
        print(f"skipped, {reason}:")
        for name in names[:SHOWN]:
            print(f"  {name}")
        if len(names) > SHOWN:
            print(f"  and {len(names) - SHOWN} more")
    for failure in failures:
        print(f"FAILED {failure}")
    skipped_count = sum(len(names) for names in skips.values())
    print(f"{passed} passed, {len(failures)} failed, {skipped_count} skipped")
    return 1 if failures or passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
