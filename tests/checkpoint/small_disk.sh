#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# small_disk.sh PROGRAM FOLDER: runs checkpoint_faults on a file system of one megabyte and on a read-only one. Needs root.
set -euo pipefail
program=$1 folder=$2
[[ $EUID -eq 0 ]] || { echo "small_disk.sh: a file system of its own is mounted, which needs root"; exit 1; }
mkdir -p "$folder"
# Uses a separate mount namespace, so that nothing remains at the end.
unshare --mount bash -euo pipefail -c '
  mount -t tmpfs -o size=1m tmpfs "$1"
  "$0" "$1" full
  mount -o remount,ro "$1"
  "$0" "$1" read-only' "$program" "$folder"
rmdir "$folder"
