// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/model.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "accelerate/base/log.hpp"
#include "accelerate/comm/error_context.hpp"
#include "accelerate/deferred/deferred_tensor.hpp"
#include "accelerate/gradient/average_gradients.hpp"
#include "accelerate/gradient/clip.hpp"
#include "accelerate/gradient/verify_parameters.hpp"
#include "accelerate/nn/synchronized.hpp"
#include "accelerate/optim/parameter_groups.hpp"
#include "accelerate/pipeline/model_layout.hpp"
#include "accelerate/prepared/optimizer.hpp"
#include "accelerate/prepared/sharding_support.hpp"
#include "accelerate/prepared/split_parameters.hpp"
#include "accelerate/sharding/fully_sharded_parameters.hpp"
#include "accelerate/sharding/shard_mesh.hpp"
#include "accelerate/sharding/sharded_parameters.hpp"
#include "accelerate/units/gather_on_use.hpp"

namespace accelerate::prepared {

using sharding::ShardingStrategy;

namespace {

// If one of these properties of a parameter changes, prepare() makes a new core.
std::string describe_parameter(const gradient::NamedTensor& parameter) {
  return fmt::format("{} on {}", gradient::describe_tensor(parameter, "parameter"), parameter.tensor.device().str());
}

void materialize(const std::vector<gradient::NamedTensor>& tensors) {
  for (const auto& [name, tensor] : tensors) deferred::materialize_tensor(tensor);
}

void check_not_deferring(const RankContext& place) {
  if (!deferred::is_deferring()) return;
  base::fail(ErrorKind::usage, place, "prepare",
             "init_empty_weights() is still running, so that new tensors have no memory; call prepare() after it "
             "returned");
}

}  // namespace

ModelCore::ModelCore(AcceleratorState& shared, const void* identity, std::vector<gradient::NamedTensor> parameters,
                     std::vector<gradient::NamedTensor> buffers, const ModelOptions& options)
    : Entry(kEntryKind, identity),
      accelerator_state_(&shared),
      parameters_(std::move(parameters)),
      buffers_(std::move(buffers)),
      options_(options) {
  check_not_deferring(place());
  check_dtypes();
  check_split_parameters(*accelerator_state_, parameters_);
  for (const auto& parameter : parameters_) described_.push_back(describe_parameter(parameter));
  // Sharding materializes the parameters of one unit after another.
  const bool shards_units = !options.evaluation_mode && divides_gradients(*accelerator_state_);
  materialize(buffers_);
  if (!shards_units || accelerator_state_->mesh.tensor.size() > 1) materialize(parameters_);
  if (!options.evaluation_mode) {
    make_equal_in_tensor_group(*accelerator_state_, parameters_, buffers_, options_.gradient_reducer.buckets.cap_bytes);
  }
  if (accelerator_state_->group.backend() == "single" && !divides_models(*accelerator_state_)) return;
  if (options.evaluation_mode) {
    // The training model of the same module may have sharded the parameters.
    const auto models = accelerator_state_->registry.list<ModelCore>();
    for (const auto& parameter : parameters_) {
      const void* key = parameter.tensor.unsafeGetTensorImpl();
      if (std::ranges::any_of(models, [&](const auto& other) {
            return other->fully_sharded() != nullptr && other->fully_sharded()->manages(key);
          })) {
        averaged_elsewhere_.push_back(parameter.tensor);
      }
    }
    return;
  }
  const std::string first = parameters_.empty() ? "no parameters" : parameters_.front().name;
  comm::with_operation_context(
      "prepare", fmt::format("the model ({}) is not made equal", comm::first_name_and_count(first, parameters_.size())),
      accelerator_state_->place, [&] { synchronize_initial_values(); });
  materialize(parameters_);  // those that are in no unit
}

ModelCore::~ModelCore() = default;

void ModelCore::check_dtypes() const {
  if (!accelerator_state_->policy.scales_loss() || options_.evaluation_mode) return;
  for (const auto& parameter : parameters_) {
    if (parameter.tensor.scalar_type() != at::kHalf || !parameter.tensor.requires_grad()) continue;
    base::fail(ErrorKind::usage, accelerator_state_->place, "prepare",
               "parameter {} is float16, with mixed_precision fp16 it must be float32: fp16 computes in float16 by "
               "itself, and the gradients of float16 parameters cannot be unscaled; model->to(torch::kFloat) first",
               parameter.name);
  }
}

std::optional<precision::AutocastRegion> ModelCore::autocast() const {
  if (!accelerator_state_->policy.compute) return std::nullopt;
  return precision::AutocastRegion{.device = accelerator_state_->device.type(),
                                   .dtype = *accelerator_state_->policy.compute};
}

void ModelCore::synchronize_initial_values() {
  // A separate group, because another rank may fill the buckets of two models in another order.
  const comm::Group group = accelerator_state_->group.duplicate();
  if (options_.broadcast_buffers) {
    buffer_broadcast_ = std::make_unique<gradient::BufferBroadcast>(group, buffers_);
    buffer_broadcast_->run();
    if (buffers_.empty()) buffer_broadcast_.reset();
  }
  gradient::verify_parameters(group, "parameter", parameters_);
  std::vector<gradient::NamedTensor> own = own_parameters();
  find_models_sharing_parameters();
  const bool learns =
      std::any_of(own.begin(), own.end(), [](const auto& parameter) { return parameter.tensor.requires_grad(); });
  // Tensors that no reducer of this core broadcasts. A reducer broadcasts its frozen parameters, too.
  std::vector<at::Tensor> rest;
  for (const at::Tensor& parameter : averaged_elsewhere_) {
    const auto is_sharded = [&](const auto& other) {
      return other->fully_sharded() != nullptr && other->fully_sharded()->manages(parameter.unsafeGetTensorImpl());
    };
    if (std::ranges::none_of(sharing_models_, is_sharded)) rest.push_back(parameter);  // a sharded one is equal already
  }
  for (const auto& parameter : own) {
    if (!learns) rest.push_back(parameter.tensor);
  }
  const bool shards = learns && divides_models(*accelerator_state_);
  const bool shards_gradients = learns && divides_gradients(*accelerator_state_);
  // Parameters of units are made equal when their unit is divided, so that only one unit has whole memory at a time.
  // Masters are compared with whole parameters before.
  const bool units_make_equal = shards_gradients && accelerator_state_->masters.empty();
  for (const auto& [name, parameter] : own) {
    const bool is_in_unit = accelerator_state_->full_shard.shard_parameters || parameter.requires_grad();
    if (shards_gradients && !(units_make_equal && is_in_unit)) rest.push_back(parameter);
  }
  for (const auto& parameter : own) {
    if (learns && options_.pipeline && !shards_gradients) rest.push_back(parameter.tensor);
  }
  for (const at::Tensor& tensor : rest) deferred::materialize_tensor(tensor);
  gradient::broadcast_tensors(group, rest, 0, options_.gradient_reducer.buckets.cap_bytes);
  if (learns && !shards_gradients && !options_.pipeline)
    gradient_reducer_ = std::make_unique<gradient::GradientReducer>(group, own, options_.gradient_reducer);
  if (shards) {
    shard(own);
    log_sharding_plan();
  }
  forward_broadcasts_ = learns || !averaged_elsewhere_.empty();
}

// After it was verified that the ranks have the same parameters.
void ModelCore::shard(const std::vector<gradient::NamedTensor>& own) {
  const ShardingStrategy strategy = accelerator_state_->sharding;
  std::vector<state::ParameterShard> parameters;
  std::unordered_set<const void*> seen;
  for (const auto& [name, parameter] : own) {
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    if (sharding::shards_parameters(strategy) || parameter.requires_grad())
      parameters.push_back(state::whole_parameter(name, parameter));
  }
  const bool units_make_equal = accelerator_state_->masters.empty();  // as in synchronize_initial_values()
  // The masters are divided, too: each rank keeps its part of them.
  accelerator_state_->masters.make_equal(accelerator_state_->group, own);
  accelerator_state_->masters.attach_masters(parameters);
  if (strategy != ShardingStrategy::shard_optim_op && options_.gradient_reducer.hook != gradient::CommHook{}) {
    base::fail(ErrorKind::usage, accelerator_state_->place, "prepare",
               "a communication hook is set, which reduces whole gradients, while sharding {} reduces them to parts; "
               "remove the hook, or use shard_optim_op",
               sharding::strategy_name(strategy));
  }
  const comm::Group group = accelerator_state_->group.duplicate();
  // The copies of a parameter of several stages are reduced and stepped on in equal parts, so that they stay equal.
  const auto tied = options_.pipeline ? options_.pipeline->tied : sharding::ParameterSharding::Keys{};
  if (strategy == ShardingStrategy::shard_optim_op) {
    parameter_sharding_ = std::make_unique<sharding::ShardedParameters>(
        group, parameters, options_.gradient_reducer.buckets.cap_bytes, accelerator_state_->full_shard.prefetch, tied);
    return;
  }
  sharding::FullShardOptions options = accelerator_state_->full_shard;
  options.units.units.insert(options.units.units.end(), options_.shard_units.begin(), options_.shard_units.end());
  const auto make_equal = [&](const std::vector<at::Tensor>& unit) {
    if (!units_make_equal) return;
    for (const at::Tensor& parameter : unit) deferred::materialize_tensor(parameter);
    gradient::broadcast_tensors(group, unit, 0, options_.gradient_reducer.buckets.cap_bytes);
  };
  auto fully_sharded = std::make_unique<sharding::FullyShardedParameters>(sharding::make_mesh(group, options),
                                                                          parameters, options, make_equal, tied);
  accelerator_state_->masters.hand_over(own);
  fully_sharded_ = fully_sharded.get();
  parameter_sharding_ = std::move(fully_sharded);
}

// The first line of the plan, because a log line has no newline, and a large model has many units.
void ModelCore::log_sharding_plan() const {
  if (place().rank != 0 || base::log_level() > base::LogLevel::info) return;
  const std::string plan = sharding_plan();
  base::log(base::LogLevel::info, place(),
            "prepare: sharding {} divides the model ({}): {}; sharding_plan() lists the units",
            sharding::strategy_name(accelerator_state_->sharding),
            comm::first_name_and_count(parameters_.front().name, parameters_.size()), plan.substr(0, plan.find('\n')));
}

bool ModelCore::manages(const at::Tensor& parameter) const {
  if (gradient_reducer() != nullptr && gradient_reducer()->manages(parameter)) return true;
  return fully_sharded() != nullptr && fully_sharded()->manages(parameter.unsafeGetTensorImpl());
}

std::string ModelCore::sharding_plan() const {
  return parameter_sharding() == nullptr ? "not sharded" : parameter_sharding()->description();
}

// A pipeline averages gradients after a step, and a gradient reducer during a backward. The gradient of a shared
// parameter would be averaged twice.
void ModelCore::refuse_shared_with_pipeline() const {
  for (const ModelCore& other : accelerator_state_->registry.of<ModelCore>()) {
    if (other.options_.evaluation_mode || (!other.options_.pipeline && !options_.pipeline)) continue;
    for (const auto& parameter : parameters_) {
      if (!other.has_any_of({parameter.tensor})) continue;
      base::fail(ErrorKind::usage, place(), "prepare",
                 "parameter {} belongs to a Pipeline and to another prepared model; give it to one of them",
                 parameter.name);
    }
  }
}

std::vector<gradient::NamedTensor> ModelCore::own_parameters() {
  std::vector<gradient::NamedTensor> own;
  refuse_shared_with_pipeline();
  for (const auto& parameter : parameters_) {
    if (units::is_offloaded(parameter.tensor)) continue;  // each rank reads the values from its file
    const bool taken = std::ranges::any_of(accelerator_state_->registry.of<ModelCore>(),
                                           [&](const ModelCore& other) { return other.manages(parameter.tensor); });
    if (taken) {
      averaged_elsewhere_.push_back(parameter.tensor);
    } else {
      own.push_back(parameter);
    }
  }
  return own;
}

void ModelCore::find_models_sharing_parameters() {
  if (averaged_elsewhere_.empty() || seen_registry_ == accelerator_state_->registry.version()) return;
  seen_registry_ = accelerator_state_->registry.version();
  sharing_models_.clear();
  for (const auto& other : accelerator_state_->registry.list<ModelCore>()) {
    if (other.get() == this) continue;
    const auto theirs = [&](const at::Tensor& parameter) { return other->manages(parameter); };
    if (std::any_of(averaged_elsewhere_.begin(), averaged_elsewhere_.end(), theirs)) sharing_models_.push_back(other);
  }
}

void ModelCore::retire() {
  retired_ = true;
  sharing_models_.clear();
  averaged_elsewhere_.clear();
  if (gradient_reducer_) gradient_reducer_->retire();
  if (parameter_sharding_ == nullptr) return;
  try {
    parameter_sharding_->restore();
  } catch (const std::exception& error) {
    base::log(base::LogLevel::warning, accelerator_state_->place,
              "free_memory: the parameters of the model stay sharded, because they could not be gathered: {}",
              error.what());
  }
}

std::vector<gradient::GradientReducer*> ModelCore::gradient_reducers() {
  find_models_sharing_parameters();
  std::vector<gradient::GradientReducer*> list;
  if (gradient_reducer() != nullptr) list.push_back(gradient_reducer());
  for (const auto& partner : sharing_models_) {
    if (partner->gradient_reducer() != nullptr) list.push_back(partner->gradient_reducer());
  }
  return list;
}

namespace {

// The parts of this rank, in the order of the model. A parameter without an element here has an empty one.
std::vector<state::ParameterShard> shards_of_parts(const std::vector<gradient::NamedTensor>& parameters,
                                                   const std::vector<sharding::FullyShardedParameters*>& sharded,
                                                   const RankContext& place) {
  std::unordered_map<const void*, state::ParameterShard> parts;
  for (sharding::FullyShardedParameters* model : sharded) {
    for (state::ParameterShard& shard : model->shards(model->keys())) parts.emplace(shard.key, std::move(shard));
  }
  std::vector<state::ParameterShard> list;
  for (const auto& [name, parameter] : parameters) {
    const void* key = parameter.unsafeGetTensorImpl();
    const auto owner = std::ranges::find_if(sharded, [&](const auto* model) { return model->manages(key); });
    if (owner == sharded.end()) {
      list.push_back(state::whole_parameter(name, parameter));
      continue;
    }
    if (!(*owner)->shards_parameters()) {
      if ((*owner)->has_master(key)) {
        base::fail(
            ErrorKind::usage, place, "parameter_shards",
            "parameter {} is whole and bfloat16 on each rank, while its float32 master is divided over the ranks; "
            "with pure_bf16() average the weights of full_shard, or of no_shard",
            name);
      }
      list.push_back(state::whole_parameter(name, parameter));
      continue;
    }
    const auto part = parts.find(key);
    if (part != parts.end()) {
      list.push_back(part->second);
    } else {  // this rank has no element of it
      list.push_back({.name = name,
                      .sizes = parameter.sizes().vec(),
                      .key = parameter.unsafeGetTensorImpl(),
                      .value = at::empty({0}, parameter.options().requires_grad(false))});
    }
    list.back().name = name;
  }
  return list;
}

}  // namespace

std::vector<state::ParameterShard> ModelCore::parameter_shards() const {
  complete_step();
  std::vector<state::ParameterShard> parameter_shards;
  const auto sharded = sharded_in_forward();
  if (!sharded.empty()) return shards_of_parts(parameters_, sharded, place());
  for (const auto& [name, parameter] : parameters_) parameter_shards.push_back(state::whole_parameter(name, parameter));
  accelerator_state_->masters.attach_masters(parameter_shards);
  return parameter_shards;
}

// The masters of ranks that ran out early differ from the others, although both may round to the same parameters.
gradient::BufferBroadcast* ModelCore::join_masters() {
  std::vector<gradient::NamedTensor> masters;
  for (const state::ParameterShard& param_shard : parameter_shards()) {
    if (param_shard.master.defined()) masters.push_back({"master of " + param_shard.name, param_shard.master});
  }
  if (retired_ || masters.empty() || accelerator_state_->group.size() == 1) return nullptr;
  masters_for_join_ = std::make_unique<gradient::BufferBroadcast>(accelerator_state_->group, masters);
  return masters_for_join_.get();
}

void ModelCore::follow_buffers() const {
  if (!buffers_now_) return;
  auto now = buffers_now_();
  if (std::ranges::equal(now, buffers_, [](const auto& a, const auto& b) { return a.tensor.is_same(b.tensor); }))
    return;
  buffers_ = std::move(now);
}

void ModelCore::exchanges_buffers(std::function<std::vector<gradient::NamedTensor>()> now) {
  if (buffer_broadcast_) buffer_broadcast_->exchanges(now);
  buffers_now_ = std::move(now);
}

void ModelCore::after_forward() noexcept {
  try {
    for (sharding::FullyShardedParameters* sharded : sharded_in_forward()) sharded->after_forward();
    accelerator_state_->watch.forward_done();
    if (gradient_reducer() != nullptr) gradient_reducer_->forward_ended();
  } catch (...) {  // the device failed; the next operation on it throws the error
    accelerator_state_->watch.release_all();
  }
}

void ModelCore::before_forward() {
  notify_of_forward();
  accelerator_state_->watch.begin_forward();  // not before: if the lines above throw, after_forward() is not called
}

void ModelCore::notify_of_forward() {
  if (gradient_reducer() != nullptr) gradient_reducer_->forward_begins();
  if (retired_ || (!gradient_reducer_ && !fully_sharded_ && averaged_elsewhere_.empty() && !options_.pipeline)) return;
  const bool learns = at::GradMode::is_enabled();
  const bool sync = synchronises();
  if (buffer_broadcast_) buffer_broadcast_->before_forward(learns && sync);
  find_models_sharing_parameters();
  // Sharded gradients are reduced in every micro-batch of accumulate(): whole ones would take the memory that sharding
  // saves.
  std::vector<sharding::FullyShardedParameters*> open;
  try {
    for (sharding::FullyShardedParameters* sharded : sharded_in_forward()) {
      sharded->before_forward(learns, no_sync_ == 0 || (options_.pipeline && averages_next_step_));
      open.push_back(sharded);
    }
  } catch (...) {
    for (sharding::FullyShardedParameters* sharded : open) sharded->after_forward();
    throw;
  }
  if (!learns || options_.evaluation_mode) return;
  if (parameter_sharding()) parameter_sharding()->begin_forward();
  if (gradient_reducer_) gradient_reducer_->forward(sync);
  if (!sync) return;
  for (const auto& partner : sharing_models_) {
    if (partner->gradient_reducer_) partner->gradient_reducer_->forward(true);
  }
}

std::vector<sharding::FullyShardedParameters*> ModelCore::sharded_in_forward() const {
  if (accelerator_state_->sharding == ShardingStrategy::no_shard) return {};
  std::vector<sharding::FullyShardedParameters*> list;
  if (fully_sharded() != nullptr) list.push_back(fully_sharded());
  for (const auto& partner : sharing_models_) {
    if (partner->fully_sharded() != nullptr) list.push_back(partner->fully_sharded());
  }
  return list;
}

std::vector<gradient::BufferBroadcast::WithRoot> ModelCore::buffers_with_rank_0() {
  if (!buffer_broadcast_) return {};
  const auto what = fmt::format("the buffers of the model ({}) are not compared with rank 0's",
                                comm::first_name_and_count(buffers_.front().name, buffers_.size()));
  return comm::with_operation_context("save_state", what, place(), [&] { return buffer_broadcast_->with_root(); });
}

void ModelCore::resume_buffers(bool next_forward_broadcasts) {
  if (buffer_broadcast_) buffer_broadcast_->resume(next_forward_broadcasts);
}

namespace {

// Which parts of layers a rank has.
nn::ComparedPart layers_of(const job::MeshGroups& job) {
  return {.index = job.tensor.rank(), .count = job.tensor.size()};
}

// Ranks that have the same part of a model must have the same values.
void check_replicas(sharding::FullyShardedParameters& sharded, const AcceleratorState& shared, std::string_view when) {
  const sharding::ShardMesh& mesh = sharded.mesh();
  if (!mesh.has_replicas()) return;
  std::vector<nn::CheckedTensor> parts;
  for (const state::ParameterShard& shard : sharded.shards(sharded.keys())) {
    const auto range = fmt::format("elements {} to {} of", shard.begin, shard.end);
    if (sharded.shards_parameters()) parts.push_back({fmt::format("{} parameter {}", range, shard.name), shard.value});
    if (shard.master.defined()) parts.push_back({fmt::format("{} the master of {}", range, shard.name), shard.master});
  }
  const int64_t shards = mesh.shard.size();
  const bool is_of_stage = shared.mesh.pipeline.size() > 1;  // stages may call for different models
  const nn::ComparedPart layers = is_of_stage ? nn::ComparedPart{} : layers_of(shared.mesh);
  nn::check_synchronized(is_of_stage ? shared.group : shared.mesh.world, parts, when,
                         {.index = layers.index * shards + mesh.shard.rank(), .count = layers.count * shards});
}

}  // namespace

void ModelCore::check_synchronized(std::string_view when) const {
  complete_step();
  std::vector<nn::CheckedTensor> all;
  for (const auto& parameter : parameters_) {
    const auto exists_once = std::ranges::any_of(sharded_in_forward(), [&](const auto* sharded) {
      return sharded->shards_parameters() && sharded->manages(parameter.tensor.unsafeGetTensorImpl());
    });
    if (!exists_once) all.push_back({"parameter " + parameter.name, parameter.tensor});
  }
  if (buffer_broadcast() == nullptr || !buffer_broadcast_->due()) {
    for (const auto& buffer : buffers()) all.push_back({"buffer " + buffer.name, buffer.tensor});
  }
  const job::MeshGroups& job = accelerator_state_->mesh;
  const auto first_split =
      std::ranges::stable_partition(all, [](const auto& checked) { return !has_split({checked.tensor}); }).begin();
  const std::vector<nn::CheckedTensor> split(first_split, all.end());
  all.erase(first_split, all.end());
  if (job.pipeline.size() == 1) {
    // All ranks compare together, because otherwise the others would wait for one that found a difference.
    nn::check_synchronized(job.world, all, when);
    if (job.tensor.size() > 1) nn::check_synchronized(job.world, split, when, layers_of(job));
  } else {  // stages may call for different models
    nn::check_synchronized(accelerator_state_->group, split, when);
    nn::check_synchronized(accelerator_state_->group, all, when);
    if (job.tensor.size() > 1) nn::check_synchronized(job.tensor, all, when);
  }
  for (sharding::FullyShardedParameters* sharded : sharded_in_forward())
    check_replicas(*sharded, *accelerator_state_, when);
}

void ModelCore::open_no_sync() {
  ++no_sync_;
  if (gradient_reducer() != nullptr) gradient_reducer_->open_no_sync();
}

void ModelCore::close_no_sync() {
  if (--no_sync_ == 0 && gradient_reducer() != nullptr) gradient_reducer_->close_no_sync();
}

void ModelCore::trigger_sync() {
  averages_next_step_ = true;
  for (gradient::GradientReducer* gradient_reducer : gradient_reducers()) gradient_reducer->set_sync(true);
  for (sharding::FullyShardedParameters* sharded : sharded_in_forward()) sharded->set_sync(true);
}

void ModelCore::run_micro_batches(const std::function<void()>& run) {
  fully_sharded() == nullptr ? run() : fully_sharded()->run_micro_batches(run);
  has_local_gradients_ = !std::exchange(averages_next_step_, false) && !synchronises();
  if (has_local_gradients_ || fully_sharded() != nullptr) return;
  comm::with_operation_context(
      "Pipeline.train_step", "the gradients of this stage are not averaged over the data parallel ranks", place(), [&] {
        gradient::average_gradients(accelerator_state_->group, parameters_, options_.pipeline->tied,
                                    options_.gradient_reducer.buckets.cap_bytes);
      });
}

void ModelCore::check_averaged() const {
  if (!has_local_gradients_ || accelerator_state_->group.size() == 1) return;
  const auto has_gradient = [](const auto& parameter) { return parameter.tensor.grad().defined(); };
  const auto first = std::ranges::find_if(parameters_, has_gradient);
  if (first == parameters_.end()) return;
  base::fail(
      ErrorKind::usage, place(), "optimizer.step",
      "the gradient of {} is local to this rank, because no_sync() was open in the last train_step() of the Pipeline; "
      "run the last train_step() before optimizer.step() outside of no_sync()",
      first->name);
}

void ModelCore::gradients_zeroed(const std::vector<at::Tensor>& zeroed) {
  const auto keys = optim::keys_of(zeroed);
  has_local_gradients_ = has_local_gradients_ && std::ranges::any_of(parameters_, [&](const auto& own) {
                           return own.tensor.grad().defined() && !keys.contains(own.tensor.unsafeGetTensorImpl());
                         });
}

bool ModelCore::has_any_of(const std::vector<at::Tensor>& parameters) const {
  const auto keys = optim::keys_of(parameters);
  return std::ranges::any_of(parameters_,
                             [&](const auto& own) { return keys.contains(own.tensor.unsafeGetTensorImpl()); });
}

void ModelCore::open_window(bool sync) {
  window_ = sync;
  if (gradient_reducer() != nullptr) gradient_reducer_->open_window(synchronises());
}

void ModelCore::synchronize_sharing_models() {
  if (!synchronises()) return;
  find_models_sharing_parameters();
  for (const auto& partner : sharing_models_) partner->open_window(true);
}

void ModelCore::close_window() {
  window_.reset();
  if (gradient_reducer() != nullptr) gradient_reducer_->close_window();
}

void ModelCore::zero_grad(bool set_to_none) {
  std::unordered_set<const void*> rest;
  for (const auto& parameter : parameters_) rest.insert(parameter.tensor.unsafeGetTensorImpl());
  const auto all_of_model = rest;
  int64_t step_consumed = 0;
  for (const auto& optimizer : accelerator_state_->registry.list<OptimizerCore>()) {
    if (!optimizer->has_any_of(all_of_model)) continue;
    step_consumed += optimizer->times_spent();
    const auto keys = optim::keys_of(optim::parameters_of(optimizer->optimizer()));
    if (!std::ranges::all_of(keys, [&](const void* key) { return all_of_model.contains(key); })) continue;
    optimizer->zero_grad(set_to_none);
    for (const void* key : keys) rest.erase(key);
  }
  if (rest.empty() || (accelerator_state_->window.awaits_backward() && step_consumed == spent_when_zeroed_)) return;
  spent_when_zeroed_ = step_consumed;
  std::vector<at::Tensor> tensors;
  for (const auto& [name, parameter] : parameters_) {
    if (rest.contains(parameter.unsafeGetTensorImpl())) tensors.push_back(parameter);
  }
  for (gradient::GradientReducer* gradient_reducer : gradient_reducers()) {
    gradient_reducer->zero(tensors, set_to_none);
    std::erase_if(tensors, [&](const at::Tensor& parameter) { return gradient_reducer->manages(parameter); });
  }
  for (sharding::FullyShardedParameters* sharded : sharded_in_forward()) {
    sharded->zero(optim::keys_of(tensors), set_to_none);
  }
  zero_plain(tensors, set_to_none);
  gradients_zeroed(tensors);
}

bool ModelCore::is(const void* identity, const std::vector<gradient::NamedTensor>& parameters,
                   const ModelOptions& options) const {
  if (identity != this->identity() || options != options_ || parameters.size() != parameters_.size()) return false;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].tensor.is_same(parameters_[i].tensor) || describe_parameter(parameters[i]) != described_[i])
      return false;
  }
  return true;
}

void complete_steps(AcceleratorState& shared) {
  if (shared.sharding == ShardingStrategy::no_shard) return;
  for (const ModelCore& model : shared.registry.of<ModelCore>()) {
    if (model.parameter_sharding() != nullptr) model.parameter_sharding()->complete_step();
  }
}

std::vector<sharding::FullyShardedParameters*> fully_sharded_models(AcceleratorState& shared) {
  if (shared.sharding == ShardingStrategy::no_shard) return {};
  std::vector<sharding::FullyShardedParameters*> list;
  for (const ModelCore& model : shared.registry.of<ModelCore>()) {
    if (model.fully_sharded() != nullptr) list.push_back(model.fully_sharded());
  }
  return list;
}

sharding::FullyShardedParameters* sharding_of_master(AcceleratorState& shared, const at::Tensor& parameter) {
  for (sharding::FullyShardedParameters* model : fully_sharded_models(shared)) {
    if (model->has_master(parameter.unsafeGetTensorImpl())) return model;
  }
  return nullptr;
}

std::vector<at::Tensor> unique_tensors(const std::vector<at::Tensor>& parameters) {
  std::unordered_set<const void*> seen;
  std::vector<at::Tensor> list;
  for (const at::Tensor& parameter : parameters) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) list.push_back(parameter);
  }
  return list;
}

std::vector<at::Tensor> flat_gradients(const std::vector<std::shared_ptr<ModelCore>>& models,
                                       const std::vector<at::Tensor>& parameters) {
  for (const auto& model : models) {
    if (model->gradient_reducer() != nullptr && model->gradient_reducer()->manages_exactly_these(parameters))
      return model->gradient_reducer()->gradients();
  }
  auto rest = unique_tensors(parameters);
  if (rest.size() < parameters.size()) return flat_gradients(models, rest);
  std::vector<at::Tensor> parts;
  for (const auto& model : models) {
    sharding::FullyShardedParameters* sharded = model->fully_sharded();
    if (sharded == nullptr) continue;
    for (const at::Tensor& part : sharded->gradients(optim::keys_of(rest))) parts.push_back(part);
    std::erase_if(rest, [&](const at::Tensor& one) { return sharded->manages(one.unsafeGetTensorImpl()); });
  }
  for (const at::Tensor& gradient : gradient::dense_gradients(rest)) parts.push_back(gradient);
  return parts;
}

const comm::Group* group_of_sharded_gradients(const std::vector<std::shared_ptr<ModelCore>>& models,
                                              const std::vector<at::Tensor>& parameters) {
  const comm::Group* group = nullptr;
  std::string whole;
  size_t sharded_count = 0;
  for (const at::Tensor& parameter : unique_tensors(parameters)) {
    bool is_sharded = false;
    for (const auto& model : models) {
      const sharding::FullyShardedParameters* sharded = model->fully_sharded();
      if (sharded == nullptr || !sharded->manages(parameter.unsafeGetTensorImpl())) continue;
      group = &sharded->group();
      is_sharded = true;
    }
    sharded_count += is_sharded ? 1 : 0;
    if (!is_sharded && parameter.grad().defined()) whole = fmt::format("[{}]", fmt::join(parameter.sizes(), ", "));
  }
  if (group != nullptr && !whole.empty()) {
    base::fail(
        ErrorKind::usage, group->place(), "clip_grad_norm_",
        "{} of the parameters are sharded over the ranks, and one of shape {} has a whole gradient on each rank, "
        "so their common norm would count it {} times; clip them in separate calls",
        sharded_count, whole, group->size());
  }
  return group;
}

std::vector<state::ParameterShard> named_shards(const std::vector<std::shared_ptr<ModelCore>>& models,
                                                const std::vector<at::Tensor>& parameters) {
  std::unordered_map<const void*, std::string> names;
  for (const auto& model : models) {
    for (const auto& parameter : model->parameters()) {
      names.try_emplace(parameter.tensor.unsafeGetTensorImpl(), parameter.name);
    }
  }
  std::vector<state::ParameterShard> parameter_shards;
  auto rest = unique_tensors(parameters);
  for (const auto& model : models) {
    sharding::FullyShardedParameters* sharded = model->fully_sharded();
    if (sharded == nullptr) continue;
    auto shards = sharded->shards_with_gradients(optim::keys_of(rest));
    std::move(shards.begin(), shards.end(), std::back_inserter(parameter_shards));
    std::erase_if(rest, [&](const at::Tensor& one) { return sharded->manages(one.unsafeGetTensorImpl()); });
  }
  for (const at::Tensor& parameter : rest) {
    const auto found = names.find(parameter.unsafeGetTensorImpl());
    const auto name = found != names.end() ? found->second : fmt::format("parameter {}", parameter_shards.size());
    parameter_shards.push_back(state::whole_parameter(name, parameter));
  }
  return parameter_shards;
}

std::vector<gradient::JoinModel> join_models(const std::vector<std::shared_ptr<ModelCore>>& models) {
  std::vector<gradient::JoinModel> list;
  std::unordered_set<const gradient::GradientReducer*> listed;
  for (const auto& model : models) {
    if (model->gradient_reducer() == nullptr && model->buffer_broadcast() == nullptr) continue;
    list.push_back({model->gradient_reducer(), model->buffer_broadcast()});
    listed.insert(model->gradient_reducer());
  }
  for (const auto& model : models) {
    for (gradient::GradientReducer* gradient_reducer : model->gradient_reducers()) {
      if (listed.insert(gradient_reducer).second) list.push_back({gradient_reducer, nullptr});
    }
  }
  for (const auto& model : models) {
    if (gradient::BufferBroadcast* masters = model->join_masters()) list.push_back({nullptr, masters});
  }
  return list;
}

}  // namespace accelerate::prepared
