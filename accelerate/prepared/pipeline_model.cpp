// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/pipeline_model.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "accelerate/comm/error_context.hpp"
#include "accelerate/nn/sync_batch_norm.hpp"
#include "accelerate/pipeline/model_layout.hpp"
#include "accelerate/pipeline/pipeline.hpp"
#include "accelerate/precision/outputs.hpp"
#include "accelerate/prepared/backward.hpp"
#include "accelerate/prepared/loss_count.hpp"
#include "accelerate/prepared/model.hpp"
#include "accelerate/prepared/optimizer.hpp"
#include "accelerate/sharding/fully_sharded_parameters.hpp"

namespace accelerate::prepared {
namespace {

template <typename... Args>
[[noreturn]] void refuse_pipeline(const AcceleratorState& shared, fmt::format_string<Args...> format, Args&&... args) {
  base::fail(ErrorKind::usage, shared.place, "prepare", format, std::forward<Args>(args)...);
}

void check_ranks(const AcceleratorState& shared, const pipeline::ModelLayout& layout) {
  const comm::Group& group = shared.mesh.pipeline;
  if (layout.ranks == group.size() && layout.rank == group.rank()) return;
  refuse_pipeline(shared,
                  "this rank is rank {} of {} in the Pipeline, but rank {} of {} in its pipeline group; set "
                  "AcceleratorOptions::parallelism_config with pp_size {}, and construct the Pipeline with "
                  "accelerator.pipeline_parallel_group()",
                  layout.rank, layout.ranks, group.rank(), group.size(), layout.ranks);
}

void check_devices(const AcceleratorState& shared, const torch::nn::Module& module) {
  if (shared.group.size() == 1) return;
  const auto parameters = module.parameters();
  for (const at::Tensor& parameter : parameters) {
    if (parameter.device() == parameters.front().device()) continue;
    refuse_pipeline(
        shared,
        "the Pipeline has parameters on {} and {}, but each of {} data parallel ranks must have all parameters on one "
        "device; distribute the stages over ranks with pp_size",
        parameters.front().device().str(), parameter.device().str(), shared.group.size());
  }
}

void refuse_pipeline_inside(const AcceleratorState& shared, const torch::nn::Module& module) {
  for (const auto& item : module.named_modules({}, /*include_self=*/false)) {
    if (dynamic_cast<const nn::Pipeline*>(item.value().get()) == nullptr) continue;
    refuse_pipeline(shared,
                    "{} is a Pipeline inside another module, where its steps would not follow the Accelerator; give "
                    "the Pipeline itself to prepare()",
                    item.key());
  }
}

void refuse_second_accelerator(const AcceleratorState& shared, const nn::Pipeline& pipeline) {
  const auto owner = std::static_pointer_cast<const ModelCore>(pipeline.step_wrapper_owner());
  if (!owner || owner->is_retired() || &owner->shared() == &shared) return;
  refuse_pipeline(
      shared,
      "the Pipeline is prepared by another Accelerator, which averages its gradients; call free_memory() of "
      "that one first");
}

/// Returns a loss function that runs outside of the autocast region on outputs in the output dtype, as in a loop
/// without a pipeline.
pipeline::Loss without_autocast(const ModelCore& core, const pipeline::Loss& loss) {
  if (!core.autocast()) return loss;
  auto off = *core.autocast();
  off.enabled = false;
  return [off, dtype = core.output_dtype(), &loss](const at::Tensor& output, const at::Tensor& target) {
    const precision::Autocast autocast(off);
    return loss(dtype ? precision::to_output(output, *dtype) : output, target);
  };
}

/// An optimizer may have a gradient on some stages only. All stages must scale, skip and count its steps together.
void share_whether_gradients_exist(AcceleratorState& shared) {
  const comm::Group& group = shared.mesh.pipeline;
  if (shared.scaling == nullptr || group.size() == 1) return;
  std::string own;
  for (const OptimizerCore& optimizer : shared.registry.of<OptimizerCore>())
    own += optimizer.has_gradient() ? '1' : '0';
  const auto all = comm::with_operation_context("Pipeline.train_step", "the gradients of the stages are not compared",
                                                shared.place, [&] { return group.all_gather_bytes(own); });
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].size() == own.size()) continue;
    base::fail(ErrorKind::usage, shared.place, "Pipeline.train_step",
               "{} optimizers are prepared here, and {} on stage {}; prepare the same objects on all stages",
               own.size(), all[rank].size(), rank);
  }
  for (OptimizerCore& optimizer : shared.registry.of<OptimizerCore>()) {
    const auto has_gradient = [&](const std::string& flags) {
      return flags[static_cast<size_t>(optimizer.index())] == '1';
    };
    optimizer.set_stages_have_gradient(std::ranges::any_of(all, has_gradient));
  }
}

/// Without broadcast_loss only the last stage has the loss, and the others must stop with it.
void check_loss_of_stages(const AcceleratorState& shared, const at::Tensor& mean_loss) {
  if (!shared.stop_at_nan_loss) return;
  const comm::Group& group = shared.mesh.pipeline;
  const auto options = at::TensorOptions().dtype(at::kDouble).device(shared.device);
  const at::Tensor sum =
      mean_loss.defined() ? mean_loss.to(options, /*non_blocking=*/false, /*copy=*/true) : at::zeros({}, options);
  if (group.size() > 1) {
    comm::with_operation_context("Pipeline.train_step", "the stages do not know whether the loss is NaN", shared.place,
                                 [&] { group.all_reduce(sum); });
  }
  check_loss_is_not_nan(shared, sum);
}

/// Sharding moves gradients away from Tensor::grad().
pipeline::GradientOf gradients_of_tied(const ModelCore& core) {
  auto* const sharded = core.fully_sharded();
  if (sharded == nullptr) return {};
  return [sharded](const at::Tensor& parameter) { return sharded->held_gradient(parameter); };
}

at::Tensor run_step(AcceleratorState& shared, ModelCore& core, const pipeline::Loss& loss,
                    const pipeline::RunStep& run) {
  if (shared.capturing) {
    base::fail(
        ErrorKind::usage, shared.place, "Pipeline.train_step",
        "graphed_step() cannot capture the step of a Pipeline, because its ranks exchange messages that the host "
        "reads; call train_step() outside of graphed_step()");
  }
  const at::AutoGradMode with_gradients(true);
  begin_backward(shared);
  core.before_forward();
  const AfterForward forward_ends(core);
  const double weight = weight_of_mean(shared);
  at::Tensor mean_loss;
  const auto step = [&] {
    const precision::Autocast autocast(core.autocast());
    const auto seed = [&](const at::Tensor& micro_batch_loss) {
      return backward_seed(shared, micro_batch_loss, weight);
    };
    mean_loss = run(without_autocast(core, loss), seed, gradients_of_tied(core));
  };
  run_backward(shared, step, [&](Run backward) {
    core.run_micro_batches(backward);
    share_whether_gradients_exist(shared);
  });
  check_loss_of_stages(shared, mean_loss);
  return mean_loss;
}

/// Returns true if a stage on any rank of the pipeline has a SyncBatchNorm. Collective over the pipeline group.
bool any_stage_synchronizes_batches(const AcceleratorState& shared, const torch::nn::Module& module) {
  const auto modules = module.modules();
  const bool own = std::ranges::any_of(
      modules, [](const auto& one) { return dynamic_cast<const nn::SyncBatchNormImpl*>(one.get()) != nullptr; });
  const comm::Group& group = shared.mesh.pipeline;
  if (group.size() == 1) return own;
  const auto all = comm::with_operation_context("prepare", "the layers of the stages are not compared", shared.place,
                                                [&] { return group.all_gather_bytes(own ? "1" : "0"); });
  return std::ranges::find(all, "1") != all.end();
}

/// Data parallel ranks exchange something in each micro-batch, so another number of them would block the ranks.
/// \param reason  Begins the sentence "... needs the same number on all".
void check_equal_micro_batches(const AcceleratorState& shared, int64_t micro_batches, std::string_view reason) {
  const auto own = fmt::to_string(micro_batches);
  const auto all = comm::with_operation_context("Pipeline", "the numbers of micro-batches are not compared",
                                                shared.place, [&] { return shared.group.all_gather_bytes(own); });
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    base::fail(
        ErrorKind::usage, shared.place, "Pipeline",
        "the batch of data parallel rank 0 has {} micro-batches, that of rank {} has {}, and {} needs the same number "
        "on all; give each rank at least as many rows as PipelineOptions::micro_batches",
        all[0], rank, all[rank], reason);
  }
}

}  // namespace

std::shared_ptr<const pipeline::ModelLayout> layout_of_pipeline(const AcceleratorState& shared,
                                                                const torch::nn::Module& module, bool has_comm_hook) {
  const auto* pipeline = dynamic_cast<const nn::Pipeline*>(&module);
  if (pipeline == nullptr) {
    refuse_pipeline_inside(shared, module);
    return nullptr;
  }
  refuse_second_accelerator(shared, *pipeline);
  check_ranks(shared, *pipeline->layout());
  check_devices(shared, module);
  if (has_comm_hook && shared.group.size() > 1) {
    refuse_pipeline(
        shared,
        "communication hooks are not supported for a Pipeline, because its gradients are averaged at the end of its "
        "step; remove the hook");
  }
  return pipeline->layout();
}

bool places_own_layers(const pipeline::ModelLayout* layout) {
  return layout != nullptr && (layout->is_placed || layout->ranks > 1);
}

void wrap_train_step(const std::shared_ptr<AcceleratorState>& shared, const std::shared_ptr<ModelCore>& core,
                     torch::nn::Module& module) {
  auto* pipeline = dynamic_cast<nn::Pipeline*>(&module);
  if (pipeline == nullptr || core->options().evaluation_mode) return;
  // The core does not keep the state alive. The state contains the registry, and the registry owns the core.
  pipeline->set_step_wrapper(
      [state = std::weak_ptr(shared), model = std::weak_ptr(core)](const pipeline::Loss& loss,
                                                                   const pipeline::RunStep& run) {
        const auto held = state.lock();
        const auto prepared = model.lock();
        if (!held || !prepared || prepared->is_retired()) return run(loss, {}, {});
        return run_step(*held, *prepared, loss, run);
      },
      core);
  pipeline->set_clip_check([model = std::weak_ptr(core)] {
    const auto prepared = model.lock();
    if (!prepared || prepared->fully_sharded() == nullptr) return;
    base::fail(ErrorKind::usage, prepared->place(), "Pipeline.clip_grad_norm_",
               "the Pipeline is prepared with sharding {}, so that each rank has parts of its gradients; call "
               "accelerator.clip_grad_norm_(model, max_norm)",
               sharding::strategy_name(prepared->shared().sharding));
  });
  if (shared->group.size() == 1) return;
  const bool synchronizes_batches = any_stage_synchronizes_batches(*shared, module);
  pipeline->set_step_check(
      [=, state = std::weak_ptr(shared), model = std::weak_ptr(core)](int64_t micro_batches, bool is_training) {
        const auto held = state.lock();
        const auto prepared = model.lock();
        if (!held || !prepared || prepared->is_retired()) return;
        const auto* sharded = prepared->fully_sharded();
        const bool gathers = sharded != nullptr && sharded->shards_parameters();
        if (gathers || (synchronizes_batches && is_training)) {
          check_equal_micro_batches(*held, micro_batches, gathers ? "full_shard" : "SyncBatchNorm");
        }
      });
}

bool spans_pipeline_stages(const std::vector<std::shared_ptr<ModelCore>>& models,
                           const std::vector<at::Tensor>& parameters) {
  return std::ranges::any_of(models, [&](const auto& model) {
    const auto& layout = model->options().pipeline;
    // A stage without parameters also takes part in norms.
    return layout && layout->ranks > 1 && (parameters.empty() || model->has_any_of(parameters));
  });
}

void refuse_released_stages(AcceleratorState& shared, const ModelCore& model, std::string_view operation) {
  const auto& layout = model.options().pipeline;
  if (!model.is_retired() || layout == nullptr || layout->ranks == 1) return;
  std::vector<at::Tensor> parameters;
  for (const auto& own : model.parameters()) parameters.push_back(own.tensor);
  const auto& models = shared.registry.list<ModelCore>();
  if (std::ranges::any_of(models, [&](const auto& one) { return one->has_any_of(parameters); })) return;
  base::fail(
      ErrorKind::usage, shared.place, operation,
      "the Pipeline was released by free_memory(), and the norm would lack {} other stages; give it to prepare() "
      "again, or call its own clip_grad_norm_()",
      layout->ranks - 1);
}

void refuse_parameters_of_no_stage(const AcceleratorState& shared,
                                   const std::vector<std::shared_ptr<ModelCore>>& models,
                                   const std::vector<at::Tensor>& parameters) {
  std::unordered_set<const void*> of_stages;
  for (const auto& model : models) {
    if (model->options().pipeline == nullptr) continue;
    for (const auto& own : model->parameters()) of_stages.insert(own.tensor.unsafeGetTensorImpl());
  }
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.grad().defined() || of_stages.contains(parameter.unsafeGetTensorImpl())) continue;
    base::fail(ErrorKind::usage, shared.place, "clip_grad_norm_",
               "some of the parameters belong to stages of a Pipeline, and one of shape [{}] does not, so that their "
               "common norm would count it {} times; clip them in separate calls",
               fmt::join(parameter.sizes(), ", "), shared.mesh.pipeline.size());
  }
}

bool is_tied_copy(const std::vector<std::shared_ptr<ModelCore>>& models, const at::Tensor& parameter) {
  return std::ranges::any_of(models, [&](const auto& model) {
    const auto& layout = model->options().pipeline;
    return layout && layout->tied_copies.contains(parameter.unsafeGetTensorImpl());
  });
}

void refuse_pipelines(const AcceleratorState& shared, const std::vector<std::shared_ptr<ModelCore>>& models,
                      std::string_view operation, std::string_view reason) {
  const bool has_pipeline =
      std::ranges::any_of(models, [](const auto& model) { return model->options().pipeline != nullptr; });
  if (!has_pipeline || shared.group.size() == 1) return;
  base::fail(ErrorKind::usage, shared.place, operation, "is not supported for a Pipeline, because {}", reason);
}

}  // namespace accelerate::prepared
