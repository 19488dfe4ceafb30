// SPDX-License-Identifier: Apache-2.0
// Default loaders, optimizer and schedule of a Trainer.
#include <algorithm>

#include "accelerate/accelerate.hpp"
#include "accelerate/trainer/trainer_base.hpp"

namespace accelerate::trainer {

std::shared_ptr<torch::optim::Optimizer> TrainerBase::create_optimizer() {
  std::vector<at::Tensor> decayed, others;
  for (const auto& parameter : parameters()) (parameter.dim() > 1 ? decayed : others).push_back(parameter);
  if (decayed.empty() && others.empty()) {
    base::fail(ErrorKind::usage, accelerator_.place(), "create_optimizer", "the model has no trainable parameter");
  }
  torch::optim::AdamWOptions options(arguments_.learning_rate);
  options.betas({arguments_.adam_beta1, arguments_.adam_beta2}).eps(arguments_.adam_epsilon);
  options.weight_decay(arguments_.weight_decay);
  const auto group = [&](std::vector<at::Tensor>& parameters, double weight_decay) {
    auto own = std::make_unique<torch::optim::AdamWOptions>(options);
    own->weight_decay(weight_decay);
    return torch::optim::OptimizerParamGroup(std::move(parameters), std::move(own));
  };
  std::vector<torch::optim::OptimizerParamGroup> groups;
  if (!decayed.empty()) groups.push_back(group(decayed, arguments_.weight_decay));
  if (!others.empty()) groups.push_back(group(others, 0.0));
  // Schedules also read the learning rate from the optimizer's defaults.
  return std::make_shared<torch::optim::AdamW>(std::move(groups), options);
}

std::shared_ptr<optim::Scheduler> TrainerBase::create_scheduler(torch::optim::Optimizer& optimizer,
                                                                int64_t num_training_steps) {
  const int64_t warmup = plan().warmup_steps;
  // If a training ends during the warm-up, its schedule ends there as well.
  const int64_t steps = std::max(num_training_steps, warmup);
  const auto made = [&] {
    switch (arguments_.lr_scheduler_type) {
      case SchedulerType::linear:
        break;
      case SchedulerType::cosine:
        return optim::get_cosine_schedule_with_warmup(optimizer, warmup, steps);
      case SchedulerType::cosine_with_restarts:
        return optim::get_cosine_with_hard_restarts_schedule_with_warmup(optimizer, warmup, steps);
      case SchedulerType::polynomial:
        return optim::get_polynomial_decay_schedule_with_warmup(optimizer, warmup, std::max(steps, warmup + 1));
      case SchedulerType::constant:
        return optim::get_constant_schedule(optimizer);
      case SchedulerType::constant_with_warmup:
        return optim::get_constant_schedule_with_warmup(optimizer, warmup);
      case SchedulerType::inverse_sqrt:
        return optim::get_inverse_sqrt_schedule(optimizer, warmup);
    }
    return optim::get_linear_schedule_with_warmup(optimizer, warmup, steps);
  };
  return std::make_shared<optim::Scheduler>(made());
}

data::LoaderOf<Inputs> TrainerBase::get_train_dataloader() {
  if (parts_.train_dataset == nullptr) {
    base::fail(ErrorKind::usage, accelerator_.place(), "train", "train_dataset is not set; set it in TrainerParts");
  }
  return {parts_.train_dataset,
          {.batch_size = arguments_.per_device_train_batch_size,
           .shuffle = true,
           .drop_last = arguments_.dataloader_drop_last,
           .seed = arguments_.data_seed.value_or(arguments_.seed),
           .num_workers = arguments_.dataloader_num_workers,
           .prefetch_factor = arguments_.dataloader_prefetch_factor.value_or(2),
           .pin_memory = arguments_.dataloader_pin_memory}};
}

data::LoaderOf<Inputs> TrainerBase::get_eval_dataloader(const Dataset& dataset) {
  return {dataset,
          {.batch_size = arguments_.per_device_eval_batch_size,
           .num_workers = arguments_.dataloader_num_workers,
           .prefetch_factor = arguments_.dataloader_prefetch_factor.value_or(2),
           .pin_memory = arguments_.dataloader_pin_memory}};
}

}  // namespace accelerate::trainer
