// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/model.hpp"

#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace accelerate::prepared {

ModelCore::ModelCore(std::shared_ptr<Shared> shared, const void* identity,
                     std::vector<gradient::NamedTensor> parameters, std::vector<gradient::NamedTensor> buffers,
                     const ModelOptions& options)
    : shared_(std::move(shared)),
      identity_(identity),
      parameters_(std::move(parameters)),
      buffers_(std::move(buffers)) {
  if (shared_->group.size() == 1 && shared_->group.backend() == "single") return;
  if (options.evaluation_mode) return;
  // A connection of its own: two models' buckets may be filled in another order on another rank.
  const comm::Group group = shared_->group.duplicate();
  buffer_broadcast_ = std::make_unique<gradient::BufferBroadcast>(group, buffers_);
  buffer_broadcast_->run();  // all ranks start from rank 0's, whatever the option says later
  if (!options.broadcast_buffers || buffers_.empty()) buffer_broadcast_.reset();
  const bool learns = std::any_of(parameters_.begin(), parameters_.end(),
                                  [](const auto& parameter) { return parameter.tensor.requires_grad(); });
  if (!learns) return;
  engine_ = std::make_unique<gradient::Engine>(group, parameters_, options.engine);
  shared_->engines = true;
}

void ModelCore::before_forward(bool training) {
  if (!engine_ || !at::GradMode::is_enabled()) return;
  engine_->set_sync(synchronises());
  if (buffer_broadcast_ && training && synchronises()) buffer_broadcast_->run();
}

bool ModelCore::is(const void* identity, const std::vector<gradient::NamedTensor>& parameters) const {
  return identity == identity_ &&
         std::equal(parameters.begin(), parameters.end(), parameters_.begin(), parameters_.end(),
                    [](const auto& a, const auto& b) { return a.tensor.is_same(b.tensor); });
}

std::optional<std::vector<at::Tensor>> whole_buckets(const std::vector<std::shared_ptr<ModelCore>>& models,
                                                     const std::vector<at::Tensor>& parameters) {
  for (const auto& model : models) {
    if (model->engine() != nullptr && model->engine()->manages_exactly(parameters)) return model->engine()->gradients();
  }
  return std::nullopt;
}

std::vector<gradient::JoinModel> join_models(const std::vector<std::shared_ptr<ModelCore>>& models) {
  std::vector<gradient::JoinModel> list;
  for (const auto& model : models) {
    if (model->engine() != nullptr) list.push_back({model->engine(), model->buffer_broadcast()});
  }
  return list;
}

}  // namespace accelerate::prepared
