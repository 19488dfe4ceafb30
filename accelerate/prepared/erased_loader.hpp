// SPDX-License-Identifier: Apache-2.0
// A type-erased prepared loader, for functions and class members that name only the batch type.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "accelerate/base/error.hpp"
#include "accelerate/prepared/loader.hpp"

namespace accelerate::prepared {

/// Any PreparedLoader with batches of type AnyBatch (accelerate::AnyLoader<AnyBatch>). Copies are handles to the same
/// loader. One virtual call per batch. Not thread-safe, like every prepared loader.
/// \note A default-constructed handle is empty. Using it before a loader is assigned throws Error (usage).
template <typename AnyBatch>
class ErasedLoader {
  struct Walk;

 public:
  using Batch = AnyBatch;

  /// One pass over the loader. Not copyable, because it owns an entry in the list of open loops.
  class Iterator {
   public:
    using iterator_concept = std::input_iterator_tag;
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;

    explicit Iterator(std::unique_ptr<Walk> walk) : walk_(std::move(walk)) {}
    Batch& operator*() const { return *walk_->batch(); }
    Batch* operator->() const { return walk_->batch(); }
    Iterator& operator++() {
      walk_->next();
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return walk_->batch() == nullptr; }
    [[nodiscard]] const state::BatchInfo& info() const { return walk_->info(); }

   private:
    std::unique_ptr<Walk> walk_;
  };

  ErasedLoader() = default;
  template <typename Loader>
  requires std::same_as<batch_t<Loader>, AnyBatch>
  // NOLINTNEXTLINE(google-explicit-constructor): it takes any prepared loader of these batches
  ErasedLoader(PreparedLoader<Loader> loader)
      : held_(loader.is_empty() ? nullptr : std::make_shared<const Held<Loader>>(std::move(loader))) {}

  [[nodiscard]] bool is_empty() const { return held_ == nullptr; }
  /// \throws Error (usage) if the handle is empty.
  void require_assigned() const { (void)assigned(held_, "AnyLoader"); }
  /// Begins a pass, like PreparedLoader::begin().
  [[nodiscard]] Iterator begin() const { return Iterator(held().walk()); }
  [[nodiscard]] std::default_sentinel_t end() const { return {}; }
  /// Batches of this rank in a pass. Unset if the loader does not know its length.
  [[nodiscard]] std::optional<int64_t> size() const { return held().size(); }
  /// Position of the innermost loop over this loader; {-1, false, -1} outside a loop.
  [[nodiscard]] state::BatchInfo info() const { return held().info(); }
  [[nodiscard]] data::LoadingReport report() const { return held().report(); }
  /// Sets the epoch of the next pass.
  /// \throws Error (usage) if the loader does not count epochs.
  void set_epoch(int64_t epoch) const { held().set_epoch(epoch); }
  /// See PreparedLoader::skip_first_batches().
  [[nodiscard]] ErasedLoader skip_first_batches(int64_t batches) const { return held().skip_first_batches(batches); }

 private:
  struct Walk {
    virtual ~Walk() = default;
    /// Null at the end.
    [[nodiscard]] virtual Batch* batch() const = 0;
    virtual void next() = 0;
    [[nodiscard]] virtual const state::BatchInfo& info() const = 0;
  };

  struct AnyHeld {
    virtual ~AnyHeld() = default;
    [[nodiscard]] virtual std::unique_ptr<Walk> walk() const = 0;
    [[nodiscard]] virtual std::optional<int64_t> size() const = 0;
    [[nodiscard]] virtual state::BatchInfo info() const = 0;
    [[nodiscard]] virtual data::LoadingReport report() const = 0;
    virtual void set_epoch(int64_t epoch) const = 0;
    [[nodiscard]] virtual ErasedLoader skip_first_batches(int64_t batches) const = 0;
  };

  template <typename Loader>
  struct HeldWalk final : Walk {
    explicit HeldWalk(const PreparedLoader<Loader>& loader) : position(loader.begin()) {}
    [[nodiscard]] Batch* batch() const override { return position == std::default_sentinel ? nullptr : &*position; }
    void next() override { ++position; }
    [[nodiscard]] const state::BatchInfo& info() const override { return position.info(); }
    typename PreparedLoader<Loader>::Iterator position;
  };

  template <typename Loader>
  struct Held final : AnyHeld {
    explicit Held(PreparedLoader<Loader> of) : loader(std::move(of)) {}
    [[nodiscard]] std::unique_ptr<Walk> walk() const override { return std::make_unique<HeldWalk<Loader>>(loader); }
    [[nodiscard]] std::optional<int64_t> size() const override {
      if constexpr (requires { loader.size(); }) return loader.size();
      return std::nullopt;
    }
    [[nodiscard]] state::BatchInfo info() const override { return loader.info(); }
    [[nodiscard]] data::LoadingReport report() const override { return loader.report(); }
    void set_epoch([[maybe_unused]] int64_t epoch) const override {
      if constexpr (requires { loader.set_epoch(epoch); }) {
        loader.set_epoch(epoch);
      } else {
        base::fail(ErrorKind::usage, {}, "set_epoch", "epoch is {}, but this loader does not count epochs", epoch);
      }
    }
    [[nodiscard]] ErasedLoader skip_first_batches(int64_t batches) const override {
      return loader.skip_first_batches(batches);
    }
    PreparedLoader<Loader> loader;
  };

  [[nodiscard]] const AnyHeld& held() const { return *assigned(held_, "AnyLoader"); }

  std::shared_ptr<const AnyHeld> held_;
};

}  // namespace accelerate::prepared
