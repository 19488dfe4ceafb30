// SPDX-License-Identifier: Apache-2.0
#include "accelerate/checkpoint/random_states.hpp"

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "accelerate/archive/checksum.hpp"
#include "accelerate/archive/members.hpp"
#include "accelerate/checkpoint/file_names.hpp"
#include "accelerate/checkpoint/torch_file.hpp"
#include "accelerate/device/seed.hpp"

namespace accelerate::checkpoint {

using archive::Members;

using archive::PickleItems;
using archive::PickleValue;

namespace {

// Keys that Hugging Face Accelerate's files lack. It ignores them.
constexpr std::string_view kWrittenBy = "accelerate", kLocalBuffers = "local_buffers";

int64_t device_count(c10::DeviceType type) {
  return type == c10::DeviceType::CPU ? 0 : c10::impl::VirtualGuardImpl(type).deviceCount();
}

std::string key_of(c10::DeviceType type) {
  return fmt::format("torch_{}_manual_seed", c10::DeviceTypeName(type, /*lower_case=*/true));
}

uint64_t seed_of_cpu() { return at::globalContext().defaultGenerator(c10::Device(c10::kCPU)).current_seed(); }

// Returns the 624 words of a Mersenne Twister after init_genrand(seed) (Matsumoto and Nishimura, 2002), which
// numpy.random.seed uses. The next draw generates the first block.
std::array<uint32_t, 624> twister(uint32_t seed) {
  std::array<uint32_t, 624> words{};
  words[0] = seed;
  for (uint32_t i = 1; i < words.size(); ++i) words[i] = 1812433253U * (words[i - 1] ^ (words[i - 1] >> 30)) + i;
  return words;
}

PickleItems twister_words(uint32_t seed) {
  PickleItems words;
  for (const uint32_t word : twister(seed)) words.emplace_back(int64_t{word});
  return words;
}

// random.getstate(): (version, words and position, the next Gaussian)
PickleValue new_python_state(uint32_t seed) {
  PickleItems words = twister_words(seed);
  words.emplace_back(int64_t{624});
  return py_tuple({int64_t{3}, py_tuple(std::move(words)), archive::PickleNone{}});
}

// numpy.random.get_state(): (name, words, position, has a Gaussian, Gaussian). The words are a list, because the pickle
// of an array would depend on NumPy 1 or 2.
PickleValue new_numpy_state(uint32_t seed) {
  return py_tuple({std::string("MT19937"), py_list(twister_words(seed)), int64_t{624}, int64_t{0}, 0.0});
}

template <typename Each>
void each_state(const RandomStates& states, c10::DeviceType accelerator, const Each& each) {
  each(c10::Device(c10::kCPU), states.cpu);
  const auto both = std::min<int64_t>(device_count(accelerator), static_cast<int64_t>(states.accelerators.size()));
  for (int64_t i = 0; i < both; ++i) {
    each(c10::Device(accelerator, static_cast<c10::DeviceIndex>(i)), states.accelerators[static_cast<size_t>(i)]);
  }
}

}  // namespace

RandomStates random_states(c10::DeviceType accelerator) {
  RandomStates states{.cpu = device::rng_state(c10::Device(c10::kCPU))};
  for (int64_t i = 0; i < device_count(accelerator); ++i) {
    states.accelerators.push_back(device::rng_state(c10::Device(accelerator, static_cast<c10::DeviceIndex>(i))));
  }
  return states;
}

void check_random_state(c10::Device device, const at::Tensor& state, const RankContext& place) {
  const at::Tensor now = device::rng_state(device);
  if (state.scalar_type() == at::kByte && state.numel() == now.numel()) return;
  base::fail(ErrorKind::data, place, "load_state",
             "the saved random state of {} is {} {}, expected {} Byte; it was saved for another kind of device or "
             "version of LibTorch",
             device.str(), shape_of(state), c10::toString(state.scalar_type()), shape_of(now));
}

void check_random_states(const RandomStates& states, c10::DeviceType accelerator, const RankContext& place) {
  each_state(states, accelerator,
             [&](c10::Device device, const at::Tensor& state) { check_random_state(device, state, place); });
}

void set_random_states(const RandomStates& states, c10::DeviceType accelerator, const RankContext& place) {
  check_random_states(states, accelerator, place);
  each_state(states, accelerator, [&](c10::Device device, const at::Tensor& state) {
    device::set_rng_state(device, state.flatten().clone(), place);
  });
}

void derive_stream(const RandomStates& rank_0_states, int64_t rank) {
  const at::Tensor state = rank_0_states.cpu.contiguous();
  const std::string digits = archive::checksum_of(tensor_bytes(state));
  device::seed_all(device::rank_seed(std::stoull(digits, nullptr, 16), rank));
}

bool is_accelerate_cpp_format(const std::filesystem::path& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (!entry.path().filename().string().starts_with("random_states_")) continue;
    try {
      const TorchFile file(entry.path(), "load_state");
      return archive::find(file.root(), kWrittenBy) != nullptr;
    } catch (const Error&) {  // a truncated file is reported by its reader
    }
  }
  return false;
}

PickleValue to_python(const RandomStates& states, c10::DeviceType accelerator, TorchFileWriter& writer) {
  const auto seed = static_cast<uint32_t>(seed_of_cpu());  // inverted for NumPy: both draw in the same way
  const auto is_none = [](const PickleValue& value) { return value.as<archive::PickleNone>() != nullptr; };
  archive::PickleEntries entries{
      {std::string(kWrittenBy), std::string(library())},
      {std::string("step"), states.step},
      {std::string("random_state"), is_none(states.python) ? new_python_state(seed) : states.python},
      {std::string("numpy_random_seed"), is_none(states.numpy) ? new_numpy_state(~seed) : states.numpy},
      {std::string("torch_manual_seed"), writer.tensor(states.cpu, "the CPU's random state")}};
  if (!states.local_buffers.empty()) {
    entries.emplace_back(std::string(kLocalBuffers),
                         py_list(PickleItems(states.local_buffers.begin(), states.local_buffers.end())));
  }
  if (accelerator != c10::DeviceType::CPU) {
    PickleItems list;
    for (const at::Tensor& state : states.accelerators) list.push_back(writer.tensor(state, "a random state"));
    entries.emplace_back(key_of(accelerator), py_list(std::move(list)));
  }
  return py_dict(std::move(entries));
}

RandomStates random_states_from(const TorchFile& file, c10::DeviceType accelerator) {
  const Members members(file.root(), "the random states", file.origin());
  RandomStates states{.cpu = file.tensor(members.value("torch_manual_seed"), "torch_manual_seed"),
                      .python = members.value("random_state"),
                      .numpy = members.value("numpy_random_seed")};
  if (members.has("step")) states.step = members.integer("step");
  if (members.has(kLocalBuffers)) {
    for (const PickleValue& item : members.items(kLocalBuffers)) {
      const auto* model = item.as<int64_t>();
      if (model == nullptr) members.wrong(kLocalBuffers, item, "integers");
      states.local_buffers.push_back(*model);
    }
  }
  if (accelerator != c10::DeviceType::CPU && members.has(key_of(accelerator))) {
    for (const PickleValue& item : members.items(key_of(accelerator))) {
      states.accelerators.push_back(file.tensor(item, key_of(accelerator)));
    }
  }
  return states;
}

}  // namespace accelerate::checkpoint
