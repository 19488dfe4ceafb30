// SPDX-License-Identifier: Apache-2.0
// Samples in sequence: a log, a socket, files too large to be numbered.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "accelerate/data/source.hpp"

namespace accelerate::data {

/// A new kind of stream is one subclass, or make_stream. Every pass over it gives the same samples for the same
/// context: that is how ranks that each read all of it agree, and how an interrupted pass is found again.
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

  /// Begins a pass. Readers of one stream may be in use at once, each by one thread.
  [[nodiscard]] virtual Reader begin(const ReadContext& context) const = 0;
  /// Samples of a pass, where that is known.
  [[nodiscard]] virtual std::optional<int64_t> size() const { return std::nullopt; }
  /// True if the samples depend on the context's seed, which is then rank 0's on all ranks.
  [[nodiscard]] virtual bool seeded() const { return false; }
};

template <typename AnySample>
using StreamPtr = std::shared_ptr<const StreamOf<AnySample>>;

/// A stream of a function: begin(context), or begin(), returns a function that returns an optional sample.
///
///   auto lines = data::make_stream([path] {
///     return [file = std::make_shared<std::ifstream>(path)]() -> std::optional<std::string> { ... };
///   });
///
/// \param size    Samples of a pass, if known.
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
