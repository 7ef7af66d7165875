#!/usr/bin/env bash
# The guest agent as an installer package, to be put into a golden.
#
#   ci/guest-pkg.sh layout BINARY DIR        what a package holds, in DIR/root, and its scripts: anywhere
#   ci/guest-pkg.sh pkg BINARY OUT.pkg       the package: on a Mac, for pkgbuild is Apple's
#
# BINARY is macrack-guest for aarch64-apple-darwin, without the simulator, signed (ad hoc will do):
#   cargo build --release --target aarch64-apple-darwin -p macrack-guest
#   codesign --sign - target/aarch64-apple-darwin/release/macrack-guest
# In the golden: sudo installer -pkg OUT.pkg -target /   then   sudo /Library/MacRack/bin/macrack-guest report
# `layout` is tested on Linux; `pkg` was not yet run on hardware.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
job=io.macrack.guest

die() { printf 'guest-pkg: %s\n' "$@" >&2; exit 1; }

# layout BINARY DIR
layout() {
  local binary=$1 into=$2
  [ -f "$binary" ] && [ -x "$binary" ] || die "$binary is no program; build macrack-guest first (see the head of this script)"
  if [ -e "$into" ] && [ -n "$(ls -A "$into")" ]; then
    die "$into is not empty; name a new folder: everything in it would go into the package"
  fi
  install -d -m 755 "$into/root/Library/MacRack/bin" "$into/root/Library/LaunchDaemons" \
    "$into/root/Library/Application Support/MacRack" "$into/scripts"
  install -m 755 "$binary" "$into/root/Library/MacRack/bin/macrack-guest"
  install -m 644 "$top/deploy/guest/$job.plist" "$into/root/Library/LaunchDaemons/$job.plist"
  install -m 755 "$top/deploy/guest/scripts/postinstall" "$into/scripts/postinstall"
}

# pkg BINARY OUT
pkg() {
  local binary=$1 out=$2 version work
  command -v pkgbuild >/dev/null || die "there is no pkgbuild here: packages are built on a Mac; 'layout' works anywhere"
  [ "$(lipo -archs "$binary")" = arm64 ] || die "$binary is not for Apple silicon alone; build it for aarch64-apple-darwin"
  codesign --verify --strict "$binary" || die "$binary is not signed, so macOS would kill it: codesign --sign - $binary"
  version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$top/Cargo.toml")
  [ -n "$version" ] || die "$top/Cargo.toml names no version"
  work=$(mktemp -d)
  layout "$binary" "$work/package"
  # files are root:wheel in the golden, whoever builds the package
  pkgbuild --root "$work/package/root" --scripts "$work/package/scripts" --identifier "$job" --version "$version" \
    --install-location / --ownership recommended "$out"
  rm -rf "$work"
}

[ $# -eq 3 ] || die "usage: guest-pkg.sh layout BINARY DIR | pkg BINARY OUT.pkg"
case $1 in
  layout) layout "$2" "$3" ;;
  pkg) pkg "$2" "$3" ;;
  *) die "$1 is neither 'layout' nor 'pkg'" ;;
esac
