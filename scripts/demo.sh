#!/usr/bin/env bash
# The demonstration model writes a text; then the same model decodes 24 prompts with drafts and
# without, which must agree in every byte. Sets up first.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# Without the tag the model chooses a voice itself (models/demo/README.md).
prompt=${1:-$'[tale]\nOnce upon a time there was'}
if (($# > 1)) || [[ $prompt == -h || $prompt == --help ]]; then
  echo "usage: scripts/demo.sh [PROMPT]"
  [[ $prompt == -h || $prompt == --help ]] && exit 0
  exit 2
fi

scripts/setup.sh
[[ -f models/demo/model.onnx ]] || fail "models/demo/model.onnx is missing: this clone is not complete"
deltaworks=(build/release/bin/deltaworks generate --model models/demo)

say "a text from models/demo at temperature 0.7"
printf '%s' "$prompt"
"${deltaworks[@]}" --prompt "$prompt" --max-tokens 400 --temperature 0.7 --seed 1
echo

# Greedy text repeats itself, which is easy to draft; at 0.7 it does not.
prompts=(--prompt-file models/demo/prompts.jsonl --seed 1)
for temperature in 0 0.7; do
  say "24 prompts at temperature $temperature, drafts looked up in the text, each decoded plainly too"
  "${deltaworks[@]}" "${prompts[@]}" --draft lookup --verify --temperature "$temperature" >/dev/null
done
say "24 prompts at temperature 0, drafts from the block drafter, each decoded plainly too"
"${deltaworks[@]}" "${prompts[@]}" --draft dflash2 --verify >/dev/null
say "24 prompts at temperature 0.7, drafts drawn by the block drafter: the same distribution, other texts"
"${deltaworks[@]}" "${prompts[@]}" --draft dflash2 --temperature 0.7 --stats 2>&1 >/dev/null |
  grep -E "^(generation|drafts|drafting) "
say "done: wherever texts must be the same with drafts and without, they are"
