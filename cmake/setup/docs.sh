# SPDX-License-Identifier: Apache-2.0
# ./run docs: the site of mkdocs.yml with the reference of all headers, in build/site
docs_venv=$cache/venv-docs

docs() {
  set_up_packages "doxygen python3 python3-venv"
  need_docs_python
  NO_MKDOCS_2_WARNING=1 "$docs_venv/bin/mkdocs" build --quiet --strict || fail "MkDocs found a problem in mkdocs.yml or a page"
  log_line "build/site/index.html"
}

# A separate virtual environment. It is created in a temporary folder and then renamed, so an interrupted run leaves no
# incomplete environment.
need_docs_python() {
  local requirements=cmake/setup/requirements-docs.txt have=$docs_venv/accelerate-docs.txt made
  cmp -s "$requirements" "$have" && return
  mkdir -p "$cache"
  exec 9>"$cache/lock"
  flock -n 9 || {
    log_line "waits for another ./run that prepares $cache"
    flock 9
  }
  if ! cmp -s "$requirements" "$have"; then
    log_line "installs $(grep -v '^#' $requirements | tr '\n' ' ')from PyPI into $docs_venv"
    rm -rf "$cache/.made-docs"-* "$docs_venv"
    made=$(mktemp -d "$cache/.made-docs-XXXXXX")
    quietly "$cache/pip.log" python3 -m venv "$made" || fail "could not make a virtual environment in $made"
    quietly "$cache/pip.log" "$made/bin/python" -m pip install "${pip_options[@]}" -r "$requirements" ||
      fail "could not install what the documentation needs"
    cp "$requirements" "$made/accelerate-docs.txt"
    ln -sfn "$(basename "$made")" "$cache/.new" && mv -T "$cache/.new" "$docs_venv"
  fi
  exec 9>&-
}
