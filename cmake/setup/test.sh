# SPDX-License-Identifier: Apache-2.0
# ./run test [full [PART ...] | REGEX]
run_tests() {
  [[ ${1-} != full ]] || check_parts "${@:2}"
  set_up "$packages_build $packages_test"
  [[ ${1-} != full ]] || set_up_packages "$packages_pages $packages_clang"
  need_test_python
  local strict=OFF
  [[ ${1-} != full ]] || strict=ON
  [[ ${1-} == full && $# -gt 1 && " $* " != *" release "* ]] ||
    build_all release "-DACCELERATE_TEST_PYTHON=$venv/bin/python" "-DCMAKE_COMPILE_WARNING_AS_ERROR=$strict"
  case ${1-} in
    "") test_in build -LE full ;;
    full)
      install_without_services "$packages_hosts"
      test_full "${@:2}"
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

# Everything: what takes long, the sanitizers, and a build without each part; warnings are errors.
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

# test_full [PART ...]: each part is build_<part> and test_<part>. One that fails does not stop the rest.
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

# run_in_subshell <command>: in a shell of its own, so that its first failing line ends it and not the whole; how it ended is in
# $status. Not for an `if`: there bash would go on after a failing line.
run_in_subshell() {
  set +e
  (
    set -e
    "$1"
  )
  status=$?
  set -e
}

# build_next_parts <parts>: while tests run, and mostly wait, the builds of the parts to come, one after the other, with what
# is left of the processors. What fails here fails again, and is said, in its part.
build_next_parts() {
  set -m   # a process group of its own, to be stopped as one
  (
    chrt --idle --pid 0 "$BASHPID"
    for part; do run_in_subshell "build_$part"; done
  ) </dev/null >/dev/null 2>&1 &
  ahead=$!
  set +m
  trap stop_compiling EXIT   # Ctrl-C does not reach that group
}

stop_compiling() {
  trap - EXIT
  kill -TERM -- "-$ahead" 2>/dev/null || true
  wait "$ahead" 2>/dev/null || true
}

# run_tests has built it.
build_release() { :; }
test_release() { test_in build; }

# Set-up, consumers and benches are the same in every build.
not_again='^(setup|consumer)/'

# The examples are programs on the library's headers, which the other tests include too, and cost a quarter of the build.
build_asan() { build_all asan -DACCELERATE_BUILD_EXAMPLES=OFF; }
test_asan() {
  local leaks=$PWD/tests/setup/lsan.supp
  export ASAN_OPTIONS=detect_odr_violation=0 LSAN_OPTIONS="suppressions=$leaks:print_suppressions=0"
  test_in build-asan -LE full -E "$not_again"
  test_in build-asan -R mutated_files.60s
}

# Where threads of ours meet; not what runs inside autograd or MPI, which are not instrumented, so no ranks as processes, and
# not what LibTorch's reference counts hand over from thread to thread (batch_buffer_pool, cache) or what counts memory (npy).
tsan_tests='^(base|env|launch)/|^data/|threads|worker|completable_work'
tsan_not='\.(mpi|gloo)$|\.(mpi|gloo)\.|data/batch_buffer_pool_test|combinators/cache_test|sources/npy_test|shard_cases|mutated_files|examples/'

build_tsan() {
  configure_in build-tsan tsan
  cmake --build build-tsan -j "$(jobs)" --target plain_tests unit_tests accelerate_launch >&2
}
test_tsan() {
  # GCC 12's thread sanitizer cannot live with as much address randomisation as new kernels do. By itself it has each process
  # sleep a second at its end, which is what tests of the launcher allow for all of an end.
  TSAN_OPTIONS=ignore_noninstrumented_modules=1:atexit_sleep_ms=50 \
    setarch "$(uname -m)" -R ctest --test-dir build-tsan -j "$(jobs)" --output-on-failure -LE full -R "$tsan_tests" -E "$tsan_not"
}

# Of the tests what has nothing to do with these parts comes out of ccache; the library is compiled with other folders of headers.
build_without_mpi_jpeg_png() { build_without MPI JPEG PNG; }
test_without_mpi_jpeg_png() { test_without MPI JPEG PNG; }

# Compiles every source file of the library by itself, so that each goes on including what it uses; gloo's and CUDA's are
# compiled so in every build. What runs in one process is the same without gloo.
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

# The tests that still apply are those that this configuration has.
test_without() { test_in "$(folder_without "$@")" -LE full -E "$not_again"; }

folder_without() {
  local folder=build-no part
  for part; do
    [[ $part == -* ]] || folder+=-${part,,}
  done
  echo "$folder"
}

# The newest LibTorch that is accepted: the library, mnist and the quick tests of the rooms on LibTorch. What the tests compare
# with is the torch of the other environment.
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
