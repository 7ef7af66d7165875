#!/usr/bin/env bash
# What MacRack's tests and demo want of this machine beyond Rust, Go and the control plane. Quick when it is there.
set -euo pipefail
cd "$(dirname "$0")"
[ -n "${MACRACK_TEST_REGISTRY:-}" ] || registry/build.sh
