// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/sampler.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/topk.h>

#include <algorithm>
#include <utility>

#include "accelerate/base/error.hpp"

namespace accelerate::data {
namespace {

const auto kLongOptions = at::TensorOptions().dtype(at::kLong);

at::Generator generator_of(uint64_t seed, int64_t epoch) {
  return at::detail::createCPUGenerator(seed + static_cast<uint64_t>(epoch));
}

using Draw = std::function<at::Tensor(const at::Generator&)>;

/// A random order, drawn for each epoch.
class Drawn : public Sampler {
 public:
  Drawn(std::string_view kind, int64_t size, Draw draw) : kind_(kind), size_(size), draw_(std::move(draw)) {}
  [[nodiscard]] std::string_view kind() const override { return kind_; }
  [[nodiscard]] int64_t size() const override { return size_; }
  [[nodiscard]] at::Tensor order(uint64_t seed, int64_t epoch) const override {
    return draw_(generator_of(seed, epoch));
  }

 private:
  std::string_view kind_;
  int64_t size_;
  Draw draw_;
};

class Sequential : public Sampler {
 public:
  explicit Sequential(int64_t samples) : samples_(samples) {}
  [[nodiscard]] std::string_view kind() const override { return "sequential"; }
  [[nodiscard]] int64_t size() const override { return samples_; }
  [[nodiscard]] at::Tensor order(uint64_t, int64_t) const override { return at::arange(samples_, kLongOptions); }
  [[nodiscard]] bool seeded() const override { return false; }

 private:
  int64_t samples_;
};

/// The same order in every epoch.
class Fixed : public Sampler {
 public:
  explicit Fixed(at::Tensor order) : order_(std::move(order)) {}
  [[nodiscard]] std::string_view kind() const override { return "a subset"; }
  [[nodiscard]] int64_t size() const override { return order_.size(0); }
  [[nodiscard]] at::Tensor order(uint64_t, int64_t) const override { return order_; }
  [[nodiscard]] bool seeded() const override { return false; }

 private:
  at::Tensor order_;
};

class Made : public Sampler {
 public:
  Made(int64_t size, std::function<at::Tensor(uint64_t, int64_t)> order) : size_(size), order_(std::move(order)) {}
  [[nodiscard]] int64_t size() const override { return size_; }
  [[nodiscard]] at::Tensor order(uint64_t seed, int64_t epoch) const override { return order_(seed, epoch); }

 private:
  int64_t size_;
  std::function<at::Tensor(uint64_t, int64_t)> order_;
};

class Distributed : public Sampler {
 public:
  Distributed(int64_t samples, const DistributedOptions& options) : samples_(samples), options_(options) {}
  [[nodiscard]] std::string_view kind() const override {
    return options_.shuffle ? "distributed" : "distributed, sequential";
  }
  [[nodiscard]] int64_t size() const override { return samples_; }
  [[nodiscard]] at::Tensor order(uint64_t seed, int64_t epoch) const override {
    if (!options_.shuffle) return at::arange(samples_, kLongOptions);
    return at::randperm(samples_, generator_of(options_.seed.value_or(seed), epoch), kLongOptions);
  }
  [[nodiscard]] bool seeded() const override { return options_.shuffle && !options_.seed; }
  [[nodiscard]] const DistributedOptions* distributed() const override { return &options_; }

 private:
  int64_t samples_;
  DistributedOptions options_;
};

void check_count(std::string_view sampler, std::string_view what, int64_t count) {
  if (count < 0) base::fail(ErrorKind::usage, {}, sampler, "{} is {}, must be at least 0", what, count);
}

void check_row(std::string_view sampler, std::string_view what, const at::Tensor& tensor) {
  if (tensor.defined() && tensor.dim() == 1) return;
  base::fail(ErrorKind::usage, {}, sampler, "{} has {} dimensions, must have one", what,
             tensor.defined() ? tensor.dim() : 0);
}

at::Tensor permutations(int64_t samples, int64_t draws, const at::Generator& generator) {
  std::vector<at::Tensor> parts;
  for (int64_t left = draws; left > 0; left -= samples) {
    const auto all = at::randperm(samples, generator, kLongOptions);
    parts.push_back(left < samples ? all.narrow(0, 0, left) : all);
  }
  if (parts.empty()) return at::empty({0}, kLongOptions);
  return parts.size() == 1 ? parts.front() : at::cat(parts);
}

/// Maximum number of weights of torch.multinomial.
constexpr int64_t kMaxForMultinomial = int64_t{1} << 24;

/// The CPU algorithms of torch.multinomial, without its limit on the number of weights.
///
/// \param weights  [N] float64, not negative; the sum is above 0.
/// \returns        [draws] int64.
at::Tensor draw_weighted(const at::Tensor& weights, int64_t draws, bool replacement, const at::Generator& generator) {
  if (replacement) {
    at::Tensor cumulative = weights.cumsum(0);
    cumulative.div_(cumulative[-1].clone());
    const at::Tensor points = at::rand({draws}, generator, weights.options());
    return at::searchsorted(cumulative, points, /*out_int32=*/false, /*right=*/true);
  }
  at::Tensor keys = at::empty_like(weights).exponential_(1, generator);  // exponential race (Efraimidis and Spirakis)
  at::div_out(keys, weights, keys);
  return std::get<1>(keys.topk(draws));
}

/// Ports transformers.trainer_pt_utils.get_length_grouped_indices.
at::Tensor grouped(const std::vector<int64_t>& lengths, int64_t batch_size, const at::Generator& generator) {
  const auto samples = static_cast<int64_t>(lengths.size());
  auto order = at::randperm(samples, generator, kLongOptions);
  auto* const first = order.mutable_data_ptr<int64_t>();
  const auto length = [&](int64_t sample) { return lengths[static_cast<size_t>(sample)]; };
  const int64_t batches = std::clamp<int64_t>(samples / 4 / batch_size, 1, 50);
  auto* longest = first;
  for (int64_t begin = 0; begin < samples; begin += batches * batch_size) {
    auto* const group = first + begin;
    std::stable_sort(group, first + std::min(begin + batches * batch_size, samples),
                     [&](int64_t a, int64_t b) { return length(a) > length(b); });
    if (length(*group) > length(*longest)) longest = group;
  }
  if (samples > 0) std::swap(*first, *longest);
  return order;
}

}  // namespace

SamplerPtr sequential_sampler(int64_t samples) {
  check_count("sequential_sampler", "samples", samples);
  return std::make_shared<Sequential>(samples);
}

SamplerPtr random_sampler(int64_t samples, int64_t draws) {
  check_count("random_sampler", "samples", samples);
  if (draws < 0) draws = samples;
  if (samples == 0 && draws > 0)
    base::fail(ErrorKind::usage, {}, "random_sampler", "{} draws from 0 samples; there must be one", draws);
  return std::make_shared<Drawn>(
      "random", draws, [=](const at::Generator& generator) { return permutations(samples, draws, generator); });
}

SamplerPtr random_sampler_with_replacement(int64_t samples, int64_t draws) {
  check_count("random_sampler", "samples", samples);
  check_count("random_sampler", "draws", draws);
  if (samples == 0 && draws > 0)
    base::fail(ErrorKind::usage, {}, "random_sampler", "{} draws from 0 samples; there must be one", draws);
  return std::make_shared<Drawn>("random with replacement", draws, [=](const at::Generator& generator) {
    return at::randint(std::max<int64_t>(samples, 1), {draws}, generator, kLongOptions);
  });
}

SamplerPtr weighted_sampler(const at::Tensor& weights, int64_t draws, bool replacement) {
  check_row("weighted_sampler", "weights", weights);
  check_count("weighted_sampler", "draws", draws);
  const auto own = weights.detach().to(at::kCPU, at::kDouble, /*non_blocking=*/false, /*copy=*/true);
  if (!own.isfinite().all().item<bool>() || own.lt(0).any().item<bool>())
    base::fail(ErrorKind::usage, {}, "weighted_sampler", "a weight is negative or not finite; each must be 0 or more");
  const auto positive = own.gt(0).sum().item<int64_t>();
  if (draws > 0 && (positive == 0 || (!replacement && draws > positive))) {
    base::fail(ErrorKind::usage, {}, "weighted_sampler", "{} draws{} of {} weights above 0; there must be {}", draws,
               replacement ? "" : " without replacement", positive, replacement ? "one" : "as many");
  }
  return std::make_shared<Drawn>("weighted", draws, [=](const at::Generator& generator) {
    if (draws == 0) return at::empty({0}, kLongOptions);
    if (own.size(0) > kMaxForMultinomial) return draw_weighted(own, draws, replacement, generator);
    return at::multinomial(own, draws, replacement, generator);
  });
}

SamplerPtr subset_sampler(const at::Tensor& indices, bool shuffle) {
  check_row("subset_sampler", "indices", indices);
  if (!at::isIntegralType(indices.scalar_type(), /*includeBool=*/false)) {
    base::fail(ErrorKind::usage, {}, "subset_sampler",
               "indices are {}, must be integers: the samples' numbers; those of a mask are mask.nonzero().flatten()",
               indices.toString());
  }
  const auto own = indices.detach().to(at::kCPU, at::kLong, /*non_blocking=*/false, /*copy=*/true);
  if (!shuffle) return std::make_shared<Fixed>(own);
  return std::make_shared<Drawn>("a random subset", own.size(0), [=](const at::Generator& generator) {
    return own.index_select(0, at::randperm(own.size(0), generator, kLongOptions));
  });
}

SamplerPtr length_grouped_sampler(const at::Tensor& lengths, int64_t batch_size) {
  check_row("length_grouped_sampler", "lengths", lengths);
  if (batch_size < 1)
    base::fail(ErrorKind::usage, {}, "length_grouped_sampler", "batch_size is {}, must be at least 1", batch_size);
  const auto on_cpu = lengths.detach().to(at::kCPU, at::kLong).contiguous();
  const auto* const data = on_cpu.const_data_ptr<int64_t>();
  return std::make_shared<Drawn>("length-grouped", on_cpu.size(0),
                                 [=, own = std::vector(data, data + on_cpu.size(0))](const at::Generator& generator) {
                                   return grouped(own, batch_size, generator);
                                 });
}

SamplerPtr distributed_sampler(int64_t samples, const DistributedOptions& options) {
  check_count("distributed_sampler", "samples", samples);
  if (options.num_replicas.has_value() != options.rank.has_value())
    base::fail(ErrorKind::usage, {}, "distributed_sampler",
               "num_replicas and rank: only one is set; set both or neither");
  if (options.rank && (*options.rank < 0 || *options.rank >= *options.num_replicas))
    base::fail(ErrorKind::usage, {}, "distributed_sampler", "rank is {}, must be 0 to {} with num_replicas {}",
               *options.rank, *options.num_replicas - 1, *options.num_replicas);
  return std::make_shared<Distributed>(samples, options);
}

SamplerPtr make_sampler(int64_t size, std::function<at::Tensor(uint64_t seed, int64_t epoch)> order) {
  check_count("make_sampler", "size", size);
  return std::make_shared<Made>(size, std::move(order));
}

}  // namespace accelerate::data
