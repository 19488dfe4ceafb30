# SPDX-License-Identifier: Apache-2.0
# ./run test [full | REGEX]
run_tests() {
  set_up "$packages_build $packages_test"
  need_test_python
  build_all release
  case ${1-} in
    "") test_in build -LE full ;;
    full) test_full ;;
    *) test_in build -R "$1" ;;
  esac
}

# test_in <build folder> <options for ctest>
test_in() {
  local folder=$1
  shift
  ctest --test-dir "$folder" -j "$(jobs)" --output-on-failure --no-tests=error "$@"
}
