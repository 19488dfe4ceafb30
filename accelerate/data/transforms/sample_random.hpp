// SPDX-License-Identifier: Apache-2.0
// Random numbers of a sample that do not depend on the number of workers and ranks, or on the batch.
#pragma once

#include <ATen/core/PhiloxRNGEngine.h>
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "accelerate/data/sample_generator.hpp"
#include "accelerate/data/source.hpp"

namespace accelerate::data {

/// Random numbers of one sample that depend only on seed, epoch, the sample's number and the random layer: a Philox
/// generator with the seed as key and the rest as counter. Each layer has 1024 draws.
class SampleRandom {
 public:
  SampleRandom(const ReadContext& context, int64_t sample);

  /// Returns a number from 0 to n-1. Probabilities are equal up to n / 2^32.
  /// \param n  1 to 2^32.
  [[nodiscard]] int64_t below(int64_t n);
  /// Returns a number in [0, 1).
  [[nodiscard]] double uniform();

 private:
  at::Philox4_32 engine_;
};

/// Inputs of a random transform besides the tensor.
struct TransformContext {
  ReadContext pass;    ///< with the layer of this transform
  at::Tensor indices;  ///< [B] int64, sample numbers in the transformed source

  /// \param row  0 to B-1.
  [[nodiscard]] SampleRandom random(int64_t row) const { return {pass, indices.const_data_ptr<int64_t>()[row]}; }
  /// The same for LibTorch's functions that take a generator.
  [[nodiscard]] at::Generator generator(int64_t row) const {
    return sample_generator(pass, indices.const_data_ptr<int64_t>()[row]);
  }
};

}  // namespace accelerate::data
