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
  std::vector<at::Tensor> counted = parameters;
  if (spans_pipeline_stages(models, parameters)) {
    refuse_parameters_of_no_stage(shared, models, parameters);
    over_ = &shared.mesh.pipeline;
    const auto counts_here = [&](const at::Tensor& parameter) { return !is_tied_copy(models, parameter); };
    const auto copies = std::stable_partition(counted.begin(), counted.end(), counts_here);
    copies_ = flat_gradients(models, unique_tensors({copies, counted.end()}));
    counted.erase(copies, counted.end());
  }
  // Stages decide together, although some may have no parts of tensor parallel layers.
  if (shared.mesh.tensor.size() > 1 && (over_ == &shared.mesh.pipeline || has_split(parameters))) {
    tensor_ = &shared.mesh.tensor;
    counted_ = split_gradients(models, counted);
  } else {
    counted_.whole = flat_gradients(models, counted);
  }
}

at::Tensor ClippedGradients::norm(double norm_type) const {
  if (tensor_ != nullptr) return nn::split_grad_norm(counted_, *tensor_, norm_type, over_);
  return gradient::norm_of(counted_.whole, norm_type, over_);
}

at::Tensor ClippedGradients::clip(double max_norm, double norm_type) const {
  if (tensor_ == nullptr && copies_.empty()) {
    return gradient::clip_norm_of(counted_.whole, max_norm, norm_type, over_);
  }
  const at::Tensor before = norm(norm_type);
  std::vector<at::Tensor> all = counted_.whole;
  all.insert(all.end(), counted_.parts.begin(), counted_.parts.end());
  all.insert(all.end(), copies_.begin(), copies_.end());
  gradient::scale_to_norm(gradient::by_kind(all), before, max_norm);
  return before;
}

}  // namespace accelerate::prepared
