// SPDX-License-Identifier: Apache-2.0
#include "accelerate/deferred/value_recipe.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <utility>

namespace accelerate::deferred {

Geometry Geometry::of(const at::Tensor& tensor) {
  return {tensor.sizes().vec(), tensor.strides().vec(), tensor.storage_offset(), tensor.scalar_type()};
}

at::Tensor Geometry::view(const c10::Storage& storage) const {
  return at::empty({0}, at::TensorOptions(dtype).device(storage.device())).set_(storage, offset, sizes, strides);
}

bool Geometry::fills(size_t storage_bytes) const {
  int64_t numel = 1;
  for (const int64_t size : sizes) numel *= size;
  if (offset != 0 || static_cast<size_t>(numel) * c10::elementSize(dtype) != storage_bytes) return false;
  return at::empty_strided(sizes, strides, at::TensorOptions(dtype).device(at::kMeta)).is_non_overlapping_and_dense();
}

void RecordedOperator::run(const c10::Storage& storage) const {
  torch::jit::Stack stack{target.view(storage)};
  stack.insert(stack.end(), rest.begin(), rest.end());
  if (source.recipe != nullptr) stack[1] = source.geometry.view(source.recipe->build());
  if (generator_state.defined()) {
    at::Generator generator = at::make_generator<at::CPUGeneratorImpl>();
    generator.set_state(generator_state);
    stack[generator_argument] = std::move(generator);
  }
  op.callBoxed(&stack);
}

// True if the bytes become those of the source.
bool ValueRecipe::is_copied_by(const RecordedOperator& next) const {
  const ValueRecipe* source = next.source.recipe.get();
  return source != nullptr && next.source.geometry == next.target && source->bytes_ == bytes_ &&
         source->device_ == device_;
}

// A copy takes over the operators of its source. Otherwise a copy of a copy of a copy would be replayed recursively.
void ValueRecipe::add(RecordedOperator next, bool replaces_all) {
  if (replaces_all && is_copied_by(next)) {
    operators_ = next.source.recipe->operators_;
    return;
  }
  if (replaces_all) operators_.clear();
  operators_.push_back(std::move(next));
}

c10::Storage ValueRecipe::build() const {
  c10::Storage storage =
      at::empty({static_cast<int64_t>(bytes_)}, at::TensorOptions(at::kByte).device(device_)).storage();
  for (const RecordedOperator& recorded : operators_) recorded.run(storage);
  return storage;
}

}  // namespace accelerate::deferred
