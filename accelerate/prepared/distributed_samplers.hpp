// SPDX-License-Identifier: Apache-2.0
// Detects torch::data loaders with a distributed sampler.
#pragma once

#include <type_traits>

// Forward declarations suffice, so programs without such loaders do not parse the headers.
namespace torch::data {
template <typename Dataset, typename Sampler>
class StatelessDataLoader;
template <typename Dataset>
class StatefulDataLoader;
namespace samplers {
template <typename BatchRequest>
class DistributedSampler;
}  // namespace samplers
}  // namespace torch::data

namespace accelerate::prepared {
namespace detail {

template <typename BatchRequest>
std::true_type is_distributed(const torch::data::samplers::DistributedSampler<BatchRequest>*);
std::false_type is_distributed(...);

template <typename T>
struct HoldsDistributedSampler : decltype(is_distributed(static_cast<std::remove_cvref_t<T>*>(nullptr))) {};
/// A dataset has its samplers as template arguments: ChunkDataset<Reader, ChunkSampler, ExampleSampler>.
template <template <typename...> typename Outer, typename... Parts>
struct HoldsDistributedSampler<Outer<Parts...>>
    : std::disjunction<decltype(is_distributed(static_cast<Outer<Parts...>*>(nullptr))),
                       HoldsDistributedSampler<Parts>...> {};

template <typename Dataset, typename Sampler>
std::disjunction<HoldsDistributedSampler<Dataset>, HoldsDistributedSampler<Sampler>> shares_samples(
    const torch::data::StatelessDataLoader<Dataset, Sampler>*);
template <typename Dataset>
HoldsDistributedSampler<Dataset> shares_samples(const torch::data::StatefulDataLoader<Dataset>*);
std::false_type shares_samples(...);

}  // namespace detail

/// A torch::data loader with a DistributedRandomSampler, DistributedSequentialSampler or other DistributedSampler. It
/// already reads one rank's shard, and prepare() would shard it a second time.
template <typename Loader>
concept SharedBySampler = decltype(detail::shares_samples(static_cast<Loader*>(nullptr)))::value;

}  // namespace accelerate::prepared
