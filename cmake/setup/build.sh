# SPDX-License-Identifier: Apache-2.0
# Configuring and building. A LibTorch source file takes up to 1.5 GB to compile: jobs by cores and by memory.
jobs() {
  local cores memory_gb
  cores=$(nproc)
  memory_gb=$(awk '/^MemAvailable/ {print int($2 / 1048576)}' /proc/meminfo 2>/dev/null || echo 8)
  local by_memory=$((memory_gb / 2))
  [ "$by_memory" -ge 1 ] || by_memory=1
  echo $((cores < by_memory ? cores : by_memory))
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
  local folder=$1 preset=$2
  shift 2
  cmake --preset "$preset" -B "$folder" -DACCELERATE_BUILD_TESTS=ON "$@" >&2
  cmake --build "$folder" -j "$(jobs)" >&2
}

# For a part of the tree: a first configure leaves tests out, so that nothing of theirs is needed; a build folder that has
# them keeps them.
configure_once() {
  [ -e build/build.ninja ] || cmake --preset release -DACCELERATE_BUILD_TESTS=OFF >&2
}

# build_targets <names>: only these, in build/.
build_targets() {
  configure_once
  cmake --build build -j "$(jobs)" --target "$@" >&2
}
