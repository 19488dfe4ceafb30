# SPDX-License-Identifier: Apache-2.0
# ./run test [full | REGEX]
run_tests() {
  set_up "$packages_build $packages_test"
  [[ ${1-} != full ]] || set_up_packages "$packages_pages"
  need_test_python
  local strict=OFF
  [[ ${1-} != full ]] || strict=ON
  build_all release "-DACCELERATE_TEST_PYTHON=$venv/bin/python" "-DCMAKE_COMPILE_WARNING_AS_ERROR=$strict"
  case ${1-} in
    "") test_in build -LE full ;;
    full)
      set_up_idle_services "$packages_hosts"
      test_full
      ;;
    *) test_in build -R "$1" ;;
  esac
}

# test_in <build folder> <options for ctest>. Tests wait for each other's ranks and for time limits: half as many again as there are cores.
test_in() {
  local folder=$1
  shift
  ctest --test-dir "$folder" -j "$(($(jobs) * 3 / 2))" --output-on-failure --no-tests=error "$@"
}

# Everything: what takes long, the sanitizers, and a build without each part; warnings are errors. A part that fails does not
# stop the rest.
test_full() {
  full_failed=""
  part "every test" test_in build
  part "address and undefined sanitizers" test_asan
  part "thread sanitizer" test_tsan
  # Of the tests what has nothing to do with these parts comes out of ccache; the library is compiled with other folders of headers.
  part "without MPI, JPEG and PNG" test_without MPI JPEG PNG
  # Compiles every source file of the library by itself, so that each goes on including what it uses; gloo's and CUDA's are
  # compiled so in every build. What runs in one process is the same without gloo.
  part "without gloo and CUDA" test_without GLOO CUDA -DCMAKE_UNITY_BUILD=OFF -DACCELERATE_UNITY_TESTS=ON -DACCELERATE_PRECOMPILE=ON \
    "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG" -DACCELERATE_TEST_UNITS=OFF
  [ -z "$full_failed" ] || fail "full: failed:${full_failed%,}"
  say "full: all parts passed"
}

# part <name> <command>: runs it in a shell of its own, so that its first failing line ends it and not the whole.
part() {
  local name=$1 status=0
  shift
  say "full: $name"
  set +e
  (
    set -e
    "$@"
  )
  status=$?
  set -e
  [ $status -eq 0 ] || full_failed+=" $name,"
}

# Set-up, consumers and benches are the same in every build.
not_again='^(setup|consumer)/'

test_asan() {
  build_all asan
  local leaks=$PWD/tests/setup/lsan.supp
  export ASAN_OPTIONS=detect_odr_violation=0 LSAN_OPTIONS="suppressions=$leaks:print_suppressions=0"
  test_in build-asan -LE full -E "$not_again"
  test_in build-asan -R mutated_files.60s
}

# Where threads of ours meet; not what runs inside autograd or MPI, which are not instrumented, so no ranks as processes, and
# not what LibTorch's reference counts hand over from thread to thread (batch_memory, cache) or what counts memory (npy).
tsan_tests='^(base|env|launch)/|^data/|threads|worker|completable_work'
tsan_not='\.(mpi|gloo)$|\.(mpi|gloo)\.|data/batch_memory_test|combinators/cache_test|sources/npy_test|shard_cases|mutated_files|examples/'

test_tsan() {
  configure_in build-tsan tsan
  cmake --build build-tsan -j "$(jobs)" --target plain_tests unit_tests accelerate_launch >&2
  # GCC 12's thread sanitizer cannot live with as much address randomisation as new kernels do.
  TSAN_OPTIONS=ignore_noninstrumented_modules=1 \
    setarch "$(uname -m)" -R ctest --test-dir build-tsan -j "$(jobs)" --output-on-failure -LE full -R "$tsan_tests" -E "$tsan_not"
}

# test_without <MPI|GLOO|CUDA ... or an option for CMake>: the tests that still apply are those that this configuration has.
test_without() {
  local folder=build-no part options=()
  for part; do
    if [[ $part == -* ]]; then
      options+=("$part")
      continue
    fi
    folder+=-${part,,}
    options+=("-DACCELERATE_WITH_$part=OFF")
  done
  build_in "$folder" release "${options[@]}" -DCMAKE_COMPILE_WARNING_AS_ERROR=ON
  test_in "$folder" -LE full -E "$not_again"
}
