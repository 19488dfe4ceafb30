// SPDX-License-Identifier: Apache-2.0
// Loads libpmix on demand: linking it would cost every start of the launcher a millisecond.
#pragma once

#include <pmix.h>
#include <pmix_server.h>

#include <string>

namespace accelerate::launch {

/// Functions of libpmix. All are set if unavailable_reason is empty.
struct PmixLibrary {
  decltype(&PMIx_server_init) server_init = nullptr;
  decltype(&PMIx_server_register_nspace) register_nspace = nullptr;
  decltype(&PMIx_server_register_client) register_client = nullptr;
  decltype(&PMIx_server_setup_fork) setup_fork = nullptr;
  decltype(&PMIx_generate_regex) generate_regex = nullptr;
  decltype(&PMIx_generate_ppn) generate_ppn = nullptr;
  decltype(&PMIx_Error_string) error_string = nullptr;
  std::string unavailable_reason;
};

/// The library stays loaded until the process ends, because its threads cannot be stopped.
PmixLibrary load_pmix();

}  // namespace accelerate::launch
