// SPDX-License-Identifier: Apache-2.0
// The prepared form of a loader: batches of this rank, on the device. The last batch is known when it is returned.
#pragma once

#include <ATen/record_function.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <memory>
#include <optional>
#include <ranges>
#include <utility>
#include <variant>

#include "accelerate/data/batch_sharding.hpp"
#include "accelerate/data/example.hpp"
#include "accelerate/data/loader.hpp"
#include "accelerate/data/loader_common.hpp"
#include "accelerate/data/loader_concepts.hpp"
#include "accelerate/data/loading_report.hpp"
#include "accelerate/device/out_of_memory_error.hpp"
#include "accelerate/device/upload.hpp"
#include "accelerate/prepared/accelerator_state.hpp"
#include "accelerate/prepared/dispatch_pass.hpp"
#include "accelerate/prepared/handle.hpp"
#include "accelerate/prepared/loader_core.hpp"
#include "accelerate/prepared/loader_pass.hpp"
#include "accelerate/prepared/loader_position.hpp"
#include "accelerate/prepared/memory_format.hpp"
#include "accelerate/prepared/padding.hpp"
#include "accelerate/prepared/pass_order.hpp"
#include "accelerate/tree/tree.hpp"

namespace accelerate::prepared {

/// Handle of a prepared loader. Copies refer to the same loader. A default-constructed handle is empty, and its use
/// throws Error (usage) until a loader is assigned. The handle is an input range, also for views. A loop may end early.
/// Several loops may be open at a time if the loader itself supports that.
///
/// On an accelerator, the current stream waits for the copy of a batch; the host does not. The next batch is read when
/// the current one is returned, and it is copied while the step runs. Not thread-safe: use it on the thread of its
/// Accelerator.
template <typename Loader>
class PreparedLoader {
 public:
  using Batch = batch_t<Loader>;

  /// One pass over the loader. Not copyable, because it is registered in the list of open loops.
  class Iterator {
   public:
    using iterator_concept = std::input_iterator_tag;
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;

    explicit Iterator(const PreparedLoader& of) : walk_(std::make_unique<Walk>(of)) {
      walk_->take();
      if (!walk_->batch) walk_->log_empty_pass();
    }
    Iterator(Iterator&&) = default;
    Iterator& operator=(Iterator&& other) noexcept {
      if (walk_ && other.walk_) other.walk_->loop->advance_by_hand();  // a `for` loop never assigns its iterator
      walk_ = std::move(other.walk_);
      return *this;
    }
    ~Iterator() = default;
    Batch& operator*() const {
      walk_->loop->dereference();
      return *walk_->batch;
    }
    Batch* operator->() const { return &**this; }
    Iterator& operator++() {
      walk_->take();
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const {
      walk_->loop->compare_with_end();
      return !walk_->batch;
    }
    [[nodiscard]] const state::BatchInfo& info() const { return walk_->info(); }

   private:
    struct Walk {
      using Pass = std::variant<typename PassOf<Loader>::type, DispatchPass<Loader>>;
      using Clock = data::LoadingTimer::Clock;

      std::shared_ptr<Loader> loader;
      std::shared_ptr<AcceleratorState> shared;
      std::shared_ptr<LoaderPosition> position_state;
      std::shared_ptr<LoaderStateHandle> access;
      std::shared_ptr<PassOrder> order;  // null if the loader draws no order from the CPU generator
      bool skips;
      std::shared_ptr<device::UploadStream> lane;
      bool moves;                                // copies batches to the device
      env::MemoryFormat memory_format;           // of the batches
      std::optional<data::LoadingTimer> clock;   // set if the loader does not time its own passes
      std::optional<state::LoaderState> before;  // position of the loader before the pass
      Pass pass;
      std::optional<ActiveLoaderScope> loop;
      std::optional<device::Upload> ahead;  // copy of the next batch
      std::optional<Batch> batch;
      int64_t pass_number = 0;                 // number of this pass in `order`
      bool requested = false;                  // a batch was requested; `clock` starts with the first request
      std::optional<Clock::time_point> since;  // time at which the next batch became available

      Walk(const PreparedLoader& of)
          : loader(of.loader_),
            shared(of.accelerator_state_),
            position_state(of.position_state_),
            access(of.access_),
            order(of.order_),
            skips(of.skips_),
            lane(of.lane_),
            moves(of.options_.device_placement && !shared->device.is_cpu()),
            memory_format(of.options_.memory_format),
            clock(clock_of(of)),
            before(saved_position(of)),
            pass(begin(of, before)) {
        loop.emplace(shared->active_loaders, loader.get(), info());
        if (order) pass_number = order->begin(std::visit([](const auto& one) { return one.start(); }, pass));
        if (clock) of.timings_->begin(clock->report());
      }
      ~Walk() {
        if (order) order->leave(pass_number);
      }
      Walk(const Walk&) = delete;
      Walk& operator=(const Walk&) = delete;
      static std::optional<data::LoadingTimer> clock_of(const PreparedLoader& of) {
        return of.loader_reports() ? std::nullopt : std::optional<data::LoadingTimer>(readers_of(*of.loader_));
      }
      static std::optional<state::LoaderState> saved_position(const PreparedLoader& of) {
        if constexpr (data::Resumable<Loader>) {
          if (!data::Skippable<Loader> || of.dispatches()) return of.state();
        }
        return std::nullopt;
      }
      static Pass begin(const PreparedLoader& of, const std::optional<state::LoaderState>& before) try {
        LoaderOptions options = of.options_;
        options.skipped = of.skip_.of_pass(of.resumed(), of.samples_per_step());
        const auto start = of.order_ ? of.order_->to_repeat(of.skips_ || options.skipped > 0) : std::nullopt;
        if (of.dispatches())
          return Pass(std::in_place_index<1>, *of.loader_, options, *of.accelerator_state_, of.position_state_->begin(),
                      start);
        return Pass(std::in_place_index<0>, *of.loader_, options, *of.accelerator_state_, start);
      } catch (...) {  // for example while it skipped batches
        if constexpr (data::Resumable<Loader>) {
          if (before) of.position_state_->set_position_state(before, of.loader_->state());
        }
        throw;
      }
      [[nodiscard]] const state::BatchInfo& info() const {
        return std::visit([](const auto& one) -> const state::BatchInfo& { return one.info(); }, pass);
      }
      void take() {
        RECORD_USER_SCOPE("accelerate::next_batch");  // profile::kDataSpan
        batch.reset();                                // lets the next batch reuse the memory
        loop->step();
        auto next = next_of_pass();
        note_size();
        record_position();
        if (!next) return end();
        if (moves || memory_format != env::MemoryFormat::contiguous) {
          device::with_out_of_memory_report(shared->place, "loader", [&] { batch.emplace(arrived(*next)); });
        } else {
          batch = std::move(next);
        }
        if (shared->mesh.data.size() > 1) loop->record_batch(tree::flatten(*batch));  // for gather_for_metrics()
        if (!moves) return;
        if (lane) begin_next();
        record_position();  // begin_next() may have read the next batch
      }
      void end() {
        if (loop->is_open()) log_loading_report();
        loop->end();
        if (order) order->end(pass_number);
      }
      std::optional<Batch> next_of_pass() try {
        if (clock && std::exchange(requested, true)) clock->start_request();
        auto next = std::visit([](auto& one) { return one.next(); }, pass);
        if (clock && next) clock->arrived(tree::rows(*next).value_or(0), std::exchange(since, std::nullopt));
        return next;
      } catch (...) {
        note_failed();
        throw;
      }
      /// Does not count samples as consumed if their batch was not returned.
      void note_failed() {
        if constexpr (data::Resumable<Loader>) {
          std::visit(
              [this](const auto& one) {
                if constexpr (requires { one.state(); })
                  position_state->set_position_state(one.state() ? one.state() : before, loader->state());
              },
              pass);
        }
      }
      void record_position() {
        if constexpr (data::Resumable<Loader>) {
          std::visit(
              [this](const auto& one) {
                if constexpr (requires { one.state(); }) {
                  position_state->set_position_state(one.state(), loader->state());
                } else if constexpr (!data::Skippable<Loader>) {
                  position_state->set_position_state({}, loader->state());
                }
              },
              pass);
          if (access)
            access->set_position_state(skips ? std::optional(position_state->state(loader->state())) : std::nullopt);
        }
      }
      void note_size() {
        std::visit(
            [this](const auto& one) {
              if constexpr (requires { one.split(); }) {
                if (const auto split = one.split()) position_state->split(split->first, split->second);
              } else if constexpr (requires { one.size(); }) {
                position_state->update_reader_info(one.size(), one.samples());
              }
            },
            pass);
      }
      /// Logs the loading report of a dispatched pass, because the loader itself does not report such a pass.
      void log_loading_report() const {
        if constexpr (requires {
                        { loader->options().log_report } -> std::convertible_to<bool>;
                      }) {
          const auto* const dispatched = std::get_if<1>(&pass);
          if (dispatched == nullptr || clock->report()->batches == 0 || !loader->options().log_report) return;
          data::log_report(dispatched->epoch(), *clock->report());
        }
      }
      void log_empty_pass() const {
        const auto reason = std::visit([](const auto& one) { return one.empty_pass_reason(); }, pass);
        if (!reason.empty()) data::warn_about_empty_rank(shared->place, reason);
      }
      /// Returns the batch on the device and in the memory format. It is reordered after the copy, where that is fast.
      Batch arrived(const Batch& next) {
        if (!moves) return reordered(next);
        return memory_format == env::MemoryFormat::contiguous ? moved(next) : reordered(moved(next));
      }
      Batch reordered(const Batch& given) const {
        return tree::map(given, [&](const at::Tensor& tensor) { return in_memory_format(tensor, memory_format); });
      }
      Batch moved(const Batch& next) {
        if (!lane) return tree::to(next, shared->device, /*non_blocking=*/true);
        device::Upload upload = ahead ? std::move(*ahead) : lane->begin(tree::flatten(next));
        ahead.reset();
        upload.arrive();
        return tree::map(next, [&](const at::Tensor& tensor) { return upload.take(tensor); });
      }
      void begin_next() {
        if (info().last) return;
        const auto began = Clock::now();
        const Batch* next = std::visit([](auto& one) { return one.peek(); }, pass);
        if (next == nullptr) return;
        if (clock) {
          since = Clock::now();
          clock->waited(*since - began);
        }
        try {
          ahead.emplace(lane->begin(tree::flatten(*next)));
        } catch (const c10::OutOfMemoryError&) {  // too little memory for two batches; moved() copies this one later
        }
      }
    };
    std::unique_ptr<Walk> walk_;  // on the heap, because the list of open loops refers to it
  };

  PreparedLoader() = default;
  PreparedLoader(std::shared_ptr<Loader> loader, std::shared_ptr<AcceleratorState> shared, const LoaderOptions& options)
      : loader_(std::move(loader)), accelerator_state_(std::move(shared)), options_(options) {
    divide_round(*loader_, accelerator_state_->mesh, options_, accelerator_state_->place);
    lane_ = lane_for(*loader_, *accelerator_state_, options_);
    if constexpr (requires { loader_->read_pinned(true); }) loader_->read_pinned(lane_ != nullptr && !dispatches());
  }

  /// Begins a pass. Collective if rank 0 reads for all ranks, or if the loader's order is not seeded, because all ranks
  /// then use rank 0's random numbers.
  [[nodiscard]] Iterator begin() const {
    require_assigned();
    return Iterator(*this);
  }
  [[nodiscard]] std::default_sentinel_t end() const { return {}; }

  [[nodiscard]] bool is_empty() const { return loader_ == nullptr; }
  /// \throws Error (usage) if the handle is empty.
  void require_assigned() const { (void)assigned(loader_, "PreparedLoader"); }
  Loader* operator->() const { return unwrap().get(); }
  Loader& operator*() const { return *unwrap(); }
  [[nodiscard]] const std::shared_ptr<Loader>& unwrap() const { return assigned(loader_, "PreparedLoader"); }

  /// Returns true if rank 0 reads for all ranks.
  [[nodiscard]] bool dispatches() const {
    return prepared::dispatches<Loader>(assigned(accelerator_state_, "PreparedLoader")->mesh.world, options_);
  }
  /// Returns the number of samples that all ranks together consume per step.
  [[nodiscard]] int64_t total_batch_size() const requires data::Batched<Loader> {
    if (!dispatches() && data::Shardable<Loader>) return loader_->total_batch_size();
    return loader_->total_batch_size() * (options_.split_batches ? 1 : accelerator_state_->mesh.data.size());
  }

  /// Returns the number of batches that this rank gets in a pass. If rank 0 reads for all ranks, the number is that of
  /// rank 0's loader when it was prepared or when its latest pass began.
  ///
  /// \note With split_batches and without even_batches, this rank may get no part of a short last batch. If the loader
  ///   is not a list of its batches, this part is counted until one pass has read all batches.
  [[nodiscard]] int64_t size() const requires data::Counted<Loader> {
    const auto reader_values = position_state_->reader_batches();
    return size_of(reader_values ? *reader_values : static_cast<int64_t>(unwrap()->size()));
  }
  /// Overload for streams. Unset if the length is unknown.
  [[nodiscard]] std::optional<int64_t> size() const requires data::MaybeCounted<Loader> {
    const auto reader_values = position_state_->reader_batches();
    const std::optional<int64_t> batches = reader_values ? reader_values : unwrap()->size();
    return batches ? std::optional(size_of(*batches)) : std::nullopt;
  }
  /// Returns the number of samples in the dataset, regardless of the number that a pass returns. For a stream it is an
  /// optional, unset if the length is unknown. If rank 0 reads for all ranks, the number is that of rank 0's loader, as
  /// for size().
  [[nodiscard]] auto total_dataset_length() const requires CountsSamples<Loader> {
    using Length = decltype(unwrap()->sample_count());
    const auto reader_values = position_state_->reader_samples();
    return reader_values ? Length(*reader_values) : unwrap()->sample_count();
  }
  /// Returns the wait times of this rank's latest pass. Available for any loader, also if rank 0 reads for all ranks.
  [[nodiscard]] data::LoadingReport report() const {
    require_assigned();
    if constexpr (Reports<Loader>) {
      if (loader_reports()) return loader_->report();
    }
    return timings_->report();
  }
  /// Returns the position of the innermost open loop over this loader, or {-1, false, -1} outside of loops.
  [[nodiscard]] state::BatchInfo info() const {
    return assigned(accelerator_state_, "PreparedLoader")->active_loaders.of(loader_.get());
  }
  /// Sets the epoch of the next pass.
  void set_epoch(int64_t epoch) const requires requires(Loader& loader) { loader.set_epoch(epoch); }
  {
    require_assigned();
    position_state_->moved();
    loader_->set_epoch(epoch);
    update_state_handle();
  }

  /// Returns the position of the latest pass, the same on all ranks; see data::LoaderBase. The current batch counts as
  /// consumed; batches that are read ahead do not.
  [[nodiscard]] state::LoaderState state() const requires data::Resumable<Loader> {
    return position_state_->state(unwrap()->state());
  }
  /// Sets the position at which the next pass starts. Every rank must load the same state.
  void load_state(const state::LoaderState& state) const requires data::Resumable<Loader> {
    require_assigned();
    setter()(state);
    update_state_handle();
  }
  /// Connects this handle to its registry entry, which reads and sets the position. The entry does not keep the loader
  /// alive. Collective if rank 0 reads for all ranks.
  void enter(LoaderCore& core) {
    position_state_ = core.position_state;
    timings_ = core.times;
    if (dispatches()) receive_reader_info();
    if constexpr (DrawsOrder<Loader>) {
      if (!core.order) core.order = std::make_shared<PassOrder>();
      order_ = core.order;
    }
    if constexpr (data::Resumable<Loader>) {
      access_ = core.access;
      access_->add(
          std::shared_ptr<void>(loader_),
          [loader = loader_.get(), position_state = position_state_] { return position_state->state(loader->state()); },
          setter());
    }
  }
  /// For any other loader, a static_assert names the alternatives.
  [[nodiscard]] state::LoaderState state() const requires(!data::Resumable<Loader>) { return refuse_state(); }
  void load_state(const state::LoaderState&) const requires(!data::Resumable<Loader>) { (void)refuse_state(); }
  /// Returns a handle with passes that skip this rank's first batches; this handle does not change. A loader with its
  /// own skip_first_batches() skips without reading. The batches of any other loader are read and dropped. A pass that
  /// resumes from a loaded state does not skip consumed batches again. If the loader was resumed before this call,
  /// `batches` counts from the resume point.
  /// \throws Error (usage) if `batches` is negative.
  [[nodiscard]] PreparedLoader skip_first_batches(int64_t batches) const {
    data::check_skipped(batches, assigned(accelerator_state_, "PreparedLoader")->place);
    auto other = *this;
    other.timings_ = std::make_shared<LoaderTimings>();
    if constexpr (data::Skippable<Loader>) {
      const int64_t of_loader =
          batches * (dispatches() && !options_.split_batches ? accelerator_state_->mesh.data.size() : 1);
      other.position_state_ = std::make_shared<LoaderPosition>();
      other.position_state_->update_reader_info({}, position_state_->reader_samples());
      if (const auto reader_values = position_state_->reader_batches()) {
        other.position_state_->update_reader_info(std::max<int64_t>(*reader_values - of_loader, 0), {});
      }
      if (!other.entry_) other.entry_ = loader_;
      other.loader_ = std::make_shared<Loader>(loader_->skip_first_batches(of_loader));
      other.skips_ = true;
      if constexpr (data::Resumable<Loader>) {
        if (access_) access_->add_skipping(other.loader_, other.setter());
      }
    } else {
      other.skip_.add(batches, resumed());
    }
    return other;
  }

  friend bool operator==(const PreparedLoader& a, const PreparedLoader& b) {
    if constexpr (std::derived_from<Loader, data::LoaderBase>)
      // copies are equal
      return a.is_empty() || b.is_empty() ? a.is_empty() && b.is_empty() : *a.loader_ == *b.loader_;
    return a.loader_ == b.loader_ && a.skip_.all() == b.skip_.all();
  }

 private:
  /// Returns true if the loader itself reports the wait times of this rank's passes.
  [[nodiscard]] bool loader_reports() const { return Reports<Loader> && !dispatches(); }
  /// \param batches  Number of batches in the loader.
  [[nodiscard]] int64_t size_of(int64_t batches) const {
    return std::max<int64_t>(whole_size(batches) - skip_.all(), 0);
  }
  [[nodiscard]] int64_t whole_size(int64_t batches) const {
    if (dispatches())
      return data::rounds_of(batches, dispatch_options(*loader_, options_, accelerator_state_->mesh.data));
    if (data::Shardable<Loader>) return batches;
    const data::BatchShardOptions sharding_options{.rank = accelerator_state_->mesh.data.rank(),
                                                   .world_size = accelerator_state_->mesh.data.size(),
                                                   .even_batches = options_.even_batches};
    if (!options_.split_batches || sharding_options.world_size == 1)
      return data::shard_batch_count(batches, sharding_options);
    if (const auto parts = position_state_->parts_of(batches)) return *parts;
    return split_size(batches, sharding_options);
  }
  /// Returns the number of batch parts that this rank gets, or `batches` if the batch sizes are unknown.
  [[nodiscard]] int64_t split_size(int64_t batches, const data::BatchShardOptions& sharding_options) const {
    if constexpr (HoldsBatches<Loader>) {
      if (batches == 0) return 0;
      const auto rows = [this](int64_t number) { return tree::rows((*loader_)[static_cast<size_t>(number)]); };
      const auto first = rows(0), last = rows(batches - 1);
      if (first && last && *first >= *last) return data::split_count(batches, *first, *last, sharding_options);
    }
    return batches;
  }

  /// Broadcasts the position and the length of rank 0's loader, which reads for all ranks. Collective.
  void receive_reader_info() const {
    const comm::Group& world = accelerator_state_->mesh.world;
    const bool reads = world.rank() == 0;
    const ReaderInfo reader = broadcast_reader_info(reads ? reader_info(*loader_) : ReaderInfo{}, world);
    if (reads) return;
    position_state_->update_reader_info(reader.size, reader.samples);
    if constexpr (data::AcceptsShardSpec<Loader> && data::Resumable<Loader>) {
      if (reader.state) loader_->load_state(*reader.state);
    }
  }

  /// Returns the resume point of a loader that cannot skip batches itself.
  [[nodiscard]] std::optional<state::LoaderState> resumed() const {
    if constexpr (data::Resumable<Loader> && !data::Skippable<Loader>)
      return position_state_->resumed(loader_->state());
    return std::nullopt;
  }
  [[nodiscard]] int64_t samples_per_step() const {
    if constexpr (data::Resumable<Loader> && !data::Skippable<Loader>) {
      if constexpr (data::Batched<Loader>) return std::max<int64_t>(total_batch_size(), 1);
      return std::max<int64_t>(static_cast<state::LoaderState>(loader_->state()).batch_size, 1) *
             (options_.split_batches ? 1 : accelerator_state_->mesh.data.size());
    }
    return 1;
  }

  /// Returns true if rank 0 reads for this rank and the loader does not know that. Such a loader may have no data, so
  /// its position cannot be set.
  [[nodiscard]] bool has_reader_info() const {
    return dispatches() && accelerator_state_->mesh.world.rank() != 0 && !data::AcceptsShardSpec<Loader>;
  }
  /// Returns the function by which the registry sets the position. It does not keep the loader alive.
  [[nodiscard]] auto setter() const requires data::Resumable<Loader> {
    return [loader = loader_.get(), position_state = position_state_,
            reader_values = has_reader_info()](const state::LoaderState& state) {
      if (reader_values) return position_state->reader_values(state, loader->state());
      position_state->moved();
      loader->load_state(state);
    };
  }
  void update_state_handle() const {
    if constexpr (data::Resumable<Loader>) {
      if (access_) access_->set_position_state(skips_ ? std::optional(state()) : std::nullopt);
    }
  }

  static state::LoaderState refuse_state() {
    static_assert(
        data::Resumable<Loader>,
        "state() and load_state() need a loader that reports its position: one of Accelerate's (data::from_dataset() "
        "takes torch::data's data sets, data::make_stream() streams), or one with state() and "
        "load_state(); of any other keep the number of batches and use skip_first_batches()");
    return {};
  }

  std::shared_ptr<Loader> loader_;
  std::shared_ptr<void> entry_{};  // if this handle skips: keeps the registry entry of the original loader
  std::shared_ptr<AcceleratorState> accelerator_state_;
  LoaderOptions options_;
  SkipCount skip_{};  // for loaders that cannot skip batches themselves
  std::shared_ptr<LoaderPosition> position_state_ = std::make_shared<LoaderPosition>();
  std::shared_ptr<LoaderTimings> timings_ = std::make_shared<LoaderTimings>();
  std::shared_ptr<LoaderStateHandle> access_{};  // of the registry entry
  std::shared_ptr<PassOrder> order_{};           // of the registry entry; null if the loader draws no order
  bool skips_ = false;                           // loader_ is a skipping copy, which is not in the registry
  std::shared_ptr<device::UploadStream> lane_{};
};

/// Returns the gathered tensors without the padding rows of the loop's last batch.
///
/// \param own  Value of this rank. Its tensors identify the loop.
/// \param gathered  The same value of all ranks.
template <typename Value>
Value drop_padding_of_active_loader(const AcceleratorState& shared, const Value& own, Value gathered) {
  if (shared.mesh.data.size() == 1) return gathered;
  const auto positions = shared.active_loaders.positions_of(tree::flatten(own));
  if (std::ranges::none_of(positions, is_filled)) return gathered;
  size_t next = 0;
  return tree::map(gathered, [&](const at::Tensor& tensor) {
    const state::BatchInfo& position = positions[next++];
    return is_filled(position) ? drop_padding(tensor, position, shared.mesh.data.size()) : tensor;
  });
}

}  // namespace accelerate::prepared

/// Views iterate until the end, because size() is not exact for every loader.
template <typename Loader>
inline constexpr bool std::ranges::disable_sized_range<accelerate::prepared::PreparedLoader<Loader>> = true;
