#!/usr/bin/env bash
# The tests of onnxruntime/ on several versions of ONNX Runtime, through both of the library's entry
# points. Each version has an environment of its own, .cache/onnxruntime-VERSION; that of
# requirements.txt is .venv. Sets up first and ends with a summary, unless scripts/test.sh gives one.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

supported=(1.23.2 1.27.0 1.30.0 1.31.1 1.32.0)
main=$(sed -n 's/^onnxruntime==//p' requirements.txt)

case ${1-} in
  '') versions=("${supported[@]}") ;;
  --ends) versions=("${supported[0]}" "${supported[-1]}") ;;
  -*)
    echo "usage: scripts/test_versions.sh [--ends | VERSION…]     (without: ${supported[*]}; --ends: the first and the last)"
    [[ $1 == -h || $1 == --help ]] && exit 0
    exit 2
    ;;
  *) versions=("$@") ;;
esac

has_wheel() {  # has_wheel VERSION
  [[ $1 != 1.23.* ]] || "$python" -c 'import sys; sys.exit(sys.version_info >= (3, 14))'
}

# left_out VERSION: a skip of the summary instead of results.
left_out() {
  local reason="no wheel for Python 3.14; PYTHON=/path/to/python3 chooses another"
  say "LEFT OUT: onnxruntime $1: $reason"
  printf '<testsuite><testcase name="onnxruntime/tests"><skipped message="%s"/></testcase></testsuite>\n' \
    "$reason" >"$results/onnxruntime-$1.xml"
}

# environment VERSION: sets venv.
environment() {
  venv=$root/.venv
  [[ $1 == "$main" ]] && return
  venv=$root/.cache/onnxruntime-$1
  virtual_environment
  python_packages requirements-versions.txt
  [[ $("$venv/bin/python" -c 'import onnxruntime; print(onnxruntime.__version__)' 2>&1) == "$1" ]] ||
    quietly "pip-onnxruntime-$1" "installing onnxruntime $1" \
      "$venv/bin/python" -m pip install --disable-pip-version-check "onnxruntime==$1"
}

scripts/setup.sh
results=$root/build/test-results
mkdir -p "$results"
rm -f "$results"/onnxruntime-*.xml
python=$(python_for_venv)
status=0
for version in "${versions[@]}"; do
  if ! has_wheel "$version"; then
    left_out "$version"
    continue
  fi
  environment "$version"
  for entry in operators provider; do
    suite=onnxruntime-$version-$entry
    logged "$suite" "onnxruntime/tests on ONNX Runtime $version, entry point: $entry" \
      env "DELTAWORKS_ENTRY_POINT=$entry" "$venv/bin/python" -m pytest -q -p no:cacheprovider \
      --junitxml "$results/$suite.xml" onnxruntime/tests || status=1
    say "  $(tail -n 1 ".cache/logs/$suite.log")"
    # A run that ended before its first test (an import that fails, say) leaves no file.
    [[ -f $results/$suite.xml ]] || tail -n 40 ".cache/logs/$suite.log"
  done
done
if [[ -z ${DELTAWORKS_NO_SUMMARY-} ]]; then
  say "results (more in .cache/logs)"
  shopt -s nullglob
  "$venv/bin/python" scripts/test_summary.py "$results"/onnxruntime-*.xml || status=1
fi
exit "$status"
