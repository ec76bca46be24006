#!/usr/bin/env bash
# Submits a session and prints its texts, each once and in order, whatever dies in between.
#
#   subscriber.sh PROFILE [ARGUMENT ...]
#
# Needs busctl (systemd), jq, and gdbus (GLib) to listen: busctl monitor is not told by every bus when a service comes
# and goes. Transport: the session bus, or what DBUS_SESSION_BUS_ADDRESS names. busctl takes no descriptor (Follow) and
# is gone after each call (Subscribe), so this reads pages: signals say that there may be more, the cursor what is new.
set -euo pipefail
name=org.airouter.Sessions1 object=/org/airouter/Sessions1
run=$(</proc/sys/kernel/random/uuid) cursor=start
profile=$1 && shift

ask() { busctl --user --json=short call "$name" "$object" "$name" "$@"; }

# Prints what is new. A call that fails changes nothing: the service is away, and gdbus tells when it is back.
show() {
  local page
  while page=$(ask Events ssu "$run" "$cursor" 0); do
    jq -r '.data[2][] | select(.[2] == "response-completed") | .[3].text.data' <<<"$page"
    cursor=$(jq -r '.data[0]' <<<"$page")
    if jq -e 'any(.data[2][]; .[2] == "ended")' <<<"$page" >/dev/null; then exit; fi
    if jq -e '.data[1] | not' <<<"$page" >/dev/null; then return; fi
  done
}

ask Submit 'a{sv}' 4 version s airouter.sessions.v1 binding 'a{sv}' 1 run_id s "$run" \
  profile s "$profile" arguments as $# "$@" >/dev/null
trap 'kill "$listener" 2>/dev/null || true' EXIT
while true; do
  exec 3< <(exec gdbus monitor --session --dest "$name" 2>/dev/null)
  listener=$!
  while read -r -u 3 line; do
    # The service is there, now or again; or there is something about our session.
    case $line in *' is owned by '* | *"$run"*) show ;; esac
  done
  sleep 0.5 # the bus is gone, and nobody tells when it is there again
done
