#!/usr/bin/env bash
# Builds a folder that runs on any x86-64 machine with an NVIDIA driver: the tests of the CUDA backend,
# its benchmark, and run.sh, which runs both, compute-sanitizer too where it is installed, and writes
# one report. The machine needs no toolkit, no compiler and no package of this project; only times of
# flash-linear-attention beside ours need torch and triton there.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  echo "usage: scripts/gpu_test.sh [--run] [--arch 90] [--fla]"
  echo "  builds build/gpu; there, on a machine with a GPU: build/gpu/run.sh REPORT.json"
  echo "  --run   also runs it here"
  echo "  --arch  compiles for these architectures alone, separated by ';' (default: all)"
  echo "  --fla   takes flash-linear-attention along, to be timed where torch and triton are"
}

run=0 arch='' fla=0
while (($#)); do
  case $1 in
    --run) run=1 ;;
    --arch) arch=${2:?} && shift ;;
    --fla) fla=1 ;;
    -h | --help) usage && exit 0 ;;
    *) usage && exit 2 ;;
  esac
  shift
done

[[ -n ${CUDACXX:-} ]] || PATH=$PATH:/usr/local/cuda/bin  # where NVIDIA's installer puts nvcc
command -v "${CUDACXX:-nvcc}" >/dev/null || fail "no nvcc: install a CUDA toolkit (12.4 or later)"

# Tests that have cases on the GPU; ctest runs them without one, where those cases are skipped.
mapfile -t tests < <(grep -lE 'every_backend|cuda_device|OnCuda|CudaLarge' tests/*_test.cpp | xargs -n 1 basename -s .cpp)
quietly cuda-configure "configuring build/cuda" \
  cmake --preset cuda ${arch:+"-DDELTAWORKS_CUDA_ARCHITECTURES=$arch"}
quietly cuda-build "building ${#tests[@]} tests and the benchmark in build/cuda" \
  cmake --build --preset cuda --target "${tests[@]}" cuda_bench

bundle=$root/build/gpu
rm -rf "$bundle"
mkdir -p "$bundle/lib"
for program in "${tests[@]}" cuda_bench; do cp "build/cuda/bin/$program" "$bundle/"; done
quietly cuda-example "building examples/cuda_decode.cu" \
  "${CUDACXX:-nvcc}" -std=c++20 -O2 -cudart static -Iinclude examples/cuda_decode.cu \
  build/cuda/lib/libdeltaworks_core.a -lhwy -o "$bundle/cuda_decode"
strip "$bundle"/*_test "$bundle"/cuda_*
# What the programs need beside the C library and the driver.
ldd "$bundle"/*_test "$bundle/cuda_bench" |
  awk '$2 == "=>" && $1 ~ /^lib(hwy|stdc\+\+|gcc_s|gtest)/ {print $3}' | sort -u |
  xargs -I{} cp -L {} "$bundle/lib/"
cp scripts/gpu_run.sh "$bundle/run.sh"
cp bench/cuda/fla_*.py "$bundle/"
if ((fla)); then
  virtual_environment
  quietly fla "fetching flash-linear-attention" \
    "$venv/bin/python" -m pip install --no-deps --no-compile --target "$bundle/python" fla-core==0.6.0
fi
say "ready: build/gpu ($(du -sh "$bundle" | cut -f 1)); on a machine with a GPU: build/gpu/run.sh REPORT.json"
((run)) && exec "$bundle/run.sh" "$bundle/report.json"
exit 0
