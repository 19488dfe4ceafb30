// SPDX-License-Identifier: Apache-2.0
// Replaces backend.cpp in a build without gloo's headers.
#include "accelerate/comm/core/backend_table.hpp"

namespace accelerate::comm {

const BackendRow& gloo_row() {
  static constexpr BackendRow row{.name = "gloo",
                                  .connect = nullptr,
                                  .missing = "install libgloo-dev and build again (ACCELERATE_WITH_GLOO=ON)",
                                  .uses_store = true};
  return row;
}

}  // namespace accelerate::comm
