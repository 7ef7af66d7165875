#!/bin/sh
# Lays out the installer package of the agent, on any system, and builds it where pkgbuild is: on a Mac.
# usage: package.sh PATH-OF-dockerios-guest VERSION DIRECTORY
# makes DIRECTORY/root, what is installed below /; DIRECTORY/scripts; on a Mac DIRECTORY/dockerios-guest-VERSION.pkg
set -eu
# CDPATH would lead elsewhere, and speak
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
fail() { echo "package.sh: $*" >&2; exit 1; }
[ $# = 3 ] || fail "usage: package.sh PATH-OF-dockerios-guest VERSION DIRECTORY"
binary=$1 version=$2 directory=$3
[ -f "$binary" ] || fail "$binary: no such file; build the agent and name it"
# a program of another system, or a download that is a web page, would be found out by launchd alone, in each machine
[ -r "$binary" ] || fail "$binary: cannot be read"
magic=$(od -An -tx1 -N4 <"$binary" | tr -d ' \n')
case $magic in
cffaedfe | cafebabe) ;;
*) fail "$binary: no program of macOS: it begins with '$magic', a Mach-O with cffaedfe (or cafebabe for more than one" \
    "processor); build the agent for x86_64-apple-darwin" ;;
esac
case $version in *[!0-9.]* | '' | .* | *.) fail "$version: no version; write numbers with dots, such as 0.1.0" ;; esac
# what lies in either of them already would get into the package, and run as root
for taken in root scripts; do
    [ ! -e "$directory/$taken" ] && [ ! -L "$directory/$taken" ] || fail "$directory/$taken is there already; name a new directory"
done
case $directory in -*) directory=./$directory ;; esac
case $binary in -*) binary=./$binary ;; esac

label=io.dockerios.guest
root=$directory/root
install -d -m 755 "$root/usr/local/libexec" "$root/usr/local/lib/dockerios/ready.d" "$root/Library/LaunchDaemons" \
    "$directory/scripts"
install -m 755 "$binary" "$root/usr/local/libexec/dockerios-guest"
install -m 644 "$here/$label.plist" "$root/Library/LaunchDaemons/$label.plist"
install -m 755 "$here/scripts/postinstall" "$directory/scripts/postinstall"

package=$directory/dockerios-guest-$version.pkg
# ownership "recommended" makes root:wheel of everything, whoever builds
set -- --root "$root" --scripts "$directory/scripts" --identifier "$label" --version "$version" \
    --install-location / --ownership recommended "$package"
if command -v pkgbuild >/dev/null; then
    pkgbuild "$@"
else
    command=pkgbuild
    for word in "$@"; do
        case $word in
        *[!A-Za-z0-9_./-]*) word="'$(printf %s "$word" | sed "s/'/'\\\\''/g")'" ;;
        esac
        command="$command $word"
    done
    printf 'laid out, not built: there is no pkgbuild here. On a Mac: %s\n' "$command"
fi
