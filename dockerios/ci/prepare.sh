#!/usr/bin/env bash
# What this product's tests need beyond Rust and Go: a root with libvirt, QEMU, OVMF, made by mmdebstrap as root.
set -euo pipefail
exec "$(dirname "$0")/substrate-root.sh"
