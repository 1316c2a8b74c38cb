"""ssh: a script that copies the bundle to every node, checks them, starts them side by side and ends them together."""

from __future__ import annotations

from crosszone.deploy.launch import Launch
from crosszone.deploy.launchers import make_job_name
from crosszone.deploy.shell import format_comment, quote_word
from crosszone.text import label

NEEDS_ADDRESSES = True
START_FILE = "start-ssh.sh"
STOP_FILE = "stop-ssh.sh"
NODES_FILE = "ssh-nodes.sh"


def build_files(launch: Launch) -> dict[str, str]:
    """The list of nodes with what both scripts do, and the two scripts."""
    language, bash = launch.language, "#!/usr/bin/env bash"
    return {
        NODES_FILE: "\n".join(
            [format_comment(label("bundle_ssh_nodes", language)), *_render_nodes(launch), _NODES_SCRIPT]
        ),
        START_FILE: "\n".join([bash, format_comment(label("bundle_ssh_start", language)), _START_SCRIPT]),
        STOP_FILE: "\n".join([bash, format_comment(label("bundle_ssh_stop", language)), _STOP_SCRIPT]),
    }


def list_start_commands(launch: Launch) -> tuple[str, ...]:
    """Try it with a tiny model, train, stop."""
    tiny = () if launch.framework == "megatron" else (f"bash {START_FILE} --tiny --steps 5",)
    return (*tiny, f"bash {START_FILE}", f"bash {STOP_FILE}    # from another terminal")


def _render_nodes(launch: Launch) -> list[str]:
    """Variables of the scripts. What a remote shell reads is quoted twice: once for each shell."""
    settings = launch.settings
    login = ["-p", settings.ssh_port, *(["-l", settings.user] if settings.user else [])]
    return [
        "# shellcheck shell=bash disable=SC2034",
        f"name={quote_word(make_job_name(launch))}",
        f"folder={quote_word(quote_word(settings.workdir))}    # on the nodes, quoted for their shells",
        f"python={quote_word(quote_word(settings.python or 'python3'))}",
        f"login=({' '.join(map(quote_word, login))})",
        "addresses=(",
        *(f"  {quote_word(node.address or 'localhost')}" for node in launch.nodes),
        ")",
    ]


_NODES_SCRIPT = r"""
# Keys only, never a question. A host key that is not known yet is stored (accept-new); one that changed is refused.
# To insist on known keys, or for a key file or a jump host:
#   CROSSZONE_SSH="-o StrictHostKeyChecking=yes -i KEY -J HOST" bash start-ssh.sh
read -ra extra <<<"${CROSSZONE_SSH:-}"
options=("${extra[@]}" "${login[@]}" -o BatchMode=yes -o StrictHostKeyChecking=accept-new
  -o ConnectTimeout=15 -o ServerAliveInterval=15 -o ServerAliveCountMax=4)

# remote NODE COMMAND: runs a command in the bundle's folder of a node.
remote() { ssh "${options[@]}" -- "${addresses[$1]}" "mkdir -p -- $folder && cd -- $folder || exit 1; $2"; }

# each FUNCTION: runs it for all nodes side by side, each line of output marked; fails if one of them fails.
each() {
  local node number started=() failed=0
  for node in "${!addresses[@]}"; do
    number=$(printf %03d "$node")
    { "$1" "$node" "$number" 2>&1 | sed -u "s/^/[$number] /"; } &
    started+=($!)
  done
  for node in "${!started[@]}"; do
    wait "${started[$node]}" || { failed=$?; echo "[$(printf %03d "$node")] $1 failed ($failed)" >&2; }
  done
  return "$failed"
}

# Each node writes the number of its process group into a file. A number may come to belong to others later, so it
# counts only while the group's leader carries the node's mark.
file() { echo ".crosszone-$1.pid"; }
mark() { echo "$name-node-$1"; }
runs() { echo "tr '\\0' '\\n' <\"/proc/\$(cat $(file "$1"))/cmdline\" 2>/dev/null | grep -qx $(mark "$1")"; }
ending() {
  echo "test -s $(file "$1") || exit 0; if $(runs "$1"); then echo ending; group=\$(cat $(file "$1")); \
kill -TERM -- \"-\$group\"; for _ in 1 2 3 4 5 6 7 8 9 10; do \
kill -0 -- \"-\$group\" 2>/dev/null || break; sleep 1; done; \
kill -KILL -- \"-\$group\" 2>/dev/null; fi; rm -f $(file "$1")"
}
"""

_STOP_SCRIPT = r"""# shellcheck disable=SC2154
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
# shellcheck source=/dev/null
. ./ssh-nodes.sh

stop() { remote "$1" "$(ending "$2")"; }
each stop
"""

_START_SCRIPT = r"""# shellcheck disable=SC2154
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
# shellcheck source=/dev/null
. ./ssh-nodes.sh

copying=1 checking=1
while :; do
  case "${1:-}" in
    --no-copy) copying="" ;;
    --no-verify) checking="" ;;
    *) break ;;
  esac
  shift
done
case "${addresses[*]}" in *@*)
  echo "This bundle is a template: write the addresses into hosts.txt, then run: python3 fill.py hosts.txt" >&2
  exit 2
  ;;
esac

# Arguments go through the shell of the node: each is put in quotes.
arguments=""
for word in "$@"; do arguments+=" '${word//\'/\'\\\'\'}'"; done

# Nodes that share a folder write the same files, so none is removed before it is written; a folder that shows what was
# just written here is this very one, and needs no copy.
here="$$-$RANDOM$RANDOM"
copy() {
  tar -czf - --exclude='./.crosszone-*' --exclude=./out . | remote "$1" "\
if test \"\$(cat .crosszone-here 2>/dev/null)\" = $here; then cat >/dev/null; else tar -xzf - --overwrite; fi"
}
idle() {
  remote "$1" "if test -s $(file "$2") && $(runs "$2"); then echo 'runs already; bash stop-ssh.sh ends it'; exit 3; fi"
}
verify() { remote "$1" "$python verify.py --node $2"; }

# The node's processes are a group of their own, led by a shell that carries the node's mark and outlives a TERM.
run() {
  local leader="trap : TERM INT HUP; bash nodes/$2.sh \"\$@\"; exit"
  remote "$1" "setsid bash -c '$leader' $(mark "$2")$arguments </dev/null & \
echo \$! >$(file "$2"); wait \$!; code=\$?; rm -f $(file "$2"); exit \$code"
}

each idle
if [ -n "$copying" ]; then
  echo "$here" >.crosszone-here
  trap 'rm -f .crosszone-here' EXIT
  each copy
fi
if [ -n "$checking" ]; then each verify; fi

# Every node reports its end here, so that the first failure ends the others.
reports=$(mktemp -d)
mkfifo "$reports/ends"
exec 3<>"$reports/ends"
finish() {
  local code=$?
  trap - EXIT INT TERM
  # A node may be just about to start when the others are ended, so this goes on until none is left.
  for _ in 1 2 3 4 5; do
    [ -n "$(jobs -r)" ] || break
    bash stop-ssh.sh || true
    sleep 1
  done
  [ -z "$(jobs -r)" ] || echo "some nodes may still run: bash stop-ssh.sh" >&2
  rm -rf "$reports" .crosszone-here
  exit "$code"
}
running=0
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

for node in "${!addresses[@]}"; do
  number=$(printf %03d "$node")
  { code=0; run "$node" "$number" 2>&1 | sed -u "s/^/[$number] /" || code=$?; echo "$number $code" >&3; } &
  running=$((running + 1))
done
while [ "$running" -gt 0 ]; do
  read -r number code <&3
  running=$((running - 1))
  if [ "$code" -ne 0 ]; then
    echo "node $number failed ($code); the others are ended" >&2
    exit "$code"
  fi
done
echo "all ${#addresses[@]} nodes finished"
"""
