#!/usr/bin/env bash
# Every test: the C++ ones through ctest, the Python ones through pytest, those of onnxruntime/ on the
# oldest and the newest ONNX Runtime. Sets up first.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if (($#)); then
  echo "usage: scripts/test.sh     (no arguments; one operator's tests: ctest --preset release -R NAME)"
  [[ $1 == -h || $1 == --help ]] && exit 0
  exit 2
fi

scripts/setup.sh
results=$root/build/test-results
rm -rf "$results"
mkdir -p "$results"
status=0

logged ctest "C++ tests (ctest)" \
  ctest --preset release --parallel "$(nproc)" --output-junit "$results/ctest.xml" || status=1

DELTAWORKS_NO_SUMMARY=1 scripts/test_versions.sh --ends || status=1

for tests in python/tests cli/tests tools/tests; do
  [[ -d $tests ]] || continue
  suite=${tests//\//-}
  logged "$suite" "Python tests in $tests (pytest)" "$venv/bin/python" -m pytest -q \
    -p no:cacheprovider --junitxml "$results/$suite.xml" "$tests" || status=1
  # A run that ended before its first test (an import that fails, say) leaves no file.
  [[ -f $results/$suite.xml ]] || tail -n 40 ".cache/logs/$suite.log"
done

say "results (more in .cache/logs)"
"$venv/bin/python" scripts/test_summary.py "$results"/*.xml || status=1
exit "$status"
