// SPDX-License-Identifier: Apache-2.0
// A loader as prepare() returns it: this rank's batches, on the device, with the end known one batch ahead.
#pragma once

#include <torch/data/example.h>

#include <concepts>
#include <iterator>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "accelerate/data/deal.hpp"
#include "accelerate/data/loader.hpp"
#include "accelerate/prepared/shared.hpp"
#include "accelerate/tree/tree.hpp"

namespace torch::data {
/// Lets accelerate::tree walk the batches of torch::data loaders.
template <typename Data, typename Target>
auto tree_members(Example<Data, Target>& example) {
  return std::tie(example.data, example.target);
}
template <typename Data>
auto tree_members(Example<Data, example::NoTarget>& example) {
  return std::tie(example.data);
}
}  // namespace torch::data

namespace accelerate::prepared {

struct LoaderOptions {
  bool even_batches = true;
  bool device_placement = true;
};

/// Gives the loader this rank's share and rank 0's seed. Collective for a shuffled loader.
void share_out(data::Loader& loader, const comm::Group& group, const LoaderOptions& options, const Place& place);

/// Keeps a loop on the stack of open loops while it lives.
class OpenLoop {
 public:
  explicit OpenLoop(std::shared_ptr<Shared> shared);
  ~OpenLoop();
  OpenLoop(const OpenLoop&) = delete;
  OpenLoop& operator=(const OpenLoop&) = delete;

  state::BatchInfo info{};
  [[nodiscard]] const Shared& shared() const { return *shared_; }

 private:
  std::shared_ptr<Shared> shared_;
};

/// Our own loader reads only its rank's samples and knows its end from its plan.
class OwnPass {
 public:
  using Batch = data::Batch;
  OwnPass(data::Loader& loader, const LoaderOptions&, const Shared&) : position_(loader.begin()) {}

  [[nodiscard]] std::optional<Batch> next(state::BatchInfo& info) {
    if (position_ == std::default_sentinel) return std::nullopt;
    info = position_.info();
    std::optional<Batch> batch(std::move(*position_));
    started_ = true;
    return batch;
  }
  void advance() {
    if (started_) ++position_;
  }

 private:
  data::Loader::Iterator position_;
  bool started_ = false;
};

/// Anything else is read whole by every rank, one batch ahead, and dealt batch by batch.
template <typename Loader>
class ForeignPass {
 public:
  using Position = decltype(std::declval<Loader&>().begin());
  using Batch = std::remove_cvref_t<decltype(*std::declval<Position&>())>;

  ForeignPass(Loader& loader, const LoaderOptions& options, const Shared& shared)
      : loader_(loader),
        position_(loader.begin()),
        dealer_({.rank = shared.group.rank(), .world_size = shared.group.size(), .even_batches = options.even_batches},
                shared.place),
        world_size_(shared.group.size()),
        even_batches_(options.even_batches) {
    fetch();
  }

  [[nodiscard]] std::optional<Batch> next(state::BatchInfo& info) {
    std::optional<Batch> batch = std::exchange(ahead_, std::nullopt);
    if (!batch) return batch;
    fetch();
    ++info.index;
    info.last = !ahead_;
    // Only a round that even_batches filled has anything to cut.
    const bool filled = even_batches_ && dealer_.fed() % world_size_ != 0;
    if (info.last) info.remainder = filled ? rows_of_round_ : 0;
    return batch;
  }
  void advance() {}

 private:
  void fetch() {
    while (!ahead_ && !ended_) {
      if (position_ == loader_.end()) {
        ended_ = true;
        ahead_ = dealer_.finish();
        return;
      }
      Batch batch = *position_;
      if (dealer_.fed() % world_size_ == 0) rows_of_round_ = 0;
      rows_of_round_ += tree::batch_size(batch).value_or(0);
      ahead_ = dealer_.feed(std::move(batch));
      ++position_;
    }
  }

  Loader& loader_;
  Position position_;
  data::BatchDealer<Batch> dealer_;
  int64_t world_size_;
  bool even_batches_;
  int64_t rows_of_round_ = 0;
  std::optional<Batch> ahead_;
  bool ended_ = false;
};

template <typename Loader>
using PassOf = std::conditional_t<std::same_as<Loader, data::Loader>, OwnPass, ForeignPass<Loader>>;

/// A handle: copies refer to the same loader. Iterated by range-for; leaving a loop early is fine.
template <typename Loader>
class PreparedLoader {
 public:
  using Pass = PassOf<Loader>;
  using Batch = typename Pass::Batch;

  /// One pass over the loader. Not copyable: it owns its place on the stack of open loops.
  class Iterator {
   public:
    Iterator(std::shared_ptr<Loader> loader, std::shared_ptr<Shared> shared, const LoaderOptions& options)
        : loader_(std::move(loader)),
          pass_(*loader_, options, *shared),
          loop_(std::make_unique<OpenLoop>(std::move(shared))),
          place_(options.device_placement && !loop_->shared().device.is_cpu()) {
      take();
    }
    Batch& operator*() { return *batch_; }
    Iterator& operator++() {
      batch_.reset();
      pass_.advance();
      take();
      return *this;
    }
    bool operator==(std::default_sentinel_t) const { return !batch_; }
    [[nodiscard]] const state::BatchInfo& info() const { return loop_->info; }

   private:
    void take() {
      batch_ = pass_.next(loop_->info);
      if (batch_ && place_) batch_ = tree::to(*batch_, loop_->shared().device, /*non_blocking=*/true);
    }

    std::shared_ptr<Loader> loader_;
    Pass pass_;
    std::unique_ptr<OpenLoop> loop_;
    bool place_;
    std::optional<Batch> batch_;
  };

  PreparedLoader(std::shared_ptr<Loader> loader, std::shared_ptr<Shared> shared, const LoaderOptions& options)
      : loader_(std::move(loader)), shared_(std::move(shared)), options_(options) {
    if constexpr (std::same_as<Loader, data::Loader>) share_out(*loader_, shared_->group, options_, shared_->place);
  }

  [[nodiscard]] Iterator begin() const { return {loader_, shared_, options_}; }
  [[nodiscard]] std::default_sentinel_t end() const { return {}; }

  Loader* operator->() const { return loader_.get(); }
  Loader& operator*() const { return *loader_; }
  [[nodiscard]] const std::shared_ptr<Loader>& unwrap() const { return loader_; }
  /// Batches of this rank in a pass.
  [[nodiscard]] int64_t size() const requires std::same_as<Loader, data::Loader> { return loader_->size(); }
  /// The next pass is of this epoch.
  void set_epoch(int64_t epoch) const requires requires(Loader& loader) { loader.set_epoch(epoch); }
  { loader_->set_epoch(epoch); }

  friend bool operator==(const PreparedLoader& a, const PreparedLoader& b) { return a.loader_ == b.loader_; }

 private:
  std::shared_ptr<Loader> loader_;
  std::shared_ptr<Shared> shared_;
  LoaderOptions options_;
};

/// value   gathered from all ranks
/// returns   it without the rows that only filled the open loop's last batch
template <typename Value>
Value cut_to_real(const Shared& shared, Value value) {
  const state::BatchInfo* loader = shared.active_loader();
  if (loader == nullptr || !loader->last || loader->remainder <= 0 || shared.group.size() == 1) return value;
  return tree::map(value, [rows = loader->remainder](const at::Tensor& tensor) {
    return tensor.size(0) > rows ? tensor.narrow(0, 0, rows) : tensor;
  });
}

}  // namespace accelerate::prepared
