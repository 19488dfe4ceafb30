// SPDX-License-Identifier: Apache-2.0
// Takes the place of gloo.cpp in a build without gloo's signatures.
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
