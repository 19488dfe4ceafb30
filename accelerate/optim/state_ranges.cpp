// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/state_ranges.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/StringUtil.h>

#include "accelerate/optim/optimizer_fields.hpp"

namespace accelerate::optim {
namespace {

class StateCut {
 public:
  StateCut(const at::Tensor& parameter, const StateRange& range, const RankContext& place)
      : parameter_(parameter), range_(range), place_(place) {}

  void operator()(const char* name, at::Tensor& state) const {
    const int64_t length = range_.end - range_.begin;
    // A parameter of one dimension that this rank owns as a whole has the same state in both forms.
    if (!state.defined() || (state.dim() == 1 && state.numel() == length)) return;
    if (state.sizes() != parameter_.sizes()) {
      base::fail(
          ErrorKind::usage, place_, "optimizer.step",
          "'{}' of a parameter of shape [{}] has shape [{}], must have that of the parameter or the [{}] elements "
          "that this rank owns; load a checkpoint or make a new optimizer",
          name, c10::Join(", ", parameter_.sizes()), c10::Join(", ", state.sizes()), length);
    }
    state = range_of(state, parameter_, range_)
                .to(range_.device.value_or(state.device()), state.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  }
  void operator()(const char*, int64_t&) const {}

 private:
  const at::Tensor& parameter_;
  const StateRange& range_;
  const RankContext& place_;
};

}  // namespace

at::Tensor range_of(const at::Tensor& whole, const at::Tensor& parameter, const StateRange& range) {
  const at::NoGradGuard no_grad;
  const int64_t length = range.end - range.begin;
  if (parameter.is_contiguous()) return whole.reshape({-1}).narrow(0, range.begin, length);
  const at::Tensor laid_out = at::empty_strided(parameter.sizes(), parameter.strides(), whole.options()).copy_(whole);
  return laid_out.as_strided({length}, {1}, range.begin);
}

void append_copies(std::vector<device::CopyPair>& copies, const at::Tensor& to, const at::Tensor& saved,
                   const at::Tensor& parameter, const StateRange& range, const state::ReadElements& read) {
  if (!saved.is_meta() || !parameter.is_contiguous()) {
    copies.push_back({to, range_of(state::whole_of(saved, read), parameter, range)});
    return;
  }
  const at::Tensor flat = to.view({-1});
  for (const state::SavedElements& piece : read(saved, range.begin, range.end)) {
    auto [part, values] = state::copy_of(piece, saved, flat, range.begin);
    copies.push_back({std::move(part), std::move(values)});
  }
}

void keep_state_ranges(torch::optim::Optimizer& optimizer, const RangeOfParameter& range_of_parameter,
                       const RankContext& place) {
  visit_stock(optimizer, [&]<typename Fields>(Fields) {
    for (const auto& group : optimizer.param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        const auto range = range_of_parameter(parameter);
        const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
        if (!range || found == optimizer.state().end()) continue;
        if (range->begin == range->end) {
          optimizer.state().erase(found);
        } else {
          Fields::state(static_cast<typename Fields::State&>(*found->second), StateCut(parameter, *range, place));
        }
      }
    }
  });
}

}  // namespace accelerate::optim
