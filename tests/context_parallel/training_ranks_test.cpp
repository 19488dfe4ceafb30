// SPDX-License-Identifier: Apache-2.0
// Runs on real processes; the launcher selects the backend.
#include "tests/testing.hpp"
//
#include <functional>

#include "tests/world.hpp"

namespace {

void with_training_ranks(const std::function<void(const accelerate::comm::Group&)>& check) {
  check(testing::world().duplicate());
}

}  // namespace

#include "tests/context_parallel/training_cases.hpp"

TEST_CASE("device-specific seeds differ between context parallel ranks and between data parallel ranks") {
  const Group& world = testing::world();
  for (const Mesh& mesh : context_meshes(world.size())) {
    CAPTURE(mesh.text());
    const Accelerator accelerator = on_mesh(world, mesh);
    accelerator.set_seed(5, {.device_specific = true});
    const at::Tensor own = torch::rand({3});
    const auto all = world.all_gather_list(own);
    for (size_t rank = 0; rank < all.size(); ++rank) {
      CHECK(all[rank].equal(own) == (static_cast<int64_t>(rank) == world.rank()));
    }
    accelerator.set_seed(5);
    const at::Tensor equal = torch::rand({3});
    for (const at::Tensor& other : world.all_gather_list(equal)) CHECK(other.equal(equal));
  }
}
