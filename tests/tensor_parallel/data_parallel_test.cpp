// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism and data parallelism on a mesh of 2 x 2 ranks, against one process with the whole batch.
#include "tests/tensor_parallel/support.hpp"
//
#include "accelerate/env/parallelism_config.hpp"
#include "accelerate/gradient/gradient_reducer.hpp"

using namespace tensor_parallel_testing;
using accelerate::gradient::GradientReducer;
using accelerate::gradient::NamedTensor;

namespace mesh = accelerate::env::mesh;

TEST_CASE("20 AdamW steps on 2 x 2 ranks are those of one process") {
  accelerate::comm::run_threads(4, [](const Group& world) {
    const auto config = accelerate::ParallelismConfig{.dp_replicate_size = 2, .tp_size = 2}.completed(world.size());
    const Group tensor = world.split(config.group(world.rank(), accelerate::MeshDimension::tp).front());
    const Group data = world.split(config.group(world.rank(), mesh::kDp).front());
    CHECK(tensor.size() == 2);
    CHECK(data.rank() == world.rank() / 2);
    auto stock = seeded([] { return StockGpt(); });
    auto split = seeded([&] { return SplitGpt(tensor); });
    std::vector<NamedTensor> named;
    for (const auto& item : split->named_parameters()) named.push_back({item.key(), item.value()});
    GradientReducer reducer(data.duplicate(), named, {.buckets = {.cap_bytes = 512, .first_cap_bytes = 512}});
    torch::optim::AdamW own(split->parameters(), torch::optim::AdamWOptions(1e-2));
    torch::optim::AdamW reference(stock->parameters(), torch::optim::AdamWOptions(1e-2));
    for (uint64_t step = 0; step < 20; ++step) {
      CAPTURE(step);
      const at::Tensor ids = tokens({4, 4}, step, 12), next = tokens({4, 4}, step + 50, 12);
      const auto rows = [&](const at::Tensor& batch) { return batch.narrow(1, 2 * data.rank(), 2); };
      reducer.zero_all();
      reference.zero_grad();
      split->loss(rows(ids), rows(next)).backward();
      stock->loss(ids, next).backward();
      if (step == 0) check_same_gradients(split, stock);
      own.step();
      reference.step();
    }
    check_same_state(split, stock, 1e-11);
  });
}
