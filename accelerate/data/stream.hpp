// SPDX-License-Identifier: Apache-2.0
// Samples in sequence: a log, a socket, files that are too large for numbered access.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "accelerate/data/source.hpp"

namespace accelerate::data {

/// Derive from this class for a new kind of stream, or use make_stream. Every pass with the same context must return
/// the same samples: ranks that each read the whole stream depend on it, and so does a resumed pass.
template <typename AnySample>
class StreamOf {
 public:
  using SampleType = AnySample;
  /// Returns the next sample, or nothing at the end.
  using Reader = std::function<std::optional<AnySample>()>;

  StreamOf() = default;
  StreamOf(const StreamOf&) = delete;
  StreamOf& operator=(const StreamOf&) = delete;
  virtual ~StreamOf() = default;

  /// Begins a pass. Several readers of one stream may be in use concurrently, each by one thread.
  [[nodiscard]] virtual Reader begin(const ReadContext& context) const = 0;
  /// Number of samples in a pass, if known.
  [[nodiscard]] virtual std::optional<int64_t> size() const { return std::nullopt; }
  /// True if the samples depend on the context's seed. All ranks then use rank 0's seed.
  [[nodiscard]] virtual bool seeded() const { return false; }
};

template <typename AnySample>
using StreamPtr = std::shared_ptr<const StreamOf<AnySample>>;

/// A stream from a function: begin(context) or begin() returns a function that returns an optional sample.
///
///   auto lines = data::make_stream([path] {
///     return [file = std::make_shared<std::ifstream>(path)]() -> std::optional<std::string> { ... };
///   });
///
/// \param size    Number of samples in a pass, if known.
/// \param seeded  True if the samples depend on context.seed.
template <typename Begin>
[[nodiscard]] auto make_stream(Begin begin, std::optional<int64_t> size = {}, bool seeded = false) {
  const auto open = [begin = std::move(begin)](const ReadContext& context) {
    if constexpr (std::is_invocable_v<const Begin&, const ReadContext&>) {
      return begin(context);
    } else {
      return begin();
    }
  };
  using Read = decltype(open(ReadContext{}));
  using AnySample = typename std::invoke_result_t<Read&>::value_type;
  class Made final : public StreamOf<AnySample> {
   public:
    Made(decltype(open) from, std::optional<int64_t> known, bool random)
        : open_(std::move(from)), size_(known), seeded_(random) {}
    [[nodiscard]] typename StreamOf<AnySample>::Reader begin(const ReadContext& context) const override {
      return open_(context);
    }
    [[nodiscard]] std::optional<int64_t> size() const override { return size_; }
    [[nodiscard]] bool seeded() const override { return seeded_; }

   private:
    std::remove_const_t<decltype(open)> open_;
    std::optional<int64_t> size_;
    bool seeded_;
  };
  return StreamPtr<AnySample>(std::make_shared<Made>(open, size, seeded));
}

}  // namespace accelerate::data
