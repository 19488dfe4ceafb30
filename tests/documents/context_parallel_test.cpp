// SPDX-License-Identifier: Apache-2.0
// Compiles and runs the C++ blocks of the page about context parallelism, on ranks that are threads.
#include "tests/testing.hpp"
//
#include "accelerate/accelerate.hpp"
#include "accelerate/context_parallel/attention.hpp"
#include "accelerate/context_parallel/sequence.hpp"

namespace context_parallel_page {

// block: docs/how_to/context_parallel.md: Divide the sequences

}  // namespace context_parallel_page

TEST_CASE("the loop of the page trains on two context parallel ranks") {
  accelerate::simulate(2, [] {
    using context_parallel_page::BlockImpl;
    const auto ids = torch::arange(8 * 12).view({8, 12}) % 100;
    auto batches = accelerate::data::from_tensors(ids, (ids + 1) % 100, {.batch_size = 4});
    // block: docs/how_to/context_parallel.md: Divide the sequences, 2
    CHECK(accelerator.context_parallel_rank() == accelerator.process_index());
    accelerator.check_synchronized(model);
    for (auto& batch : loader) {
      auto [tokens, targets] = accelerator.context_parallel_split(batch, 1);
      CHECK(tokens.size(1) == 6);
      optimizer.zero_grad();
      {
        // block: docs/how_to/context_parallel.md: Losses
      }
      optimizer.step();
      // block: docs/how_to/context_parallel.md: Which ranks do what
      CHECK(of_samples.size(0) == 4);
    }
    accelerator.check_synchronized(model);
  });
}
