// SPDX-License-Identifier: Apache-2.0
// Common code of sources that are based on other sources or on user data.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/data/source.hpp"

namespace accelerate::data {

/// \returns the indices, contiguous.
/// \throws Error (usage) if the indices are not [B] int64 on the CPU, or a number is not below `samples`.
[[nodiscard]] at::Tensor checked_indices(std::string_view source, const at::Tensor& indices, int64_t samples);

/// \returns [n] int64
[[nodiscard]] at::Tensor index_tensor(const std::vector<int64_t>& numbers);

/// \throws Error (usage) for a null source.
void check_source(std::string_view combinator, bool there);

/// Properties of a source; see SourceOf.
struct SourceTraits {
  bool seeded = false;
  bool thread_safe = true;
};

/// Properties of a source composed of these.
template <typename... Sources>
[[nodiscard]] SourceTraits traits_of(const Sources&... sources) {
  return {.seeded = (sources->seeded() || ...), .thread_safe = (sources->thread_safe() && ...)};
}

/// Base of composed sources: a subclass makes a batch from valid indices.
template <typename AnyBatch>
class DerivedSource : public SourceOf<AnyBatch> {
 public:
  /// \param name  Name of the user's call, for errors.
  DerivedSource(std::string_view name, int64_t size, const SourceTraits& traits)
      : name_(name), size_(size), traits_(traits) {}

  [[nodiscard]] int64_t size() const final { return size_; }
  [[nodiscard]] bool seeded() const final { return traits_.seeded; }
  [[nodiscard]] bool thread_safe() const final { return traits_.thread_safe; }
  [[nodiscard]] AnyBatch read(const at::Tensor& indices) const final { return read_in_pass(indices, {}); }
  [[nodiscard]] AnyBatch read_in_pass(const at::Tensor& indices, const ReadContext& context) const final {
    return make(checked_indices(name_, indices, size_), context);
  }

 protected:
  [[nodiscard]] const std::string& name() const { return name_; }

 private:
  [[nodiscard]] virtual AnyBatch make(const at::Tensor& indices, const ReadContext& context) const = 0;

  std::string name_;
  int64_t size_;
  SourceTraits traits_;
};

/// Batch type of a source in any handle.
template <typename AnySource>
using batch_of = typename AnySource::BatchType;

/// Shared pointer type that combinators store.
template <typename AnySource>
[[nodiscard]] SourcePtr<batch_of<AnySource>> kept(std::string_view combinator, std::shared_ptr<AnySource> source) {
  check_source(combinator, source != nullptr);
  return source;
}

}  // namespace accelerate::data
