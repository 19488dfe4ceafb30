# SPDX-License-Identifier: Apache-2.0
# The required Debian packages, the check that they are installed, and their installation.
packages_build="g++ cmake ninja-build ccache python3 libopenmpi-dev libpmix-dev libgloo-dev libcli11-dev
  nlohmann-json3-dev zlib1g-dev libxxhash-dev libyaml-cpp-dev libjpeg-dev libpng-dev"
packages_test="doctest-dev git"
packages_style="clang-format clang-tidy-19 git"   # older versions do not support C++20 completely
packages_pages="doxygen chromium fonts-dejavu-core"   # for ./run test full: the API reference, and accelerate_report's page in a browser
packages_clang="clang-16"   # for ./run test full: a user's project compiled with clang
packages_loader="ffmpeg"   # for ./run bench loader: the libraries with which SPDL decodes images
packages_hosts="iproute2 procps openssh-server slurmctld slurmd slurm-client munge"

# A package provides a command, a header or a Python module. The check looks for these and not for the package, so it also
# works on other systems and with a compiler from another source.
declare -A package_provides=(
  [g++]="command c++" [cmake]="command cmake" [ninja-build]="command ninja" [ccache]="command ccache"
  [python3]="command python3" [python3-venv]="python ensurepip" [ca-certificates]="file /etc/ssl/certs/ca-certificates.crt"
  [libopenmpi-dev]="command mpicc" [libpmix-dev]="pkgfile pmix2/include/pmix.h" [libgloo-dev]="header gloo/rendezvous/store.h"
  [libcli11-dev]="header CLI/CLI.hpp" [nlohmann-json3-dev]="header nlohmann/json.hpp" [zlib1g-dev]="header zlib.h"
  [libxxhash-dev]="header xxhash.h"
  [libyaml-cpp-dev]="header yaml-cpp/yaml.h" [libjpeg-dev]="header jpeglib.h" [libpng-dev]="header png.h"
  [doctest-dev]="header doctest/doctest.h" [git]="command git"
  [clang-format]="command clang-format" [clang-tidy-19]="command clang-tidy-19"
  [clang-16]="command clang++-16"
  [doxygen]="command doxygen" [chromium]="command chromium"
  [fonts-dejavu-core]="file /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf"
  [ffmpeg]="command ffmpeg"
  [iproute2]="command ip" [procps]="command ps" [openssh-server]="command sshd" [slurmctld]="command slurmctld"
  [slurmd]="command slurmd" [slurm-client]="command srun" [munge]="command munged"
)
# ./run build also works without these packages. Their features are then missing, or the build takes longer.
packages_optional=" ninja-build ccache libopenmpi-dev libpmix-dev libgloo-dev libjpeg-dev libpng-dev "

# Prints those of the given packages that are not installed.
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

# Reads lines "package header" from stdin and prints the packages with a missing header. One run of the preprocessor checks
# all headers.
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

# set_up_packages "<names>": installs the missing packages, or prints their names and exits.
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

# install_without_services "<names>": like set_up_packages, but services of the packages are neither started nor enabled,
# because the tests start their own. Without root nothing is installed: these tests need root, and fail with that reason.
policy=/usr/sbin/policy-rc.d   # Debian runs it before it starts a service
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
    service=${service/openssh-server/ssh}   # most packages have no service
    ignore_failure update-rc.d "$service" disable
    ignore_failure deb-systemd-helper disable "$service.service"   # also works without systemd, as in a container
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
  [ -z "$wanted" ] || log_line "not Debian or Ubuntu; continues without these packages of Debian:${wanted%,}"
  [ -z "$needed" ] || fail "not Debian or Ubuntu; install the equivalents of these packages of Debian:${needed%,}"
}
