// SPDX-License-Identifier: Apache-2.0
// Must not compile. tests/setup/refused.cmake expects exactly the errors of layers_refused.txt.
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>

#include "accelerate/pipeline/pipeline.hpp"

void mistakes(const accelerate::comm::Group& group, torch::nn::Linear& linear, torch::nn::LSTM& lstm,
              torch::nn::ModuleList& list) {
  accelerate::nn::Pipeline(group, {linear, lstm});
  accelerate::nn::Pipeline(group, list);
}
