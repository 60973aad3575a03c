#!/usr/bin/env bash
# Makes a fresh clone usable: Debian packages, ONNX Runtime's headers, .venv, the release build.
# Does only what is still missing, so that the other scripts can call it every time.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if (($#)); then
  echo "usage: scripts/setup.sh     (no arguments; PYTHON=/path/to/python3 chooses the interpreter)"
  [[ $1 == -h || $1 == --help ]] && exit 0
  exit 2
fi

onnxruntime_headers() {
  local target=$root/.cache/onnxruntime-headers
  [[ -f $target/usr/include/onnxruntime/onnxruntime_c_api.h ]] && return
  quietly headers "fetching ONNX Runtime's C++ headers (Debian forky, libonnxruntime-dev)" \
    scripts/onnxruntime_headers.sh "$target"
}

# .venv finds the package in the build folder, so that it is always the one just built.
python_package() {
  local file package=$root/build/release/python
  file=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/deltaworks.pth
  [[ -f $file && $(<"$file") == "$package" ]] && return
  say "pointing .venv at build/release/python"
  echo "$package" >"$file"
}

say "set-up of $root"
debian_packages ca-certificates cmake g++ libbenchmark-dev libcli11-dev libfmt-dev libgtest-dev \
  libhwy-dev libonnx-dev libprotobuf-dev ninja-build nlohmann-json3-dev python3-dev python3-venv
virtual_environment
python_packages requirements.txt
onnxruntime_headers
quietly configure "configuring build/release" \
  cmake --preset release -DDELTAWORKS_PYTHON=ON "-DPython_EXECUTABLE=$venv/bin/python"
quietly build "building build/release on $(nproc) cores (the first time takes minutes)" \
  cmake --build --preset release
python_package
say "ready: build/release/bin, build/release/lib, .venv with the Python package deltaworks"
