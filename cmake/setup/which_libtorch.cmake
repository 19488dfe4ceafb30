# SPDX-License-Identifier: Apache-2.0
# cmake -P: prints the LibTorch that a build would use, or fails with the build's own error.
include("${CMAKE_CURRENT_LIST_DIR}/../AccelerateLibTorch.cmake")
accelerate_find_libtorch_root(root version)
message(STATUS "LibTorch ${version} in ${root}")
