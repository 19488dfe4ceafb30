# SPDX-License-Identifier: Apache-2.0
# Configuring and building. A LibTorch source file takes up to 3 GB to compile: jobs by cores and by memory.
jobs() {
  local cores memory_gb
  cores=$(nproc)
  memory_gb=$(awk '/^MemAvailable/ {print int($2 / 1048576)}' /proc/meminfo 2>/dev/null || echo 8)
  local by_memory=$((memory_gb / 3))
  [ "$by_memory" -ge 1 ] || by_memory=1
  echo $((cores < by_memory ? cores : by_memory))
}

# configure <preset> [options for cmake]. The presets take ninja; where there is none, make. Asked late: set-up installs it.
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

# For a part of the tree: a first configure leaves tests out, so that nothing of theirs is needed; a build folder that has
# them keeps them.
configure_once() {
  [ -e build/CMakeCache.txt ] || configure release -DACCELERATE_BUILD_TESTS=OFF
}

# build_targets <names>: only these, in build/.
build_targets() {
  configure_once
  cmake --build build -j "$(jobs)" --target "$@" >&2
}
