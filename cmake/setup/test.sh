# SPDX-License-Identifier: Apache-2.0
# ./run test [full [PART ...] | REGEX]
run_tests() {
  [[ ${1-} != full ]] || check_parts "${@:2}"
  set_up "$packages_build $packages_test"
  [[ ${1-} != full ]] || set_up_packages "$packages_pages $packages_clang"
  need_test_python
  local strict=OFF benches=()
  [[ ${1-} != full ]] || { strict=ON && benches=(-DACCELERATE_BUILD_BENCHES=ON); }   # bench/gpu_test needs bench_gpu
  [[ ${1-} == full && $# -gt 1 && " $* " != *" release "* ]] ||
    build_all release "-DACCELERATE_TEST_PYTHON=$venv/bin/python" "-DCMAKE_COMPILE_WARNING_AS_ERROR=$strict" "${benches[@]}"
  case ${1-} in
    "") test_in build -LE full ;;
    full)
      install_without_services "$packages_hosts"
      test_full "${@:2}"
      ;;
    *) test_in build -R "$1" ;;
  esac
}

# test_in <build folder> <options for ctest>. Tests often wait for ranks and timeouts, so 1.5 tests per core run at a time.
test_in() {
  local folder=$1
  shift
  ctest --test-dir "$folder" -j "$(($(jobs) * 3 / 2))" --output-on-failure --no-tests=error "$@"
}

# All tests, also long ones, with sanitizers, and in builds without optional parts. Warnings are errors.
full_parts=(release asan tsan without_mpi_jpeg_png without_gloo_cuda libtorch_2_15)
declare -A full_name=(
  [release]="every test" [asan]="address and undefined sanitizers" [tsan]="thread sanitizer"
  [without_mpi_jpeg_png]="without MPI, JPEG and PNG" [without_gloo_cuda]="without gloo and CUDA"
  [libtorch_2_15]="LibTorch 2.15.0"
)

check_parts() {
  local part
  for part; do
    [[ -n ${full_name[$part]-} ]] || fail "full has no part '$part'; its parts are ${full_parts[*]}"
  done
}

# test_full [PART ...]: each part has the functions build_<part> and test_<part>. If a part fails, the other parts still run.
test_full() {
  local failed="" part i status parts=("$@")
  [[ $# -gt 0 ]] || parts=("${full_parts[@]}")
  for ((i = 0; i < ${#parts[@]}; i++)); do
    part=${parts[i]}
    log_line "full: ${full_name[$part]}"
    run_in_subshell "build_$part"
    if [ $status -eq 0 ]; then
      build_next_parts "${parts[@]:i+1}"
      run_in_subshell "test_$part"
      stop_compiling
    fi
    [ $status -eq 0 ] || failed+=" ${full_name[$part]},"
  done
  [ -z "$failed" ] || fail "full: failed:${failed%,}"
  [[ $# -eq 0 ]] && log_line "full: all parts passed" || log_line "full: passed: $*"
}

# run_in_subshell <command>: runs the command in a subshell, which ends at the first failing line. $status is its exit code.
# Do not call it in an `if`, where bash continues after a failing line.
run_in_subshell() {
  set +e
  (
    set -e
    "$1"
  )
  status=$?
  set -e
}

# build_next_parts <parts>: builds the next parts one after another in the background with idle priority, because running
# tests mostly wait. A failure is ignored here, because the part itself builds again and reports it.
build_next_parts() {
  set -m   # a separate process group, which can be stopped as a whole
  (
    chrt --idle --pid 0 "$BASHPID"
    for part; do run_in_subshell "build_$part"; done
  ) </dev/null >/dev/null 2>&1 &
  ahead=$!
  set +m
  trap stop_compiling EXIT   # Ctrl-C does not signal that group
}

stop_compiling() {
  trap - EXIT
  kill -TERM -- "-$ahead" 2>/dev/null || true
  wait "$ahead" 2>/dev/null || true
}

# run_tests() has already built it.
build_release() { :; }
test_release() { test_in build; }

# Tests of set-up, consumers and benches do not depend on the build.
not_again='^(setup|consumer)/'

# The examples take a quarter of the build, and other tests cover the headers that they use.
build_asan() { build_all asan -DACCELERATE_BUILD_EXAMPLES=OFF; }
test_asan() {
  local leaks=$PWD/tests/setup/lsan.supp
  export ASAN_OPTIONS=detect_odr_violation=0 LSAN_OPTIONS="suppressions=$leaks:print_suppressions=0"
  test_in build-asan -LE full -E "$not_again"
  test_in build-asan -R mutated_files.60s
}

# Tests in which threads of this library synchronise. Excluded are tests with code of autograd or MPI, which is not
# instrumented (all ranks as processes), objects that LibTorch's reference counts pass between threads (batch_buffer_pool,
# cache), and tests that measure memory (npy).
tsan_tests='^(base|env|launch)/|^data/|threads|worker|completable_work|local_mailbox'
tsan_not='\.(mpi|gloo)$|\.(mpi|gloo)\.|data/batch_buffer_pool_test|combinators/cache_test|sources/npy_test|shard_cases|mutated_files|examples/'

build_tsan() {
  configure_in build-tsan tsan
  cmake --build build-tsan -j "$(jobs)" --target plain_tests unit_tests accelerate_launch >&2
}
test_tsan() {
  # GCC 12's thread sanitizer fails with the address randomisation of new kernels. By default each process sleeps one second
  # at its end, which is the whole time limit of some launcher tests.
  TSAN_OPTIONS=ignore_noninstrumented_modules=1:atexit_sleep_ms=50 \
    setarch "$(uname -m)" -R ctest --test-dir build-tsan -j "$(jobs)" --output-on-failure -LE full -R "$tsan_tests" -E "$tsan_not"
}

# ccache has the objects of tests that do not depend on these parts. The library is compiled again, because its include
# folders differ.
build_without_mpi_jpeg_png() { build_without MPI JPEG PNG; }
test_without_mpi_jpeg_png() { test_without MPI JPEG PNG; }

# Compiles every source file of the library separately, which detects missing includes. The files for gloo and CUDA are
# compiled separately in every build. Tests in one process do not depend on gloo and are left out.
build_without_gloo_cuda() {
  build_without GLOO CUDA -DCMAKE_UNITY_BUILD=OFF -DACCELERATE_TEST_UNITY_BUILD=ON -DACCELERATE_PRECOMPILE_HEADERS=ON \
    "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG -Wno-maybe-uninitialized" -DACCELERATE_TEST_LIBTORCH=OFF
}
test_without_gloo_cuda() { test_without GLOO CUDA; }

# build_without <MPI|GLOO|CUDA ... or an option for CMake>
build_without() {
  local part options=()
  for part; do
    [[ $part == -* ]] && options+=("$part") || options+=("-DACCELERATE_WITH_$part=OFF")
  done
  build_in "$(folder_without "$@")" release "${options[@]}" -DCMAKE_COMPILE_WARNING_AS_ERROR=ON
}

# This configuration contains only the tests that apply without the omitted parts.
test_without() { test_in "$(folder_without "$@")" -LE full -E "$not_again"; }

folder_without() {
  local folder=build-no part
  for part; do
    [[ $part == -* ]] || folder+=-${part,,}
  done
  echo "$folder"
}

# The newest supported LibTorch: builds the library and mnist, and runs the quick tests of the components that use LibTorch.
# Comparisons with Python use the torch of the other environment.
newest_tests='^(base|env|archive|tree|precision|data|gradient|nn|optim|sharding|job|checkpoint|comm|device|prepared|accelerator)/.*_test(\.(mpi|gloo)\.[0-9]+)?$'

build_libtorch_2_15() {
  make_newest_venv
  configure_in build-libtorch-2.15 release "-DTorch_DIR=$(newest_libtorch)/share/cmake/Torch" "-DACCELERATE_TEST_PYTHON=$venv/bin/python"
  cmake --build build-libtorch-2.15 -j "$(jobs)" --target accelerate accelerate_launch mnist plain_tests unit_tests rank_tests >&2
}
test_libtorch_2_15() {
  test_in build-libtorch-2.15 -LE full -R "$newest_tests"
  test_in build-libtorch-2.15 -R '^examples/mnist_2_ranks$'
}
