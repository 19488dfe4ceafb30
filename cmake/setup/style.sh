# SPDX-License-Identifier: Apache-2.0
# ./run format and ./run lint
cpp_files() { find accelerate launch examples tests bench \( -name '*.cpp' -o -name '*.hpp' \) 2>/dev/null | sort; }

format() {
  set_up_packages clang-format
  local how=(-i)
  [ "${1-}" != --check ] || how=(--dry-run --Werror)
  cpp_files | xargs clang-format "${how[@]}"
}

lint() {
  set_up "$packages_build $packages_test $packages_style"
  cmake --preset release -DACCELERATE_BUILD_TESTS=ON >&2
  format --check
  python3 cmake/setup/tidy.py build -j "$(jobs)" "$@"
}
