// SPDX-License-Identifier: Apache-2.0
// Determines the samples of an epoch and their order, before sharding.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

namespace accelerate::data {

/// See distributed_sampler.
struct DistributedOptions {
  bool shuffle = true;
  /// If unset, the loader's seed, which is rank 0's on all ranks. PyTorch's default is 0.
  std::optional<uint64_t> seed{};
  /// Drops the samples beyond a multiple of the ranks, instead of repeating the first ones.
  bool drop_last = false;
  /// Set both or neither. If unset, the loader's sharding applies, which prepare() sets.
  std::optional<int64_t> num_replicas{}, rank{};
};

/// An order must depend on seed and epoch only, so that every rank computes the same one. The built-in orders equal
/// PyTorch's with a CPU generator of seed + epoch. A loader calls it on the thread that begins a pass.
class Sampler {
 public:
  Sampler() = default;
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;
  virtual ~Sampler() = default;

  /// Number of samples per epoch. It may differ from the size of the source.
  [[nodiscard]] virtual int64_t size() const = 0;
  /// \returns [size()] int64 on the CPU, sample numbers of the source.
  [[nodiscard]] virtual at::Tensor order(uint64_t seed, int64_t epoch) const = 0;
  /// True if the order depends on the seed. All ranks then use rank 0's seed.
  [[nodiscard]] virtual bool seeded() const { return true; }
  /// Kind of order, for states and their errors: "the order is random". A position is only valid in the same kind.
  [[nodiscard]] virtual std::string_view kind() const { return "a user's own"; }
  /// If not null, the order is sharded sample by sample (ShardOptions::strided). If null, batch by batch.
  [[nodiscard]] virtual const DistributedOptions* distributed() const { return nullptr; }
};
using SamplerPtr = std::shared_ptr<const Sampler>;

/// 0, 1, 2, ..., samples-1.
[[nodiscard]] SamplerPtr sequential_sampler(int64_t samples);

/// torch.utils.data.RandomSampler: consecutive permutations if `draws` exceeds the number of samples.
/// \param draws  If negative, the number of samples. \throws Error (usage) for draws without samples.
[[nodiscard]] SamplerPtr random_sampler(int64_t samples, int64_t draws = -1);
/// RandomSampler(replacement=True): each draw is any of the samples.
[[nodiscard]] SamplerPtr random_sampler_with_replacement(int64_t samples, int64_t draws);

/// torch.utils.data.WeightedRandomSampler for any number of weights.
///
/// Up to 2^24 weights, the limit of torch.multinomial, the order equals PyTorch's for equal seed. More weights are
/// sampled by the same algorithms in float64.
/// \param weights  [N], not negative, need not sum to 1.
/// \throws Error (usage) for weights of another shape, negative or non-finite ones, only zeros, and without replacement
///         for more draws than positive weights.
[[nodiscard]] SamplerPtr weighted_sampler(const at::Tensor& weights, int64_t draws, bool replacement = true);

/// A subset of the samples, in the given order, or shuffled as torch.utils.data.SubsetRandomSampler does.
/// \param indices  [n] int64.
[[nodiscard]] SamplerPtr subset_sampler(const at::Tensor& indices, bool shuffle = true);

/// Groups samples of similar length to reduce padding, as Hugging Face transformers' LengthGroupedSampler does: the
/// samples of 50 batches are drawn at random and sorted, longest first. The longest sample of all is the very first.
/// \param lengths     [N] int64.
/// \param batch_size  Samples per step of all ranks together.
[[nodiscard]] SamplerPtr length_grouped_sampler(const at::Tensor& lengths, int64_t batch_size);

/// torch.utils.data.DistributedSampler, equal for equal seed: rank r reads samples r, r + num_replicas, ... of the
/// order. The sampler returns the order of all ranks, and the loader deals it once, with the ranks of prepare() or
/// shard(), or with num_replicas and rank.
/// \throws Error (usage) for a rank outside num_replicas.
[[nodiscard]] SamplerPtr distributed_sampler(int64_t samples, const DistributedOptions& options = {});

/// A user-defined sampler: order(seed, epoch) returns [size] int64.
[[nodiscard]] SamplerPtr make_sampler(int64_t size, std::function<at::Tensor(uint64_t seed, int64_t epoch)> order);

using IndexBatches = std::vector<std::vector<int64_t>>;
/// Returns the batches of an epoch. If all batches except a shorter last one have the same size, the last one is padded
/// sample by sample, as in other loaders. Otherwise each rank gets whole batches, as with shard_batches.
using BatchSampler = std::function<IndexBatches(uint64_t seed, int64_t epoch)>;

}  // namespace accelerate::data
