// SPDX-License-Identifier: Apache-2.0
// Runs on ranks as threads.
#include "tests/testing.hpp"
//
#include "tests/accelerator/ranks.hpp"

namespace {

void with_ranks(const accelerate::AcceleratorOptions& options,
                const std::function<void(accelerate::Accelerator&)>& check) {
  for (const int64_t ranks : {1, 2, 3}) on_ranks(ranks, check, options);
}

}  // namespace

#include "tests/accelerator/uneven_inputs_cases.hpp"
