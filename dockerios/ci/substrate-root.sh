#!/usr/bin/env bash
# Makes, once, the Debian root in which the tests run libvirt, QEMU, OVMF and Prometheus:  ci/substrate-root.sh
#
# The hook writes bus='nvme', which libvirt has since 11.5; hosts often have an older one. So the tests bring their
# own: trixie with its backports, in a folder of about 460 MB. They use it through chroot, in namespaces of their own
# and without /dev/kvm, so nothing of the host is touched and none of its virtualisation is needed.
#
#   DOCKERIOS_SUBSTRATE_ROOT  the folder; default .build/substrate beside this workspace. The tests read it too
#   DOCKERIOS_DEBIAN_MIRROR   the archive; default the one in this machine's apt sources, else deb.debian.org
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=${DOCKERIOS_SUBSTRATE_ROOT:-$here/../../.build/substrate}
suite=trixie
packages=libvirt-daemon,libvirt-daemon-driver-qemu,libvirt-clients,qemu-system-x86,ovmf,efi-shell-x64,dosfstools,mtools,gdisk,prometheus
oldest_libvirt=11.5
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

say() { printf 'substrate-root: %s\n' "$*"; }
fail() {
  printf 'substrate-root: %s\n' "$@" >&2
  exit 1
}

# the archive that this machine installs from: deb822 first, then the one-line style
mirror_of_this_machine() {
  local found
  found=$(cat /etc/apt/sources.list.d/*.sources /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null |
    sed -n 's/^URIs:[[:space:]]*\([^[:space:]]*\).*/\1/p; s/^deb[[:space:]]\(\[[^]]*\][[:space:]]\)\{0,1\}[[:space:]]*\([^[:space:]]*\).*/\2/p' |
    grep -m1 '/debian/\{0,1\}$' || true)
  printf '%s' "${found:-http://deb.debian.org/debian}"
}

libvirt_of() {
  dpkg-query --admindir="$1/var/lib/dpkg" --showformat='${Version}' --show libvirt-daemon
}

if [ "$(uname -m)" != x86_64 ]; then
  fail "this machine is $(uname -m); the root holds amd64 programs and is used by chroot: run it on x86_64"
fi
[ "$(id -u)" = 0 ] || fail "has to run as root: the root is made and used by chroot; run it with sudo"

mkdir -p "$(dirname "$root")"
root=$(realpath -m "$root")
# another run may be at it: the second one waits, and finds it done
exec 9>"$root.lock"
flock 9

recipe=$(sha256sum <"${BASH_SOURCE[0]}" | cut -d' ' -f1)
if [ "$(cat "$root/.recipe" 2>/dev/null)" = "$recipe" ]; then
  say "$root is there, with libvirt $(libvirt_of "$root")"
  exit 0
fi
if [ -e "$root" ] && [ ! -e "$root/.recipe" ]; then
  fail "$root is there and was not made by this script" "move it away, or name another folder in DOCKERIOS_SUBSTRATE_ROOT"
fi

missing=()
command -v unshare >/dev/null || missing+=(util-linux)
command -v mmdebstrap >/dev/null || missing+=(mmdebstrap)
[ -e "$keyring" ] || missing+=(debian-archive-keyring)
if [ ${#missing[@]} -gt 0 ]; then
  command -v apt-get >/dev/null ||
    fail "missing: ${missing[*]}, and there is no apt-get to install it with" "install it, or run this on Debian or Ubuntu"
  say "installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  { apt-get update -qq && apt-get install -qq -y --no-install-recommends "${missing[@]}"; } >/dev/null ||
    fail "apt-get could not install ${missing[*]}: its reasons stand above" "install them, then run this again"
fi

mirror=${DOCKERIOS_DEBIAN_MIRROR:-$(mirror_of_this_machine)}
began=$SECONDS
new=$root.new
rm -rf --one-file-system "$new"
trap 'rm -rf --one-file-system "$new"' EXIT
say "making $root from $mirror: $suite and its backports, ${packages//,/ }"
mmdebstrap --quiet --mode=root --variant=minbase --keyring="$keyring" --include="$packages" \
  --aptopt="APT::Default-Release \"$suite-backports\"" \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
  --dpkgopt='path-exclude=/usr/share/locale/*' \
  "$suite" "$new" "deb $mirror $suite main" "deb $mirror $suite-backports main" ||
  fail "mmdebstrap failed: its reasons stand above" \
    "if the archive cannot be reached, name another in DOCKERIOS_DEBIAN_MIRROR (now $mirror)"

libvirt=$(libvirt_of "$new")
dpkg --compare-versions "$libvirt" ge "$oldest_libvirt" ||
  fail "the archive has libvirt $libvirt, and bus='nvme' wants $oldest_libvirt or newer" \
    "use an archive whose $suite-backports is complete (DOCKERIOS_DEBIAN_MIRROR, now $mirror)"

printf '%s\n' "$recipe" >"$new/.recipe"
rm -rf --one-file-system "$root"
mv "$new" "$root"
say "done in $((SECONDS - began)) s: libvirt $libvirt, $(du -sm "$root" | cut -f1) MB"
