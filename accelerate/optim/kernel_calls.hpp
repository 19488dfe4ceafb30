// SPDX-License-Identifier: Apache-2.0
// Private: what the fused kernels are called with.
#pragma once

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/optimizer.h>

#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

namespace accelerate::optim {

// What one kernel call takes: parameters of one dtype, device and count of steps. Lists keep their capacity from step
// to step, so that a steady step allocates nothing here.
struct Call {
  at::ScalarType dtype;
  at::Device device;
  int64_t step;
  std::vector<at::Tensor> parameters{}, gradients{}, first{}, second{}, maxima{}, steps{};
  std::vector<torch::optim::OptimizerParamState*> states{};
  at::Tensor step_tensor{};

  bool takes(const at::Tensor& parameter, int64_t count) const {
    return count == step && parameter.scalar_type() == dtype && parameter.device() == device;
  }
  void clear() {
    for (auto* list : {&parameters, &gradients, &first, &second, &maxima, &steps}) list->clear();
    states.clear();
  }
};

class Calls {
 public:
  Call& of(const at::Tensor& parameter, int64_t step) {
    for (size_t i = 0; i < used_; ++i) {
      if (calls_[i].takes(parameter, step)) return calls_[i];
    }
    if (used_ == calls_.size()) calls_.push_back({parameter.scalar_type(), parameter.device(), step});
    Call& call = calls_[used_++];
    if (call.dtype != parameter.scalar_type() || call.device != parameter.device()) call.step_tensor.reset();
    call.dtype = parameter.scalar_type();
    call.device = parameter.device();
    call.step = step;
    return call;
  }
  template <typename Run>
  void run(const Run& kernel) {
    for (size_t i = 0; i < used_; ++i) kernel(calls_[i]);
    clear();
  }
  // Gradients must not live on in our lists.
  void clear() {
    for (Call& call : calls_) call.clear();
    used_ = 0;
  }

 private:
  std::deque<Call> calls_;  // references into it stay valid
  size_t used_ = 0;
};

// The kernels read the count of steps from one float per parameter; a shared one does, they only read.
inline void fill_steps(Call& call) {
  if (!call.step_tensor.defined()) call.step_tensor = at::empty({}, at::TensorOptions(call.device).dtype(at::kFloat));
  if (call.device.is_cpu()) {
    *call.step_tensor.data_ptr<float>() = static_cast<float>(call.step);
  } else {
    call.step_tensor.fill_(static_cast<double>(call.step));
  }
  call.steps.assign(call.parameters.size(), call.step_tensor);
}

inline bool is_set(const std::optional<at::Tensor>& flag) { return flag && *flag->const_data_ptr<float>() != 0; }

// Steps that flags on a device have cancelled, per parameter: the host counts on until settle().
class Cancelled {
 public:
  // What the kernels are told: the count of steps without the cancelled ones.
  void correct(Call& call) const {
    if (counts_.empty()) return;
    for (size_t i = 0; i < call.steps.size(); ++i) {
      const auto found = counts_.find(call.states[i]);
      if (found != counts_.end()) call.steps[i] = call.steps[i] - found->second;
    }
  }
  void note(const Call& call, const at::Tensor& skip) {
    std::vector<at::Tensor> counts;
    for (auto* state : call.states) {
      at::Tensor& count = counts_[state];
      if (!count.defined()) count = at::zeros({}, skip.options());
      counts.push_back(count);
    }
    at::_foreach_add_(counts, skip);
  }
  template <typename State>
  void settle() {
    for (const auto& [state, count] : counts_) {
      auto& of_parameter = static_cast<State&>(*state);
      of_parameter.step(of_parameter.step() - count.template item<int64_t>());
    }
    counts_.clear();
  }

 private:
  std::unordered_map<torch::optim::OptimizerParamState*, at::Tensor> counts_;
};

// What a step that threw half-way left in the lists must not join the next one.
struct ClearedAtEnd {
  Calls& calls;
  ~ClearedAtEnd() { calls.clear(); }
};

}  // namespace accelerate::optim
