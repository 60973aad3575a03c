#!/usr/bin/env bash
# run.sh REPORT.json [SECONDS]: the tests in this folder on the GPU of this machine, the benchmark, beside
# flash-linear-attention where python3 finds it, and the tests once more under compute-sanitizer, where it is
# installed and until SECONDS (default 600) are over. The report is one JSON object; the exit status is 1 when
# anything failed, or a program passed no test at all. What the sanitizers had no time for is no failure, and said.
# TOOLS="memcheck initcheck racecheck" are the sanitizers, in this order; JOBS processes run at a time.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
report=${1:?usage: run.sh REPORT.json [SECONDS]} limit=${2:-600}
tools=${TOOLS-memcheck initcheck racecheck} jobs=${JOBS:-$(nproc)}
export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export PYTHONPATH=$here/python${PYTHONPATH:+:$PYTHONPATH}
work=$(mktemp -d) status=0
trap 'rm -rf "$work"' EXIT
filter='--gtest_filter=*CUDA*:Cuda*'
export DELTAWORKS_TEST_SEED=${DELTAWORKS_TEST_SEED:-$(date +%s)}

say() { printf '[%3d s] %s\n' "$SECONDS" "$*"; }

# Runs the commands of its input, one a line, $jobs at a time.
in_parallel() { xargs -r -d '\n' -n 1 -P "$jobs" bash -c; }

say "DELTAWORKS_TEST_SEED=$DELTAWORKS_TEST_SEED"
for test in "$here"/*_test; do
  name=$(basename "$test")
  echo "'$test' '$filter' >'$work/$name.log' 2>&1 || touch '$work/$name.failed'"
done | in_parallel
tests=
for test in "$here"/*_test; do
  name=$(basename "$test") log=$work/$(basename "$test").log
  passed=$(grep -c '^\[       OK' "$log")
  result="$passed passed, $(grep -c '^\[  SKIPPED.* ms)' "$log") skipped"
  if [[ -e $work/$name.failed || $passed == 0 ]]; then
    result="FAILED, $result" status=1
    grep -A 12 'Failure' "$log" | head -n 60
  fi
  tests+="${tests:+, }\"$name\": \"$result\""
  say "$name: $result"
done

"$here/cuda_decode" || status=1

"$here/cuda_bench" "$work/bench" || status=1
if python3 -c 'import fla, torch' 2>/dev/null; then
  mkdir "$work/results"
  "$here/cuda_bench" --results "$work/results" || status=1
  python3 "$here/fla_bench.py" "$work/bench" --results "$work/results" \
    --choices "$here/choices.json" --seconds $(((limit - SECONDS) / 2)) || status=1
fi
say "benchmark: done"

# Every test is a process of its own, which many cores share: under a sanitizer one test can take minutes. A
# sanitizer follows every byte, so tests of many GiB are left out.
sanitized() {  # TOOL: commands
  local test name ms case log
  for test in "$here"/*_test; do
    name=$(basename "$test")
    sed -n 's/^\[       OK \] \(.*\) (\([0-9]*\) ms)$/\2 \1/p' "$work/$name.log" |
      while read -r ms case; do
        [[ $case != CudaLarge.* ]] || continue
        log=$work/$1.$name.${case//\//_}
        echo "$ms left=\$(($deadline - \$(date +%s))); if ((left > 0)); then timeout \$left" \
          "compute-sanitizer --tool $1 --error-exitcode 9 '$test' '--gtest_filter=$case'" \
          ">'$log' 2>&1; else (exit 124); fi; echo \$? >'$log.status'"
      done
  done | sort -rn | cut -d ' ' -f 2-  # the longest first
}
deadline=$(($(date +%s) - SECONDS + limit))
sanitizers=
if command -v compute-sanitizer >/dev/null; then
  for tool in $tools; do
    clean=0 failed=() late=()
    sanitized "$tool" | in_parallel
    for log in "$work/$tool".*.status; do
      case=$(basename "$log" .status)
      case $(<"$log") in
        0) clean=$((clean + 1)) ;;
        124) late+=("$case") ;;
        *)
          failed+=("$case")
          grep -A 8 '=========\|Failure' "${log%.status}" | head -n 40
          ;;
      esac
    done
    result="$clean clean, ${#failed[@]} failed, ${#late[@]} out of time"
    ((${#failed[@]} == 0)) || status=1
    sanitizers+="${sanitizers:+, }\"$tool\": \"$result\""
    say "compute-sanitizer $tool: $result" "${failed[@]}"
    ((${#late[@]} == 0)) || printf '  %s\n' "give more than $limit s for:" "${late[@]}"
  done
fi

{
  printf '{"date": "%s", "driver": "%s",\n' "$(date -u +%F)" \
    "$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1)"
  printf '"tests": {%s},\n"sanitizers": {%s},\n"benchmark": ' "$tests" "$sanitizers"
  cat "$work/bench" 2>/dev/null || echo null
  printf '}\n'
} >"$report"
say "report: $report"
exit "$status"
