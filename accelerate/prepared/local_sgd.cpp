// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/local_sgd.hpp"

#include <exception>

#include "accelerate/base/log.hpp"
#include "accelerate/comm/error_context.hpp"
#include "accelerate/gradient/coalesced.hpp"
#include "accelerate/precision/autocast.hpp"
#include "accelerate/prepared/pipeline_model.hpp"
#include "accelerate/prepared/sharding_support.hpp"

namespace accelerate::prepared {

LocalSgd::LocalSgd(std::shared_ptr<AcceleratorState> shared, std::shared_ptr<ModelCore> model, int64_t steps)
    : accelerator_state_(std::move(shared)),
      model_(std::move(model)),
      steps_(steps),
      exceptions_(std::uncaught_exceptions()) {
  refuse_with_sharding(*accelerator_state_, "local_sgd",
                       "ranks step alone between two averages, while each has the optimizer state of a part only");
  refuse_pipelines(*accelerator_state_, {model_}, "local_sgd", "train_step() averages the gradients in every step");
  if (accelerator_state_->mesh.context.size() > 1) {
    base::fail(ErrorKind::usage, accelerator_state_->place, "local_sgd",
               "cp_size is {}, and ranks with parts of one sequence must not step on different parameters; set cp_size "
               "to 1, or use accumulate()",
               accelerator_state_->mesh.context.size());
  }
  if (steps < 1) {
    base::fail(ErrorKind::usage, accelerator_state_->place, "local_sgd", "steps is {}, must be at least 1", steps);
  }
  if (model_->gradient_reducer() == nullptr) return;
  model_->open_no_sync();
  model_->gradient_reducer()->set_sync(false);
  model_->gradient_reducer()->set_local_steps_allowed(true);
  ++accelerator_state_->local_steps;
  open_ = true;
}

LocalSgd::~LocalSgd() {
  if (!open_) return;
  close();
  if (std::uncaught_exceptions() > exceptions_) return;
  try {
    average();
  } catch (const std::exception& error) {
    base::log(base::LogLevel::error, accelerator_state_->place, "local_sgd: the last average failed: {}", error.what());
  }
}

void LocalSgd::step() {
  if (!open_ || !accelerator_state_->window.ends) return;
  if (++made_ % steps_ == 0) average();
}

void LocalSgd::finish() {
  if (!open_) return;
  close();
  average();
}

void LocalSgd::close() {
  open_ = false;
  --accelerator_state_->local_steps;
  model_->close_no_sync();
  if (model_->gradient_reducer() == nullptr) return;  // free_memory() was called meanwhile
  model_->gradient_reducer()->set_local_steps_allowed(false);
  model_->gradient_reducer()->set_sync(true);
}

void LocalSgd::average() {
  std::vector<at::Tensor> tensors;
  for (const auto& parameter : model_->parameters()) tensors.push_back(parameter.tensor);
  comm::with_operation_context("local_sgd", "the parameters are not averaged", accelerator_state_->place, [&] {
    gradient::average_parameters(accelerator_state_->group, accelerator_state_->masters.of(tensors));
  });
  accelerator_state_->masters.write_back(tensors);
  accelerator_state_->watch.release_all();
  precision::drop_cached_casts();
}

}  // namespace accelerate::prepared
