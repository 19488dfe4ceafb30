// SPDX-License-Identifier: Apache-2.0
// Random numbers of a loader from LibTorch's CPU generator, made the same on every rank.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>
#include <optional>

#include "accelerate/comm/group.hpp"

namespace accelerate::prepared {

/// State of the CPU generator.
struct CpuStream {
  at::mt19937_data_pod engine;
  std::optional<float> next_float;
  std::optional<double> next_double;

  [[nodiscard]] static CpuStream current();
  void install() const;
  /// Returns the state in the format of torch.get_rng_state(), uint8.
  [[nodiscard]] at::Tensor to_tensor() const;
  /// Inverse of to_tensor().
  /// \throws c10::Error if the tensor is not such a state.
  [[nodiscard]] static CpuStream from_tensor(const at::Tensor& state);
};

/// Start of a pass over a loader that draws from the CPU generator. It determines the order of the pass.
struct PassStart {
  CpuStream stream;
  uint64_t pass;  ///< number of the pass in rank 0's process, from 1; 0 if the random numbers are not synchronised
};

/// Sets the CPU generator to `stream` for the scope, then restores the previous state. Holds a process-wide mutex,
/// because ranks that are threads share one generator.
class GeneratorTurn {
 public:
  explicit GeneratorTurn(const CpuStream& stream);
  ~GeneratorTurn();
  GeneratorTurn(const GeneratorTurn&) = delete;
  GeneratorTurn& operator=(const GeneratorTurn&) = delete;

  /// Replaces the state that is restored at the end of the scope.
  void leave_at(const CpuStream& stream) { after_ = stream; }

 private:
  std::lock_guard<std::recursive_mutex> turn_;
  CpuStream after_;
};

/// Random numbers of a resumed pass until it has skipped its first batches. They are drawn from the state of the saved
/// pass, and the generator of the process does not advance. For any other pass it does nothing.
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
  /// Later draws use the generator of the process.
  void finish() { stream_.reset(); }

 private:
  std::optional<CpuStream> stream_;
};

/// Random numbers of one pass over a loader that every rank reads whole. All ranks must see the same order, otherwise
/// samples are lost.
///
/// The start of the pass draws from the state of rank 0's generator. These draws advance rank 0's generator, but not
/// that of any other rank. Later draws of the pass use a separate generator with the same seed on all ranks and advance
/// no rank's generator.
///
/// \note If ranks are threads, other draws at the same time (dropout of another rank) may change the order of a loader
///   that draws after its start. Such a loader must not wait for another rank while it draws.
class LoaderRandom {
 public:
  /// \param resumed  Start of the pass to be repeated. The value of rank 0 is used, and rank 0's generator does not
  ///   advance. If unset, a new pass begins at the current state of rank 0's generator.
  LoaderRandom(const comm::Group& group, const std::optional<PassStart>& resumed) : group_(group), resumed_(resumed) {}

  /// Returns begin(). Collective.
  template <typename Begin>
  auto begin(Begin&& begin) {
    start_ = synchronize_initial_values();
    auto first = [&] {
      GeneratorTurn turn(start_.stream);
      auto position = begin();
      begun(turn);
      return position;
    }();
    part();
    return first;
  }
  /// Returns the start of this pass, the same on all ranks. Valid after begin().
  [[nodiscard]] const PassStart& start() const { return start_; }

  /// Returns next(), which reads a later part of the pass.
  template <typename Next>
  auto walk(Next&& next) {
    const GeneratorTurn turn(walk_);
    auto result = next();
    walk_ = CpuStream::current();
    return result;
  }

 private:
  [[nodiscard]] PassStart synchronize_initial_values() const;
  void begun(GeneratorTurn& turn);
  void part() const;

  comm::Group group_;
  std::optional<PassStart> resumed_;
  PassStart start_{};
  CpuStream walk_{};
};

}  // namespace accelerate::prepared
