// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/prepare.hpp"

#include <algorithm>

#include "accelerate/prepared/split_parameters.hpp"

namespace accelerate::prepared {
namespace {

// False if another module had this address before. Memory is used again on some ranks only, and removing a model may be
// collective, so all ranks must keep the model of a module that no longer exists.
bool shares_parameter(const ModelCore& model, const std::vector<gradient::NamedTensor>& parameters) {
  if (model.parameters().empty() && parameters.empty()) return true;
  return std::ranges::any_of(parameters, [&](const gradient::NamedTensor& parameter) {
    const auto is_same = [&](const gradient::NamedTensor& known) { return known.tensor.is_same(parameter.tensor); };
    return std::ranges::any_of(model.parameters(), is_same);
  });
}

}  // namespace

std::shared_ptr<ModelCore> register_model(AcceleratorState& shared, const ModelOptions& options, const void* identity,
                                          std::vector<gradient::NamedTensor> parameters,
                                          std::vector<gradient::NamedTensor> buffers) {
  Registry& registry = shared.registry;
  // A module may be prepared for evaluation and for training at the same time.
  auto known = registry.find<ModelCore>([&](const ModelCore& model) {
    return model.identity() == identity && model.options().evaluation_mode == options.evaluation_mode &&
           shares_parameter(model, parameters);
  });
  if (known && known->is(identity, parameters, options)) return known;
  // Parameters were replaced, frozen, unfrozen or moved. The new core gets the position of the old one. The old core is
  // removed first, because a second gradient reducer on the same parameters would add to its sums.
  const size_t place = known ? registry.remove(*known) : registry.entries().size();
  auto model = std::make_shared<ModelCore>(shared, identity, std::move(parameters), std::move(buffers), options);
  registry.insert(place, model);
  if (!options.evaluation_mode && !shared.masters.empty()) {
    if (shared.mesh.tensor.size() > 1) {
      shared.masters.make_equal(shared.mesh.tensor, without_split(model->parameters()));
    }
    shared.masters.make_equal(shared.group, model->parameters());
  }
  return model;
}

void cast_floating(const std::vector<gradient::NamedTensor>& tensors, c10::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined() || !tensor.is_floating_point() || tensor.scalar_type() == dtype) continue;
    tensor.set_data(tensor.to(dtype));
  }
}

std::shared_ptr<OptimizerCore> register_optimizer(AcceleratorState& shared, torch::optim::Optimizer& optimizer) {
  Registry& registry = shared.registry;
  auto known = registry.find<OptimizerCore>([&](const OptimizerCore& one) { return one.identity() == &optimizer; });
  if (known && known->is(optimizer)) return known;
  // the known optimizer no longer exists
  const size_t place = known ? registry.remove(*known) : registry.entries().size();
  auto core = std::make_shared<OptimizerCore>(shared, optimizer);
  registry.insert(place, core);
  return core;
}

std::shared_ptr<SchedulerCore> register_scheduler(AcceleratorState& shared, const SchedulerOptions& options,
                                                  const void* identity) {
  auto core = shared.registry.find<SchedulerCore>([&](const SchedulerCore& one) { return one.identity() == identity; });
  if (core) return core;
  core = std::make_shared<SchedulerCore>(shared, identity, options);
  shared.registry.add(core);
  return core;
}

std::shared_ptr<LoaderCore> register_loader(AcceleratorState& shared, const void* identity) {
  auto core = shared.registry.find<LoaderCore>([&](const LoaderCore& one) { return one.identity() == identity; });
  if (core) return core;
  core = std::make_shared<LoaderCore>(identity);
  shared.registry.add(core);
  return core;
}

void check_device_exists(const AcceleratorState& shared, bool there) {
  if (there) return;
  base::fail(ErrorKind::usage, shared.place, "prepare",
             "a module holder or pointer is empty (made with nullptr); make the object first");
}

}  // namespace accelerate::prepared
