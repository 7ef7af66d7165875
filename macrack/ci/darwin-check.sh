#!/usr/bin/env bash
# Lints for macOS what runs on a Mac, on a machine that is none: clippy with warnings denied, for
# aarch64-apple-darwin, without the feature `sim`. Nothing is linked and nothing is run.
#
#   ci/darwin-check.sh                        every program of a Mac, and kubectl-macrack
#   ci/darwin-check.sh clippy -p macrack-vz   any cargo command that links nothing, for that target
#
# It takes the target's standard library. Where the toolchain has it (`rustup target add`, or a Mac),
# that one is used; else it is compiled once from Debian's package rust-src, which must be of this very
# version of rustc. An archive that has dropped that version fails the check: then move
# rust-toolchain.toml to a version that Debian has, or add the target to the toolchain.
# Without apt-get the check is left out, loudly; under CI (CI is set) it fails.
set -euo pipefail
cd "$(dirname "$0")/.."

triple=aarch64-apple-darwin
# what a Mac runs, and the plugin that a Mac's admin runs; each is checked once its folder is there
programs=(wire vz vm guest agent hostd cli)
keep=$PWD/target/darwin

die() { printf 'darwin-check: %s\n' "$@" >&2; exit 1; }

# The check cannot be made on this machine at all: fatal in CI, loud elsewhere.
leave_out() {
  [ -z "${CI:-}" ] || die "$1"
  printf '\n!!! darwin-check: NOT CHECKED FOR MACOS: %s\n\n' "$1" >&2
  exit 0
}

version=$(rustc --version --verbose | sed -n 's/^release: //p')
revision=$(rustc --version --verbose | sed -n 's/^commit-hash: //p')

# rust_source DIR: the standard library's source of this rustc's version, in DIR/usr/src/rustc-*.
# A private view of Debian's archive: nothing is installed, and apt checks signatures as ever.
rust_source() {
  local keyring=/usr/share/keyrings/debian-archive-keyring.gpg mirror package suite
  command -v apt-get >/dev/null || leave_out "there is no apt-get to fetch rust-src $version with"
  [ -r "$keyring" ] || leave_out "$keyring is missing: this is no Debian"
  mirror=$(sed -n 's/^URIs:[[:space:]]*\([^[:space:]]*\).*/\1/p' /etc/apt/sources.list.d/debian.sources 2>/dev/null | head -n 1)
  mirror=${mirror:-http://deb.debian.org/debian}
  mkdir -p "$1"/{lists/partial,cache/archives/partial,none}
  : > "$1/status"
  for suite in trixie-backports trixie forky sid; do
    echo "deb [signed-by=$keyring] $mirror $suite main"
  done > "$1/sources"
  cat > "$1/apt.conf" <<CONF
Dir::Etc::SourceList "$1/sources";
Dir::Etc::SourceParts "$1/none";
Dir::Etc::PreferencesParts "$1/none";
Dir::State::Lists "$1/lists";
Dir::State::Status "$1/status";
Dir::Cache "$1/cache";
Acquire::Languages "none";
APT::Sandbox::User "root";
CONF
  export APT_CONFIG=$1/apt.conf
  # one suite that cannot be read does not matter while another has the version
  apt-get -qq update || echo "darwin-check: not every suite of $mirror could be read" >&2
  package=$(apt-cache madison rust-src | tr -d ' ' | cut -d'|' -f2 | grep -m 1 "^${version//./\\.}[+~-]") \
    || die "Debian ($mirror) has no rust-src $version: it has dropped this version, or has it not yet." \
           "Set rust-toolchain.toml to one of: $(apt-cache madison rust-src | cut -d'|' -f2 | tr -d ' ' | tr '\n' ' ')" \
           "or run: rustup target add $triple"
  (cd "$1" && apt-get -qq download "rust-src=$package")
  dpkg -x "$1"/rust-src_*.deb "$1"
  unset APT_CONFIG
}

# make_sysroot DIR: compiles std for the target into DIR. The one step that needs what stable lacks.
make_sysroot() {
  local work library
  work=$(mktemp -d)
  # shellcheck disable=SC2064 # of this subshell, by the name that it has now
  trap "rm -rf '$work'" EXIT
  rust_source "$work"
  library=$work/usr/src/rustc-$version/library
  [ -d "$library" ] || die "rust-src $version holds no $library"
  mkdir -p "$work/seed/src" "$1.new/lib/rustlib/$triple/lib"
  : > "$work/seed/src/lib.rs"
  printf '[package]\nname = "seed"\nversion = "0.0.0"\nedition = "2024"\n[workspace]\n' > "$work/seed/Cargo.toml"
  (cd "$work/seed" && env -u RUSTFLAGS -u CARGO_TARGET_DIR RUSTUP_TOOLCHAIN="${RUSTUP_TOOLCHAIN:-$version}" \
    RUSTC_BOOTSTRAP=1 __CARGO_TESTS_ONLY_SRC_ROOT="$library" \
    cargo build --quiet --release --target "$triple" --target-dir "$work/out" \
      -Z build-std=std,panic_unwind,panic_abort,test)
  rm -f "$work/out/$triple/release/deps"/libseed*
  cp "$work/out/$triple/release/deps"/*.r{lib,meta} "$1.new/lib/rustlib/$triple/lib/"
  rm -rf "$1"
  mv "$1.new" "$1"
}

# Crates that compile C or Objective-C (ring, objc2-exception-helper) are not linked either: what stands
# in for compiler and archiver leaves an empty file where an output is named.
stand_ins() {
  mkdir -p "$keep/bin"
  cat > "$keep/bin/cc" <<'CC'
#!/bin/sh
for word; do
  if [ "$word" = -E ]; then exec cc -E -x c - </dev/null; fi
  if [ "$last" = -o ]; then : > "$word"; fi
  last=$word
done
CC
  cat > "$keep/bin/ar" <<'AR'
#!/bin/sh
for word; do case $word in *.a) : > "$word" ;; esac; done
AR
  chmod +x "$keep/bin/cc" "$keep/bin/ar"
}

mkdir -p "$keep"
if [ ! -d "$(rustc --print sysroot)/lib/rustlib/$triple/lib" ]; then
  sysroot=$keep/sysroot-$revision
  (flock 9; [ -d "$sysroot" ] || make_sysroot "$sysroot") 9> "$keep/lock"
  [ -d "$sysroot" ] || exit 0 # left out, and said so
  export CARGO_TARGET_AARCH64_APPLE_DARWIN_RUSTFLAGS="--sysroot $sysroot"
fi
stand_ins
export CC_aarch64_apple_darwin=$keep/bin/cc AR_aarch64_apple_darwin=$keep/bin/ar

if [ $# -eq 0 ]; then
  packages=()
  for program in "${programs[@]}"; do
    [ ! -d "crates/$program" ] || packages+=(-p "macrack-$program")
  done
  set -- clippy --locked --lib --bins "${packages[@]}" -- -D warnings
fi
export CARGO_INCREMENTAL=0 # a check is made seldom, and its increments take more room than all else
# `--target` goes before a lone `--`; the folder is its own, for its empty objects must never be linked
words=() placed=
for word; do
  if [ "$word" = -- ] && [ -z "$placed" ]; then words+=(--target "$triple" --target-dir "$keep/target"); placed=1; fi
  words+=("$word")
done
[ -n "$placed" ] || words+=(--target "$triple" --target-dir "$keep/target")
exec cargo "${words[@]}"
