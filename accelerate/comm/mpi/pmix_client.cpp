// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/mpi/pmix_client.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace accelerate::comm {
namespace {

/// pmix_info_t of the PMIx standard, versions 2 to 5, with a value of type bool. Declared here, because the headers of
/// PMIx are not a requirement of the build.
struct PmixFlag {
  std::array<char, 512> key{};
  uint32_t directives = 0;
  struct {
    uint16_t type = 1;  // PMIX_BOOL
    union {
      bool flag = true;
      std::array<void*, 3> size;
    } data;
  } value;
};
static_assert(sizeof(PmixFlag) == 552 && offsetof(PmixFlag, value.data) == 528);

/// Returns null unless Open MPI has loaded PMIx and the library has the function.
template <typename Function>
Function* pmix_function(const char* name) {
  void* const pmix = ::dlopen("libpmix.so.2", RTLD_NOW | RTLD_NOLOAD);
  return pmix == nullptr ? nullptr : reinterpret_cast<Function*>(::dlsym(pmix, name));
}

bool is_initialized() {
  auto* const initialized = pmix_function<int()>("PMIx_Initialized");
  return initialized != nullptr && initialized() != 0;
}

}  // namespace

void wait_for_all_ranks_of_job() {
  auto* const fence = pmix_function<int(const void*, size_t, const void*, size_t)>("PMIx_Fence");
  if (fence == nullptr || !is_initialized()) return;
  PmixFlag collect_data;
  constexpr std::string_view kKey = "pmix.collect";
  std::copy(kKey.begin(), kKey.end(), collect_data.key.begin());
  // A launcher that does not support this fence reports an error, and MPI works as without it.
  static_cast<void>(fence(nullptr, 0, &collect_data, 1));
}

void exit_without_finalize() noexcept {
  auto* const finalize = pmix_function<int(const void*, size_t)>("PMIx_Finalize");
  if (finalize == nullptr) return;
  for (int uses = 0; uses < 8 && is_initialized(); ++uses) finalize(nullptr, 0);  // PMIx counts its users
}

}  // namespace accelerate::comm
