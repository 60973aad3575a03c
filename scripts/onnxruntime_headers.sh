#!/usr/bin/env bash
# ONNX Runtime's C and C++ headers into a folder, from Debian's next release; the system's own package
# lists stay as they are. Code built with them runs on ONNX Runtime 1.23.2 and later.
# usage: scripts/onnxruntime_headers.sh FOLDER
set -euo pipefail

target=$1
parent=$(dirname "$target")
mkdir -p "$parent"
rm -rf "$parent"/headers.*  # of a run that was interrupted
work=$(mktemp -d "$(cd "$parent" && pwd)/headers.XXXXXX")
mkdir -p "$work"/{lists/partial,archives/partial}

# shellcheck disable=SC2016  # apt fills these in
mirror=$(apt-get indextargets --format '$(SITE) $(COMPONENT)' 'Created-By: Packages' |
  awk '$1 !~ /security/ && $2 == "main" && !found {print $1; found = 1}')
keys=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keys] ${mirror:-http://deb.debian.org/debian} forky main" >"$work/sources.list"

# A mirror that lags behind serves an index past its date; its signature is checked all the same.
apt=(apt-get -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=-
  -o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work" -o APT::Sandbox::User=root
  -o Acquire::Check-Valid-Until=false)
"${apt[@]}" update
(cd "$work" && "${apt[@]}" download libonnxruntime-dev)
dpkg-deb --extract "$work"/libonnxruntime-dev_*.deb "$work/package"
test -f "$work/package/usr/include/onnxruntime/onnxruntime_c_api.h"
rm -rf "$target"
mv "$work/package" "$target"
rm -rf "$work"
