// SPDX-License-Identifier: Apache-2.0
// One pass over a loader that only rank 0 reads. The other ranks receive their batches from rank 0.
#pragma once

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <deque>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "accelerate/base/exception_text.hpp"
#include "accelerate/data/dispatch.hpp"
#include "accelerate/data/loader_concepts.hpp"
#include "accelerate/prepared/accelerator_state.hpp"
#include "accelerate/prepared/loader_pass.hpp"
#include "accelerate/tree/pack.hpp"

namespace accelerate::state {

/// Lets accelerate::tree pack a loader's state.
inline auto tree_members(LoaderState& state) {
  return std::tie(state.epoch, state.consumed, state.origin, state.samples, state.order, state.seed, state.world_size,
                  state.batch_size, state.split_batches, state.even_batches, state.drop_last);
}

}  // namespace accelerate::state

namespace accelerate::prepared {

/// The position of each rank of the world in its data parallel group. Ranks of one model have the same one.
[[nodiscard]] std::vector<size_t> data_ranks(const job::MeshGroups& mesh);

/// Sends each rank its bytes. Collective.
/// \param bytes  On rank 0 one [n] uint8 tensor per rank.
/// \returns this rank's tensor.
[[nodiscard]] at::Tensor scatter_bytes(const comm::Group& group, const std::vector<at::Tensor>& bytes);

/// Properties of rank 0's loader. The loaders of the other ranks may be empty.
struct ReaderInfo {
  std::optional<int64_t> size{};              ///< batches; unset if unknown
  std::optional<int64_t> samples{};           ///< unset if unknown
  std::optional<state::LoaderState> state{};  ///< unset if the loader has no state

  auto tree_members() { return std::tie(size, samples, state); }
};

/// Returns rank 0's value. Collective.
[[nodiscard]] ReaderInfo broadcast_reader_info(const ReaderInfo& mine, const comm::Group& group);

/// Returns nothing if the loader does not know its size or throws. A later call of size() reports the error.
template <typename Loader>
[[nodiscard]] std::optional<int64_t> size_or_unknown(const Loader& loader) try {
  if constexpr (data::MaybeCounted<Loader>) return loader.size();
  if constexpr (data::Counted<Loader>) return static_cast<int64_t>(loader.size());
  return std::nullopt;
} catch (...) {
  return std::nullopt;
}

/// A loader with a known number of samples.
template <typename Loader>
concept CountsSamples = requires(const Loader& loader) {
  { loader.sample_count() } -> std::convertible_to<std::optional<int64_t>>;
};

template <typename Loader>
[[nodiscard]] ReaderInfo reader_info(Loader& loader) {
  ReaderInfo reader_values{.size = size_or_unknown(loader), .state = position_of(loader)};
  if constexpr (CountsSamples<Loader>) reader_values.samples = loader.sample_count();
  return reader_values;
}

/// Reports rank 0's failure on the ranks that wait for its batches. \throws Error (data) always.
[[noreturn]] void throw_reader_failure(const RankContext& place, const std::string& failure);

/// \throws Error (usage) always: ranks left a loop at different batches, so their pass numbers differ.
[[noreturn]] void throw_pass_mismatch(const RankContext& place, int64_t mine, int64_t of_reader);

/// \throws Error (usage) always: a batch contains something that is not tree::packable.
[[noreturn]] void throw_not_packable(const RankContext& place);

/// \throws Error (usage) always: tree_members() of a struct in the batch does not name all members.
[[noreturn]] void refuse_unnamed_members(std::string_view batch, const RankContext& place);

/// \param data  The data parallel group: a round has one batch for each of its ranks.
template <typename Loader>
[[nodiscard]] data::DispatchOptions dispatch_options(const Loader& loader, const LoaderOptions& options,
                                                     const comm::Group& data) {
  data::DispatchOptions dispatch{.world_size = data.size(), .split_batches = options.split_batches};
  if constexpr (requires { loader.options().drop_last; }) dispatch.drop_last = loader.options().drop_last;
  return dispatch;
}

/// Rank 0 of the world reads for all ranks, because a source need not be readable twice, or by another rank. Ranks of
/// one model receive the same batches.
///
/// Rank 0 reads one round ahead. The last batch is therefore known as such, and an exception of rank 0's loader reaches
/// all ranks after the same number of batches.
template <typename Loader>
class DispatchPass {
 public:
  using Batch = batch_t<Loader>;

  /// \param pass     Number of the pass.
  /// \param resumed  Start of the pass to repeat. Rank 0 draws from it.
  DispatchPass(Loader& loader, const LoaderOptions& options, const AcceleratorState& shared, int64_t pass,
               const std::optional<PassStart>& resumed)
      : loader_(loader),
        group_(shared.mesh.world),
        data_(shared.mesh.data),
        data_ranks_(data_ranks(shared.mesh)),
        place_(shared.place),
        dispatcher_(dispatch_options(loader, options, data_), place_),
        options_(options),
        pass_(pass),
        catch_up_(resumed),
        start_(resumed ? *resumed : PassStart{CpuStream::current(), 0}) {
    if constexpr (!tree::packable<Batch>) throw_not_packable(place_);
    if (group_.rank() == 0) next_round_ = read_round();
    ahead_ = exchange_round();
    options_.skipped = ahead_->skipped;
    for (int64_t i = 0; i < options_.skipped && next(); ++i) continue;
    catch_up_.finish();
    info_.index = -1;
  }

  /// Collective.
  [[nodiscard]] std::optional<Batch> next() {
    if (ended_) return std::nullopt;
    Message mine = ahead_ ? std::move(*std::exchange(ahead_, std::nullopt)) : exchange_round();
    ended_ = !mine.batch;
    state_ = mine.reader.state;
    read_ = mine.read;
    epoch_ = mine.epoch;
    if (group_.rank() != 0) update_reader_info(mine.reader);
    if (!mine.failure.empty()) {
      if (failure_) std::rethrow_exception(failure_);
      throw_reader_failure(place_, mine.failure);
    }
    if (ended_) return std::nullopt;
    ++info_.index;
    info_.last = mine.last;
    info_.remainder = mine.last ? mine.samples : -1;
    return std::move(mine.batch);
  }
  /// Returns the batch that next() will return; null at the end. Collective.
  [[nodiscard]] Batch* peek() {
    if (ended_ || info_.last) return nullptr;
    if (!ahead_) ahead_ = exchange_round();
    return ahead_->batch ? &*ahead_->batch : nullptr;
  }
  [[nodiscard]] const state::BatchInfo& info() const { return info_; }
  /// Valid on rank 0 only.
  [[nodiscard]] const PassStart& start() const { return start_; }
  /// State of the loader in which the returned batches count as consumed. Unset if the loader has no state.
  [[nodiscard]] const std::optional<state::LoaderState>& state() const { return state_; }
  /// Batches of rank 0's loader, set on the other ranks. Unset if unknown.
  [[nodiscard]] std::optional<int64_t> size() const { return size_; }
  /// Samples of rank 0's loader, set on the other ranks. Unset if unknown.
  [[nodiscard]] std::optional<int64_t> samples() const { return samples_; }
  /// Epoch of rank 0's loader, valid after its first batch; 0 if the loader does not count epochs.
  [[nodiscard]] int64_t epoch() const { return epoch_; }
  /// Reason for a pass without batches; empty if the loader reports it itself.
  [[nodiscard]] std::string empty_pass_reason() const {
    if (read_ == 0 && group_.rank() == 0 && data::ExplainsEmptyPass<Loader>) return "";
    if (read_ == 0) return "rank 0, which reads for all (dispatch_batches), has none";
    if (options_.skipped > 0)
      return fmt::format("{} are skipped, and rank 0 reads {} for all", options_.skipped, read_);
    return fmt::format("rank 0 reads {} for {} ranks, and drop_last drops them", read_, data_.size());
  }

 private:
  struct Message {
    std::optional<Batch> batch{};  // unset at the end of the pass
    bool last = false;
    int64_t samples = -1;
    int64_t read = 0;     // batches that rank 0 has read
    int64_t skipped = 0;  // rounds to skip; only rank 0 knows where its loader resumes
    int64_t epoch = 0;
    int64_t pass = 0;     // number of the pass
    ReaderInfo reader{};  // size and samples only in the first message of a pass
    std::string failure{};

    auto tree_members() { return std::tie(batch, last, samples, read, skipped, epoch, pass, reader, failure); }
  };

  void update_reader_info(const ReaderInfo& reader) {
    if (reader.size) size_ = reader.size;
    if (reader.samples) samples_ = reader.samples;
    if constexpr (data::Resumable<Loader> && data::AcceptsShardSpec<Loader>) {
      if (!reader.state) return;  // the state contains rank 0's epoch
      if constexpr (requires { loader_.set_position(*reader.state); }) {
        loader_.set_position(*reader.state);
      } else {
        loader_.load_state(*reader.state);
      }
    }
  }

  std::optional<Batch> read() {
    return catch_up_.run([this] { return read_now(); });
  }
  std::optional<Batch> read_now() {
    if (!position_) {
      if constexpr (requires { loader_.with_skipped_front(); }) {
        if (auto whole = loader_.with_skipped_front()) {
          front_left_out_ = [whole = std::move(*whole), batches = dispatcher_.per_round()]() mutable {
            return first_of(whole, batches);
          };
        }
      }
      position_.emplace(loader_.begin());
      if constexpr (requires {
                      { loader_.epoch() } -> std::convertible_to<int64_t>;
                    }) {
        epoch_ = loader_.epoch();
      }
    } else {
      ++*position_;
    }
    if (*position_ == loader_.end()) return std::nullopt;
    std::optional<Batch> batch(**position_);
    ++batches_;
    states_.push_back(position_of(loader_));  // after the dereference, because some loaders read there
    return batch;
  }

  static std::vector<Batch> first_of(Loader& whole, int64_t batches) {
    std::vector<Batch> first;
    for (auto& batch : whole) {
      first.push_back(std::move(batch));
      if (static_cast<int64_t>(first.size()) == batches) break;
    }
    return first;
  }

  std::optional<data::Round<Batch>> read_round() {
    if (exhausted_) return std::nullopt;
    try {
      while (auto batch = read()) {
        if (auto round = dispatcher_.feed(std::move(*batch))) return round;
      }
      exhausted_ = true;
      if (front_left_out_ && dispatcher_.needs_padding()) dispatcher_.pad_from(front_left_out_());
      return dispatcher_.finish();
    } catch (...) {
      failure_ = std::current_exception();
      exhausted_ = true;
      return std::nullopt;
    }
  }

  /// Collective.
  Message exchange_round() { return group_.rank() == 0 ? send() : receive(); }

  std::optional<state::LoaderState> state_after(int64_t batches) {
    for (; states_from_ + 1 < batches; ++states_from_) states_.pop_front();
    return states_.front();
  }

  /// On rank 0.
  Message send() {
    const auto before = sent_;
    auto round = std::exchange(next_round_, std::nullopt);
    if (round) next_round_ = read_round();
    std::vector<Message> messages(static_cast<size_t>(data_.size()));  // by data parallel rank
    Message common{.read = batches_, .skipped = options_.skipped, .epoch = epoch_, .pass = pass_};
    if (round) {
      common.last = !next_round_ && !failure_;
      common.samples = round->samples;
      // With the last batch the loader was read to its end, even if drop_last omits the rest.
      const bool rest_is_dropped = common.last && dispatch_options(loader_, options_, data_).drop_last;
      sent_ = common.reader.state = rest_is_dropped ? position_of(loader_) : state_after(round->read);
    } else {
      common.reader.state = failure_ ? sent_ : position_of(loader_);  // no rank received a failed round
      if (failure_) common.failure = base::exception_summary(failure_);
    }
    if (!std::exchange(has_sent_, true)) {
      common.reader.size = size_or_unknown(loader_);
      if constexpr (CountsSamples<Loader>) common.reader.samples = loader_.sample_count();
    }
    for (size_t part = 0; part < messages.size(); ++part) {
      messages[part] = common;
      if (round) messages[part].batch = std::move(round->batches[part]);
    }
    if constexpr (tree::packable<Batch>) (void)scatter_bytes(group_, packed(messages, before));
    return std::move(messages.front());
  }

  /// If a batch cannot be packed, all ranks fail, as if it could not be read.
  std::vector<at::Tensor> packed(std::vector<Message>& messages, const std::optional<state::LoaderState>& before) {
    const auto all = [&] {
      std::vector<at::Tensor> of_data_rank(messages.size()), bytes{own_bytes_};
      for (size_t rank = 1; rank < data_ranks_.size(); ++rank) {
        const size_t part = data_ranks_[rank];
        if (!of_data_rank[part].defined()) of_data_rank[part] = tree::pack(messages[part]);
        bytes.push_back(of_data_rank[part]);
      }
      return bytes;
    };
    try {
      return all();
    } catch (...) {
      failure_ = std::current_exception();
    }
    exhausted_ = true;
    next_round_.reset();
    sent_ = before;
    for (Message& message : messages) {
      message.batch.reset();
      message.last = false;
      message.reader.state = before;
      message.failure = base::exception_summary(failure_);
    }
    return all();
  }

  /// On the other ranks.
  Message receive() {
    Message mine;
    if constexpr (tree::packable<Batch>) mine = tree::unpack<Message>(scatter_bytes(group_, {}));
    if (mine.pass != pass_) throw_pass_mismatch(place_, pass_, mine.pass);
    return mine;
  }

  Loader& loader_;
  comm::Group group_, data_;
  std::vector<size_t> data_ranks_;
  RankContext place_;
  data::BatchDispatcher<Batch> dispatcher_;
  std::optional<position_t<Loader>> position_;
  std::function<std::vector<Batch>()> front_left_out_;  // returns the first round for padding, if this pass skips it
  std::optional<state::LoaderState> sent_;
  std::deque<std::optional<state::LoaderState>> states_;  // states after each batch, from batch states_from_ + 1 on
  int64_t states_from_ = 0;
  std::optional<data::Round<Batch>> next_round_;
  std::optional<Message> ahead_;
  at::Tensor own_bytes_ = at::empty({0}, at::TensorOptions().dtype(at::kByte));  // rank 0 does not send its own message
  std::exception_ptr failure_;
  LoaderOptions options_;
  int64_t pass_;
  CatchUp catch_up_;
  PassStart start_;
  std::optional<int64_t> size_;
  std::optional<int64_t> samples_;
  int64_t batches_ = 0;  // read on this rank
  int64_t read_ = 0;     // read on rank 0, from its last message
  int64_t epoch_ = 0;
  bool has_sent_ = false;
  bool exhausted_ = false;
  bool ended_ = false;
  state::BatchInfo info_{};
  std::optional<state::LoaderState> state_;
};

}  // namespace accelerate::prepared
