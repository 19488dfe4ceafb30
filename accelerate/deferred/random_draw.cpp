// SPDX-License-Identifier: Apache-2.0
#include "accelerate/deferred/random_draw.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <mutex>
#include <string_view>
#include <utility>

#include "accelerate/deferred/pages.hpp"

namespace accelerate::deferred {
namespace {

// A multiple of 16: on contiguous tensors normal_() computes 16 numbers at once, and those of the last 16 elements
// again if their number is no multiple of 16.
constexpr int64_t kPiece = int64_t{1} << 18;

// These operators draw the same numbers for a contiguous tensor and for its pieces one after another.
bool can_draw_in_pieces(const RecordedOperator& recorded, const at::Tensor& target) {
  const std::string_view name = recorded.op.schema().name();
  return (name == "aten::uniform_" || name == "aten::normal_") && target.is_contiguous();
}

// At least 1, because address space cannot be empty.
size_t span_bytes(const at::Tensor& tensor) {
  const auto bytes =
      at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), static_cast<size_t>(tensor.element_size()));
  return std::max<size_t>(bytes, 1);
}

void run_on(const RecordedOperator& recorded, torch::jit::Stack arguments, at::Tensor target,
            const at::Generator& generator) {
  arguments[0] = std::move(target);
  arguments[recorded.generator_argument] = generator;
  recorded.op.callBoxed(&arguments);
}

void draw_all(const RecordedOperator& recorded, const torch::jit::Stack& arguments, const at::Generator& generator) {
  const at::Tensor& target = arguments[0].toTensor();
  const bool in_pieces = target.numel() >= 2 * kPiece && can_draw_in_pieces(recorded, target);
  const Pages memory(in_pieces ? static_cast<size_t>(2 * kPiece * target.element_size()) : span_bytes(target));
  if (!in_pieces) {
    const at::Tensor all = at::from_blob(memory.address(), target.sizes(), target.strides(), target.scalar_type());
    return run_on(recorded, arguments, all, generator);
  }
  for (int64_t left = target.numel(); left > 0;) {  // the last piece is not smaller than the others
    const int64_t length = left < 2 * kPiece ? left : kPiece;
    run_on(recorded, arguments, at::from_blob(memory.address(), {length}, target.scalar_type()), generator);
    left -= length;
  }
}

}  // namespace

bool draw(RecordedOperator& recorded, const torch::jit::Stack& arguments) {
  const auto index = recorded.op.schema().argumentIndexWithName("generator");
  if (!index) return false;
  recorded.generator_argument = static_cast<size_t>(*index);
  const c10::IValue& given = arguments[recorded.generator_argument];
  at::Generator generator = given.isNone() ? at::detail::getDefaultCPUGenerator() : given.toGenerator();
  if (generator.device().type() != at::kCPU) return false;
  const std::lock_guard lock(generator.mutex());
  recorded.generator_state = generator.get_state();
  at::Generator copy = generator.clone();  // the operator locks the mutex of its generator
  draw_all(recorded, arguments, copy);
  generator.set_state(copy.get_state());
  return true;
}

}  // namespace accelerate::deferred
