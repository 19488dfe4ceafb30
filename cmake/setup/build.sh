# SPDX-License-Identifier: Apache-2.0
# Configuring and building. A source file with LibTorch's headers needs up to 3 GB to compile, so the number of jobs is
# limited by cores and by memory.
jobs() {
  local cores memory_gb
  cores=$(nproc)
  memory_gb=$(awk '/^MemAvailable/ {print int($2 / 1048576)}' /proc/meminfo 2>/dev/null || echo 8)
  local by_memory=$((memory_gb / 3))
  [ "$by_memory" -ge 1 ] || by_memory=1
  echo $((cores < by_memory ? cores : by_memory))
}

# configure <preset> [options for cmake]. The presets use ninja; without ninja, make is used. The check is here and not at
# the start, because set-up installs ninja.
configure() {
  local preset=$1 generator=()
  shift
  command -v ninja >/dev/null || generator=(-G "Unix Makefiles")
  cmake --preset "$preset" "${generator[@]}" "$@" >&2
}

# build_all [preset] [options for cmake]
build_all() {
  local preset=release
  if [ $# -gt 0 ] && [[ $1 != -* ]]; then
    preset=$1
    shift
  fi
  local folder=build
  [ "$preset" = release ] || folder=build-$preset
  build_in "$folder" "$preset" "$@"
}

# build_in <folder> <preset> [options for cmake]
build_in() {
  configure_in "$@"
  cmake --build "$1" -j "$(jobs)" >&2
}

# configure_in <folder> <preset> [options for cmake]
configure_in() {
  local folder=$1 preset=$2
  shift 2
  case $preset in
    release | debug | asan | tsan) ;;
    *) fail "there is no preset '$preset'; there are release, debug, asan and tsan" ;;
  esac
  configure "$preset" -B "$folder" -DACCELERATE_BUILD_TESTS=ON "$@"
}

# For a build of a few targets: a new build folder is configured without tests, so that their dependencies are not needed.
# An existing build folder keeps its configuration.
configure_once() {
  [ -e build/CMakeCache.txt ] || configure release -DACCELERATE_BUILD_TESTS=OFF
}

# build_targets <names>: builds only these targets, in build/.
build_targets() {
  configure_once
  cmake --build build -j "$(jobs)" --target "$@" >&2
}
