// SPDX-License-Identifier: Apache-2.0
#include "accelerate/device/seed.hpp"

#include <ATen/Context.h>

#include <cstdlib>
#include <mutex>

namespace accelerate::device {
namespace {

std::string shape_and_dtype(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  std::string sizes;
  for (const int64_t size : tensor.sizes()) sizes += (sizes.empty() ? "" : ", ") + fmt::to_string(size);
  return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()), sizes);
}

}  // namespace

uint64_t rank_seed(uint64_t seed, int64_t rank) { return seed + static_cast<uint64_t>(rank); }

void seed_all(uint64_t seed) { at::manual_seed(seed); }

void set_seed(uint64_t seed, const SeedOptions& options, int64_t rank) {
  if (options.deterministic) set_deterministic(true);
  seed_all(options.device_specific ? rank_seed(seed, rank) : seed);
}

void set_deterministic(bool on) {
  // cuBLAS reads the variable when it creates its first handle. A value that the user has set is kept.
  if (on) setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);
  auto& context = at::globalContext();
  context.setDeterministicAlgorithms(on, /*warn_only=*/false);
  context.setDeterministicCuDNN(on);
  if (on) context.setBenchmarkCuDNN(false);
}

at::Tensor rng_state(c10::Device device) {
  auto generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_rng_state(c10::Device device, const at::Tensor& state, const RankContext& place) {
  auto generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  const at::Tensor now = generator.get_state();
  if (!state.defined() || state.scalar_type() != at::kByte || state.sizes() != now.sizes() || !state.is_cpu()) {
    base::fail(ErrorKind::usage, place, "set_rng_state", "state is {}, must be {} on the CPU for {}",
               shape_and_dtype(state), shape_and_dtype(now), device.str());
  }
  generator.set_state(state);
}

}  // namespace accelerate::device
