#!/usr/bin/env bash
# run.sh REPORT.json [SECONDS]: the tests in this folder on the GPU of this machine,
# the benchmark, and the tests once more under compute-sanitizer, where it is installed and until SECONDS
# (default 600) are over. The report is one JSON object; the exit status is 1 when anything failed, or a program
# passed no test at all. What the sanitizers had no time for is no failure, and said.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
report=${1:?usage: run.sh REPORT.json [SECONDS]} limit=${2:-600}
export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
work=$(mktemp -d) status=0 late=0 runs=0
trap 'rm -rf "$work"' EXIT
filter='--gtest_filter=*CUDA*:Cuda*'

say() { printf '[%3d s] %s\n' "$SECONDS" "$*"; }

for test in "$here"/*_test; do
  name=$(basename "$test") result=passed
  "$test" "$filter" "--gtest_output=json:$work/$name.json" >"$work/log" 2>&1 || {
    result=FAILED status=1
    grep -B 12 'FAILED  \]\|Failure' "$work/log" | tail -n 60
  }
  passed=$(grep -c '^\[       OK' "$work/log")
  ((passed > 0)) || result="FAILED, no test ran to its end" status=1
  say "$name: $result, $passed passed, $(grep -c '^\[  SKIPPED.* ms)' "$work/log") skipped"
done

"$here/cuda_bench" "$work/bench" || status=1

sanitizers=
if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck initcheck racecheck; do
    for test in "$here"/*_test; do
      name=$(basename "$test") result=clean runs=$((runs + 1))
      ((left = limit - SECONDS, left > 0)) || left=0.01
      timeout "$left" compute-sanitizer --tool "$tool" --error-exitcode 9 "$test" "$filter" \
        >"$work/log" 2>&1
      case $? in
        0) ;;
        124) result='out of time' late=$((late + 1)) ;;
        *)
          result=FAILED status=1
          grep -A 8 '=========' "$work/log" | head -n 40
          ;;
      esac
      sanitizers+="${sanitizers:+, }\"$tool $name\": \"$result\""
      say "compute-sanitizer $tool $name: $result"
    done
  done
  ((late == 0)) || say "compute-sanitizer: $late of $runs runs out of time, nothing is known of them: give more than $limit s"
fi

{
  printf '{"date": "%s", "driver": "%s",\n' "$(date -u +%F)" \
    "$(sed -n 's/.*Module  *\([0-9.]*\).*/\1/p' /proc/driver/nvidia/version 2>/dev/null)"
  printf '"sanitizers": {%s},\n"benchmark": ' "$sanitizers"
  cat "$work/bench" 2>/dev/null || echo null
  printf ',\n"tests": {'
  separator=
  for test in "$here"/*_test; do
    name=$(basename "$test")
    printf '%s\n"%s": ' "$separator" "$name"
    cat "$work/$name.json" 2>/dev/null || echo null
    separator=,
  done
  printf '}}\n'
} >"$report"
say "report: $report"
exit "$status"
