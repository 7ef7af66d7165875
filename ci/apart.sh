#!/usr/bin/env bash
# Holds the products apart. For each product's folder:
#   1. no file of it, by content or by name, says another product's name;
#   2. copied out alone, it still compiles: as it ships, and tests and all.
#
#   ci/apart.sh               do it
#   ci/apart.sh --self-test   plant the forbidden word in a copy, and demand that it is found
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
. ci/lib.sh

scratch=$(mktemp -d "${TMPDIR:-/tmp}/apart.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

# copy PRODUCT: what git tracks of it, and what it would (not what it ignores), into a folder alone.
copy() {
  git ls-files -z --cached --others --exclude-standard -- "$1" |
    while IFS= read -r -d '' file; do
      [ ! -e "$file" ] || printf '%s\0' "$file" # deleted but not committed yet
    done |
    tar --null --files-from=- -cf - | tar -xf - -C "$scratch"
}

# words PRODUCT: false, and the places, when the copy says another product's name.
words() {
  local other found=0
  for other in "${products[@]}"; do
    [ "$other" != "$1" ] || continue
    if (cd "$scratch" && grep -rniI -- "$other" "$1") || (cd "$scratch" && find "$1" -iname "*$other*" | grep .); then
      say "apart: the places above, in $1/, name $other; each product stands alone: say it without the name" >&2
      found=1
    fi
  done
  return $found
}

compiles() {
  (
    cd "$scratch/$1"
    # registry crates are the same for the copy, so it may use what is compiled of them
    export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/$1/target} CARGO_TERM_PROGRESS_WHEN=never
    # tests ask their crates for features that what ships then has not
    cargo check --quiet --workspace --all-features --locked &&
      cargo check --quiet --workspace --all-targets --all-features --locked
  ) || {
    say "apart: $1/ copied out alone does not compile: it leans on something outside its folder (or does not compile at all)" >&2
    return 1
  }
}

self_test() {
  local product other planted
  for product in $(present); do
    for other in "${products[@]}"; do
      [ "$other" != "$product" ] || continue
      for planted in content name; do
        rm -rf "${scratch:?}/$product"
        copy "$product"
        case $planted in
          content) printf '// As %s does.\n' "${other^^}" >>"$scratch/$product/planted.rs" ;;
          name) touch "$scratch/$product/as-${other^}-does.md" ;;
        esac
        if words "$product" >"$scratch/said" 2>&1; then
          say "apart: self-test: $other, planted by $planted in a copy of $product/, was not found" >&2
          return 1
        fi
        grep -qi "$other" "$scratch/said"
      done
      say "apart: a planted '$other' in $product/ is found, by content and by name"
    done
  done
}

if [ "${1:-}" = --self-test ]; then
  self_test
  exit
fi
for product in $(present); do
  copy "$product"
  words "$product"
  compiles "$product"
  say "apart: $product/ names no other product and compiles alone"
done
