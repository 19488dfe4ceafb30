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
  return at::empty({0}, dtype).set_(storage, offset, sizes, strides);
}

at::Tensor Geometry::allocate() const { return at::empty_strided(sizes, strides, dtype); }

bool Geometry::fills(size_t storage_bytes) const {
  int64_t numel = 1;
  for (const int64_t size : sizes) numel *= size;
  if (offset != 0 || static_cast<size_t>(numel) * c10::elementSize(dtype) != storage_bytes) return false;
  return at::empty_strided(sizes, strides, at::TensorOptions(dtype).device(at::kMeta)).is_non_overlapping_and_dense();
}

at::Tensor RecordedOperator::run(const at::Tensor& argument) const {
  torch::jit::Stack stack{argument};
  stack.insert(stack.end(), rest.begin(), rest.end());
  if (generator_state.defined()) {
    at::Generator generator = at::make_generator<at::CPUGeneratorImpl>();
    generator.set_state(generator_state);
    stack[static_cast<size_t>(generator_argument)] = std::move(generator);
  }
  op.callBoxed(&stack);
  return stack.front().toTensor();
}

ValueRecipe::ValueRecipe(size_t bytes, std::shared_ptr<const ValueRecipe> source, RecordedOperator from_source)
    : bytes_(bytes), source_(std::move(source)), operators_{std::move(from_source)} {}

void ValueRecipe::add(RecordedOperator next, bool replaces_all) {
  if (replaces_all) {
    operators_.clear();
    source_.reset();
  }
  operators_.push_back(std::move(next));
}

c10::Storage ValueRecipe::build() const {
  size_t next = 0;
  c10::Storage storage;
  if (source_ != nullptr) {
    const RecordedOperator& from_source = operators_[next++];
    storage = from_source.run(from_source.first.view(source_->build())).storage();
  } else {
    storage = at::empty({static_cast<int64_t>(bytes_)}, at::kByte).storage();
  }
  for (; next < operators_.size(); ++next) (void)operators_[next].run(operators_[next].first.view(storage));
  return storage;
}

}  // namespace accelerate::deferred
