// SPDX-License-Identifier: Apache-2.0
#include "accelerate/nn/linear_cross_entropy_checks.hpp"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <c10/util/StringUtil.h>

#include <string>
#include <utility>

#include "accelerate/base/error.hpp"

namespace accelerate::nn {
namespace {

template <typename... Values>
[[noreturn]] void refuse_loss(fmt::format_string<Values...> text, Values&&... values) {
  base::fail(ErrorKind::usage, {}, "linear_cross_entropy", text, std::forward<Values>(values)...);
}

std::string shape_text(at::IntArrayRef sizes) { return fmt::format("[{}]", c10::Join(", ", sizes)); }

void check_shapes(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& target) {
  if (weight.dim() != 2) refuse_loss("weight is {}, must be [classes, features]", shape_text(weight.sizes()));
  if (x.dim() == 0 || x.size(-1) != weight.size(1)) {
    refuse_loss("x is {} and weight {}; the last dimension of both must be the features", shape_text(x.sizes()),
                shape_text(weight.sizes()));
  }
  const auto leading = x.sizes().slice(0, static_cast<size_t>(x.dim() - 1));
  if (target.sizes() == leading) return;
  refuse_loss("target is {} and x {}; target must be {}, one class for each row of x", shape_text(target.sizes()),
              shape_text(x.sizes()), shape_text(leading));
}

/// \param like  The tensor must have the device of x, and its dtype after autocast.
void check_like(const char* name, const at::Tensor& tensor, const at::Tensor& like) {
  if (tensor.device() != like.device()) {
    refuse_loss("{} is on {} and x on {}; move both to one device", name, tensor.device().str(), like.device().str());
  }
  if (linear_dtype(tensor) == linear_dtype(like)) return;
  refuse_loss("{} is {} and x {}; convert one of them, or use autocast", name, c10::toString(tensor.scalar_type()),
              c10::toString(like.scalar_type()));
}

void check_per_class(const char* name, const at::Tensor& tensor, const at::Tensor& weight) {
  if (tensor.dim() == 1 && tensor.size(0) == weight.size(0)) return;
  refuse_loss("{} is {}, must be [{}], one number for each row of weight", name, shape_text(tensor.sizes()),
              weight.size(0));
}

void check_class_weights(const at::Tensor& class_weights, const at::Tensor& x, const at::Tensor& weight) {
  check_per_class("class_weights", class_weights, weight);
  if (class_weights.device() != x.device()) {
    refuse_loss("class_weights is on {} and x on {}; move both to one device", class_weights.device().str(),
                x.device().str());
  }
  if (!class_weights.is_floating_point()) {
    refuse_loss("class_weights is {}, must be floating point", c10::toString(class_weights.scalar_type()));
  }
  if (class_weights.requires_grad())
    refuse_loss("class_weights requires a gradient, which is not computed; detach() it");
}

/// Only on the CPU: elsewhere reading the result would block the host.
void check_classes(const at::Tensor& target, int64_t classes, int64_t ignore_index) {
  if (!target.device().is_cpu() || target.numel() == 0) return;
  const at::Tensor outside = (target < 0).logical_or_(target >= classes).logical_and_(target != ignore_index);
  if (!outside.any().item<bool>()) return;
  const at::Tensor first = outside.nonzero()[0];
  std::vector<int64_t> index;
  at::Tensor value = target;
  for (int64_t i = 0; i < first.numel(); ++i) {
    index.push_back(first[i].item<int64_t>());
    value = value[index.back()];
  }
  refuse_loss("target{} is {}, must be a class from 0 to {} or the ignore_index {}",
              index.empty() ? "" : shape_text(index), value.item<int64_t>(), classes - 1, ignore_index);
}

}  // namespace

at::ScalarType linear_dtype(const at::Tensor& tensor) {
  const auto device = tensor.device().type();
  const bool converted = at::autocast::is_autocast_available(device) && at::autocast::is_autocast_enabled(device) &&
                         tensor.is_floating_point() && tensor.scalar_type() != at::kDouble;
  return converted ? at::autocast::get_autocast_dtype(device) : tensor.scalar_type();
}

void check_linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& target,
                                const LinearCrossEntropyOptions& options) {
  if (!(options.label_smoothing >= 0 && options.label_smoothing <= 1)) {
    refuse_loss("label_smoothing is {}, must be from 0 to 1", options.label_smoothing);
  }
  if (options.reduction != Reduction::none && options.reduction != Reduction::mean &&
      options.reduction != Reduction::sum) {
    refuse_loss("reduction is {}, must be none, mean or sum", static_cast<int>(options.reduction));
  }
  if (options.max_bytes < 1) refuse_loss("max_bytes is {}, must be at least 1", options.max_bytes);
  check_shapes(x, weight, target);
  if (!x.is_floating_point()) refuse_loss("x is {}, must be floating point", c10::toString(x.scalar_type()));
  check_like("weight", weight, x);
  if (options.bias.defined()) {
    check_per_class("bias", options.bias, weight);
    check_like("bias", options.bias, x);
  }
  if (options.class_weights.defined()) check_class_weights(options.class_weights, x, weight);
  if (target.scalar_type() != at::kLong) {
    refuse_loss("target is {}, must be Long: a class for each row; probabilities are not supported",
                c10::toString(target.scalar_type()));
  }
  if (target.device() != x.device()) {
    refuse_loss("target is on {} and x on {}; move both to one device", target.device().str(), x.device().str());
  }
  check_classes(target, weight.size(0), options.ignore_index);
}

}  // namespace accelerate::nn
