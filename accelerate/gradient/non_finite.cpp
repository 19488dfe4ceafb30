// SPDX-License-Identifier: Apache-2.0
#include "accelerate/gradient/non_finite.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

#include "accelerate/gradient/clip.hpp"

namespace accelerate::gradient {
namespace {

int64_t elements_not_finite(state::Piece& piece) {
  const auto numbers = dense_gradients({&piece, 1});
  return numbers.empty() ? 0 : numbers.front().isfinite().logical_not().sum().item<int64_t>();
}

}  // namespace

at::Tensor non_finite_in(const std::vector<at::Tensor>& gradients, const comm::Group* over) {
  const at::NoGradGuard no_grad;
  at::Tensor found = at::zeros({});
  if (!gradients.empty()) {
    const at::Device device = gradients.front().device();
    std::vector<at::Tensor> bad;
    for (const auto& kind : by_kind(gradients)) {
      const auto largest = at::stack(at::_foreach_norm(kind, std::numeric_limits<double>::infinity()));
      bad.push_back(largest.isfinite().logical_not().any().to(device, at::kFloat, !device.is_cpu()));
    }
    found = bad.size() == 1 ? bad.front() : at::stack(bad).amax();
  }
  if (over == nullptr) return found;
  const at::Tensor anywhere = found.to(over->device().value_or(at::kCPU));
  over->all_reduce(anywhere, comm::ReduceOp::max);
  return anywhere.to(found.device());
}

void require_finite(const at::Tensor& norm, std::span<state::Piece> pieces, const Place& place) {
  const auto value = norm.item<double>();
  if (std::isfinite(value)) return;
  const at::NoGradGuard no_grad;
  const state::Piece* first = nullptr;
  int64_t elements = 0, count = 0;
  for (state::Piece& piece : pieces) {
    const int64_t bad = elements_not_finite(piece);
    if (bad == 0) continue;
    if (first == nullptr) elements = bad;
    if (first == nullptr) first = &piece;
    ++count;
  }
  if (first == nullptr) {
    base::fail(ErrorKind::data, place, "clip_grad_norm_",
               "the norm of the gradients is {}, though each of the {} is finite: it is above what {} holds; lower the "
               "learning rate or the loss, or switch error_if_nonfinite off to clip by it anyway",
               value, pieces.size(), c10::toString(norm.scalar_type()));
  }
  base::fail(ErrorKind::data, place, "clip_grad_norm_",
             "the norm of the gradients is {}: {} of {} gradients are not finite, the first that of {} in {} of its {} "
             "elements; lower the learning rate, or switch error_if_nonfinite off to clip by it anyway",
             value, count, pieces.size(), first->name, elements, first->gradient.numel());
}

}  // namespace accelerate::gradient
