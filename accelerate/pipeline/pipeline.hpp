// SPDX-License-Identifier: Apache-2.0
// Pipeline parallelism: the layers of a model divided into stages on several ranks or devices.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "accelerate/comm/group.hpp"
#include "accelerate/pipeline/layer_costs.hpp"
#include "accelerate/pipeline/layers.hpp"
#include "accelerate/pipeline/schedule.hpp"
#include "accelerate/precision/autocast.hpp"

namespace accelerate::pipeline {
class Engine;
class Stage;
class TiedParameters;
struct ModelLayout;
struct TiedParameter;

/// Returns the mean loss of the rows of a micro-batch as a tensor with one element.
using Loss = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;
/// Returns the initial gradient for the backward of a loss. An undefined tensor means 1.
using LossSeed = std::function<at::Tensor(const at::Tensor& loss)>;
/// Returns this rank's gradient of a parameter that other ranks have too. Their sum is written into it. Undefined if it
/// is not summed in this step.
using GradientOf = std::function<at::Tensor(const at::Tensor& parameter)>;
/// Runs the step of a pipeline, and returns its mean loss.
/// \param seed              May be empty.
/// \param gradient_of_tied  Empty if gradients are in Tensor::grad().
using RunStep = std::function<at::Tensor(const Loss& loss, const LossSeed& seed, const GradientOf& gradient_of_tied)>;
/// Wraps the step of a pipeline, for example to reduce the gradients after it.
using StepWrapper = std::function<at::Tensor(const Loss& loss, const RunStep& run)>;
}  // namespace accelerate::pipeline

namespace accelerate {

struct PipelineOptions {
  PipelineSchedule schedule = PipelineSchedule::one_forward_one_backward;
  /// Number of parts of each batch. More micro-batches make the bubble shorter and the operations smaller. A batch with
  /// fewer rows has one micro-batch per row.
  int64_t micro_batches = 4;
  /// Stages of each rank (virtual stages). More than 1 only with the schedule `interleaved`.
  int64_t stages_per_rank = 1;
  /// Number of layers of each stage. If empty, the layers are divided by their costs.
  std::vector<int64_t> layers_per_stage{};
  /// Cost of each layer, such as pipeline::measured_costs() returns; the costs of rank 0 are used. If empty, the number
  /// of parameter elements plus one.
  std::vector<double> layer_costs{};
  /// If true, train_step() returns the loss on every rank. False saves a broadcast per step.
  bool broadcast_loss = true;
  /// Autocast region of the forward and the loss function. Weights are cast at each use. If unset, the caller's state
  /// is used.
  std::optional<precision::AutocastRegion> autocast{};
};

}  // namespace accelerate

namespace accelerate::nn {

/// A model whose layers are divided into stages. Stage s is on rank s % ranks of a group, or on that entry of a list of
/// devices of one process. A batch is divided into micro-batches, on which the stages work at the same time.
///
///   torch::nn::Sequential layers(...);                                  // the same on every rank
///   accelerate::nn::Pipeline model(accelerator.group(), std::move(layers), {.micro_batches = 8});
///   torch::optim::AdamW optimizer(model.parameters(), 1e-3);            // of this rank's stages
///   optimizer.zero_grad();
///   at::Tensor loss = model.train_step(input, target, [](auto& output, auto& target) { return ...mean; });
///   model.clip_grad_norm_(1.0);
///   optimizer.step();
///
/// Gradients and losses are those of one process that divides its batch into the same micro-batches: within rounding
/// those of the whole batch, except for layers that use the whole batch. BatchNorm normalises each micro-batch and
/// updates its statistics once per micro-batch. Layers with random numbers draw from the generator of their rank.
///
/// It is a module with this rank's layers under their names in the Sequential, or under their positions in a list of
/// modules: the weight of the third module of a list is "2.weight" on every rank and in checkpoints. parameters(),
/// train() and eval() are as usual. It does not divide batches over ranks: all ranks of its group use the same batch.
///
/// With Accelerator::prepare() the steps of the pipeline also reduce the gradients over the data parallel ranks,
/// compute in the dtypes of the precision policy, scale the loss, and follow accumulate():
///
///   accelerate::nn::Pipeline net(accelerator.pipeline_parallel_group(), std::move(layers));
///   torch::optim::AdamW adam(net.parameters(), 1e-3);
///   auto [model, optimizer, batches] = accelerator.prepare(net, adam, loader);
///   for (auto& [input, target] : batches) {
///     optimizer.zero_grad();
///     model->train_step(input, target, loss_function);
///     accelerator.clip_grad_norm_(model, 1.0);
///     optimizer.step();
///   }
///
/// Each layer takes one tensor and returns one, with rows in its first dimension; all shapes must follow from the
/// shape of the input. After an exception in a step over several ranks the pipeline is unusable, because the ranks have
/// executed different micro-batches. Not thread-safe.
class Pipeline : public torch::nn::Module {
 public:
  using Loss = pipeline::Loss;

  /// Stages on the ranks of a group. Collective.
  ///
  /// \param group   Duplicated. If it has a device, this rank's layers are moved there.
  /// \param layers  The whole model on every rank: a Sequential, a vector of torch::nn::AnyModule, or modules in
  ///                braces. Layers of other ranks are released: their memory is freed if the caller keeps no reference,
  ///                so pass an rvalue. A parameter in several stages is tied: each of its ranks has a copy, which
  ///                starts with the value of the first one, and gets the sum of the gradients.
  /// \throws Error (usage) if a layer is null, if there are fewer layers than stages, or if an option is out of range;
  ///         Error (peer) if a rank does not join or has another number of layers.
  Pipeline(const comm::Group& group, const pipeline::Layers& layers, PipelineOptions options = {});

  /// Stages on several devices of this process. A device may occur several times.
  /// \throws Error (usage) as above, and for a parameter that is used on two devices.
  Pipeline(const std::vector<at::Device>& devices, const pipeline::Layers& layers, PipelineOptions options = {});
  ~Pipeline() override;

  /// Forward and backward of all micro-batches. Gradients are added to those of the parameters, so several calls
  /// accumulate. Collective.
  ///
  /// \param input   [rows, ...], on any device. Used only on the rank of the first stage; elsewhere it may be
  ///                undefined.
  /// \param target  [rows, ...], on any device. Used only on the rank of the last stage.
  /// \param loss    Called on the rank of the last stage for each micro-batch.
  /// \returns the mean loss over the rows of the batch, a float64 number on this rank's device. Undefined on ranks
  ///   without the last stage if `broadcast_loss` is false.
  /// \throws Error of the kind of the failure, with stage, micro-batch and direction of a failed transfer, or stage and
  ///         micro-batch of a layer that throws.
  /// \throws Error (usage) on all ranks, before the first micro-batch, if the Pipeline is prepared, a layer is a
  ///         SyncBatchNorm, and data parallel ranks have different numbers of micro-batches.
  at::Tensor train_step(const at::Tensor& input, const at::Tensor& target, const Loss& loss);

  /// Forward without gradients, for evaluation. Call eval() before. Collective.
  /// \returns the output [rows, ...] on the rank of the last stage, elsewhere an undefined tensor.
  at::Tensor forward(const at::Tensor& input);

  /// Scales the gradients of all stages so that their common norm is at most max_norm, like
  /// torch::nn::utils::clip_grad_norm_. A tied parameter counts once. Collective.
  /// \returns the norm before, a float64 number on this rank's device.
  /// \throws Error (usage) if the Pipeline is prepared and its gradients are sharded.
  at::Tensor clip_grad_norm_(double max_norm, double norm_type = 2.0);

  /// Moves the layers. If the pipeline has stages on several ranks or was given devices, only the device of this rank's
  /// layers is accepted.
  /// \throws Error (usage) if the device is another one.
  void to(at::Device device, bool non_blocking = false) override;
  using torch::nn::Module::to;

  /// The plan of a step with the given number of micro-batches.
  [[nodiscard]] const pipeline::Plan& plan() const { return plan_; }
  /// Layers of each stage, [S].
  [[nodiscard]] const std::vector<int64_t>& layers_per_stage() const { return layers_per_stage_; }
  [[nodiscard]] bool has_first_stage() const;
  [[nodiscard]] bool has_last_stage() const;

  /// For prepare(): names of the whole model, and a function that wraps each step.
  [[nodiscard]] const std::shared_ptr<const pipeline::ModelLayout>& layout() const { return layout_; }
  /// \param owner  While it exists, it is the result of step_wrapper_owner().
  void set_step_wrapper(pipeline::StepWrapper wrapper, std::weak_ptr<const void> owner) {
    step_wrapper_ = std::move(wrapper);
    step_wrapper_owner_ = std::move(owner);
  }
  /// For prepare(): a function that is called before the first micro-batch, with their number.
  void set_step_check(std::function<void(int64_t micro_batches, bool is_training)> check);
  /// For prepare(): a function that clip_grad_norm_() of the Pipeline calls first.
  void set_clip_check(std::function<void()> check) { clip_check_ = std::move(check); }
  [[nodiscard]] std::shared_ptr<const void> step_wrapper_owner() const { return step_wrapper_owner_.lock(); }

 private:
  /// \param group    Unset if all stages are in this process.
  /// \param devices  Device of each rank. If empty, layers stay on their devices.
  Pipeline(std::optional<comm::Group> group, int64_t ranks, const std::vector<at::Device>& devices,
           torch::nn::Sequential layers, PipelineOptions options);
  void build(const torch::nn::Sequential& layers, const std::vector<at::Device>& devices);
  void build_layout(const torch::nn::Sequential& layers, const std::vector<pipeline::TiedParameter>& tied,
                    bool is_placed);
  void connect(std::map<int64_t, pipeline::Stage> stages, const std::vector<pipeline::TiedParameter>& tied);
  [[nodiscard]] at::Tensor shared_loss(const at::Tensor& loss) const;
  template <typename Run>
  auto guarded(std::string_view call, const Run& run);

  PipelineOptions options_;
  std::optional<comm::Group> group_;  ///< unset if all stages are in this process
  pipeline::Plan plan_;
  std::vector<int64_t> layers_per_stage_{};
  at::Device device_ = at::kCPU;  ///< of losses and norms
  std::unique_ptr<pipeline::TiedParameters> tied_;
  std::unique_ptr<pipeline::Engine> engine_;
  std::shared_ptr<const pipeline::ModelLayout> layout_;
  pipeline::StepWrapper step_wrapper_{};
  std::weak_ptr<const void> step_wrapper_owner_{};
  std::function<void()> clip_check_{};
  bool failed_ = false;
};

}  // namespace accelerate::nn
