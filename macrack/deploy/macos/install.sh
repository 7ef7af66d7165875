#!/bin/bash
# Installs MacRack on this Mac, as root, from the folder that holds the signed programs:
#
#   sudo ./install.sh --user macrack --bootstrap bootstrap.json [--programs DIR] [-- FLAGS OF macrack-agent run]
#   ./install.sh --dry-run …     prints every command and runs none
#
# It can be run again, for an upgrade: VMs that run are left alone, and the new agent adopts them.
# docs/host-preparation.md says what it does not do: making the user, turning on automatic login, FileVault.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

root=/Library/MacRack
daemon=/Library/LaunchDaemons/io.macrack.hostd.plist
user='' bootstrap='' programs=$here dry='' flags=()

die() { printf 'install.sh: %s\n' "$*" >&2; exit 1; }
usage() { sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2; }

while [ $# -gt 0 ]; do
  case $1 in
    --user) user=${2:?--user wants a name}; shift 2 ;;
    --bootstrap) bootstrap=${2:?--bootstrap wants a file}; shift 2 ;;
    --programs) programs=${2:?--programs wants a folder}; shift 2 ;;
    --dry-run) dry=1; shift ;;
    --) shift; flags=("$@"); break ;;
    *) usage ;;
  esac
done
[ -n "$user" ] && [ -n "$bootstrap" ] || usage

run() {
  if [ -n "$dry" ]; then printf '%q ' "$@"; echo; else "$@"; fi
}

# put FILE TEXT: the text becomes the file's content
put() {
  if [ -n "$dry" ]; then printf 'write %q\n%s\n' "$1" "$2"; else printf '%s\n' "$2" > "$1"; fi
}

for program in macrack-agent macrack-vm macrack-hostd; do
  [ -f "$programs/$program" ] || die "$programs/$program is not there: give --programs the folder of the package"
done
[ -f "$bootstrap" ] || die "$bootstrap is not there: print it with kubectl macrack enroll SERIAL -o FILE"
uid=$(id -u "$user" 2>/dev/null) || die "there is no user $user: make it in System Settings, Users & Groups"
[ "$uid" -ne 0 ] || die "the agent does not run as root: root starts no guests"
if [ -z "$dry" ]; then
  [ "$(uname -s)" = Darwin ] || die "this is no Mac"
  [ "$(id -u)" -eq 0 ] || die "run it with sudo"
  codesign --verify --strict "$programs/macrack-vm" || die "$programs/macrack-vm is not signed"
  codesign -d --entitlements - --xml "$programs/macrack-vm" 2>/dev/null | grep -q com.apple.security.virtualization \
    || die "$programs/macrack-vm lacks com.apple.security.virtualization: sign it as docs/host-preparation.md says"
fi
home=$(eval echo "~$user")
agent=$home/Library/LaunchAgents/io.macrack.agent.plist

# what root runs lies where only root writes; what the agent writes is its user's alone
run install -d -o root -g wheel -m 0755 "$root" "$root/bin" "$root/etc"
run install -d -o "$user" -m 0700 "$root/state" "$root/log"
for program in macrack-agent macrack-vm macrack-hostd; do
  # beside it and then in its place: a program that runs is not written into
  run install -o root -g wheel -m 0755 "$programs/$program" "$root/bin/$program.new"
  run mv -f "$root/bin/$program.new" "$root/bin/$program"
done
run install -o "$user" -m 0600 "$bootstrap" "$root/etc/bootstrap.json"
# goldens are of no use in an index or in a backup
run sudo -u "$user" touch "$root/state/.metadata_never_index"
run tmutil addexclusion -p "$root/state"

# guests get their addresses for ten minutes: a day's leases fill the /24 of the NAT
run defaults write /Library/Preferences/SystemConfiguration/com.apple.InternetSharing.default.plist \
  bootpd -dict DHCPLeaseTimeSecs -int 600
# a rack's Mac never sleeps, and comes back after a power cut
run pmset -a sleep 0 disksleep 0 displaysleep 10 autorestart 1

put "$daemon" "$(sed "s/@AGENT_UID@/$uid/" "$here/io.macrack.hostd.plist")"
run chown root:wheel "$daemon"
run chmod 0644 "$daemon"
plist=$(cat "$here/io.macrack.agent.plist")
for flag in ${flags[@]+"${flags[@]}"}; do
  escaped=$(printf '%s' "$flag" | sed 's/&/\&amp;/g; s/</\&lt;/g')
  plist="${plist%%</array>*}	<string>$escaped</string>
	</array>${plist#*</array>}"
done
# in folders of the user's, only as the user: root would follow a link that they, or who broke into the agent, left there
put "$root/etc/io.macrack.agent.plist" "$plist"
run chmod 0644 "$root/etc/io.macrack.agent.plist"
run sudo -u "$user" mkdir -p "$home/Library/LaunchAgents"
run sudo -u "$user" install -m 0644 "$root/etc/io.macrack.agent.plist" "$agent"

# bootout fails where nothing was loaded
run launchctl bootout system/io.macrack.hostd || true
run launchctl bootstrap system "$daemon"
run launchctl bootout "gui/$uid/io.macrack.agent" || true
if [ -z "$dry" ] && ! launchctl print "gui/$uid" >/dev/null 2>&1; then
  echo "$user is not logged in; the agent starts when it is: turn on automatic login and restart the Mac"
else
  run launchctl bootstrap "gui/$uid" "$agent"
fi
echo "installed; look with: sudo -u $user $root/bin/macrack-agent doctor --bootstrap $root/etc/bootstrap.json"
