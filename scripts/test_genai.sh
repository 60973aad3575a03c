#!/usr/bin/env bash
# From random checkpoints of transformers, and the demonstration model with its drafter, through the
# stock model builder and deltaworks.retarget to GenAI's Engine on the CPU, against what transformers
# and `deltaworks generate` decode. CI runs the same tests on packages
# that lie in onnxruntime/tests/data, since this needs PyTorch: 6 GB in an environment of its own,
# .cache/genai. Minutes; sets up first.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if (($#)); then
  echo "usage: scripts/test_genai.sh     (no arguments; PYTHON=/path/to/python3 chooses the interpreter)"
  [[ $1 == -h || $1 == --help ]] && exit 0
  exit 2
fi

scripts/setup.sh
results=$root/build/test-results
packages=$root/build/genai
mkdir -p "$results"
rm -f "$results"/genai-*.xml
tested=$venv
venv=$root/.cache/genai
virtual_environment
python_packages requirements-genai.txt
# One thread: of two, each waits for the other in a loop after every small product, which takes a
# hundred times as long where other programs run.
quietly genai-packages "building packages of random checkpoints in ${packages#"$root"/}" \
  env OMP_NUM_THREADS=1 "$venv/bin/python" tools/package/tiny_packages.py "$packages"
quietly genai-demo "making models/demo anew from its checkpoints" \
  env OMP_NUM_THREADS=1 PYTHONPATH=build/release/python "$venv/bin/python" \
  tools/package/demo_package.py models/demo models/demo/dflash2 build/demo
quietly genai-command "command 3 of docs/genai.md" \
  env OMP_NUM_THREADS=1 "$venv/bin/python" -m onnxruntime_genai.models.builder \
  -i models/demo -o "$packages/try/cuda" -p int4 -e cuda -c "$packages/try/cache" \
  --extra_options use_paged_attention=true state_update_capacity=7
venv=$tested

status=0
for file in model.onnx dflash2.onnx genai_config.json; do
  cmp "models/demo/$file" "build/demo/$file" || status=1
done
# Commands 4 and 5 of docs/genai.md, and the same with a drafter.
for built in try/cuda demo/int4; do
  cpu=$packages/${built%/*}/cpu log=genai-${built%/*}
  logged "$log-retarget" "deltaworks.retarget of ${built}" \
    "$venv/bin/python" -m deltaworks.retarget "$packages/$built" "$cpu" || status=1
  logged "$log-example" "examples/genai_engine.py on it" \
    "$venv/bin/python" examples/genai_engine.py --model "$cpu" --begin 256 || status=1
  grep "the same tokens" ".cache/logs/$log-example.log" || status=1
done
for tests in python/tests/test_retarget*.py onnxruntime/tests/test_dense_packages.py; do
  suite=genai-$(basename "$tests" .py)
  logged "$suite" "$tests on these packages" env "DELTAWORKS_PACKAGES=$packages" \
    "$venv/bin/python" -m pytest -q -p no:cacheprovider --junitxml "$results/$suite.xml" "$tests" ||
    status=1
  [[ -f $results/$suite.xml ]] || tail -n 40 ".cache/logs/$suite.log"
done
say "results (more in .cache/logs)"
"$venv/bin/python" scripts/test_summary.py "$results"/genai-*.xml || status=1
exit "$status"
