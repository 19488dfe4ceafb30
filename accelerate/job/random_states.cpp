// SPDX-License-Identifier: Apache-2.0
#include "accelerate/job/random_states.hpp"

#include "accelerate/comm/error_context.hpp"
#include "accelerate/job/start.hpp"

namespace accelerate::job {

void synchronize_rng_states(const comm::Group& group, at::Device device_of_rank) {
  std::vector<at::Device> devices{at::kCPU};
  if (!device_of_rank.is_cpu()) devices.push_back(device_of_rank);
  for (const at::Device one : devices) {
    const at::Tensor state = device::rng_state(one);
    comm::with_operation_context("synchronize_rng_states", "the states are not made equal", group.place(),
                                 [&] { group.broadcast(state); });
    device::set_rng_state(one, state, group.place());
  }
}

void set_seed(uint64_t seed, const device::SeedOptions& options) { device::set_seed(seed, options, current_rank()); }

}  // namespace accelerate::job
