# SPDX-License-Identifier: Apache-2.0
# ./run format and ./run lint
cpp_files() { find accelerate launch examples tests bench \( -name '*.cpp' -o -name '*.hpp' \) 2>/dev/null | sort; }

format() {
  local how=(-i)
  case ${1-} in
    "") ;;
    --check) how=(--dry-run --Werror) ;;
    *) fail "format takes --check or nothing, not '$1'" ;;
  esac
  set_up_packages clang-format
  cpp_files | xargs clang-format "${how[@]}"
}

lint() {
  set_up "$packages_build $packages_test $packages_style"
  python3 cmake/setup/prose.py
  configure release -DACCELERATE_BUILD_TESTS=ON
  format --check
  python3 cmake/setup/tidy.py build -j "$(jobs)" "$@"
}
