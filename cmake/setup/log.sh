# SPDX-License-Identifier: Apache-2.0
# Log lines of ./run, on stderr.
log_line() { echo "run: $*" >&2; }

fail() {
  log_line "$@"
  exit 1
}

# quietly <log> <command...>: writes the output to the log, and prints its last lines if the command fails.
quietly() {
  local log=$1
  shift
  mkdir -p "$(dirname "$log")"
  "$@" >"$log" 2>&1 || {
    local status=$?
    tail -n 25 "$log" >&2
    log_line "failed with $status: $*; all of its output is in $log"
    return $status
  }
}
