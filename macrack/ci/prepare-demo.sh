#!/usr/bin/env bash
# What MacRack's demo wants beyond Rust, Go and the control plane: the registry that its golden is pushed to.
set -euo pipefail
exec "$(dirname "$0")/prepare.sh"
