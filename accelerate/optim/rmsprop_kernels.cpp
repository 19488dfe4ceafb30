// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/rmsprop_kernels.hpp"

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>

#include "accelerate/device/parallel_for.hpp"

namespace accelerate::optim {
namespace {

// Minimum number of elements for which a second thread pays off.
constexpr int64_t kGrainSize = 32768;

// Updates one tensor. Half types are computed in float.
template <typename Number>
struct RMSpropTensor {
  using Math = at::opmath_type<Number>;
  Number *parameter, *gradient, *square, *buffer, *mean;
  Math lr, alpha, rest, eps, weight_decay, momentum, scale;

  template <bool with_momentum, bool centered>
  void update(int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; ++i) {
      const Math value = parameter[i];
      const Math slope = static_cast<Math>(gradient[i]) + weight_decay * value;
      const Math squared = alpha * static_cast<Math>(square[i]) + rest * slope * slope;
      Math variance = squared;
      square[i] = static_cast<Number>(squared);
      if constexpr (centered) {
        const Math average = alpha * static_cast<Math>(mean[i]) + rest * slope;
        mean[i] = static_cast<Number>(average);
        variance -= average * average;
      }
      Math move = slope / (std::sqrt(variance) + eps);
      if constexpr (with_momentum) {
        move += momentum * static_cast<Math>(buffer[i]);
        buffer[i] = static_cast<Number>(move);
      }
      parameter[i] = static_cast<Number>(value - lr * move);
    }
  }
  void unscale(int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; ++i) gradient[i] = static_cast<Number>(static_cast<Math>(gradient[i]) / scale);
  }
  void run(int64_t begin, int64_t end) const {
    if (scale != 1) unscale(begin, end);
    if (buffer != nullptr) {
      mean != nullptr ? update<true, true>(begin, end) : update<true, false>(begin, end);
    } else {
      mean != nullptr ? update<false, true>(begin, end) : update<false, false>(begin, end);
    }
  }
};

template <typename Number>
std::vector<RMSpropTensor<Number>> tensors_of(const RMSpropLists& lists, const RMSpropNumbers& numbers, double scale) {
  using Math = at::opmath_type<Number>;
  const auto memory = [](const std::vector<at::Tensor>& list, size_t i) {
    return list.empty() ? nullptr : list[i].mutable_data_ptr<Number>();
  };
  std::vector<RMSpropTensor<Number>> tensors;
  for (size_t i = 0; i < lists.parameters.size(); ++i) {
    tensors.push_back({.parameter = memory(lists.parameters, i),
                       .gradient = memory(lists.gradients, i),
                       .square = memory(lists.squares, i),
                       .buffer = memory(lists.buffers, i),
                       .mean = memory(lists.means, i),
                       .lr = static_cast<Math>(numbers.lr),
                       .alpha = static_cast<Math>(numbers.alpha),
                       // computed in double, because float would lose digits
                       .rest = static_cast<Math>(1 - numbers.alpha),
                       .eps = static_cast<Math>(numbers.eps),
                       .weight_decay = static_cast<Math>(numbers.weight_decay),
                       .momentum = static_cast<Math>(numbers.momentum),
                       .scale = static_cast<Math>(scale)});
  }
  return tensors;
}

// Divides the elements of all tensors together among the threads, so that they synchronise once per step.
template <typename Number>
void rmsprop_tensors(const RMSpropLists& lists, const RMSpropNumbers& numbers, double scale) {
  const auto tensors = tensors_of<Number>(lists, numbers, scale);
  std::vector<int64_t> ends;
  for (const at::Tensor& parameter : lists.parameters) {
    ends.push_back((ends.empty() ? 0 : ends.back()) + parameter.numel());
  }
  device::parallel_for(ends.back(), kGrainSize, [&](int64_t first, int64_t count) {
    const int64_t end = first + count;
    for (auto i = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), first) - ends.begin()); first < end;
         first = ends[i++]) {
      const int64_t begin_of_tensor = i == 0 ? 0 : ends[i - 1];
      tensors[i].run(first - begin_of_tensor, std::min(end, ends[i]) - begin_of_tensor);
    }
  });
}

std::vector<at::Tensor> copies(const std::vector<at::Tensor>& list) {
  std::vector<at::Tensor> copied;
  for (const at::Tensor& tensor : list) copied.push_back(tensor.clone());
  return copied;
}

}  // namespace

void rmsprop_on_cpu(const RMSpropLists& lists, const RMSpropNumbers& numbers, const StepScale& scale) {
  const double divisor = scale.scale ? *scale.scale->const_data_ptr<float>() : 1.0;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, lists.parameters.front().scalar_type(), "RMSprop",
                                  [&] { rmsprop_tensors<scalar_t>(lists, numbers, divisor); });
}

void rmsprop_on_device(const RMSpropLists& lists, const RMSpropNumbers& numbers, const StepScale& scale,
                       const at::Tensor& rate) {
  // A cancelled step runs and is undone, which preserves all bits for any gradients.
  const std::vector<at::Tensor>* const changed[] = {&lists.parameters, &lists.squares, &lists.buffers, &lists.means};
  std::vector<std::vector<at::Tensor>> before;
  if (scale.skip) {
    for (const auto* list : changed) before.push_back(copies(*list));
  }
  if (scale.scale) at::_foreach_div_(lists.gradients, *scale.scale);
  const auto slopes = numbers.weight_decay == 0
                          ? lists.gradients
                          : at::_foreach_add(lists.gradients, lists.parameters, numbers.weight_decay);
  at::_foreach_mul_(lists.squares, numbers.alpha);
  at::_foreach_addcmul_(lists.squares, slopes, slopes, 1 - numbers.alpha);
  std::vector<at::Tensor> spread;
  if (numbers.centered) {
    at::_foreach_mul_(lists.means, numbers.alpha);
    at::_foreach_add_(lists.means, slopes, 1 - numbers.alpha);
    spread = at::_foreach_addcmul(lists.squares, lists.means, lists.means, -1);
    at::_foreach_sqrt_(spread);
  } else {
    spread = at::_foreach_sqrt(lists.squares);
  }
  at::_foreach_add_(spread, numbers.eps);
  if (numbers.momentum > 0) {
    at::_foreach_mul_(lists.buffers, numbers.momentum);
    at::_foreach_addcdiv_(lists.buffers, slopes, spread);
  }
  if (rate.defined()) {
    at::_foreach_sub_(lists.parameters,
                      at::_foreach_mul(numbers.momentum > 0 ? lists.buffers : at::_foreach_div(slopes, spread), rate));
  } else if (numbers.momentum > 0) {
    at::_foreach_add_(lists.parameters, lists.buffers, -numbers.lr);
  } else {
    at::_foreach_addcdiv_(lists.parameters, slopes, spread, -numbers.lr);
  }
  if (!scale.skip) return;
  const at::Tensor skip = scale.skip->ne(0);
  for (size_t list = 0; list < before.size(); ++list) {
    for (size_t i = 0; i < before[list].size(); ++i) {
      (*changed[list])[i].copy_(at::where(skip, before[list][i], (*changed[list])[i]), true);
    }
  }
}

}  // namespace accelerate::optim
