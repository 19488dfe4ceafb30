// SPDX-License-Identifier: Apache-2.0
// Options that set modes of the whole process.
#include "tests/testing.hpp"
//
#include <ATen/Context.h>

#include "tests/accelerator/ranks.hpp"

namespace math_modes_testing {

using accelerate::Accelerator;
using accelerate::Float32MatmulPrecision;

/// Restores the modes, which outlive Accelerators.
struct ModesScope {
  ModesScope() = default;
  ~ModesScope() {
    at::globalContext().setFloat32MatmulPrecision("highest");
    at::globalContext().setBenchmarkCuDNN(false);
  }
  ModesScope(const ModesScope&) = delete;
  ModesScope& operator=(const ModesScope&) = delete;
};

at::Float32MatmulPrecision precision() { return at::globalContext().float32MatmulPrecision(); }

TEST_CASE("float32_matmul_precision is process-wide and does not change if unset") {
  const ModesScope scope;
  at::globalContext().setFloat32MatmulPrecision("highest");
  { const Accelerator accelerator({.cpu = true, .float32_matmul_precision = Float32MatmulPrecision::high}); }
  CHECK((precision() == at::Float32MatmulPrecision::HIGH));
  { const Accelerator accelerator({.cpu = true}); }
  CHECK((precision() == at::Float32MatmulPrecision::HIGH));
  { const Accelerator accelerator({.cpu = true, .float32_matmul_precision = Float32MatmulPrecision::medium}); }
  CHECK((precision() == at::Float32MatmulPrecision::MEDIUM));
  on_ranks(2, [](Accelerator&) {}, {.cpu = true, .float32_matmul_precision = Float32MatmulPrecision::highest});
  CHECK((precision() == at::Float32MatmulPrecision::HIGHEST));
}

TEST_CASE("a precision of one backend that contradicts the option is replaced") {
  const ModesScope scope;
  at::globalContext().setFloat32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL, at::Float32Precision::TF32);
  { const Accelerator accelerator({.cpu = true, .float32_matmul_precision = Float32MatmulPrecision::highest}); }
  CHECK((precision() == at::Float32MatmulPrecision::HIGHEST));
}

TEST_CASE("cudnn_benchmark is process-wide and does not change if unset") {
  const ModesScope scope;
  { const Accelerator accelerator({.cpu = true, .cudnn_benchmark = true}); }
  CHECK(at::globalContext().benchmarkCuDNN());
  { const Accelerator accelerator({.cpu = true}); }
  CHECK(at::globalContext().benchmarkCuDNN());
  { const Accelerator accelerator({.cpu = true, .cudnn_benchmark = false}); }
  CHECK_FALSE(at::globalContext().benchmarkCuDNN());
}

TEST_CASE("an unknown precision is refused, and nothing is set") {
  const ModesScope scope;
  const accelerate::AcceleratorOptions options{
      .cpu = true, .float32_matmul_precision = static_cast<Float32MatmulPrecision>(3), .cudnn_benchmark = true};
  CHECK_THROWS_WITH_AS(Accelerator accelerator(options),
                       "settings: float32_matmul_precision is 3, must be highest, high or medium", accelerate::Error);
  CHECK_FALSE(at::globalContext().benchmarkCuDNN());
}

}  // namespace math_modes_testing
