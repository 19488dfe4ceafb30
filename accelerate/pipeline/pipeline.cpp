// SPDX-License-Identifier: Apache-2.0
#include "accelerate/pipeline/pipeline.hpp"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "accelerate/base/error.hpp"
#include "accelerate/comm/error_context.hpp"
#include "accelerate/pipeline/clip.hpp"
#include "accelerate/pipeline/division.hpp"
#include "accelerate/pipeline/engine.hpp"
#include "accelerate/pipeline/local_transport.hpp"
#include "accelerate/pipeline/model_layout.hpp"
#include "accelerate/pipeline/rank_transport.hpp"

namespace accelerate::nn {
namespace {

/// One rank, so that all stages are in this process, needs no messages.
std::optional<comm::Group> connected(const comm::Group& group) {
  if (group.size() == 1) return std::nullopt;
  return group.duplicate();
}

std::vector<at::Device> devices_of(const comm::Group& group) {
  if (!group.device()) return {};
  return std::vector<at::Device>(static_cast<size_t>(group.size()), *group.device());
}

void check_on_one_device(const std::vector<pipeline::TiedParameter>& tied, const std::vector<at::Device>& devices) {
  for (const auto& each : tied) {
    for (const int64_t rank : each.ranks) {
      const auto first = devices.at(static_cast<size_t>(each.ranks.front())),
                 other = devices.at(static_cast<size_t>(rank));
      if (first == other) continue;
      base::fail(
          ErrorKind::usage, {}, "Pipeline",
          "{} is used by stages on {} and on {}; use ranks, which keep a copy of it each, or place its layers in "
          "stages of one device",
          each.name, first.str(), other.str());
    }
  }
}

}  // namespace

Pipeline::Pipeline(const comm::Group& group, const pipeline::Layers& layers, PipelineOptions options)
    : Pipeline(connected(group), group.size(), devices_of(group), layers.sequential(), std::move(options)) {}

Pipeline::Pipeline(const std::vector<at::Device>& devices, const pipeline::Layers& layers, PipelineOptions options)
    : Pipeline(std::nullopt, static_cast<int64_t>(devices.size()), devices, layers.sequential(), std::move(options)) {}

Pipeline::Pipeline(std::optional<comm::Group> group, int64_t ranks, const std::vector<at::Device>& devices,
                   torch::nn::Sequential layers, PipelineOptions options)
    : torch::nn::Module("Pipeline"), options_(std::move(options)), group_(std::move(group)) {
  plan_ = pipeline::plan_step(options_.schedule, ranks, options_.micro_batches, options_.stages_per_rank);
  layers_per_stage_ = pipeline::divide_layers(layers, plan_.stages(), options_, group_);
  build(layers, devices);
}

Pipeline::~Pipeline() = default;

void Pipeline::build(const torch::nn::Sequential& layers, const std::vector<at::Device>& devices) {
  const auto names = layers->named_children().keys();
  std::map<int64_t, pipeline::Stage> stages;
  std::vector<int64_t> rank_of_layer;
  auto layer = layers->begin();
  for (int64_t stage = 0; stage < plan_.stages(); ++stage) {
    const int64_t rank = stage % plan_.ranks;
    torch::nn::Sequential own;
    for (int64_t i = 0; i < layers_per_stage_[static_cast<size_t>(stage)]; ++i, ++layer) {
      rank_of_layer.push_back(rank);
      if (group_ && rank != group_->rank()) continue;
      own->push_back(names[rank_of_layer.size() - 1], *layer);
      register_module(names[rank_of_layer.size() - 1], layer->ptr());
    }
    if (!own->is_empty()) stages.emplace(stage, pipeline::Stage(own, options_.autocast));
  }
  const auto tied = pipeline::shared_parameters(layers, rank_of_layer);
  if (!group_ && !devices.empty()) check_on_one_device(tied, devices);
  for (auto& [index, stage] : stages) {
    if (!devices.empty()) stage.to(devices.at(static_cast<size_t>(index % plan_.ranks)));
    device_ = stage.device().value_or(at::kCPU);
  }
  build_layout(layers, tied, !devices.empty());
  connect(std::move(stages), tied);
}

void Pipeline::build_layout(const torch::nn::Sequential& layers, const std::vector<pipeline::TiedParameter>& tied,
                            bool is_placed) {
  auto layout = std::make_shared<pipeline::ModelLayout>();
  layout->is_placed = is_placed;
  if (group_) {
    layout->ranks = group_->size();
    layout->rank = group_->rank();
  }
  std::unordered_map<const void*, std::string> canonical_names;
  for (const auto& parameter : layers->named_parameters()) {
    const auto first = canonical_names.emplace(parameter.value().unsafeGetTensorImpl(), parameter.key()).first;
    layout->canonical_names.emplace(parameter.key(), first->second);
    layout->names.push_back(parameter.key());
  }
  for (const auto& buffer : layers->named_buffers()) layout->names.push_back(buffer.key());
  for (const auto& name : layout->names) {
    layout->positions.emplace(name, static_cast<int64_t>(layout->positions.size()));
  }
  for (const auto& each : tied) {
    const auto own = std::find(each.ranks.begin(), each.ranks.end(), layout->rank);
    if (!group_ || own == each.ranks.end()) continue;
    layout->tied.insert(each.tensor.unsafeGetTensorImpl());
    if (own != each.ranks.begin()) layout->tied_copies.insert(each.tensor.unsafeGetTensorImpl());
  }
  layout_ = std::move(layout);
}

void Pipeline::connect(std::map<int64_t, pipeline::Stage> stages, const std::vector<pipeline::TiedParameter>& tied) {
  pipeline::Engine::Setup setup{.schedule = options_.schedule,
                                .ranks = plan_.ranks,
                                .stages_per_rank = plan_.stages_per_rank,
                                .micro_batches = options_.micro_batches};
  std::unique_ptr<pipeline::Transport> transport;
  if (group_) {
    setup.rank = group_->rank();
    setup.place = group_->place();
    transport = std::make_unique<pipeline::RankTransport>(*group_, plan_.stages(), device_);
    tied_ = std::make_unique<pipeline::TiedParameters>(*group_, pipeline::RankTransport::kTiedTag, tied);
    tied_->share_values();
  } else {
    std::vector<std::optional<at::Device>> devices;
    for (const auto& [index, stage] : stages) devices.push_back(stage.device());
    transport = std::make_unique<pipeline::LocalTransport>(std::move(devices));
  }
  engine_ = std::make_unique<pipeline::Engine>(std::move(setup), std::move(stages), std::move(transport));
}

void Pipeline::to(at::Device device, bool non_blocking) {
  if (group_ || layout_->is_placed) {
    for (const at::Tensor& parameter : parameters()) {
      if (parameter.device() == device) continue;
      base::fail(
          ErrorKind::usage, group_ ? group_->place() : RankContext(), "Pipeline.to",
          "the layers of this rank are on {0} and cannot move to {1}; construct the Pipeline with layers, a group "
          "or devices for {1}",
          parameter.device().str(), device.str());
    }
    return;
  }
  torch::nn::Module::to(device, non_blocking);
  engine_->set_transport(std::make_unique<pipeline::LocalTransport>(
      std::vector<std::optional<at::Device>>(static_cast<size_t>(plan_.stages()), device)));
  device_ = device;
}

/// After an exception the ranks have executed different actions, and their messages would not match any more.
template <typename Run>
auto Pipeline::guarded(std::string_view call, const Run& run) {
  if (failed_) {
    base::fail(ErrorKind::peer, group_ ? group_->place() : RankContext(), call,
               "an earlier step of this pipeline failed on this rank; create a new pipeline");
  }
  failed_ = group_.has_value();
  auto result = run();
  failed_ = false;
  return result;
}

at::Tensor Pipeline::train_step(const at::Tensor& input, const at::Tensor& target, const Loss& loss) {
  const auto run = [&](const Loss& loss_of_step, const pipeline::LossSeed& seed,
                       const pipeline::GradientOf& gradient_of_tied) {
    return guarded("Pipeline.train_step", [&] {
      if (tied_) tied_->begin_step();
      const at::Tensor mean = engine_->train_step(input, target, loss_of_step, seed);
      if (tied_) tied_->finish_step(gradient_of_tied);
      return group_ && options_.broadcast_loss ? shared_loss(mean) : mean;
    });
  };
  return step_wrapper_ ? step_wrapper_(loss, run) : run(loss, {}, {});
}

at::Tensor Pipeline::shared_loss(const at::Tensor& loss) const {
  const at::Tensor shared =
      loss.defined() ? loss.to(device_) : at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(device_));
  comm::with_operation_context("Pipeline.train_step", "the loss is not broadcast", group_->place(),
                               [&] { group_->broadcast(shared, plan_.ranks - 1); });
  return shared;
}

at::Tensor Pipeline::forward(const at::Tensor& input) {
  return guarded("Pipeline.forward", [&] { return engine_->forward(input); });
}

at::Tensor Pipeline::clip_grad_norm_(double max_norm, double norm_type) {
  if (clip_check_) clip_check_();
  return pipeline::clip_gradients(parameters(), {.group = group_, .tied = tied_.get(), .device = device_}, max_norm,
                                  norm_type);
}

void Pipeline::set_step_check(std::function<void(int64_t micro_batches, bool is_training)> check) {
  engine_->set_step_check(
      [this, check = std::move(check)](int64_t micro_batches) { check(micro_batches, is_training()); });
}

bool Pipeline::has_first_stage() const { return !group_ || group_->rank() == 0; }
bool Pipeline::has_last_stage() const { return !group_ || group_->rank() == group_->size() - 1; }

}  // namespace accelerate::nn
