#!/bin/sh
# Installs the agent into the macOS system it is run on, without a package: once, as root, in the golden image.
# usage: sudo ./install.sh [path of dockerios-guest]
set -eu
# CDPATH would lead elsewhere, and speak
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
binary=${1:-$here/dockerios-guest}
[ "$(uname -s)" = Darwin ] || { echo "install.sh: this is no macOS; run it in the guest" >&2; exit 1; }
[ "$(id -u)" = 0 ] || { echo "install.sh: needs root; run it with sudo" >&2; exit 1; }
[ -f "$binary" ] || { echo "install.sh: $binary: no such file; build the agent and name it" >&2; exit 1; }
case $binary in -*) binary=./$binary ;; esac

label=io.dockerios.guest
install -d -o root -g wheel -m 755 /usr/local/libexec /usr/local/lib/dockerios /usr/local/lib/dockerios/ready.d
install -o root -g wheel -m 755 "$binary" /usr/local/libexec/dockerios-guest
install -o root -g wheel -m 644 "$here/$label.plist" "/Library/LaunchDaemons/$label.plist"
"$here/scripts/postinstall" "" "" /
echo "installed; log: /var/log/dockerios-guest.log"
