// SPDX-License-Identifier: Apache-2.0
#include "launch/pmix/library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

namespace accelerate::launch {
namespace {

template <typename Function>
void find(void* handle, const char* name, Function& function, std::string& unavailable_reason) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
  if (function == nullptr)
    unavailable_reason = fmt::format("libpmix.so.2 has no {}, so it is too old (PMIx 4 is needed)", name);
}

}  // namespace

PmixLibrary load_pmix() {
  PmixLibrary pmix;
  void* handle = dlopen("libpmix.so.2", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    pmix.unavailable_reason = "libpmix.so.2 was not found (Debian package libpmix2)";
    return pmix;
  }
  find(handle, "PMIx_server_init", pmix.server_init, pmix.unavailable_reason);
  find(handle, "PMIx_server_register_nspace", pmix.register_nspace, pmix.unavailable_reason);
  find(handle, "PMIx_server_register_client", pmix.register_client, pmix.unavailable_reason);
  find(handle, "PMIx_server_setup_fork", pmix.setup_fork, pmix.unavailable_reason);
  find(handle, "PMIx_generate_regex", pmix.generate_regex, pmix.unavailable_reason);
  find(handle, "PMIx_generate_ppn", pmix.generate_ppn, pmix.unavailable_reason);
  find(handle, "PMIx_Error_string", pmix.error_string, pmix.unavailable_reason);
  return pmix;
}

}  // namespace accelerate::launch
