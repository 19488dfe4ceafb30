// SPDX-License-Identifier: Apache-2.0
#include "accelerate/trainer/printer.hpp"

#include <cstdio>
#include <utility>

#include "accelerate/trainer/trainer_base.hpp"

namespace accelerate::trainer {
namespace {

void to_stdout(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace

PrinterCallback::PrinterCallback(std::function<void(std::string_view)> write)
    : write_(write ? std::move(write) : to_stdout) {}

void PrinterCallback::on_train_begin(const TrainerContext& now, TrainerControl&) {
  if (now.state.is_world_process_zero) write_(summary(now.trainer.plan()));
}

void PrinterCallback::on_log(const TrainerContext& now, TrainerControl&) {
  if (now.state.is_world_process_zero) write_(text_of(now.metrics) + "\n");
}

}  // namespace accelerate::trainer
