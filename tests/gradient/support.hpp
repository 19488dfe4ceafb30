// SPDX-License-Identifier: Apache-2.0
// Common code of the reducer tests: equal models on every rank, and the mean of the per-rank gradients as reference.
#pragma once

#include "tests/testing.hpp"
//
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/comm/group.hpp"
#include "accelerate/gradient/gradient_reducer.hpp"

namespace gradient_testing {

using accelerate::comm::Group;
using accelerate::gradient::GradientReducer;
using accelerate::gradient::GradientReducerOptions;
using accelerate::gradient::NamedTensor;

using Grads = std::vector<at::Tensor>;
inline constexpr std::chrono::seconds kTimeout{60};

/// Buckets of a few parameters each, so that small models have several.
inline GradientReducerOptions small_buckets() { return {.buckets = {.cap_bytes = 200, .first_cap_bytes = 50}}; }

/// Text of the Error after its place, "[rank 1 of 2, host] ".
inline std::string text_of(const std::function<void()>& call,
                           accelerate::ErrorKind kind = accelerate::ErrorKind::usage) {
  try {
    call();
  } catch (const accelerate::Error& error) {
    CHECK(error.kind() == kind);
    const std::string text = error.what();
    const size_t end = text.find("] ");
    return end == std::string::npos ? text : text.substr(end + 2);
  }
  return "no error";
}

/// One mutex for models of every type.
inline std::mutex one_at_a_time;

/// Models are built one after another: ranks as threads share the global generator.
template <typename Make>
auto built(const Make& make) {
  const std::lock_guard lock(one_at_a_time);
  torch::manual_seed(11);
  return make();
}

/// Equal numbers on every rank with the same seed.
inline at::Tensor numbers(at::IntArrayRef shape, int64_t seed, at::ScalarType dtype = at::kDouble) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(seed) + 1000);
  return torch::randn(shape, generator, torch::dtype(dtype));
}

template <typename Module>
std::vector<NamedTensor> named(const Module& module) {
  std::vector<NamedTensor> all;
  for (const auto& item : module->named_parameters()) all.push_back({item.key(), item.value()});
  return all;
}

inline Grads gradients_of(const std::vector<at::Tensor>& parameters) {
  Grads grads;
  for (const at::Tensor& parameter : parameters) {
    grads.push_back(parameter.grad().defined() ? parameter.grad().to_dense().clone() : at::Tensor());
  }
  return grads;
}

/// Mean over the ranks' own gradients; undefined if no rank has one.
inline Grads mean_of(const std::vector<Grads>& per_rank) {
  Grads means(per_rank.front().size());
  for (size_t i = 0; i < means.size(); ++i) {
    for (const Grads& grads : per_rank) {
      if (!grads[i].defined()) continue;
      means[i] = means[i].defined() ? means[i] + grads[i] : grads[i].clone();
    }
    if (means[i].defined()) means[i] /= static_cast<double>(per_rank.size());
  }
  return means;
}

/// True if equal to 1e-14, and undefined in the same places.
inline bool same(const Grads& seen, const Grads& expected, double tolerance = 1e-14) {
  if (seen.size() != expected.size()) return false;
  for (size_t i = 0; i < seen.size(); ++i) {
    if (seen[i].defined() != expected[i].defined()) return false;
    if (seen[i].defined() && !torch::allclose(seen[i].to(at::kDouble), expected[i].to(at::kDouble), 0, tolerance)) {
      return false;
    }
  }
  return true;
}

/// True if every rank has the same bits.
inline bool bit_equal(const Group& group, const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    for (const at::Tensor& other : group.all_gather_list(tensor.detach().to_dense().contiguous().reshape({-1}))) {
      if (!torch::equal(other, tensor.detach().to_dense().reshape({-1}))) return false;
    }
  }
  return true;
}

/// Runs backward(model, rank) on a fresh model of every rank without a reducer; returns the means that a reducer must
/// produce.
template <typename Make, typename Backward>
Grads truth(int64_t ranks, const Make& make, const Backward& backward) {
  std::vector<Grads> per_rank;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    auto model = built(make);
    backward(model, rank);
    per_rank.push_back(gradients_of(model->parameters()));
  }
  return mean_of(per_rank);
}

/// Checks on every rank, in four rounds (the first determines the layout), that backward gives the mean of the ranks'
/// own gradients, bit-equal on all ranks.
template <typename Make, typename Backward>
void check_means(int64_t ranks, const Make& make, const Backward& backward,
                 GradientReducerOptions options = small_buckets(), double tolerance = 1e-14) {
  const Grads expected = truth(ranks, make, backward);
  accelerate::comm::run_threads(
      ranks,
      [&](const Group& group) {
        auto model = built(make);
        GradientReducer gradient_reducer(group, named(model), options);
        for (int round = 0; round < 4; ++round) {
          CAPTURE(round);
          gradient_reducer.zero_all();
          backward(model, group.rank());
          const Grads seen = gradients_of(model->parameters());
          CHECK(same(seen, expected, tolerance));
          CHECK(bit_equal(group, seen));
          CHECK_FALSE(gradient_reducer.first_unreduced());
        }
      },
      kTimeout);
}

/// Two layers that are always used and two that a test may omit.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", torch::nn::Linear(4, 6));
    second = register_module("second", torch::nn::Linear(6, 3));
    extra = register_module("extra", torch::nn::Linear(6, 3));
    to(torch::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return second(torch::tanh(first(x))); }
  at::Tensor with_extra(const at::Tensor& x) {
    const auto hidden = torch::tanh(first(x));
    return second(hidden) + extra(hidden);
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, extra{nullptr};
};
using NetPtr = std::shared_ptr<NetImpl>;
inline NetPtr make_net() { return std::make_shared<NetImpl>(); }

/// Rank r's batch of the round.
inline at::Tensor batch(int64_t rank, int64_t round = 0) { return numbers({5, 4}, 10 * round + rank); }

}  // namespace gradient_testing
