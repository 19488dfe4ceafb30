// SPDX-License-Identifier: Apache-2.0
// The text of the cross-entropy kernel, run on the CPU, beside LibTorch's loss of the same logits in float64, and
// within linear_cross_entropy beside LibTorch's operators.
#include "tests/testing.hpp"
//
#include <array>
#include <cmath>
#include <limits>
#include <sstream>
#include <string>
#include <utility>

#include "accelerate/nn/cross_entropy_chunks.hpp"
#include "tests/nn/kernel_emulation.hpp"

using accelerate::nn::CrossEntropyArguments;
using nn_testing::emulate_cross_entropy;

namespace {

constexpr double kGuard = 77;  // value of the memory between rows

struct KernelCase {
  at::ScalarType dtype = at::kFloat;
  int64_t rows = 5, classes = 9;
  int64_t skew = 0;     ///< elements before the first row
  int64_t padding = 7;  ///< elements between rows
  unsigned int threads = 32;
  bool bias = false, class_weights = false, row_factors = false, gradient = true;
  double label_smoothing = 0;
  bool ignored = false;  ///< the first row
};

std::string describe_case(const KernelCase& one) {
  std::ostringstream text;
  text << c10::toString(one.dtype) << " [" << one.rows << ", " << one.classes << "] after " << one.skew << ", padding "
       << one.padding << ", threads " << one.threads << (one.bias ? ", bias" : "")
       << (one.class_weights ? ", class weights" : "") << (one.row_factors ? ", row factors" : "")
       << (one.gradient ? "" : ", no gradient") << ", label_smoothing " << one.label_smoothing
       << (one.ignored ? ", first row ignored" : "");
  return text.str();
}

/// Tensors of a case. All are float32 but logits and target.
struct KernelProblem {
  explicit KernelProblem(const KernelCase& the_case) : one(the_case), stride(one.classes + one.padding) {
    torch::manual_seed(one.classes * 31 + one.rows);
    memory = torch::full({one.skew + one.rows * stride + 16}, kGuard, one.dtype);
    logits = memory.as_strided({one.rows, one.classes}, {stride, 1}, one.skew);
    logits.copy_(torch::randn({one.rows, one.classes}) * 4);
    target = torch::randint(one.classes, {one.rows});
    if (one.ignored && one.rows > 0) target[0] = -100;
    if (one.bias) bias = torch::randn({one.classes});
    if (one.class_weights) class_weights = torch::rand({one.classes}) + 0.25;
    if (one.row_factors) row_factors = torch::rand({one.rows}) * 2 - 1;
    const at::Tensor counted = (target != -100).to(at::kFloat);
    const at::Tensor weights =
        one.class_weights ? class_weights.index_select(0, target.clamp_min(0)) * counted : counted;
    of_target = weights * (1 - one.label_smoothing);
    if (one.label_smoothing != 0) of_all = counted * (one.label_smoothing / static_cast<double>(one.classes));
    if (one.class_weights) all_weights = class_weights.sum();
    losses = torch::full({one.rows}, kGuard);
  }

  void run() const {
    const auto floats = [](const at::Tensor& tensor) -> float* {
      return tensor.defined() ? tensor.data_ptr<float>() : nullptr;
    };
    const CrossEntropyArguments arguments{.logits = logits.data_ptr(),
                                          .row_stride = stride,
                                          .classes = one.classes,
                                          .target = reinterpret_cast<const long long*>(target.data_ptr<int64_t>()),
                                          .ignore_index = -100,
                                          .of_target = floats(of_target),
                                          .of_all = floats(of_all),
                                          .row_factors = floats(row_factors),
                                          .bias = floats(bias),
                                          .class_weights = floats(class_weights),
                                          .all_weights = floats(all_weights),
                                          .losses = floats(losses),
                                          .gradient = one.gradient ? 1 : 0};
    emulate_cross_entropy(arguments, one.dtype, static_cast<unsigned int>(one.rows), one.threads);
  }

  KernelCase one;
  int64_t stride;
  at::Tensor memory, logits, target, bias, class_weights, row_factors, of_target, of_all, all_weights, losses;
};

/// Half of the distance of neighbouring numbers, relative, with the rounding errors of the float32 arithmetic.
double tolerance_of(at::ScalarType dtype) {
  return dtype == at::kFloat ? 1e-5 : dtype == at::kBFloat16 ? 0.00390625 + 1e-5 : 0.00048828125 + 1e-5;
}

void check_case(const KernelCase& one) {
  CAPTURE(describe_case(one));
  const KernelProblem problem(one);
  const at::Tensor logits = problem.logits.to(at::kDouble).clone().requires_grad_(true);
  const auto wide = [](const at::Tensor& tensor) { return tensor.defined() ? tensor.to(at::kDouble) : tensor; };
  const at::Tensor z = one.bias ? logits + wide(problem.bias) : logits;
  const at::Tensor expected = torch::cross_entropy_loss(z, problem.target, wide(problem.class_weights),
                                                        at::Reduction::None, -100, one.label_smoothing);
  (one.row_factors ? expected * wide(problem.row_factors) : expected).sum().backward();
  const at::Tensor before = problem.memory.clone();
  problem.run();
  CHECK(torch::allclose(wide(problem.losses), expected.detach(), 2e-5, 2e-5));
  const at::Tensor seen = problem.logits.to(at::kDouble);
  if (one.gradient) CHECK(torch::allclose(seen, logits.grad(), tolerance_of(one.dtype), 1e-6));
  if (one.gradient) problem.logits.fill_(kGuard);
  const at::Tensor guard = before.clone();
  if (one.gradient) guard.as_strided({one.rows, one.classes}, {problem.stride, 1}, one.skew).fill_(kGuard);
  CHECK(torch::equal(problem.memory, guard));
}

constexpr std::array kDtypes{at::kFloat, at::kBFloat16, at::kHalf};

}  // namespace

TEST_CASE("the kernel has LibTorch's losses and gradients for aligned and unaligned rows of many lengths") {
  for (const auto dtype : kDtypes) {
    for (const int64_t classes : {1, 7, 8, 9, 64, 1000}) {
      for (const auto& [skew, padding] : {std::pair<int64_t, int64_t>{0, (8 - classes % 8) % 8}, {1, 0}, {3, 5}}) {
        KernelCase one{.dtype = dtype, .classes = classes, .skew = skew, .padding = padding};
        for (const int64_t rows : {0, 1, 5}) {
          one.rows = rows;
          one.threads = 1;
          check_case(one);
        }
        one.threads = classes == 9 || classes == 1000 ? 32 : 2;
        check_case(one);
      }
    }
  }
}

TEST_CASE("the kernel has LibTorch's losses and gradients for all options") {
  for (const auto dtype : kDtypes) {
    for (const double label_smoothing : {0.0, 0.3, 1.0}) {
      for (unsigned int bits = 0; bits < 32; ++bits) {
        check_case({.dtype = dtype,
                    .rows = 2,
                    .classes = 43,
                    .skew = 2,
                    .threads = 2,
                    .bias = (bits & 1) != 0,
                    .class_weights = (bits & 2) != 0,
                    .row_factors = (bits & 4) != 0,
                    .gradient = (bits & 8) == 0,
                    .label_smoothing = label_smoothing,
                    .ignored = (bits & 16) != 0});
      }
    }
  }
}

TEST_CASE("the kernel has LibTorch's losses and gradients for the rows of a language model and blocks of 256 threads") {
  for (const auto dtype : kDtypes) {
    check_case({.dtype = dtype, .classes = 50257, .threads = 256});
    check_case({.dtype = dtype,
                .rows = 2,
                .classes = 50257,
                .skew = 5,
                .threads = 256,
                .bias = true,
                .class_weights = true,
                .row_factors = true,
                .label_smoothing = 0.1,
                .ignored = true});
    check_case({.dtype = dtype, .classes = 8, .threads = 256, .label_smoothing = 0.1});
    check_case({.dtype = dtype, .rows = 2, .classes = 1000, .threads = accelerate::nn::kCrossEntropyThreads});
  }
}

TEST_CASE("the kernel shifts logits far beyond the range of exp() and excludes classes with -infinity") {
  for (const auto dtype : kDtypes) {
    KernelProblem problem(
        {.dtype = dtype, .rows = 3, .classes = 50, .label_smoothing = dtype == at::kFloat ? 0.25 : 0});
    problem.logits.copy_(torch::randn({3, 50}) * 1000 + 20000);
    if (dtype != at::kFloat) problem.logits[1].narrow(0, 0, 40).fill_(-std::numeric_limits<double>::infinity());
    problem.target.copy_(torch::tensor({3, 45, 49}));
    const at::Tensor logits = problem.logits.to(at::kDouble).clone().requires_grad_(true);
    const at::Tensor expected =
        torch::cross_entropy_loss(logits, problem.target, {}, at::Reduction::None, -100, problem.one.label_smoothing);
    expected.sum().backward();
    problem.run();
    CHECK(torch::allclose(problem.losses.to(at::kDouble), expected.detach(), 1e-5, 1e-5));
    CHECK(torch::allclose(problem.logits.to(at::kDouble), logits.grad(), 2e-3, 1e-6));
  }
}

TEST_CASE("the kernel passes NaN, +infinity and rows of -infinity on as NaN, and ignored rows are not read") {
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto dtype : kDtypes) {
    for (const unsigned int threads : {1U, 32U}) {
      const KernelProblem problem({.dtype = dtype, .rows = 5, .classes = 300, .threads = threads, .ignored = true});
      problem.logits[0][7] = nan;
      problem.logits[1][299] = nan;
      problem.logits[2][0] = infinity;
      problem.logits[3].fill_(-infinity);
      problem.run();
      CHECK(problem.losses[0].item<double>() == 0);
      CHECK(torch::equal(problem.logits[0], torch::zeros_like(problem.logits[0])));
      for (const int64_t row : {1, 2, 3}) {
        CHECK(problem.losses[row].isnan().item<bool>());
        CHECK(problem.logits[row].isnan().all().item<bool>());
      }
      CHECK(std::isfinite(problem.losses[4].item<double>()));
      CHECK(problem.logits[4].isfinite().all().item<bool>());
    }
  }
}

TEST_CASE("a target that is not a class fails an assertion of the kernel and nothing is written") {
  for (const int64_t value : {int64_t{-1}, int64_t{9}, int64_t{1} << 32, std::numeric_limits<int64_t>::max(),
                              std::numeric_limits<int64_t>::min()}) {
    const KernelProblem problem({.rows = 1});
    const at::Tensor before = problem.memory.clone();
    problem.target[0] = value;
    accelerate::nn::failed_assertions = 0;
    problem.run();
    CHECK(accelerate::nn::failed_assertions == 1);
    CHECK(torch::equal(problem.memory, before));
    CHECK(problem.losses[0].item<double>() == kGuard);
  }
}

namespace {

class EmulatedKernel final : public accelerate::nn::CrossEntropyKernel {
 public:
  void launch(const CrossEntropyArguments& arguments, at::ScalarType dtype, int64_t rows) const override {
    emulate_cross_entropy(arguments, dtype, static_cast<unsigned int>(rows), 2);
    ++launches;
  }
  mutable int launches = 0;
};

/// Six rows of five features and 11 classes, some of the inputs strided, in chunks of four rows.
accelerate::nn::CrossEntropyProblem chunked_problem(at::ScalarType dtype, bool with_options, double label_smoothing) {
  torch::manual_seed(5);
  const at::Tensor target = torch::randint(11, {6, 2}).select(1, 0);
  target[2] = 3;
  return {.x = torch::randn({6, 5}).to(dtype),
          .weight = torch::randn({11, 5}).to(dtype),
          .bias = with_options ? torch::randn({11, 3}).to(dtype).select(1, 1) : at::Tensor(),
          .target = target,
          .class_weights = with_options ? torch::rand({11, 2}).select(1, 1) + 0.25 : at::Tensor(),
          .ignore_index = with_options ? 3 : -100,
          .label_smoothing = label_smoothing,
          .max_bytes = 4 * 16 * static_cast<int64_t>(c10::elementSize(dtype)),
          .compute_dtype = dtype,
          .loss_dtype = dtype == at::kDouble ? at::kDouble : at::kFloat};
}

}  // namespace

TEST_CASE("with the kernel, chunks of rows have the losses and gradients of LibTorch's operators") {
  const torch::NoGradGuard no_grad;
  for (const auto dtype : kDtypes) {
    for (const bool with_options : {false, true}) {
      for (const double label_smoothing : {0.0, 0.2}) {
        for (const bool gradients : {false, true}) {
          for (const bool factors : {false, true}) {
            auto problem = chunked_problem(dtype, with_options, label_smoothing);
            const accelerate::nn::WantedGradients wanted{.x = gradients, .weight = gradients, .bias = gradients};
            const at::Tensor row_factors = factors ? (torch::rand({6, 2}) * 2 - 1).select(1, 1) : at::Tensor();
            const auto expected = accelerate::nn::cross_entropy_in_chunks(problem, wanted, row_factors);
            const EmulatedKernel kernel;
            problem.kernel = &kernel;
            const auto seen = accelerate::nn::cross_entropy_in_chunks(problem, wanted, row_factors);
            CHECK(kernel.launches == 2);
            CHECK(torch::allclose(seen.losses, expected.losses, 1e-5, 1e-5));
            CHECK(torch::equal(seen.denominator, expected.denominator));
            const double tolerance = dtype == at::kFloat ? 1e-5 : 2e-2;
            for (const auto member :
                 {&accelerate::nn::CrossEntropyGradients::x, &accelerate::nn::CrossEntropyGradients::weight,
                  &accelerate::nn::CrossEntropyGradients::bias}) {
              const at::Tensor &ours = seen.gradients.*member, &theirs = expected.gradients.*member;
              REQUIRE(ours.defined() == gradients);
              if (gradients) CHECK(torch::allclose(ours, theirs, tolerance, tolerance));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("float64 and problems without rows do not use the kernel") {
  const torch::NoGradGuard no_grad;
  const EmulatedKernel kernel;
  auto problem = chunked_problem(at::kDouble, true, 0.1);
  problem.kernel = &kernel;
  CHECK_NOTHROW(accelerate::nn::cross_entropy_in_chunks(problem, {.x = true}, {}));
  problem = chunked_problem(at::kFloat, true, 0.1);
  problem.kernel = &kernel;
  problem.x = problem.x.narrow(0, 0, 0);
  problem.target = problem.target.narrow(0, 0, 0);
  CHECK_NOTHROW(accelerate::nn::cross_entropy_in_chunks(problem, {.x = true}, {}));
  CHECK(kernel.launches == 0);
}
