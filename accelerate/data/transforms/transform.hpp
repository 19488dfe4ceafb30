// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include "accelerate/data/derived_source.hpp"
#include "accelerate/data/transforms/sample_random.hpp"
#include "accelerate/tree/walk.hpp"

namespace accelerate::data {

namespace detail {

/// transform(tensor, context) may draw random numbers.
template <typename T>
concept RandomTransform = requires(const T& transform, const at::Tensor& tensor, const TransformContext& context) {
  { transform(tensor, context) } -> std::convertible_to<at::Tensor>;
};
/// transform(tensor, pass) may return pinned memory.
template <typename T>
concept PinningTransform = requires(const T& transform, const at::Tensor& tensor, const ReadContext& pass) {
  { transform(tensor, pass) } -> std::convertible_to<at::Tensor>;
};
template <typename T>
concept AnyTransform = RandomTransform<T> || PinningTransform<T> ||
    requires(const T& transform, const at::Tensor& tensor) {
  { transform(tensor) } -> std::convertible_to<at::Tensor>;
};

/// The first tensor of a batch.
struct FirstTensor {
  template <typename AnyBatch>
  at::Tensor& operator()(AnyBatch& batch) const {
    at::Tensor* first = nullptr;
    tree::walk(batch, [&](at::Tensor& tensor) {
      if (first == nullptr) first = &tensor;
    });
    if (first == nullptr) fail();
    return *first;
  }
  [[noreturn]] static void fail();
};

template <typename AnyBatch, typename Member, typename... Transforms>
class Transform final : public DerivedSource<AnyBatch> {
 public:
  Transform(SourcePtr<AnyBatch> source, Member member, Transforms... transforms)
      : DerivedSource<AnyBatch>(
            "transform", source->size(),
            {.seeded = source->seeded() || (RandomTransform<Transforms> || ...), .thread_safe = source->thread_safe()}),
        source_(std::move(source)),
        member_(std::move(member)),
        transforms_(std::move(transforms)...) {}

 private:
  [[nodiscard]] AnyBatch make(const at::Tensor& indices, const ReadContext& context) const override {
    ReadContext below = context;
    below.layer += sizeof...(Transforms);
    AnyBatch batch = read_from(*source_, indices, below);
    at::Tensor& tensor = std::invoke(member_, batch);
    TransformContext own{.pass = context, .indices = indices};
    const auto apply = [&](const auto& transform) {
      if constexpr (RandomTransform<std::remove_cvref_t<decltype(transform)>>) {
        tensor = transform(tensor, own);
      } else if constexpr (PinningTransform<std::remove_cvref_t<decltype(transform)>>) {
        tensor = transform(tensor, context);
      } else {
        tensor = transform(tensor);
      }
      ++own.pass.layer;
    };
    std::apply([&](const auto&... transforms) { (apply(transforms), ...); }, transforms_);
    return batch;
  }

  SourcePtr<AnyBatch> source_;
  Member member_;
  std::tuple<Transforms...> transforms_;
};

}  // namespace detail

/// Applies the transforms in order to each batch's first tensor (the images); other parts are unchanged.
///
///   transform(images, RandomCrop({.size = {32, 32}, .padding = 4}), RandomHorizontalFlip(), Normalize(mean, std))
///
/// A user-defined transform is called with the tensor [B, ...], and with the TransformContext if it accepts one: its
/// random numbers do not depend on the number of workers and ranks, and differ between epochs. A deterministic
/// transform may accept the ReadContext, to see whether its result should be pinned.
template <typename AnySource, detail::AnyTransform... Transforms>
requires(sizeof...(Transforms) > 0)
    [[nodiscard]] SourcePtr<batch_of<AnySource>> transform(std::shared_ptr<AnySource> source,
                                                           Transforms... transforms) {
  using Made = detail::Transform<batch_of<AnySource>, detail::FirstTensor, Transforms...>;
  return std::make_shared<Made>(kept("transform", std::move(source)), detail::FirstTensor{}, std::move(transforms)...);
}

/// The same with another tensor of the batch: member is a pointer to a member, or a function from AnyBatch& to
/// at::Tensor&.
template <typename AnySource, typename Member, detail::AnyTransform... Transforms>
requires(sizeof...(Transforms) > 0 && !detail::AnyTransform<Member> &&
         std::is_invocable_r_v<at::Tensor&, const Member&, batch_of<AnySource>&>)
    [[nodiscard]] SourcePtr<batch_of<AnySource>> transform(std::shared_ptr<AnySource> source, Member member,
                                                           Transforms... transforms) {
  using Made = detail::Transform<batch_of<AnySource>, Member, Transforms...>;
  return std::make_shared<Made>(kept("transform", std::move(source)), std::move(member), std::move(transforms)...);
}

}  // namespace accelerate::data
