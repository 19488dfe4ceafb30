// SPDX-License-Identifier: Apache-2.0
#include "launch/commands/build_info.hpp"

#include <gnu/libc-version.h>

#include "launch/pmix/server.hpp"

namespace accelerate::launch {

Facts build_info() {
  const auto mpi_unavailable_reason = mpi_server_unavailable_reason();
  return {{"Accelerate for C++", ACCELERATE_VERSION},
          {"LibTorch", BUILT_LIBTORCH},
          {"compiler", BUILT_COMPILER},
          {"C library", std::string("glibc ") + gnu_get_libc_version()},
          {"backends", BUILT_BACKENDS},
          {"MPI without mpirun", mpi_unavailable_reason ? "no: " + *mpi_unavailable_reason : "yes"}};
}

}  // namespace accelerate::launch
