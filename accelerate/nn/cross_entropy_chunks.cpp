// SPDX-License-Identifier: Apache-2.0
#include "accelerate/nn/cross_entropy_chunks.hpp"

#include <ATen/ATen.h>
#include <ATen/ThreadLocalState.h>

#include <algorithm>
#include <limits>

#include "accelerate/device/parallel_for.hpp"

namespace accelerate::nn {
namespace {

int64_t divide_up(int64_t number, int64_t by) { return (number + by - 1) / by; }

/// Distance of the rows of the logits, in elements. Aligned rows let every matrix product use its fast kernels: on a
/// CPU a product that writes rows of 50257 float32 numbers takes 1.4 times as long as one with rows of 50264.
int64_t row_stride(const CrossEntropyProblem& problem) { return divide_up(problem.weight.size(0), 8) * 8; }

/// Number of columns in the matrix products. GPUs have fast kernels for 2-byte numbers only if it is a multiple of 8.
/// The additional classes have zero weights and zero gradients.
int64_t padded_classes(const CrossEntropyProblem& problem) {
  return c10::elementSize(problem.compute_dtype) == 2 ? row_stride(problem) : problem.weight.size(0);
}

/// Weight in the compute dtype, [padded classes, features].
at::Tensor padded_weight(const CrossEntropyProblem& problem) {
  const int64_t classes = problem.weight.size(0), padded = padded_classes(problem);
  if (padded == classes) return problem.weight.to(problem.compute_dtype);
  at::Tensor wide = at::empty({padded, problem.weight.size(1)}, problem.weight.options().dtype(problem.compute_dtype));
  wide.narrow(0, 0, classes).copy_(problem.weight);
  wide.narrow(0, classes, padded - classes).zero_();
  return wide;
}

/// Rows of one chunk, in chunks of about equal size.
int64_t rows_of_chunk(const CrossEntropyProblem& problem) {
  const int64_t rows = problem.x.size(0);
  const int64_t bytes = row_stride(problem) * static_cast<int64_t>(c10::elementSize(problem.compute_dtype));
  int64_t most = std::max<int64_t>(1, problem.max_bytes / std::max<int64_t>(1, bytes));
  // The factors of the weight's gradient are scaled by the number of rows, and must not underflow.
  if (problem.compute_dtype == at::kHalf) most = std::min<int64_t>(most, 4096);
  if (rows <= most) return std::max<int64_t>(1, rows);
  return divide_up(rows, divide_up(rows, most));
}

/// Rows that one elementwise pass handles: few enough for the caches of a CPU's thread, and many enough to fill a GPU.
/// Bounds the float32 copy of 2-byte logits.
int64_t rows_of_block(const at::Tensor& logits, at::ScalarType loss_dtype) {
  const int64_t bytes = (logits.device().is_cpu() ? int64_t{2} : int64_t{128}) << 20;
  const auto row = std::max<int64_t>(1, logits.size(1)) * static_cast<int64_t>(c10::elementSize(loss_dtype));
  return std::max<int64_t>(1, bytes / row);
}

/// Factors of each row's terms, all [N].
struct RowTerms {
  at::Tensor target;  ///< class index, 0 for ignored rows
  at::Tensor ignored;
  at::Tensor of_target;  ///< factor of -log p[target]
  at::Tensor of_all;     ///< factor of the sum of -log p[c] w[c] over all classes c; undefined without smoothing
};

class RowLosses {
 public:
  RowLosses(const CrossEntropyProblem& problem, const at::Tensor& row_factors)
      : problem_(problem), factors_(row_factors) {
    const auto options = problem.x.options().dtype(problem.loss_dtype);
    if (problem.bias.defined()) bias_ = problem.bias.to(problem.compute_dtype).to(problem.loss_dtype);
    if (problem.class_weights.defined()) class_weights_ = problem.class_weights.to(problem.loss_dtype);
    fused_ = problem.kernel != nullptr && problem.loss_dtype == at::kFloat &&
             problem.weight.size(0) <= std::numeric_limits<int>::max() / 2;
    if (fused_) {  // the kernel needs contiguous tensors
      target_ = problem.target.contiguous();
      for (at::Tensor* const tensor : {&factors_, &bias_, &class_weights_}) {
        if (tensor->defined()) *tensor = tensor->contiguous();
      }
    }
    terms_.ignored = problem.target == problem.ignore_index;
    terms_.target = problem.target.masked_fill(terms_.ignored, 0);
    const at::Tensor counted = (problem.target != problem.ignore_index).to(problem.loss_dtype);
    // index_select of an empty table fails even without rows.
    const bool weighted = class_weights_.defined() && terms_.target.numel() > 0;
    const at::Tensor weights = weighted ? class_weights_.index_select(0, terms_.target) * counted : counted;
    denominator_ = weights.sum();
    terms_.of_target = weights * (1 - problem.label_smoothing);
    if (problem.label_smoothing == 0) return;
    const auto classes = static_cast<double>(problem.weight.size(0));
    terms_.of_all = counted * (problem.label_smoothing / classes);
    all_weights_ = class_weights_.defined() ? class_weights_.sum() : at::full({}, classes, options);
  }

  [[nodiscard]] const at::Tensor& denominator() const { return denominator_; }

  /// Computes the losses of rows [first, first + logits.size(0)) and, if wanted, replaces the logits by their gradient.
  void run(const at::Tensor& logits, int64_t first, const at::Tensor& losses, bool gradient) const {
    if (fused_) return run_kernel(logits, first, losses, gradient);
    const int64_t most = rows_of_block(logits, problem_.loss_dtype);
    const auto run_rows = [&](int64_t begin, int64_t rows) {
      for (int64_t from = begin; from < begin + rows; from += most) {
        const int64_t count = std::min(most, begin + rows - from);
        run_block(logits.narrow(0, from, count), first + from, losses.narrow(0, first + from, count), gradient);
      }
    };
    if (!logits.device().is_cpu()) return run_rows(0, logits.size(0));
    // Each thread runs all operators on its own rows. If each operator started the threads, they would wait for the
    // slowest thread after every pass over a block.
    const at::ThreadLocalState callers;
    device::parallel_for(logits.size(0), most, [&](int64_t begin, int64_t rows) {
      const at::ThreadLocalStateGuard state(callers);
      run_rows(begin, rows);
    });
  }

 private:
  /// As run_block(), with the device's own kernel for all rows.
  void run_kernel(const at::Tensor& logits, int64_t first, const at::Tensor& losses, bool gradient) const {
    const auto numbers = [](const at::Tensor& tensor) -> const float* {
      return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
    };
    const auto of_row = [&](const at::Tensor& tensor) { return tensor.defined() ? numbers(tensor) + first : nullptr; };
    problem_.kernel->launch(
        {.logits = logits.data_ptr(),
         .row_stride = logits.stride(0),
         .classes = logits.size(1),
         .target = reinterpret_cast<const long long*>(target_.const_data_ptr<int64_t>() + first),
         .ignore_index = problem_.ignore_index,
         .of_target = of_row(terms_.of_target),
         .of_all = of_row(terms_.of_all),
         .row_factors = of_row(factors_),
         .bias = numbers(bias_),
         .class_weights = numbers(class_weights_),
         .all_weights = terms_.of_all.defined() && class_weights_.defined() ? numbers(all_weights_) : nullptr,
         .losses = losses.data_ptr<float>() + first,
         .gradient = gradient ? 1 : 0},
        logits.scalar_type(), logits.size(0));
  }

  void run_block(const at::Tensor& logits, int64_t first, const at::Tensor& losses, bool gradient) const {
    const int64_t rows = logits.size(0);
    const auto of = [&](const at::Tensor& all) { return all.narrow(0, first, rows); };
    const at::Tensor target = of(terms_.target).unsqueeze(1);
    at::Tensor of_target = of(terms_.of_target), of_all = terms_.of_all.defined() ? of(terms_.of_all) : at::Tensor();

    at::Tensor z = logits.to(problem_.loss_dtype);  // shares the storage of float32 and float64 logits
    if (bias_.defined()) z.add_(bias_);
    z.sub_(z.amax(1, /*keepdim=*/true));
    const at::Tensor picked = z.gather(1, target).squeeze(1);
    at::Tensor spread;
    if (of_all.defined()) spread = class_weights_.defined() ? z.mv(class_weights_) : z.sum(1);
    const at::Tensor sum = z.exp_().sum(1), log_sum = sum.log();
    at::Tensor loss = (log_sum - picked) * of_target;
    if (of_all.defined()) loss += (log_sum * all_weights_ - spread) * of_all;
    losses.copy_(loss.masked_fill(of(terms_.ignored), 0));
    if (!gradient) return;

    if (factors_.defined()) {
      of_target = of_target * of(factors_);
      if (of_all.defined()) of_all = of_all * of(factors_);
    }
    const at::Tensor total = of_all.defined() ? of_target + of_all * all_weights_ : of_target;
    z.mul_((total / sum).unsqueeze(1));
    z.scatter_add_(1, target, -of_target.unsqueeze(1));
    if (of_all.defined() && class_weights_.defined()) z.addr_(of_all, class_weights_, /*beta=*/1, /*alpha=*/-1);
    if (of_all.defined() && !class_weights_.defined()) z.sub_(of_all.unsqueeze(1));
    if (!z.is_same(logits)) logits.copy_(z);
  }

  const CrossEntropyProblem& problem_;
  at::Tensor factors_;
  at::Tensor bias_;
  at::Tensor class_weights_;
  at::Tensor all_weights_;  ///< [] sum of the class weights, or C
  at::Tensor denominator_;
  RowTerms terms_;
  bool fused_ = false;  ///< the kernel of the problem computes the rows
  at::Tensor target_;   ///< of the problem, for the kernel
};

/// Adds the chunk's product to the sum: within the product for one dtype, else in the sum's wider dtype.
///
/// With fp16, the sum over the rows may exceed 65504. `left` has gradients of logits, which are at most 1 there, so the
/// sum is at most rows * max |right|, and `right` is scaled to keep this bound in range.
void add_product(at::Tensor& sum, const at::Tensor& left, const at::Tensor& right, bool first) {
  if (left.scalar_type() == at::kHalf) {
    constexpr double max_sum = 32768;
    const at::Tensor bound = right.abs().amax().to(at::kFloat) * static_cast<double>(right.size(0));
    const at::Tensor scale = (max_sum / bound).clamp_max(1);
    sum.add_(at::mm(left, right * scale).to(sum.scalar_type()) / scale);
  } else if (sum.scalar_type() != left.scalar_type()) {
    sum.add_(at::mm(left, right));
  } else if (first) {
    at::mm_out(sum, left, right);
  } else {
    sum.addmm_(left, right);
  }
}

}  // namespace

CrossEntropyResult cross_entropy_in_chunks(const CrossEntropyProblem& problem, const WantedGradients& wanted,
                                           const at::Tensor& row_factors) {
  const int64_t count = problem.x.size(0), features = problem.x.size(1), classes = problem.weight.size(0);
  const int64_t padded = padded_classes(problem), chunk = rows_of_chunk(problem);
  const auto options = problem.x.options().dtype(problem.compute_dtype);
  const auto wide = options.dtype(problem.loss_dtype);
  const RowLosses rows(problem, row_factors);
  const at::Tensor x = problem.x.to(problem.compute_dtype), weight = padded_weight(problem);

  CrossEntropyResult result{.losses = at::empty({count}, wide), .denominator = rows.denominator(), .gradients = {}};
  auto& [x_gradient, weight_gradient, bias_gradient] = result.gradients;
  if (wanted.x) x_gradient = at::empty({count, features}, options);
  // One chunk needs no wider sum, except with fp16; with no row the zeros are the result.
  const bool is_wide = count > chunk || problem.compute_dtype == at::kHalf;
  if (wanted.weight) weight_gradient = at::zeros({padded, features}, is_wide ? wide : options);
  if (wanted.bias) bias_gradient = at::zeros({classes}, wide);
  const at::Tensor buffer = at::empty({std::min(chunk, count), row_stride(problem)}, options);
  for (int64_t first = 0; first < count; first += chunk) {
    const int64_t part = std::min(chunk, count - first);
    at::Tensor all = buffer.narrow(0, 0, part).narrow(1, 0, padded);
    const at::Tensor x_part = x.narrow(0, first, part), logits = all.narrow(1, 0, classes);
    at::mm_out(all, x_part, weight.t());
    rows.run(logits, first, result.losses, wanted.any());
    if (wanted.x) {
      at::Tensor place = x_gradient.narrow(0, first, part);
      at::mm_out(place, all, weight);
    }
    if (wanted.weight) add_product(weight_gradient, all.t(), x_part, first == 0);
    if (wanted.bias) bias_gradient.add_(logits.sum(0, /*keepdim=*/false, problem.loss_dtype));
  }
  if (wanted.weight) weight_gradient = weight_gradient.narrow(0, 0, classes);
  return result;
}

}  // namespace accelerate::nn
