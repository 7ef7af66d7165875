#!/usr/bin/env bash
# Builds the reference registry from the modules pinned in go.mod into bin/registry, for MacRack's tests and demo.
# Does nothing when it was already built from this very go.mod, go.sum, main.go, script and Go.
set -euo pipefail
cd "$(dirname "$0")"

command -v go >/dev/null || {
  echo "registry: needs Go $(sed -n 's/^go //p' go.mod) or newer on PATH (https://go.dev/dl), or set MACRACK_TEST_REGISTRY to a program that is called like distribution's: registry serve CONFIG" >&2
  exit 2
}
stamp=$(cat go.mod go.sum main.go build.sh <(go version) | sha256sum | cut -d' ' -f1)
mkdir -p bin
[ "$(cat bin/.stamp 2>/dev/null || true)" = "$stamp" ] && exit 0

# two starts at once build once
exec 9>bin/.lock
flock 9
[ "$(cat bin/.stamp 2>/dev/null || true)" = "$stamp" ] && exit 0
echo "registry: building it once; half a minute to two on two cores" >&2
CGO_ENABLED=0 GOFLAGS="${GOFLAGS:-} -trimpath -buildvcs=false" go build -ldflags='-s -w' -o bin/registry .
echo "$stamp" >bin/.stamp
