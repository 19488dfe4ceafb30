// SPDX-License-Identifier: Apache-2.0
// Random numbers of a sample: the same at any number of workers and ranks, in any batch.
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

  /// 0 .. n-1, each as likely to within n / 2^32. n   1 .. 2^32
  [[nodiscard]] int64_t below(int64_t n);
  /// 0 .. 1, without 1.
  [[nodiscard]] double uniform();

 private:
  at::Philox4_32 engine_;
};

/// What a transform knows beside the tensor.
struct TransformContext {
  ReadContext pass;    ///< layer: this transform's
  at::Tensor indices;  ///< [B] int64, the samples' numbers in the source that is transformed

  /// \param row  0 to B-1.
  [[nodiscard]] SampleRandom random(int64_t row) const { return {pass, indices.const_data_ptr<int64_t>()[row]}; }
  /// The same for LibTorch's functions that take a generator.
  [[nodiscard]] at::Generator generator(int64_t row) const {
    return sample_generator(pass, indices.const_data_ptr<int64_t>()[row]);
  }
};

}  // namespace accelerate::data
