// SPDX-License-Identifier: Apache-2.0
// What a loader draws from LibTorch's CPU generator, made the same on every rank.
#pragma once

#include <ATen/CPUGeneratorImpl.h>

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
  explicit LoaderRandom(const comm::Group& group) : group_(group) {}

  /// Returns begin(). Collective.
  template <typename Begin>
  auto begin(Begin&& begin) {
    const PassStart start = meet();
    auto first = [&] {
      GeneratorTurn turn(start.stream);
      auto position = begin();
      begun(start, turn);
      return position;
    }();
    part();
    return first;
  }

  /// Returns next(), a later part of the pass.
  template <typename Next>
  auto walk(Next&& next) {
    const GeneratorTurn turn(walk_);
    auto result = next();
    walk_ = CpuStream::current();
    return result;
  }

 private:
  struct PassStart {
    CpuStream stream;
    uint64_t pass;  // passes that began in rank 0's process
  };
  [[nodiscard]] PassStart meet() const;
  void begun(const PassStart& start, GeneratorTurn& turn);
  void part() const;

  comm::Group group_;
  CpuStream walk_{};
};

}  // namespace accelerate::prepared
