// SPDX-License-Identifier: Apache-2.0
#include "accelerate/deferred/operator_rules.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/DefaultDtype.h>

#include <string_view>
#include <unordered_set>

namespace accelerate::deferred {
namespace {

using Names = std::unordered_set<std::string_view>;
using torch::jit::Stack;

bool is_among(const c10::OperatorHandle& op, const Names& names) {
  std::string_view name = op.schema().name();
  if (!name.starts_with("aten::")) return false;
  name.remove_prefix(std::string_view("aten::").size());
  return names.contains(name);
}

const c10::IValue* named(const c10::OperatorHandle& op, const Stack& arguments, const char* name) {
  const auto index = op.schema().argumentIndexWithName(name);
  if (!index || arguments[static_cast<size_t>(*index)].isNone()) return nullptr;
  return &arguments[static_cast<size_t>(*index)];
}

// In row-major layout and not pinned.
bool is_plain(const c10::OperatorHandle& op, const Stack& arguments) {
  const auto* layout = named(op, arguments, "layout");
  const auto* pinned = named(op, arguments, "pin_memory");
  return (layout == nullptr || layout->toLayout() == at::kStrided) && (pinned == nullptr || !pinned->toBool());
}

}  // namespace

Change change_by(const c10::OperatorHandle& op) {
  static const Names fills{"zero_",        "fill_",       "uniform_", "normal_",    "random_",
                           "exponential_", "log_normal_", "cauchy_",  "geometric_", "copy_"};
  static const Names modifies{"mul_",     "div_",  "add_",   "sub_",   "clamp_", "clamp_min_", "clamp_max_",
                              "neg_",     "abs_",  "sqrt_",  "rsqrt_", "exp_",   "log_",       "pow_",
                              "erfinv_",  "tanh_", "sin_",   "cos_",   "tril_",  "triu_",      "reciprocal_",
                              "sigmoid_", "erf_",  "floor_", "round_"};
  if (is_among(op, fills)) return Change::fills;
  return is_among(op, modifies) ? Change::modifies : Change::unknown;
}

bool is_random(const c10::OperatorHandle& op) { return op.hasTag(at::Tag::nondeterministic_seeded); }

bool is_fill_from_tensor(const c10::OperatorHandle& op) { return op.schema().name() == "aten::copy_"; }

bool is_copy(const c10::OperatorHandle& op) {
  static const Names copies{"clone", "_to_copy"};
  return is_among(op, copies) && !op.schema().is_mutable();
}

std::optional<c10::OperatorHandle> in_place_arithmetic(const c10::OperatorHandle& op, const Stack& arguments) {
  static const Names operators{"mul", "div", "add", "sub"};
  if (!is_among(op, operators) || op.schema().is_mutable() || arguments.size() < 2) return std::nullopt;
  const at::Tensor& source = arguments[0].toTensor();
  const c10::IValue& other = arguments[1];
  if (!source.is_floating_point() || source.dim() == 0) return std::nullopt;
  const bool is_real = other.isTensor() ? other.toTensor().dim() == 0 && !other.toTensor().is_complex()
                                        : other.isScalar() && !other.isComplexDouble();
  if (!is_real) return std::nullopt;
  return c10::Dispatcher::singleton().findSchema({op.schema().name() + "_", op.schema().overload_name()});
}

bool consists_of_deferrable(const c10::OperatorHandle& op) {
  static const Names composites{"zeros",     "ones",     "full",     "rand", "randn", "new_empty", "new_empty_strided",
                                "new_zeros", "new_ones", "new_full", "to"};
  return is_among(op, composites) && !op.schema().is_mutable();
}

std::optional<EmptyLayout> layout_of_empty(const c10::OperatorHandle& op, const Stack& arguments) {
  const bool is_strided = is_among(op, {"empty_strided"});
  if (!is_strided && (!is_among(op, {"empty"}) || op.schema().overload_name() != "memory_format")) return std::nullopt;
  if (!is_plain(op, arguments) || !arguments[0].isIntList()) return std::nullopt;
  EmptyLayout layout{.sizes = arguments[0].toIntVector()};
  if (is_strided) {
    if (!arguments[1].isIntList()) return std::nullopt;
    layout.strides = arguments[1].toIntVector();
  }
  const auto* dtype = named(op, arguments, "dtype");
  layout.dtype = dtype != nullptr ? dtype->toScalarType() : c10::get_default_dtype_as_scalartype();
  if (c10::isQIntType(layout.dtype)) return std::nullopt;
  if (const auto* format = named(op, arguments, "memory_format")) layout.memory_format = format->toMemoryFormat();
  if (const auto* device = named(op, arguments, "device")) layout.device = device->toDevice();
  return layout;
}

}  // namespace accelerate::deferred
