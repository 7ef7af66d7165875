#!/usr/bin/env bash
# Builds the tests of the workspace that it is called in, and runs their programs side by side: most of what they do is
# wait, for an API server, a timer, a VM. What each prints comes out whole, when it ends.
#
#   TEST_LANES  how many run at once; default: as many as there are processors
set -euo pipefail
out=$(mktemp -d "${TMPDIR:-/tmp}/tests.XXXXXX")
trap 'rm -rf "$out"' EXIT
lanes=${TEST_LANES:-$(nproc)}

cargo test --workspace --all-features --locked --no-run --message-format=json-render-diagnostics >"$out/built.json"
# a line each: the program, its package's folder, its name. What takes longest goes first: the story, whole clusters
python3 - "$out/built.json" >"$out/programs" <<'PY'
import json, os, sys

programs = []
for line in open(sys.argv[1]):
    said = json.loads(line)
    if said["reason"] == "compiler-artifact" and said["profile"]["test"] and said["executable"]:
        folder = os.path.dirname(said["manifest_path"])
        kind, package = said["target"]["kind"][0], os.path.basename(folder)
        rank = {"demo": 0, "acceptance": 1}.get(package, 2 if kind == "test" else 3)
        programs.append((rank, package, f"{said['target']['name']} ({kind})", said["executable"], folder))
for rank, package, name, executable, folder in sorted(programs):
    print(executable, folder, f"{package}: {name}", sep="\t")
PY

# A program stands in its package's folder, as under cargo. Of cargo's variables it gets none: a test that calls cargo
# itself would have whatever looks at them (ring's build script does) built anew, for other values.
run() {
  local executable folder name log began=$SECONDS verdict=ok
  IFS=$'\t' read -r executable folder name <<<"$1"
  log=$out/$(basename "$executable").log
  # a program that hangs is ended and named, before whoever waits for all of them gives up
  (cd "$folder" && exec timeout --kill-after=10 1500 "$executable") >"$log" 2>&1 </dev/null ||
    verdict="FAILED, exit code $? (124 is no end in 25 minutes)"
  [ "$verdict" = ok ] || printf '%s\n' "$name: $verdict" >>"$out/failed"
  exec 9>"$out/.print" && flock 9
  printf '\n     Running %s\n' "$name"
  cat "$log"
  printf '     %s: %s, %d s\n' "$name" "$verdict" $((SECONDS - began))
}
export -f run
export out
: >"$out/failed"
tr '\n' '\0' <"$out/programs" | xargs -0 -n 1 -P "$lanes" bash -c 'run "$1"' run
cargo test --workspace --all-features --locked --doc

[ -s "$out/programs" ] || { echo "tests: no test program was built" >&2; exit 1; }
if [ -s "$out/failed" ]; then
  printf '\nfailed:\n' && sed 's/^/  /' "$out/failed"
  exit 1
fi
