# Sourced by the other scripts: where the tree is, plain progress lines, Debian packages on demand.
# shellcheck shell=bash
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit
venv=$root/.venv
trap 'jobs -p | xargs -r kill 2>/dev/null' EXIT

say() { printf '[%3d s] %s\n' "$SECONDS" "$*"; }

fail() {
  printf '[%3d s] FAILED: %s\n' "$SECONDS" "$*" >&2
  exit 1
}

# logged NAME WHAT COMMAND…: the output goes to .cache/logs/NAME.log; its last line is shown now and
# then as a sign of life. Returns the command's status. COMMAND must be a program: in a function,
# errors would go unnoticed (bash turns errexit off where a status is tested).
logged() {
  local log=$root/.cache/logs/$1.log what=$2 status=0 pid watcher
  shift 2
  mkdir -p "${log%/*}"
  say "$what"
  "$@" >"$log" 2>&1 </dev/null &
  pid=$!
  while sleep 20 >/dev/null 2>&1; do say "  … $(tail -n 1 "$log" | tr -d '\r' | cut -c 1-100)"; done &
  watcher=$!
  wait "$pid" || status=$?
  kill "$watcher" 2>/dev/null || true
  wait "$watcher" 2>/dev/null || true
  return "$status"
}

# quietly NAME WHAT COMMAND…: logged, but a failure shows the end of the output and ends the script.
quietly() {
  local status=0
  logged "$@" || status=$?
  ((status == 0)) && return
  tail -n 40 ".cache/logs/$1.log" >&2
  fail "$2 (exit $status; all of it: .cache/logs/$1.log)"
}

# debian_packages PACKAGE…: installs those that are missing.
debian_packages() {
  local package missing=() as_root=()
  command -v dpkg-query >/dev/null ||
    fail "this is not a Debian system: install what corresponds to $* and run cmake by hand (CONTRIBUTING.md)"
  for package in "$@"; do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] ||
      missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  if ((EUID != 0)); then
    command -v sudo >/dev/null ||
      fail "as root, run first: apt-get install --no-install-recommends ${missing[*]}"
    as_root=(sudo)
    sudo -v  # asks for the password here, not behind a log file
  fi
  quietly apt-update "reading Debian's package lists" "${as_root[@]}" apt-get update
  quietly apt-install "installing ${missing[*]}" "${as_root[@]}" \
    env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"
}

python_for_venv() {
  local python
  for python in ${PYTHON:+"$PYTHON"} /usr/bin/python3 python3 python3.13 python3.12 python3.11; do
    "$python" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' \
      2>/dev/null && echo "$python" && return
  done
  fail "no Python 3.11 to 3.14 with venv found ($(python3 --version 2>&1)): ONNX Runtime 1.32 needs one." \
    "Debian 12 and later have it; elsewhere install one and set PYTHON=/path/to/python3"
}

# virtual_environment: makes $venv, unless it is there and works.
virtual_environment() {
  "$venv/bin/python" -m pip --version >/dev/null 2>&1 && return
  local python
  python=$(python_for_venv)
  quietly venv "making ${venv#"$root"/} with $("$python" --version)" "$python" -m venv --clear "$venv"
}

# python_packages FILE…: the pinned requirements in $venv; nothing to do while the files, and those that
# they include, are as they were when it was filled.
python_packages() {
  local file stamp pins
  for file in "$@"; do
    stamp=$venv/.installed-$file
    pins=$(cat "$file" && sed -n 's/^-r //p' "$file" | xargs -r cat)
    cmp -s "$stamp" <<<"$pins" && continue
    quietly "pip-$file" "installing the Python packages of $file" \
      "$venv/bin/python" -m pip install --disable-pip-version-check --requirement "$file"
    printf '%s\n' "$pins" >"$stamp"
  done
}
