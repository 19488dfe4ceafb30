// SPDX-License-Identifier: Apache-2.0
#include "tests/stand_in/shapes.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <map>
#include <mutex>
#include <vector>

#include "tests/stand_in/world.hpp"

namespace stand_in {
namespace {

using torch::jit::Stack;
using Rule = std::optional<Stack> (*)(const Stack&);

at::Tensor like(const c10::IValue& value) { return at::empty_like(value.toTensor()); }

at::Tensor meta(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::empty(sizes, at::TensorOptions().device(c10::kMeta).dtype(dtype));
}

at::Tensor when(bool wanted, const at::Tensor& tensor) { return wanted ? tensor : at::Tensor(); }

std::optional<Stack> same(const Stack& a) { return Stack{like(a[0])}; }

std::optional<Stack> flags(const Stack& a) { return Stack{meta(a[0].toTensor().sizes(), at::kBool)}; }

// For a flag and two tensors of one shape; other broadcasts run immediately in stream order.
std::optional<Stack> where(const Stack& a) {
  const auto &condition = a[0].toTensor(), &one = a[1].toTensor(), &other = a[2].toTensor();
  if (condition.dim() != 0 || one.sizes() != other.sizes() || one.scalar_type() != other.scalar_type()) {
    return std::nullopt;
  }
  return Stack{like(a[1])};
}

std::optional<Stack> index_select(const Stack& a) {
  auto sizes = a[0].toTensor().sizes().vec();
  if (sizes.empty()) return std::nullopt;
  const int64_t dim = a[1].toInt();
  sizes[static_cast<size_t>(dim < 0 ? dim + static_cast<int64_t>(sizes.size()) : dim)] = a[2].toTensor().numel();
  return Stack{meta(sizes, a[0].toTensor().scalar_type())};
}

std::optional<Stack> convolution(const Stack& a) {
  const auto& input = a[0].toTensor();
  const auto& weight = a[1].toTensor();
  if (a[6].toBool() || input.dim() != weight.dim()) return std::nullopt;  // transposed
  const auto stride = a[3].toIntVector();
  const auto padding = a[4].toIntVector();
  const auto dilation = a[5].toIntVector();
  std::vector<int64_t> sizes{input.size(0), weight.size(0)};
  for (int64_t d = 2; d < input.dim(); ++d) {
    const auto i = [&](const std::vector<int64_t>& list) {
      return list.size() == 1 ? list[0] : list.at(static_cast<size_t>(d - 2));
    };
    const int64_t kernel = i(dilation) * (weight.size(d) - 1) + 1;
    sizes.push_back((input.size(d) + 2 * i(padding) - kernel) / i(stride) + 1);
  }
  return Stack{meta(sizes, input.scalar_type())};
}

std::optional<Stack> convolution_backward(const Stack& a) {
  const auto mask = a[10].toBoolList();
  const auto& gradient = a[0].toTensor();
  return Stack{when(mask[0], like(a[1])), when(mask[1], like(a[2])),
               when(mask[2], meta({gradient.size(1)}, gradient.scalar_type()))};
}

std::optional<Stack> batch_norm(const Stack& a) {
  const auto& input = a[0].toTensor();
  const int64_t kept = a[5].toBool() ? input.size(1) : 0;  // training
  return Stack{like(a[0]), meta({kept}, input.scalar_type()), meta({kept}, input.scalar_type())};
}

std::optional<Stack> batch_norm_backward(const Stack& a) {
  const auto mask = a[9].toBoolList();
  const auto channels = meta({a[1].toTensor().size(1)}, a[1].toTensor().scalar_type());
  return Stack{when(mask[0], like(a[1])), when(mask[1], channels), when(mask[2], at::empty_like(channels))};
}

std::optional<Stack> norms(const Stack& a) {
  std::vector<at::Tensor> list;
  for (const at::Tensor& tensor : a[0].toTensorVector()) {
    list.push_back(meta({}, a[2].isNone() ? tensor.scalar_type() : a[2].toScalarType()));
  }
  return Stack{list};
}

Rule rule_for(const std::string& name) {
  static const std::map<std::string, Rule> rules{{"aten::relu", same},
                                                 {"aten::isnan", flags},
                                                 {"aten::native_dropout_backward", same},
                                                 {"aten::where.self", where},
                                                 {"aten::index_select", index_select},
                                                 {"aten::_amp_update_scale_", same},
                                                 {"aten::convolution", convolution},
                                                 {"aten::convolution_backward", convolution_backward},
                                                 {"aten::native_batch_norm", batch_norm},
                                                 {"aten::native_batch_norm_backward", batch_norm_backward},
                                                 {"aten::_foreach_norm.Scalar", norms}};
  const auto found = rules.find(name);
  return found == rules.end() ? nullptr : found->second;
}

bool known_to_fail(const std::string& name) {
  const std::lock_guard lock(world().mutex);
  return world().synchronous_operators.contains(name);
}

}  // namespace

std::optional<Stack> shapes_of(const c10::OperatorHandle& op, const std::string& name, const Stack& arguments) {
  if (const Rule rule = rule_for(name)) return rule(arguments);
  if (op.schema().returns().empty()) return Stack{};  // it modifies its arguments
  if (known_to_fail(name)) return std::nullopt;
  auto stack = arguments;
  try {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
  } catch (const c10::NotImplementedError&) {
    const std::lock_guard lock(world().mutex);
    world().synchronous_operators.insert(name);
    return std::nullopt;
  }
  return stack;
}

bool writes_silently(const std::string& name, size_t argument) {
  return name == "aten::native_batch_norm" && (argument == 3 || argument == 4);
}

}  // namespace stand_in
