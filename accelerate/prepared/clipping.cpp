// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/clipping.hpp"

#include <algorithm>

#include "accelerate/gradient/clip.hpp"
#include "accelerate/prepared/model.hpp"
#include "accelerate/prepared/pipeline_model.hpp"
#include "accelerate/prepared/split_parameters.hpp"

namespace accelerate::prepared {

ClippedGradients::ClippedGradients(const AcceleratorState& shared,
                                   const std::vector<std::shared_ptr<ModelCore>>& models,
                                   const std::vector<at::Tensor>& parameters)
    : over_(group_of_sharded_gradients(models, parameters)) {
  if (!spans_pipeline_stages(models, parameters)) {
    take(shared, models, parameters, shared.mesh.tensor.size() > 1 && has_split(parameters));
    return;
  }
  refuse_parameters_of_no_stage(shared, models, parameters);
  stages_ = &shared.mesh.pipeline;
  std::vector<at::Tensor> counted = parameters;
  const auto counts_here = [&](const at::Tensor& parameter) { return !is_tied_copy(models, parameter); };
  const auto copies = std::stable_partition(counted.begin(), counted.end(), counts_here);
  copies_ = flat_gradients(models, unique_tensors({copies, counted.end()}));
  counted.erase(copies, counted.end());
  // Stages decide together, although some may have no parts of tensor parallel layers.
  take(shared, models, counted, shared.mesh.tensor.size() > 1);
}

void ClippedGradients::take(const AcceleratorState& shared, const std::vector<std::shared_ptr<ModelCore>>& models,
                            const std::vector<at::Tensor>& counted, bool is_split) {
  if (is_split) {
    tensor_ = &shared.mesh.tensor;
    counted_ = split_gradients(models, counted);
  } else {
    counted_.whole = flat_gradients(models, counted);
  }
}

at::Tensor ClippedGradients::norm(double norm_type) const {
  at::Tensor norm = tensor_ != nullptr ? nn::split_grad_norm(counted_, *tensor_, norm_type, over_)
                                       : gradient::norm_of(counted_.whole, norm_type, over_);
  if (stages_ == nullptr) return norm;
  // The norm of the stages' norms, in one dtype, so that all stages scale the copies of a tied parameter equally.
  return gradient::norm_of({norm.to(at::kDouble)}, norm_type, stages_);
}

at::Tensor ClippedGradients::clip(double max_norm, double norm_type) const {
  gradient::check_norm_limit(max_norm, norm_type);
  at::Tensor before = norm(norm_type);
  for (const auto* scaled : {&counted_.whole, &counted_.parts, &copies_}) {
    gradient::scale_to_norm(gradient::by_kind(*scaled), before, max_norm);
  }
  return before;
}

}  // namespace accelerate::prepared
