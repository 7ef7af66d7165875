# The commands of the README, and each workspace's own recipes: `just macrack lint`.

[private]
default:
    @just --list --list-submodules

mod macrack
mod dockerios

# everything that CI runs
test *arguments:
    ./test {{ arguments }}

# a product at work on this machine, until Ctrl-C
demo *arguments:
    ./demo {{ arguments }}

# etcd, the Kubernetes components and kubectl, built when they are out of date
control-plane:
    controlplane/build.sh

# each product names no other and compiles alone
apart:
    ci/apart.sh
    ci/apart.sh --self-test
