// SPDX-License-Identifier: Apache-2.0
// What sources have in common that are made of something else: of other sources, of a user's data.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/data/source.hpp"

namespace accelerate::data {

/// Throws Error (usage) for what is no [B] int64 on the CPU, and for a number that is none of `samples`.
/// returns   indices, contiguous
[[nodiscard]] at::Tensor checked_indices(std::string_view source, const at::Tensor& indices, int64_t samples);

/// returns   [n] int64
[[nodiscard]] at::Tensor index_tensor(const std::vector<int64_t>& numbers);

/// Throws Error (usage) where there is none.
void check_source(std::string_view combinator, bool there);

/// What a source says of itself; see SourceOf.
struct SourceTraits {
  bool seeded = false;
  bool thread_safe = true;
};

/// Of what is made of these.
template <typename... Sources>
[[nodiscard]] SourceTraits traits_of(const Sources&... sources) {
  return {.seeded = (sources->seeded() || ...), .thread_safe = (sources->thread_safe() && ...)};
}

/// A subclass says how a batch is made; it gets indices that are there.
template <typename AnyBatch>
class DerivedSource : public SourceOf<AnyBatch> {
 public:
  /// name   what the user called, for errors
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

/// The batches of a source, whatever handle it is in.
template <typename AnySource>
using batch_of = typename AnySource::BatchType;

/// The handle combinators keep.
template <typename AnySource>
[[nodiscard]] SourcePtr<batch_of<AnySource>> kept(std::string_view combinator, std::shared_ptr<AnySource> source) {
  check_source(combinator, source != nullptr);
  return source;
}

}  // namespace accelerate::data
