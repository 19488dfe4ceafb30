# SPDX-License-Identifier: Apache-2.0
# Which Debian packages are needed, how to see that they are there, how they are installed.
packages_build="g++ cmake ninja-build ccache python3 libopenmpi-dev libpmix-dev libgloo-dev libcli11-dev
  nlohmann-json3-dev zlib1g-dev libxxhash-dev libyaml-cpp-dev libjpeg-dev libpng-dev"
packages_test="doctest-dev"
packages_style="clang-format clang-tidy-19"   # older ones do not read C++20 completely
packages_pages="doxygen chromium fonts-dejavu-core"   # tests of full: the reference, and the page of accelerate_report in a browser
packages_clang="clang-16"   # a test of full: a user's project compiled by another compiler
packages_hosts="iproute2 procps openssh-server slurmctld slurmd slurm-client munge"

# What a package gives: a command, a header or a Python module. Seen by what it gives and not by its name, so that
# another system, or a compiler of one's own, counts too.
declare -A package_provides=(
  [g++]="command c++" [cmake]="command cmake" [ninja-build]="command ninja" [ccache]="command ccache"
  [python3]="command python3" [python3-venv]="python ensurepip" [ca-certificates]="file /etc/ssl/certs/ca-certificates.crt"
  [libopenmpi-dev]="command mpicc" [libpmix-dev]="pkgfile pmix2/include/pmix.h" [libgloo-dev]="header gloo/rendezvous/store.h"
  [libcli11-dev]="header CLI/CLI.hpp" [nlohmann-json3-dev]="header nlohmann/json.hpp" [zlib1g-dev]="header zlib.h"
  [libxxhash-dev]="header xxhash.h"
  [libyaml-cpp-dev]="header yaml-cpp/yaml.h" [libjpeg-dev]="header jpeglib.h" [libpng-dev]="header png.h"
  [doctest-dev]="header doctest/doctest.h"
  [clang-format]="command clang-format" [clang-tidy-19]="command clang-tidy-19"
  [clang-16]="command clang++-16"
  [doxygen]="command doxygen" [chromium]="command chromium"
  [fonts-dejavu-core]="file /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf"
  [iproute2]="command ip" [procps]="command ps" [openssh-server]="command sshd" [slurmctld]="command slurmctld"
  [slurmd]="command slurmd" [slurm-client]="command srun" [munge]="command munged"
)
# Without these ./run build still builds: what they are for is left out, or takes longer.
packages_optional=" ninja-build ccache libopenmpi-dev libpmix-dev libgloo-dev libjpeg-dev libpng-dev "

# The packages among the arguments whose gift is not there.
list_missing_packages() {
  local package kind what headers=""
  for package in "$@"; do
    read -r kind what <<<"${package_provides[$package]}"
    case $kind in
      command) command -v "$what" >/dev/null || echo "$package" ;;
      python) python3 -c "import $what" 2>/dev/null || echo "$package" ;;
      file) [ -e "$what" ] || echo "$package" ;;
      pkgfile) compgen -G "/usr/lib/*/$what" >/dev/null || headers+="$package pmix.h"$'\n' ;;
      header) headers+="$package $what"$'\n' ;;
    esac
  done
  missing_headers <<<"$headers"
}

# Lines "package header" on stdin: one run of the preprocessor answers for all of them.
missing_headers() {
  local package header program="" all=""
  while read -r package header; do
    [ -n "$package" ] || continue
    program+=$'#if !__has_include(<'$header$'>)\nMISSING '$package$'\n#endif\n'
    all+="$package"$'\n'
  done
  [ -n "$all" ] || return 0
  if command -v c++ >/dev/null; then
    c++ -std=c++20 -E -x c++ - <<<"$program" | sed -n 's/^MISSING //p'
  else
    printf %s "$all"
  fi
}

# set_up_packages "<names>": installs those that are missing, or says what is needed and ends.
set_up_packages() {
  local missing
  # shellcheck disable=SC2086  # a list of words
  missing=$(list_missing_packages $1 | sort -u | tr '\n' ' ')
  missing=${missing% }
  [ -n "$missing" ] || return 0
  if command -v apt-get >/dev/null; then
    install_debian "$missing"
  else
    without_apt "$missing"
  fi
}

install_debian() {
  local line="apt-get install -y --no-install-recommends $1" as=() log=${TMPDIR:-/tmp}/accelerate-run-apt-$UID.log
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "these Debian packages are missing; as root: $line"
    as=(sudo)
  fi
  log_line "installs Debian packages into the system: $1"
  # shellcheck disable=SC2086
  { quietly "$log" "${as[@]}" apt-get update -qq &&
    quietly "$log" "${as[@]}" env DEBIAN_FRONTEND=noninteractive $line -qq -o DPkg::Lock::Timeout=600; } ||
    fail "these Debian packages are missing; as root: $line"
}

# install_without_services "<names>": as set_up_packages, but no service that comes with them runs, now or after a boot: tests
# start their own. Without root nothing is installed, because those tests need root and say so themselves.
policy=/usr/sbin/policy-rc.d   # Debian asks it before it starts a service
install_without_services() {
  local missing denied=no service
  [ "$(id -u)" -eq 0 ] || return 0
  # shellcheck disable=SC2086  # a list of words
  missing=$(list_missing_packages $1)
  [ -n "$missing" ] || return 0
  [ -e "$policy" ] || {
    denied=yes
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
  }
  (set_up_packages "$1") || { [ $denied = no ] || rm -f "$policy"; return 1; }
  [ $denied = no ] || rm -f "$policy"
  for service in $missing; do
    service=${service/openssh-server/ssh}   # most of them have none
    ignore_failure update-rc.d "$service" disable
    ignore_failure deb-systemd-helper disable "$service.service"   # works where no systemd runs, as in a container
    ignore_failure deb-systemd-helper disable "$service.socket"    # Ubuntu's sshd
  done
}

ignore_failure() { "$@" >/dev/null 2>&1 || true; }

without_apt() {
  local package needed="" wanted=""
  for package in $1; do
    if [[ $packages_optional == *" $package "* ]]; then
      wanted+=" $package (${package_provides[$package]#* }),"
    else
      needed+=" $package (${package_provides[$package]#* }),"
    fi
  done
  [ -z "$wanted" ] || log_line "not Debian or Ubuntu; goes on without, by their Debian names:${wanted%,}"
  [ -z "$needed" ] || fail "not Debian or Ubuntu; please install what gives, by their Debian names:${needed%,}"
}
