// SPDX-License-Identifier: Apache-2.0
// Common code of these programs: a small network and a subset of MNIST.
#pragma once

#include <accelerate/accelerate.hpp>

/// Returns the first images of the MNIST subset beside the programs.
inline accelerate::data::SourcePtr<accelerate::data::Batch> some_digits(accelerate::data::Split split, int64_t count) {
  return accelerate::data::take(accelerate::data::mnist("examples/data/mnist", {}, split).source(), count);
}

/// Batches of images [B, 1, 28, 28] and labels [B].
inline accelerate::data::Loader train_digits(int64_t batch_size = 32) {
  return {some_digits(accelerate::data::Split::train, 1024), {.batch_size = batch_size, .shuffle = true}};
}
inline accelerate::data::Loader test_digits() {
  return {some_digits(accelerate::data::Split::test, 510), {.batch_size = 100}};
}

/// A network from images to log-probabilities [B, 10].
inline torch::nn::Sequential small_net() {
  using namespace torch::nn;
  return Sequential(Flatten(), Linear(784, 64), ReLU(), Linear(64, 10), LogSoftmax(1));
}

/// Accuracy of the model on the loader's images, over all ranks.
template <typename Model, typename Loader>
double accuracy(accelerate::Accelerator& accelerator, const Model& model, Loader& loader) {
  const torch::NoGradGuard no_grad;
  if constexpr (requires { model.eval(); }) model.eval();  // switches dropout and BatchNorm to evaluation
  int64_t right = 0, seen = 0;
  for (auto& [images, labels] : loader) {
    const auto matches = accelerator.gather_for_metrics(model(images).argmax(1).eq(labels));
    right += matches.sum().template item<int64_t>();
    seen += matches.size(0);
  }
  if constexpr (requires { model.train(); }) model.train();
  return static_cast<double>(right) / static_cast<double>(seen);
}
