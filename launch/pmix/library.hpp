// SPDX-License-Identifier: Apache-2.0
// libpmix, loaded when ranks need it: linking it would cost every start of the launcher a millisecond.
#pragma once

#include <pmix.h>
#include <pmix_server.h>

#include <string>

namespace accelerate::launch {

/// The functions we use. All set when why_not is empty.
struct PmixLibrary {
  decltype(&PMIx_server_init) server_init = nullptr;
  decltype(&PMIx_server_register_nspace) register_nspace = nullptr;
  decltype(&PMIx_server_register_client) register_client = nullptr;
  decltype(&PMIx_server_setup_fork) setup_fork = nullptr;
  decltype(&PMIx_generate_regex) generate_regex = nullptr;
  decltype(&PMIx_generate_ppn) generate_ppn = nullptr;
  decltype(&PMIx_Error_string) error_string = nullptr;
  std::string why_not;
};

/// Stays loaded until the process ends: its threads have no other end.
PmixLibrary load_pmix();

}  // namespace accelerate::launch
