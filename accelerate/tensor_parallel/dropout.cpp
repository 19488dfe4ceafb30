// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tensor_parallel/dropout.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randint.h>
#include <fmt/format.h>

#include <limits>
#include <mutex>
#include <ostream>
#include <utility>

#include "accelerate/base/error.hpp"

namespace accelerate::nn {
namespace {

void check_probability(double p, const comm::Group& group) {
  if (p >= 0 && p <= 1) return;
  base::fail(ErrorKind::usage, group.place(), "parallel_dropout", "p is {}, must be from 0 to 1", p);
}

/// Returns a generator of this rank for one mask.
at::Generator mask_generator(const at::Device& device, int64_t rank) {
  const int64_t drawn = at::randint(std::numeric_limits<int64_t>::max(), {1}, at::kLong).item<int64_t>();
  // An odd constant with irregular bits keeps neighbouring ranks apart (Weyl sequence of the golden ratio).
  const uint64_t seed = static_cast<uint64_t>(drawn) + static_cast<uint64_t>(rank) * 0x9E3779B97F4A7C15U;
  if (device.is_cpu()) return at::make_generator<at::CPUGeneratorImpl>(seed);
  at::Generator generator =
      at::globalContext().getAcceleratorHooksInterface(device.type()).getNewGenerator(device.index());
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(seed);
  return generator;
}

}  // namespace

at::Tensor parallel_dropout(const at::Tensor& input, double p, bool train, const comm::Group& group) {
  check_probability(p, group);
  if (!train || p == 0) return input;
  if (group.size() == 1 || p == 1) return at::dropout(input, p, true);
  const double kept = 1 - p;
  const at::Tensor mask = at::empty_like(input, input.options().requires_grad(false));
  mask.bernoulli_(kept, mask_generator(input.device(), group.rank())).div_(kept);
  return input * mask;
}

ParallelDropoutImpl::ParallelDropoutImpl(double p, comm::Group group) : p_(p), group_(std::move(group)) {
  check_probability(p_, group_);
}

at::Tensor ParallelDropoutImpl::forward(const at::Tensor& input) {
  return parallel_dropout(input, p_, is_training(), group_);
}

void ParallelDropoutImpl::reset() {}

void ParallelDropoutImpl::pretty_print(std::ostream& stream) const {
  stream << fmt::format("accelerate::nn::ParallelDropout(p={}, ranks={})", p_, group_.size());
}

}  // namespace accelerate::nn
