// SPDX-License-Identifier: Apache-2.0
// Runs on real processes; the launcher selects the backend.
#include "tests/testing.hpp"
//
#include <functional>

#include "tests/world.hpp"

namespace {

void with_mesh_ranks(const std::function<void(const accelerate::comm::Group&)>& check) {
  check(testing::world().duplicate());
}

}  // namespace

#include "tests/tensor_parallel/mesh_cases.hpp"

TEST_CASE("device-specific seeds are equal in a tensor parallel group and differ between data parallel ranks") {
  const Group& world = testing::world();
  for (const Mesh& mesh : meshes(world.size())) {
    CAPTURE(mesh.text());
    const Accelerator accelerator = on_mesh(world, mesh);
    accelerator.set_seed(5, {.device_specific = true});
    const at::Tensor own = torch::rand({3});
    for (const at::Tensor& other : accelerator.tensor_parallel_group().all_gather_list(own)) CHECK(other.equal(own));
    const auto data = accelerator.data_parallel_group().all_gather_list(own);
    for (size_t rank = 0; rank < data.size(); ++rank) {
      CHECK(data[rank].equal(own) == (static_cast<int64_t>(rank) == accelerator.data_parallel_group().rank()));
    }
  }
}
