#!/usr/bin/env bash
# Format, layout, Python and shell. `--fix` rewrites what a formatter can; `--tidy` adds clang-tidy,
# which takes minutes.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

fix=0 tidy=0
for option in "$@"; do
  case $option in
    --fix) fix=1 ;;
    --tidy) tidy=1 ;;
    *)
      echo "usage: scripts/lint.sh [--fix] [--tidy]"
      [[ $option == -h || $option == --help ]] && exit 0
      exit 2
      ;;
  esac
done

debian_packages clang-format git shellcheck
[[ -x $venv/bin/python ]] || fail "no .venv: run scripts/setup.sh first"
python_packages requirements-dev.txt

status=0
check() {  # check WHAT COMMAND…
  say "$1"
  shift
  "$@" || status=1
}

mapfile -t cpp < <(git ls-files '*.cpp' '*.hpp' '*.h' '*.cu' '*.cuh')
mapfile -t shell < <(git ls-files '*.sh' .ci/run)
if ((fix)); then
  check "clang-format" clang-format -i "${cpp[@]}"
  check "ruff, imports and the like" "$venv/bin/ruff" check --quiet --fix .
  check "ruff, format" "$venv/bin/ruff" format --quiet .
else
  check "clang-format" clang-format --dry-run -Werror "${cpp[@]}"
  check "ruff, rules" "$venv/bin/ruff" check --quiet .
  check "ruff, format" "$venv/bin/ruff" format --quiet --check .
fi
check "shellcheck" shellcheck --external-sources "${shell[@]}"
check "mypy, the Python package" "$venv/bin/mypy" python/deltaworks
check "layout" "$venv/bin/python" scripts/check_layout.py
if ((tidy)); then
  debian_packages clang-tidy
  cmake --preset dev -DCMAKE_EXPORT_COMPILE_COMMANDS=ON >/dev/null
  mapfile -t sources < <(git ls-files 'src/*.cpp' 'onnxruntime/*.cpp' 'cli/*.cpp')
  check "clang-tidy" clang-tidy --quiet -p build/dev "${sources[@]}"
fi
((status == 0)) || fail "lint: see above; scripts/lint.sh --fix mends what is only format"
say "lint: nothing to mend"
