// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/loader_rng.hpp"

#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <type_traits>

#include "accelerate/comm/error_context.hpp"

namespace accelerate::prepared {
namespace {

at::CPUGeneratorImpl& cpu_generator() {
  return *at::check_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator());
}

std::recursive_mutex& turns() {
  static std::recursive_mutex mutex;
  return mutex;
}

// With an accelerator the backend name is a pair, such as "cuda+threads".
bool ranks_are_threads(const comm::Group& group) { return group.backend().ends_with("threads"); }

template <typename Collective>
auto for_pass(const comm::Group& group, const Collective& collective) {
  return comm::with_operation_context("loader", "the ranks did not synchronize the start of a pass", group.place(),
                                      collective);
}

// Waits for all ranks if they are threads.
void barrier_of_threads(const comm::Group& group) {
  if (ranks_are_threads(group)) for_pass(group, [&] { group.barrier(); });
}

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

at::Tensor CpuStream::to_tensor() const {
  auto generator = at::detail::createCPUGenerator();
  auto& cpu = *at::check_generator<at::CPUGeneratorImpl>(generator);
  at::mt19937 twister;
  twister.set_data(engine);
  cpu.set_engine(twister);
  cpu.set_next_float_normal_sample(next_float);
  cpu.set_next_double_normal_sample(next_double);
  return generator.get_state();
}

CpuStream CpuStream::from_tensor(const at::Tensor& state) {
  auto generator = at::detail::createCPUGenerator();
  generator.set_state(state);
  auto& cpu = *at::check_generator<at::CPUGeneratorImpl>(generator);
  return {cpu.engine().data(), cpu.next_float_normal_sample(), cpu.next_double_normal_sample()};
}

GeneratorTurn::GeneratorTurn(const CpuStream& stream) : turn_(turns()), after_(CpuStream::current()) {
  stream.install();
}

GeneratorTurn::~GeneratorTurn() { after_.install(); }

PassStart LoaderRandom::synchronize_initial_values() const {
  static std::atomic<uint64_t> passes{0};
  static_assert(std::is_trivially_copyable_v<PassStart>);
  barrier_of_threads(group_);  // threads share one generator, so no rank may still draw from it
  std::string bytes(sizeof(PassStart), '\0');
  if (group_.rank() == 0) {
    const PassStart mine = resumed_ ? *resumed_ : PassStart{CpuStream::current(), ++passes};
    std::memcpy(bytes.data(), &mine, sizeof(PassStart));
  }
  bytes = for_pass(group_, [&] { return group_.broadcast_bytes(bytes); });
  PassStart start{};
  std::memcpy(&start, bytes.data(), sizeof(PassStart));
  return start;
}

void LoaderRandom::begun(GeneratorTurn& turn) {
  const CpuStream after = CpuStream::current();
  if (group_.rank() == 0 && !resumed_) turn.leave_at(after);
  // The seed includes the pass number, because a loader that draws nothing at its start does not advance the generator.
  const auto drawn = [] {
    const std::lock_guard lock(cpu_generator().mutex_);  // other threads may draw, too
    return cpu_generator().random64();
  }();
  const uint64_t seed = drawn + start_.pass;
  walk_ = {at::mt19937(seed).data(), std::nullopt, std::nullopt};
}

void LoaderRandom::part() const { barrier_of_threads(group_); }

}  // namespace accelerate::prepared
