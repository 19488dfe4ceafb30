// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

#include "accelerate/data/derived_source.hpp"

namespace accelerate::data {

namespace detail {

/// \throws Error (usage) for classes below 1.
int64_t checked_classes(int64_t classes);
/// \throws Error (data) with the sample of the first label outside 0 to classes-1, and for labels that are not integers
///         with at least one per sample.
void check_batch_labels(const at::Tensor& labels, const at::Tensor& indices, int64_t classes);

template <typename AnyBatch, typename Member>
class WithClasses final : public DerivedSource<AnyBatch> {
 public:
  WithClasses(SourcePtr<AnyBatch> source, int64_t classes, Member labels)
      : DerivedSource<AnyBatch>("with_classes", source->size(), traits_of(source)),
        source_(std::move(source)),
        classes_(checked_classes(classes)),
        labels_(std::move(labels)) {}

 private:
  [[nodiscard]] AnyBatch make(const at::Tensor& indices, const ReadContext& context) const override {
    AnyBatch batch = read_from(*source_, indices, context);
    check_batch_labels(std::invoke(labels_, batch), indices, classes_);
    return batch;
  }

  SourcePtr<AnyBatch> source_;
  int64_t classes_;
  Member labels_;
};

}  // namespace detail

/// The same source with checked labels 0 to classes-1: reading another label is an error that names its sample.
///
/// \param labels  Pointer to the batch's member, or a function from AnyBatch& to it: integers [B, ...].
/// \throws Error (usage) for classes below 1.
template <typename AnySource, typename Member>
[[nodiscard]] SourcePtr<batch_of<AnySource>> with_classes(std::shared_ptr<AnySource> source, int64_t classes,
                                                          Member labels) {
  static_assert(std::is_invocable_r_v<const at::Tensor&, const Member&, batch_of<AnySource>&>,
                "accelerate::data::with_classes: labels is a pointer to a tensor of the batch, or a function that "
                "returns a reference to it");
  using Made = detail::WithClasses<batch_of<AnySource>, Member>;
  return std::make_shared<Made>(kept("with_classes", std::move(source)), classes, std::move(labels));
}

/// The same for a Batch; the labels are its target.
template <typename AnySource>
[[nodiscard]] SourcePtr<batch_of<AnySource>> with_classes(std::shared_ptr<AnySource> source, int64_t classes) {
  return data::with_classes(std::move(source), classes, &batch_of<AnySource>::target);
}

}  // namespace accelerate::data
