// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/data/derived_source.hpp"
#include "accelerate/data/stream.hpp"

namespace accelerate::data {

namespace detail {

/// Draws numbers from 0 to limit-1.
class BufferRandom {
 public:
  explicit BufferRandom(const ReadContext& context);
  [[nodiscard]] size_t below(size_t limit);

 private:
  at::Generator generator_;
};

template <typename AnySample>
class ShuffleBuffer final : public StreamOf<AnySample> {
 public:
  ShuffleBuffer(StreamPtr<AnySample> stream, int64_t size) : stream_(std::move(stream)), buffer_size_(size) {}

  [[nodiscard]] typename StreamOf<AnySample>::Reader begin(const ReadContext& context) const override {
    ReadContext below = context;
    ++below.layer;
    // Copies of the returned std::function must share one pass.
    auto pass = std::make_shared<Pass>(Pass{stream_->begin(below), BufferRandom(context), {}});
    return [pass, size = static_cast<size_t>(buffer_size_)] { return pass->next(size); };
  }
  [[nodiscard]] std::optional<int64_t> size() const override { return stream_->size(); }
  [[nodiscard]] bool seeded() const override { return true; }

 private:
  struct Pass {
    typename StreamOf<AnySample>::Reader read;
    BufferRandom random;
    std::vector<AnySample> buffer;

    std::optional<AnySample> next(size_t size) {
      while (read && buffer.size() < size) {
        if (auto sample = read()) {
          buffer.push_back(std::move(*sample));
        } else {
          read = nullptr;
        }
      }
      if (buffer.empty()) return std::nullopt;
      std::swap(buffer[random.below(buffer.size())], buffer.back());
      std::optional<AnySample> taken(std::move(buffer.back()));
      buffer.pop_back();
      return taken;
    }
  };

  StreamPtr<AnySample> stream_;
  int64_t buffer_size_;
};

}  // namespace detail

/// Shuffles the stream with a buffer of `size` samples: each output is a random sample of the buffer. The order follows
/// from the loader's seed and the epoch, so an interrupted pass can be repeated.
///
/// \throws Error (usage) for a size below 1, and for a null pointer.
template <typename AnySample>
[[nodiscard]] StreamPtr<AnySample> shuffle_buffer(std::shared_ptr<const StreamOf<AnySample>> stream, int64_t size) {
  if (size < 1) base::fail(ErrorKind::usage, {}, "shuffle_buffer", "size is {}, must be at least 1", size);
  check_source("shuffle_buffer", stream != nullptr);
  return std::make_shared<detail::ShuffleBuffer<AnySample>>(std::move(stream), size);
}

}  // namespace accelerate::data
