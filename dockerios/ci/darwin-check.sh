#!/usr/bin/env bash
# Lints what runs on Macs - the guest agent, and kubectl-dockerios on people's laptops - for macOS on a Debian machine:
# clippy needs a standard library for the target and nothing that links. The library is built once from Debian's
# rust-src, which has to be of this compiler's version; when the archive has none, or anything else is missing, this
# fails and says so.
# usage: ci/darwin-check.sh [cargo arguments; default: clippy of both, warnings being errors]
set -euo pipefail
cd "$(dirname "$0")/.."
target=aarch64-apple-darwin
work=$PWD/target/darwin
fail() { echo "darwin-check: $*" >&2; exit 1; }

release=$(rustc -Vv | sed -n 's/^release: //p')
commit=$(rustc -Vv | sed -n 's/^commit-hash: //p')
sysroot=$work/sysroot-$commit

fetch_source() { # into $1; apt checks the package against the archive's signature
    local apt=$1/apt mirror version
    mirror=$(sed -n 's/^URIs: *\([^ ]*\).*/\1/p' /etc/apt/sources.list.d/debian.sources | head -n1)
    [ -n "$mirror" ] || fail "no Debian mirror in /etc/apt/sources.list.d/debian.sources"
    mkdir -p "$apt"/{lists/partial,archives/partial,empty}
    for suite in trixie trixie-backports sid; do
        echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main"
    done > "$apt/sources.list"
    : > "$apt/status"
    cat > "$apt/apt.conf" <<CONF
Dir::Etc::sourcelist "$apt/sources.list";
Dir::Etc::sourceparts "$apt/empty";
Dir::Etc::preferencesparts "$apt/empty";
Dir::State::lists "$apt/lists";
Dir::State::status "$apt/status";
Dir::Cache "$apt";
Acquire::Languages "none";
APT::Sandbox::User "root";
CONF
    APT_CONFIG=$apt/apt.conf apt-get -qq update || echo "darwin-check: some suites could not be read" >&2
    version=$(APT_CONFIG=$apt/apt.conf apt-cache madison rust-src | awk -F'|' '{gsub(/ /,"",$2); print $2}' \
        | grep -m1 -E "^${release//./\\.}[+~-]" || true)
    [ -n "$version" ] || fail "Debian has no rust-src $release; use a toolchain that it has, or check on a Mac"
    (cd "$1" && APT_CONFIG=$apt/apt.conf apt-get -qq download "rust-src=$version")
    dpkg -x "$1"/rust-src_*.deb "$1/source"
}

build_sysroot() {
    local dir library
    dir=$(mktemp -d)
    trap 'rm -rf "$dir"' RETURN
    fetch_source "$dir"
    library=$dir/source/usr/src/rustc-$release/library
    [ -d "$library" ] || fail "rust-src $release does not hold $library"
    mkdir -p "$dir/empty/src"
    : > "$dir/empty/src/lib.rs"
    printf '[package]\nname = "empty"\nversion = "0.0.0"\nedition = "2021"\n[workspace]\n' > "$dir/empty/Cargo.toml"
    # the one step that needs what is not stable: building std itself
    (cd "$dir/empty" && env -u RUSTFLAGS RUSTC_BOOTSTRAP=1 __CARGO_TESTS_ONLY_SRC_ROOT="$library" cargo build -q --release \
        -Zbuild-std=std,panic_unwind,panic_abort,test --target "$target" --target-dir "$dir/built")
    local into=$dir/sysroot/lib/rustlib/$target/lib
    mkdir -p "$into"
    find "$dir/built/$target/release/deps" \( -name '*.rlib' -o -name '*.rmeta' \) ! -name 'libempty*' -exec cp {} "$into" \;
    mkdir -p "$work"
    rm -rf "$sysroot"
    mv "$dir/sysroot" "$sysroot"
}

stand_ins() { # a check never links, so what C compiler and archiver make may be empty
    mkdir -p "$work/bin"
    cat > "$work/bin/cc" <<'CC'
#!/bin/sh
previous=
for argument in "$@"; do
    [ "$argument" = -E ] && exec cc -E -x c - </dev/null
    [ "$previous" = -o ] && : > "$argument"
    previous=$argument
done
CC
    printf '#!/bin/sh\nfor argument in "$@"; do case $argument in *.a) : > "$argument" ;; esac; done\n' > "$work/bin/ar"
    chmod +x "$work/bin/cc" "$work/bin/ar"
}

[ -d "$sysroot" ] || build_sysroot
stand_ins
[ $# -gt 0 ] || set -- clippy -p dockerios-guest -p dockerios-cli --locked -- -D warnings
export CARGO_TARGET_AARCH64_APPLE_DARWIN_RUSTFLAGS="--sysroot $sysroot"
export CC_aarch64_apple_darwin=$work/bin/cc AR_aarch64_apple_darwin=$work/bin/ar
# a directory of its own: its empty objects must never meet a build that links. Not as arguments: what stands behind a
# `--` is not cargo's
export CARGO_BUILD_TARGET=$target CARGO_TARGET_DIR=$work/target
exec cargo "$@"
