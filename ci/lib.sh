# Sourced by test, demo and ci/*.sh: steps with their seconds, and checks for tools.
# Names neither product's types.
# shellcheck shell=bash

products=(macrack dockerios) # the folders that may be there; each is a whole of its own

say() { printf '%s\n' "$@"; }

# step NAME COMMAND…: runs it, remembers how it ended and how long it took. Goes on after a
# failure, so that one run shows all of them; `summary` gives the verdict.
step_names=() step_seconds=() step_results=()
step() {
  local name=$1 began=$SECONDS result=ok
  shift
  say "" "── $name"
  # a subshell: the command may cd and export, and `set -e` holds inside it
  set +e
  ( set -e; "$@" )
  local status=$?
  set -e
  [ $status -eq 0 ] || result=FAILED
  step_names+=("$name") step_seconds+=($((SECONDS - began))) step_results+=("$result")
  say "── $name: $result, $((SECONDS - began)) s"
}

# summary: the table; false when a step failed.
summary() {
  local i failed=0
  say "" "seconds  result  step"
  for i in "${!step_names[@]}"; do
    printf '%7d  %-6s  %s\n' "${step_seconds[i]}" "${step_results[i]}" "${step_names[i]}"
    [ "${step_results[i]}" = ok ] || failed=1
  done
  printf '%7d  %-6s  %s\n' "$SECONDS" "" "altogether"
  return $failed
}

# need COMMAND WHY…: false and a plain word when it is missing.
need() {
  command -v "$1" >/dev/null && return 0
  say "missing: $1 - ${*:2}" >&2
  return 1
}

# need_all: everything that building and testing takes, all that is missing in one go.
need_all() {
  local missing=0
  need git "any version; Debian: apt-get install git" || missing=1
  need cc "a C compiler and linker, for Rust's crates; Debian: apt-get install gcc libc6-dev" || missing=1
  need flock "from util-linux" || missing=1
  need cargo "Rust by rustup (https://rustup.rs); the right version comes by itself" || missing=1
  if command -v cargo >/dev/null; then
    cargo fmt --version >/dev/null 2>&1 || { say "missing: rustfmt - rustup component add rustfmt" >&2; missing=1; }
    cargo clippy --version >/dev/null 2>&1 || { say "missing: clippy - rustup component add clippy" >&2; missing=1; }
  fi
  [ -n "${KUBEBUILDER_ASSETS:-}" ] || need_go || missing=1
  return $missing
}

need_go() {
  local wanted have
  wanted=$(sed -n 's/^go //p' "$root/controlplane/go.mod")
  need go "Go $wanted or newer (https://go.dev/dl) builds the control plane; or set KUBEBUILDER_ASSETS to a folder with its binaries" || return 1
  have=$(go env GOVERSION | sed 's/^go//')
  if [ "$(printf '%s\n' "$wanted" "$have" | sort -V | head -1)" != "$wanted" ]; then
    say "too old: go $have - the control plane takes Go $wanted or newer; or set KUBEBUILDER_ASSETS" >&2
    return 1
  fi
}

# present: the products that this checkout holds.
present() {
  local product
  for product in "${products[@]}"; do
    [ ! -f "$root/$product/Cargo.toml" ] || say "$product"
  done
}

# tell_room GIB: a word when the disk has less. No refusal: what an earlier run built is there already, and counts.
tell_room() {
  local free
  free=$(df -Pk "$root" | awk 'NR == 2 {print int($4 / 1048576)}')
  [ "$free" -ge "$1" ] ||
    say "!!! LITTLE ROOM: $free GiB free under $root, a first run wants $1; when it runs out, linkers end with 'Bus error'" >&2
}
