// SPDX-License-Identifier: Apache-2.0
// Which samples an epoch visits, and in which order: before they are shared out among ranks.
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
  /// Leaves out the samples that do not go evenly over the ranks, instead of repeating the first ones.
  bool drop_last = false;
  /// Set both or neither. If unset, the loader's sharding applies, which prepare() sets.
  std::optional<int64_t> num_replicas{}, rank{};
};

/// An order depends on the seed and the epoch and nothing else, so every rank computes the same one. Our orders are
/// PyTorch's, drawn from a CPU generator seeded seed + epoch.
class Sampler {
 public:
  Sampler() = default;
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;
  virtual ~Sampler() = default;

  /// How many samples an epoch visits; not more than an epoch's, may be other than the source's.
  [[nodiscard]] virtual int64_t size() const = 0;
  /// \returns [size()] int64 on the CPU, sample numbers of the source.
  [[nodiscard]] virtual at::Tensor order(uint64_t seed, int64_t epoch) const = 0;
  /// The order depends on the seed, which is then rank 0's on all ranks.
  [[nodiscard]] virtual bool seeded() const { return true; }
  /// What its orders are, for states and their errors: "the order is random". A place in one is none in another.
  [[nodiscard]] virtual std::string_view kind() const { return "a user's own"; }
  /// The order is dealt sample by sample (ShardOptions::strided); null: batch by batch.
  [[nodiscard]] virtual const DistributedOptions* distributed() const { return nullptr; }
};
using SamplerPtr = std::shared_ptr<const Sampler>;

/// 0, 1, 2 ... samples-1.
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

/// Of these samples alone: in their order, or shuffled as torch.utils.data.SubsetRandomSampler shuffles.
/// indices   [n] int64
[[nodiscard]] SamplerPtr subset_sampler(const at::Tensor& indices, bool shuffle = true);

/// Groups samples of similar length to reduce padding: among every 50 batches' samples, drawn at random, the longest
/// are first, and the longest of all is the very first (Hugging Face transformers' LengthGroupedSampler). \param
/// lengths     [N] int64 \param batch_size  Samples of all ranks together per step.
[[nodiscard]] SamplerPtr length_grouped_sampler(const at::Tensor& lengths, int64_t batch_size);

/// torch.utils.data.DistributedSampler, equal for equal seed: rank r reads samples r, r + num_replicas, ... of the
/// order. The sampler returns the order of all ranks, and the loader deals it once, with the ranks of prepare() or
/// shard(), or with num_replicas and rank. \throws Error (usage) for a rank outside num_replicas.
[[nodiscard]] SamplerPtr distributed_sampler(int64_t samples, const DistributedOptions& options = {});

/// A user's own: order(seed, epoch) returns [size] int64.
[[nodiscard]] SamplerPtr make_sampler(int64_t size, std::function<at::Tensor(uint64_t seed, int64_t epoch)> order);

using IndexBatches = std::vector<std::vector<int64_t>>;
/// Makes the batches itself; a rank gets whole ones, as deal_batches deals them, or, where all but a shorter last one
/// are of one size, filled sample by sample as any other loader's.
using BatchSampler = std::function<IndexBatches(uint64_t seed, int64_t epoch)>;

}  // namespace accelerate::data
