// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/loader_random.hpp"

#include <atomic>
#include <cstring>
#include <string>
#include <type_traits>

namespace accelerate::prepared {
namespace {

at::CPUGeneratorImpl& cpu_generator() {
  return *at::check_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator());
}

std::recursive_mutex& turns() {
  static std::recursive_mutex mutex;
  return mutex;
}

bool ranks_are_threads(const comm::Group& group) { return group.backend() == "threads"; }

}  // namespace

CpuStream CpuStream::current() {
  auto& generator = cpu_generator();
  const std::lock_guard lock(generator.mutex_);
  return {generator.engine().data(), generator.next_float_normal_sample(), generator.next_double_normal_sample()};
}

void CpuStream::install() const {
  auto& generator = cpu_generator();
  const std::lock_guard lock(generator.mutex_);
  at::mt19937 twister;
  twister.set_data(engine);
  generator.set_engine(twister);
  generator.set_next_float_normal_sample(next_float);
  generator.set_next_double_normal_sample(next_double);
}

GeneratorTurn::GeneratorTurn(const CpuStream& stream) : turn_(turns()), after_(CpuStream::current()) {
  stream.install();
}

GeneratorTurn::~GeneratorTurn() { after_.install(); }

LoaderRandom::Start LoaderRandom::meet() const {
  static std::atomic<uint64_t> passes{0};
  static_assert(std::is_trivially_copyable_v<Start>);
  // No rank may still draw for itself from a generator that is all threads'.
  if (ranks_are_threads(group_)) group_.barrier();
  std::string bytes(sizeof(Start), '\0');
  if (group_.rank() == 0) {
    const Start mine{CpuStream::current(), ++passes};
    std::memcpy(bytes.data(), &mine, sizeof(Start));
  }
  bytes = group_.broadcast_bytes(bytes);
  Start start{};
  std::memcpy(&start, bytes.data(), sizeof(Start));
  return start;
}

void LoaderRandom::begun(const Start& start, GeneratorTurn& turn) {
  const CpuStream after = CpuStream::current();
  if (group_.rank() == 0) turn.leave_at(after);
  // The pass is in it because a loader that draws nothing at its beginning leaves the generator where it stood.
  const auto seed = cpu_generator().random64() + start.pass;
  walk_ = {at::mt19937(seed).data(), std::nullopt, std::nullopt};
}

void LoaderRandom::part() const {
  if (ranks_are_threads(group_)) group_.barrier();
}

}  // namespace accelerate::prepared
