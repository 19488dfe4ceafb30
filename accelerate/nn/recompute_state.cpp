// SPDX-License-Identifier: Apache-2.0
#include "accelerate/nn/recompute_state.hpp"

#include <ATen/DeviceAccelerator.h>
#include <ATen/autocast_mode.h>

#include <algorithm>
#include <exception>

#include "accelerate/base/log.hpp"
#include "accelerate/device/seed.hpp"
#include "accelerate/nn/activation_checkpoint.hpp"

namespace accelerate::nn {
namespace {

thread_local bool runs_again = false;
thread_local std::shared_ptr<void> owner_of_functions;

}  // namespace

bool recomputing() { return runs_again; }

detail::FunctionsOwner::FunctionsOwner(std::shared_ptr<void> owner)
    : before_(std::exchange(owner_of_functions, std::move(owner))) {}

detail::FunctionsOwner::~FunctionsOwner() { owner_of_functions = std::move(before_); }

ForwardState ForwardState::now(const std::vector<at::Tensor>& tensors, bool with_generators) {
  ForwardState state;
  state.owner = owner_of_functions;
  std::vector<at::DeviceType> types{at::kCPU};
  const auto accelerator = at::getAccelerator();
  if (accelerator && at::autocast::is_autocast_available(*accelerator)) types.push_back(*accelerator);
  for (const at::DeviceType type : types) {
    state.autocast.push_back({type, at::autocast::is_autocast_enabled(type), at::autocast::get_autocast_dtype(type)});
  }
  if (!with_generators) return state;
  std::vector<at::Device> devices{at::kCPU};
  for (const at::Tensor& tensor : tensors) {
    if (std::find(devices.begin(), devices.end(), tensor.device()) == devices.end()) devices.push_back(tensor.device());
  }
  for (const at::Device device : devices) state.generators.emplace_back(device, device::rng_state(device));
  return state;
}

ForwardState ForwardState::capture_same_parts() const {
  ForwardState state = now({}, false);
  for (const auto& [device, noted] : generators) state.generators.emplace_back(device, device::rng_state(device));
  return state;
}

void ForwardState::set() const {
  owner_of_functions = owner;
  for (const Autocast& one : autocast) {
    at::autocast::set_autocast_enabled(one.type, one.enabled);
    at::autocast::set_autocast_dtype(one.type, one.dtype);
  }
  for (const auto& [device, noted] : generators) device::set_rng_state(device, noted);
}

NoAutocastCache::NoAutocastCache() : was_on_(at::autocast::is_autocast_cache_enabled()) {
  at::autocast::set_autocast_cache_enabled(false);
}

NoAutocastCache::~NoAutocastCache() { at::autocast::set_autocast_cache_enabled(was_on_); }

RecomputeScope::RecomputeScope(const ForwardState& first)
    : before_(first.capture_same_parts()), was_recomputing_(std::exchange(runs_again, true)) {
  first.set();
}

RecomputeScope::~RecomputeScope() {
  runs_again = was_recomputing_;
  try {
    before_.set();
  } catch (const std::exception& error) {
    base::log(base::LogLevel::error, {}, "checkpoint: the random state before backward is lost: {}", error.what());
  }
}

}  // namespace accelerate::nn
