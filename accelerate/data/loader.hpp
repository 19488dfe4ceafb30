// SPDX-License-Identifier: Apache-2.0
// The loader: walks a source in an epoch's order, batch by batch, and knows which batches are this rank's.
#pragma once

#include <cstddef>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "accelerate/data/loader_base.hpp"
#include "accelerate/data/source.hpp"

namespace accelerate::data {

/// Batches of one rank, a pass per loop. Copies are handles of the same loader.
///
///   for (auto& [images, labels] : loader) ...      // epoch 0
///   for (auto& [images, labels] : loader) ...      // epoch 1, another order with shuffle
///
/// A loop may be left early, loops may be nested (each begin() is a pass of its own), and a pass outlives its loader.
/// Not for use from several threads at once.
template <typename AnyBatch>
class LoaderOf : public LoaderBase {
 public:
  class Iterator;

  /// source   what is read; shared
  /// Throws Error (usage) for a batch_size below 1.
  LoaderOf(std::shared_ptr<const SourceOf<AnyBatch>> source, const LoaderOptions& options = {})
      : LoaderBase(source->size(), options, source->seeded()), source_(std::move(source)) {}

  /// Begins the next epoch's pass: of epoch() if none began yet, else of the one after it. A pass that was left early
  /// counts as its epoch.
  [[nodiscard]] Iterator begin() { return Iterator(std::make_shared<typename Iterator::State>(source_, core_)); }
  [[nodiscard]] std::default_sentinel_t end() const { return {}; }

  /// Another loader with the same settings, in the same epoch: each of its passes begins `batches` batches of this rank
  /// later, without reading them, and its size() is as much smaller. This one is not changed.
  /// Throws Error (usage) for a negative number.
  [[nodiscard]] LoaderOf skip_first_batches(int64_t batches) const {
    LoaderOf other = *this;
    other.core_ = skipping(batches);
    return other;
  }

  /// What it reads, for other loaders and for sources made of it.
  [[nodiscard]] const std::shared_ptr<const SourceOf<AnyBatch>>& source() const { return source_; }

 private:
  std::shared_ptr<const SourceOf<AnyBatch>> source_;
};

template <typename AnySource>
LoaderOf(std::shared_ptr<AnySource>) -> LoaderOf<typename AnySource::BatchType>;
template <typename AnySource>
LoaderOf(std::shared_ptr<AnySource>, const LoaderOptions&) -> LoaderOf<typename AnySource::BatchType>;

/// Of the convenient pair.
using Loader = LoaderOf<Batch>;

/// One pass; ends compare equal to std::default_sentinel. Copies share the pass.
template <typename AnyBatch>
class LoaderOf<AnyBatch>::Iterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = AnyBatch;
  using difference_type = std::ptrdiff_t;
  using pointer = AnyBatch*;
  using reference = AnyBatch&;

  /// The batch at hand. May be changed and moved from: it is read anew for every step.
  AnyBatch& operator*() const { return *state_->batch; }
  AnyBatch* operator->() const { return &**this; }
  Iterator& operator++() {
    state_->advance();
    return *this;
  }
  void operator++(int) { ++*this; }
  bool operator==(std::default_sentinel_t) const { return state_->pass.ended(); }

  /// Where this pass stands.
  [[nodiscard]] const state::BatchInfo& info() const { return state_->pass.info(); }

 private:
  friend class LoaderOf;
  struct State {
    std::shared_ptr<const SourceOf<AnyBatch>> source;
    Pass pass;
    std::optional<AnyBatch> batch;

    State(std::shared_ptr<const SourceOf<AnyBatch>> from, std::shared_ptr<Core> loader)
        : source(std::move(from)), pass(std::move(loader)) {
      advance();
    }
    void advance() {
      batch.reset();  // its memory serves the next one
      const at::Tensor indices = pass.advance();
      if (indices.defined()) batch.emplace(source->read_in_pass(indices, pass.context()));
    }
  };
  explicit Iterator(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

}  // namespace accelerate::data
