// SPDX-License-Identifier: Apache-2.0
// User-defined data sets: types with size() and get(i) or get_batch(indices), including those of torch::data.
#pragma once

#include <concepts>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerate/data/collate.hpp"
#include "accelerate/data/derived_source.hpp"
#include "accelerate/data/example.hpp"
#include "accelerate/data/loader.hpp"
#include "accelerate/data/sample_generator.hpp"
#include "accelerate/data/workers.hpp"
#include "accelerate/tree/walk.hpp"

namespace accelerate::data {

namespace detail {

// A read function that depends on the pass takes it as a further argument.
template <typename Dataset>
concept GetsSamplesInPass = requires(Dataset& dataset, const ReadContext& pass) {
  dataset.get(int64_t{}, pass);
};
template <typename Dataset>
concept GetsSamples = GetsSamplesInPass<Dataset> || requires(Dataset& dataset) {
  dataset.get(int64_t{});
};
template <typename Dataset, typename Indices>
concept GetsBatchInPassBy = requires(Dataset& dataset, const Indices& indices, const ReadContext& pass) {
  dataset.get_batch(indices, pass);
};
template <typename Dataset, typename Indices>
concept GetsBatchBy = GetsBatchInPassBy<Dataset, Indices> || requires(Dataset& dataset, const Indices& indices) {
  dataset.get_batch(indices);
};
template <typename Dataset>
concept GetsBatches = GetsBatchBy<Dataset, at::Tensor> || GetsBatchBy<Dataset, std::span<const int64_t>> ||
    GetsBatchBy<Dataset, std::vector<int64_t>> || GetsBatchBy<Dataset, std::vector<size_t>>;
template <typename Dataset>
concept Sized = requires(Dataset& dataset) {
  { dataset.size() } -> std::convertible_to<std::optional<size_t>>;
};

inline std::span<const int64_t> numbers_of(const at::Tensor& indices) {
  return {indices.const_data_ptr<int64_t>(), static_cast<size_t>(indices.size(0))};
}

template <typename Dataset, typename Indices>
auto get_batch_by(Dataset& dataset, const Indices& indices, const ReadContext& pass) {
  if constexpr (GetsBatchInPassBy<Dataset, Indices>) {
    return dataset.get_batch(indices, pass);
  } else {
    return dataset.get_batch(indices);
  }
}

template <GetsBatches Dataset>
auto get_batch(Dataset& dataset, const at::Tensor& indices, const ReadContext& pass) {
  const auto numbers = numbers_of(indices);
  if constexpr (GetsBatchBy<Dataset, at::Tensor>) {
    return get_batch_by(dataset, indices, pass);
  } else if constexpr (GetsBatchBy<Dataset, std::span<const int64_t>>) {
    return get_batch_by(dataset, numbers, pass);
  } else if constexpr (GetsBatchBy<Dataset, std::vector<int64_t>>) {
    return get_batch_by(dataset, std::vector<int64_t>(numbers.begin(), numbers.end()), pass);
  } else {
    return get_batch_by(dataset, std::vector<size_t>(numbers.begin(), numbers.end()), pass);
  }
}

template <GetsSamples Dataset>
auto get_sample(Dataset& dataset, int64_t number, const ReadContext& pass) {
  if constexpr (GetsSamplesInPass<Dataset>) {
    return dataset.get(number, pass);
  } else {
    return dataset.get(number);
  }
}

template <GetsSamples Dataset>
using sample_of_dataset = decltype(get_sample(std::declval<Dataset&>(), int64_t{}, std::declval<ReadContext>()));

template <typename T>
struct ItemOf {
  static constexpr bool is_sample = false;
};
template <typename Item>
struct ItemOf<std::vector<Item>> {
  static constexpr bool is_sample = tree::detail::Struct<Item> || tree::detail::Tuple<Item> || tree::detail::Map<Item>;
};

/// True if get_batch returns one sample per index, which must be collated.
template <typename Dataset, typename Read>
constexpr bool gives_samples() {
  if constexpr (ItemOf<Read>::is_sample) {
    return true;
  } else if constexpr (GetsSamples<Dataset>) {
    return std::same_as<Read, std::vector<sample_of_dataset<Dataset>>>;
  } else {
    return false;
  }
}

template <typename Collate, typename Sample>
auto collate_with(const Collate& collate, const std::vector<Sample>& samples, const at::Tensor& indices) {
  if constexpr (std::invocable<const Collate&, const std::vector<Sample>&, std::span<const int64_t>>) {
    return collate(samples, numbers_of(indices));
  } else {
    static_assert(std::invocable<const Collate&, const std::vector<Sample>&>,
                  "accelerate::data: a collate function takes a std::vector of samples, and returns a batch");
    return collate(samples);
  }
}

void check_count(int64_t samples, int64_t indices);
/// Lock that all sources of this data set share.
std::shared_ptr<std::recursive_mutex> reading_of(const void* dataset);
[[noreturn]] void fail_without_size();

template <typename Dataset, typename Collate>
auto read_dataset(Dataset& dataset, const Collate& collate, const at::Tensor& indices, const ReadContext& pass) {
  if constexpr (GetsBatches<Dataset>) {
    auto read = get_batch(dataset, indices, pass);
    if constexpr (gives_samples<Dataset, decltype(read)>()) {
      check_count(static_cast<int64_t>(read.size()), indices.size(0));
      return collate_with(collate, read, indices);
    } else {
      static_assert(std::same_as<Collate, DefaultCollate>,
                    "accelerate::data: get_batch() of this data set returns whole batches, so no collate function is "
                    "called; remove it");
      return read;
    }
  } else {
    std::vector<sample_of_dataset<Dataset>> samples;
    samples.reserve(static_cast<size_t>(indices.size(0)));
    for (const int64_t number : numbers_of(indices)) {
      now_reading(number);
      try {
        samples.push_back(get_sample(dataset, number, pass));
      } catch (...) {
        log_failed_sample("dataset", number, std::current_exception());
        throw;
      }
    }
    return collate_with(collate, samples, indices);
  }
}

template <typename Dataset, typename Collate>
using dataset_batch = decltype(read_dataset(std::declval<Dataset&>(), std::declval<const Collate&>(),
                                            std::declval<at::Tensor>(), std::declval<ReadContext>()));

template <typename Dataset>
int64_t size_of(Dataset& dataset) {
  const std::optional<size_t> size = dataset.size();
  if (!size) fail_without_size();
  return static_cast<int64_t>(*size);
}

/// True if the data set declares it, or if its read functions are const.
template <typename Dataset>
bool may_be_shared(const Dataset& dataset) {
  if constexpr (requires {
                  { dataset.thread_safe() } -> std::convertible_to<bool>;
                }) {
    return dataset.thread_safe();
  } else {
    return GetsBatches<Dataset> ? GetsBatches<const Dataset> : GetsSamples<const Dataset>;
  }
}

template <typename Dataset>
constexpr bool depends_on_pass() {
  if constexpr (GetsBatches<Dataset>) {
    return GetsBatchInPassBy<Dataset, at::Tensor> || GetsBatchInPassBy<Dataset, std::span<const int64_t>> ||
           GetsBatchInPassBy<Dataset, std::vector<int64_t>> || GetsBatchInPassBy<Dataset, std::vector<size_t>>;
  } else {
    return GetsSamplesInPass<Dataset>;
  }
}

template <typename Dataset, typename Collate>
class DatasetSource final : public DerivedSource<dataset_batch<Dataset, Collate>> {
 public:
  using BatchType = dataset_batch<Dataset, Collate>;

  DatasetSource(std::shared_ptr<Dataset> dataset, Collate collate)
      : DerivedSource<BatchType>(
            "dataset", size_of(*dataset),
            SourceTraits{.seeded = depends_on_pass<Dataset>(), .thread_safe = may_be_shared(*dataset)}),
        dataset_(std::move(dataset)),
        collate_(std::move(collate)),
        reading_(this->thread_safe() ? nullptr : reading_of(dataset_.get())) {}

 private:
  [[nodiscard]] BatchType make(const at::Tensor& indices, const ReadContext& pass) const override {
    std::unique_lock<std::recursive_mutex> alone;
    if (reading_) alone = std::unique_lock(*reading_);
    return read_dataset(*dataset_, collate_, indices, pass);
  }

  std::shared_ptr<Dataset> dataset_;
  Collate collate_;
  std::shared_ptr<std::recursive_mutex> reading_;  // null if several threads may read the data set
};

template <typename Dataset>
std::shared_ptr<Dataset> held(Dataset dataset) {
  return std::make_shared<Dataset>(std::move(dataset));
}
template <typename Dataset>
std::shared_ptr<Dataset> held(std::shared_ptr<Dataset> dataset) {
  check_source("dataset", dataset != nullptr);
  return dataset;
}
template <typename Dataset>
std::shared_ptr<Dataset> held(std::reference_wrapper<Dataset> dataset) {
  return {std::shared_ptr<void>(), &dataset.get()};
}

}  // namespace detail

/// A user-defined data set as a source. A batch is the result of get_batch or collate. A loader's workers read several
/// at a time if get or get_batch is const; a data set with thread_safe() decides itself. Otherwise one thread at a time
/// reads it, over all loaders and sources that share it.
///
/// \param dataset  Owned; std::ref(dataset) is referenced and must outlive the source; a std::shared_ptr is shared. It
///                 has size() and either get(i), which returns a sample, or get_batch(indices), which returns a batch,
///                 or a std::vector of samples (structs, pairs, tuples, maps, or the result of get(i)). Indices are a
///                 tensor [B] int64, a std::span<const int64_t>, or a vector of int64_t or size_t. Both may take the
///                 pass (const ReadContext&) as a further argument, for random numbers: sample_generator(pass, i).
/// \param collate  Makes a batch of samples: collate(std::vector<Sample>) or, with the samples' numbers for errors,
///                 collate(std::vector<Sample>, std::span<const int64_t>).
/// \throws Error (usage) for a torch::data set whose size() is empty.
template <typename Dataset, typename Collate = DefaultCollate>
[[nodiscard]] auto dataset_source(Dataset dataset, Collate collate = {}) {
  auto held = detail::held(std::move(dataset));
  using Held = typename decltype(held)::element_type;
  static_assert(detail::Sized<Held> && (detail::GetsSamples<Held> || detail::GetsBatches<Held>),
                "accelerate::data: a data set has size() and get(i) or get_batch(indices)");
  using Made = detail::DatasetSource<Held, Collate>;
  return SourcePtr<typename Made::BatchType>(std::make_shared<Made>(std::move(held), std::move(collate)));
}

/// A loader over dataset_source(dataset, collate).
template <typename Dataset, typename Collate = DefaultCollate>
[[nodiscard]] auto from_dataset(Dataset dataset, const LoaderOptions& options = {}, Collate collate = {}) {
  return LoaderOf(data::dataset_source(std::move(dataset), std::move(collate)), options);
}

}  // namespace accelerate::data
