// SPDX-License-Identifier: Apache-2.0
// What a loader draws from LibTorch's CPU generator, made the same on every rank.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>
#include <optional>

#include "accelerate/comm/group.hpp"

namespace accelerate::prepared {

/// Where the CPU generator stands.
struct CpuStream {
  at::mt19937_data_pod engine;
  std::optional<float> next_float;
  std::optional<double> next_double;

  [[nodiscard]] static CpuStream current();
  void install() const;
  /// As torch.get_rng_state() returns it, uint8.
  [[nodiscard]] at::Tensor to_tensor() const;
  /// The inverse. Throws c10::Error if the tensor is not such a state.
  [[nodiscard]] static CpuStream from_tensor(const at::Tensor& state);
};

/// The start of a pass over a loader that draws from the CPU generator: all that its order depends on.
struct PassStart {
  CpuStream stream;
  uint64_t pass;  ///< passes that began in rank 0's process; 0 with a single rank
};

/// The CPU generator stands at `stream` until the end of the scope, then again where it stood.
/// Ranks that are threads share one generator: they take turns.
class GeneratorTurn {
 public:
  explicit GeneratorTurn(const CpuStream& stream);
  ~GeneratorTurn();
  GeneratorTurn(const GeneratorTurn&) = delete;
  GeneratorTurn& operator=(const GeneratorTurn&) = delete;

  /// It stands there afterwards instead.
  void leave_at(const CpuStream& stream) { after_ = stream; }

 private:
  std::lock_guard<std::recursive_mutex> turn_;
  CpuStream after_;
};

/// The draws of a resumed pass until it has skipped its first batches: they come from the stream of the saved pass, and
/// the process's generator does not move. Of any other pass nothing is done.
class CatchUp {
 public:
  explicit CatchUp(const std::optional<PassStart>& resumed) {
    if (resumed) stream_ = resumed->stream;
  }
  /// Returns read().
  template <typename Read>
  auto run(Read&& read) {
    if (!stream_) return read();
    const GeneratorTurn turn(*stream_);
    auto result = read();
    stream_ = CpuStream::current();
    return result;
  }
  /// Later draws come from the process's generator.
  void finish() { stream_.reset(); }

 private:
  std::optional<CpuStream> stream_;
};

/// The draws of one pass over a loader that every rank reads whole: its order must be one, or samples are lost.
///
/// The beginning draws from where rank 0's generator stands, so that the order is one process's; rank 0's generator
/// goes on after those draws, another rank's where it stood. What is drawn later in the pass comes from a generator of
/// its own, seeded alike on all ranks; no rank's generator moves.
///
/// In ranks that are threads, what another rank draws meanwhile (dropout) may part the draws of a loader that draws
/// after its beginning, and a loader must not wait there for another rank.
class LoaderRandom {
 public:
  /// \param resumed  Start of the pass to be repeated. The value of rank 0 is used; its generator does not move then.
  /// If
  ///                 unset, a new pass begins where rank 0's generator is.
  LoaderRandom(const comm::Group& group, const std::optional<PassStart>& resumed) : group_(group), resumed_(resumed) {}

  /// Returns begin(). Collective.
  template <typename Begin>
  auto begin(Begin&& begin) {
    start_ = meet();
    auto first = [&] {
      GeneratorTurn turn(start_.stream);
      auto position = begin();
      begun(turn);
      return position;
    }();
    part();
    return first;
  }
  /// Of this pass, the same on all ranks; after begin().
  [[nodiscard]] const PassStart& start() const { return start_; }

  /// Returns next(), a later part of the pass.
  template <typename Next>
  auto walk(Next&& next) {
    const GeneratorTurn turn(walk_);
    auto result = next();
    walk_ = CpuStream::current();
    return result;
  }

 private:
  [[nodiscard]] PassStart meet() const;
  void begun(GeneratorTurn& turn);
  void part() const;

  comm::Group group_;
  std::optional<PassStart> resumed_;
  PassStart start_{};
  CpuStream walk_{};
};

}  // namespace accelerate::prepared
