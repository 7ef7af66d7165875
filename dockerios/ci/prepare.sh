#!/usr/bin/env bash
# What this product's tests need beyond Rust, Go and the packages named in CONTRIBUTING: a root with libvirt, QEMU, OVMF.
set -euo pipefail
exec "$(dirname "$0")/substrate-root.sh"
