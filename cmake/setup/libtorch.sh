# SPDX-License-Identifier: Apache-2.0
# Provides LibTorch: the one that CMake finds, otherwise torch from PyPI in a virtual environment in the user's cache
# folder.
torch_version=2.11.0
# The second and third package have CUDA headers that the dependencies of torch do not contain.
torch_packages="torch==$torch_version nvidia-cuda-crt==13.0.88 nvidia-cuda-cccl==13.0.85"
HOME=${HOME-~}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/accelerate
venv=$cache/venv-$torch_version

# set_up "<packages>" [options for cmake]: installs the requirements of a build.
set_up() {
  local packages=$1 there=no
  shift
  ! libtorch_is_there "$@" || there=yes
  [ $there = yes ] || packages+=" python3-venv"
  set_up_packages "$packages"
  [ $there = yes ] || libtorch_is_there "$@" || make_venv
}

# Runs the CMake module that the build uses, so both find the same LibTorch. If Torch_DIR is set and wrong, the run ends.
libtorch_is_there() {
  command -v cmake >/dev/null || return 1
  local option options=() message
  for option in "$@"; do
    [[ $option != -D* ]] || options+=("$option")
  done
  message=$(cmake "${options[@]}" -P cmake/setup/which_libtorch.cmake 2>&1) && return
  [[ $message != *"Torch_DIR is "* ]] || {
    echo "$message" >&2
    exit 1
  }
  return 1
}

# installed <package> <version> [environment]. pip writes RECORD last, and installs torch after its dependencies.
installed() { compgen -G "${3-$venv}/lib/python3*/site-packages/$1-$2*.dist-info/RECORD" >/dev/null; }

make_venv() { make_venv_of "$venv" "$torch_version" "$torch_packages"; }

# The newest supported LibTorch, for a part of ./run test full. CMake does not find it automatically, because the name of
# its folder does not begin with venv-.
newest_version=2.15.0
newest_packages="torch==$newest_version nvidia-cuda-crt==13.2.86"
newest_venv=$cache/test-venv-$newest_version
make_newest_venv() {
  set_up_packages python3-venv
  make_venv_of "$newest_venv" "$newest_version" "$newest_packages"
}
newest_libtorch() { compgen -G "$newest_venv/lib/python3*/site-packages/torch"; }

# make_venv_of <folder> <version of torch> "<packages>": creates the environment in a temporary folder and renames it, so an
# interrupted run leaves no environment that looks complete.
make_venv_of() {
  local place=$1 version=$2 packages=$3 made
  mkdir -p "$cache"
  exec 9>"$cache/lock"
  flock -n 9 || {
    log_line "waits for another ./run that prepares $cache"
    flock 9
  }
  if ! { installed torch "$version" "$place" && [ -x "$place/bin/python" ]; }; then
    log_line "installs LibTorch (torch $version and what it needs, 4.7 GB) from PyPI into $place"
    rm -rf "$cache/.made-$version"-* "$place"
    made=$(mktemp -d "$cache/.made-$version-XXXXXX")
    quietly "$cache/pip.log" python3 -m venv "$made" || fail "could not make a virtual environment in $made"
    # shellcheck disable=SC2086  # a list of words
    quietly "$cache/pip.log" "$made/bin/python" -m pip install "${pip_options[@]}" $packages ||
      fail "could not install torch $version; a LibTorch of your own: Torch_DIR=<libtorch>/share/cmake/Torch ./run ..."
    ln -sfn "$(basename "$made")" "$cache/.new-$version" && mv -T "$cache/.new-$version" "$place"
  fi
  exec 9>&-
}
pip_options=(--quiet --disable-pip-version-check --no-compile --no-cache-dir --only-binary :all: --progress-bar off)

# Installs the packages that tests and benches compare with, in the same environment.
need_test_python() {
  local requirements=cmake/setup/requirements-test.txt have=$venv/accelerate-tests.txt
  installed torch $torch_version && [ -x "$venv/bin/python" ] || {
    set_up_packages python3-venv
    make_venv
  }
  cmp -s "$requirements" "$have" && return
  log_line "installs $(grep -v '^#' $requirements | tr '\n' ' ')from PyPI into $venv, to compare with"
  quietly "$cache/pip.log" "$venv/bin/python" -m pip install "${pip_options[@]}" -r "$requirements" ||
    fail "could not install what the tests compare with"
  cp "$requirements" "$have"
}
