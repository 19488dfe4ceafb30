// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/local_sgd.hpp"

#include <exception>

#include "accelerate/base/log.hpp"
#include "accelerate/comm/user_call.hpp"
#include "accelerate/gradient/coalesced.hpp"
#include "accelerate/precision/autocast.hpp"

namespace accelerate::prepared {

LocalSgd::LocalSgd(std::shared_ptr<Shared> shared, std::shared_ptr<ModelCore> model, int64_t steps)
    : shared_(std::move(shared)), model_(std::move(model)), steps_(steps), exceptions_(std::uncaught_exceptions()) {
  if (steps < 1) {
    base::fail(ErrorKind::usage, shared_->place, "local_sgd", "steps is {}, must be at least 1", steps);
  }
  if (model_->engine() == nullptr) return;
  model_->open_no_sync();
  model_->engine()->set_sync(false);
  model_->engine()->allow_local(true);
  ++shared_->local_steps;
  open_ = true;
}

LocalSgd::~LocalSgd() {
  if (!open_) return;
  close();
  if (std::uncaught_exceptions() > exceptions_) return;
  try {
    average();
  } catch (const std::exception& error) {
    base::log(base::LogLevel::error, shared_->place, "local_sgd: the last average failed: {}", error.what());
  }
}

void LocalSgd::step() {
  if (!open_ || !shared_->window.ends) return;
  if (++made_ % steps_ == 0) average();
}

void LocalSgd::finish() {
  if (!open_) return;
  close();
  average();
}

void LocalSgd::close() {
  open_ = false;
  --shared_->local_steps;
  model_->close_no_sync();
  if (model_->engine() == nullptr) return;  // free_memory() was called meanwhile
  model_->engine()->allow_local(false);
  model_->engine()->set_sync(true);
}

void LocalSgd::average() {
  std::vector<at::Tensor> tensors;
  for (const auto& parameter : model_->parameters()) tensors.push_back(parameter.tensor);
  comm::in_user_call("local_sgd", "the parameters are not averaged", shared_->place,
                     [&] { gradient::average_parameters(shared_->group, shared_->masters.of(tensors)); });
  shared_->masters.write_back(tensors);
  shared_->watch.release_all();
  precision::drop_cached_casts();
}

}  // namespace accelerate::prepared
