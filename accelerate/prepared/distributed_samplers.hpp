// SPDX-License-Identifier: Apache-2.0
// Recognises loaders of torch::data whose sampler gives each rank its own samples.
#pragma once

#include <type_traits>

// Declared instead of included: the names suffice here, and a program without such loaders does not parse the headers.
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
/// A data set names its samplers among its template arguments: ChunkDataset<Reader, ChunkSampler, ExampleSampler>.
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

/// A loader of torch::data with a DistributedRandomSampler, a DistributedSequentialSampler, or another
/// DistributedSampler: it reads the share of one rank already, which prepare() would share out a second time.
template <typename Loader>
concept SharedBySampler = decltype(detail::shares_samples(static_cast<Loader*>(nullptr)))::value;

}  // namespace accelerate::prepared
