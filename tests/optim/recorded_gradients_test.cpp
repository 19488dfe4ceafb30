// SPDX-License-Identifier: Apache-2.0
// Every option of every optimizer: compares 200 fused steps on recorded gradients with LibTorch's own steps.
#include <fmt/format.h>

#include <sstream>

#include "tests/device.hpp"
#include "tests/optim/steps.hpp"

using accelerate::optim::FusedStep;
using namespace optim_testing;
using torch::optim::Optimizer;

namespace {

constexpr int64_t steps = 200;

// Sizes around those of vector registers; weights and gradients of typical size.
Parameters weights(at::ScalarType dtype) {
  torch::manual_seed(7);
  Parameters list;
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{9, 7}, {1}, {2, 3, 5}, {33}}) {
    list.push_back((torch::randn(shape, at::kDouble) * 0.3).to(testing::device(), dtype).requires_grad_());
  }
  return list;
}

// The second-to-last parameter has no gradient in every third step.
void record(const Parameters& list, int64_t step) {
  torch::manual_seed(static_cast<uint64_t>(1000 + step));
  for (size_t i = 0; i < list.size(); ++i) {
    const auto gradient = (torch::randn(list[i].sizes(), at::kDouble) * 0.1).to(list[i].options());
    list[i].mutable_grad() = i + 2 == list.size() && step % 3 == 2 ? at::Tensor() : gradient;
  }
}

// The optimizer begins with the first parameters in two groups.
struct Run {
  Run(const Make& the_make, at::ScalarType dtype) : make(the_make), list(weights(dtype)), optimizer(begin()) {}

  std::unique_ptr<Optimizer> begin() const {
    auto made = make({list[0]});
    made->add_param_group(torch::optim::OptimizerParamGroup({list[1], list[2]}));
    return made;
  }
  // The learning rate of each group decreases differently; the last parameter is added late.
  void before(int64_t step) {
    record(list, step);
    if (step == 50) optimizer->add_param_group(torch::optim::OptimizerParamGroup({list[3]}));
    if (step % 10 != 9) return;
    for (size_t g = 0; g < 2; ++g) {
      auto& options = optimizer->param_groups()[g].options();
      options.set_lr(options.get_lr() * (g == 0 ? 0.95 : 0.98));
    }
  }
  // Continues with another optimizer that has loaded this one's state.
  void reload(bool whole) {
    std::stringstream file;
    torch::save(*optimizer, file);
    auto next = whole ? make(list) : begin();
    if (!whole) next->add_param_group(torch::optim::OptimizerParamGroup({list[3]}));
    torch::load(*next, file);
    optimizer = std::move(next);
  }

  Make make;
  Parameters list;
  std::unique_ptr<Optimizer> optimizer;
};

// One group with the first parameter and a decreasing rate, and one with the others.
Make adagrad_in_groups(const torch::optim::AdagradOptions& options) {
  return [options](const Parameters& list) -> std::unique_ptr<Optimizer> {
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(Parameters{list[0]});
    if (list.size() > 1) groups.emplace_back(Parameters(list.begin() + 1, list.end()));
    return std::make_unique<torch::optim::Adagrad>(groups, options);
  };
}

// LibTorch's Adagrad refuses later parameters, so it has them from the beginning, without gradients.
bool refuses_late_ones(const Optimizer& optimizer) {
  return dynamic_cast<const torch::optim::Adagrad*>(&optimizer) != nullptr;
}

double after(const Make& make, at::ScalarType dtype) {
  Run stock(make, dtype), ours(make, dtype);
  for (Run* run : {&stock, &ours}) {
    if (refuses_late_ones(*run->optimizer)) run->optimizer = make(run->list);
  }
  const bool whole = refuses_late_ones(*stock.optimizer);
  auto fused = FusedStep::for_optimizer(*ours.optimizer);
  for (int64_t step = 0; step < steps; ++step) {
    for (Run* run : {&stock, &ours}) {
      if (!whole) {
        run->before(step);
      } else {
        record(run->list, step);
        if (step % 10 == 9) run->optimizer->param_groups()[0].options().set_lr(0.01 / static_cast<double>(step));
      }
    }
    if (step == 120) {
      stock.reload(whole);
      ours.reload(whole);
      fused = FusedStep::for_optimizer(*ours.optimizer);
    }
    stock.optimizer->step();
    REQUIRE(fused->step());
  }
  return largest_difference(stock.list, ours.list);
}

void check_equal_steps(const std::string& what, const Make& make) {
  CAPTURE(what);
  CHECK(after(make, at::kDouble) < 1e-12);
  // On a GPU, PyTorch's kernels round differently.
  CHECK(after(make, at::kFloat) < (testing::device().is_cpu() ? 1e-6 : 1e-5));
}

}  // namespace

TEST_CASE("SGD: 200 steps with every option equal the stock optimizer's") {
  for (const double momentum : {0.0, 0.9}) {
    for (const double weight_decay : {0.0, 0.05}) {
      for (const double dampening : {0.0, 0.3}) {
        for (const bool nesterov : {false, true}) {
          if (nesterov && (momentum == 0 || dampening != 0)) continue;  // refused by the optimizer
          check_equal_steps(
              fmt::format("momentum {} decay {} dampening {} nesterov {}", momentum, weight_decay, dampening, nesterov),
              sgd(torch::optim::SGDOptions(0.02)
                      .momentum(momentum)
                      .weight_decay(weight_decay)
                      .dampening(dampening)
                      .nesterov(nesterov)));
        }
      }
    }
  }
}

TEST_CASE("Adam and AdamW: 200 steps with every option equal the stock optimizer's") {
  for (const double weight_decay : {0.0, 0.05}) {
    for (const bool amsgrad : {false, true}) {
      for (const auto& [beta1, beta2, eps] : {std::tuple{0.9, 0.999, 1e-8}, std::tuple{0.8, 0.95, 1e-4}}) {
        const auto what = fmt::format("decay {} amsgrad {} beta {} eps {}", weight_decay, amsgrad, beta1, eps);
        const auto set = [&, betas = std::tuple{beta1, beta2}, eps = eps](auto options) {
          return options.weight_decay(weight_decay).amsgrad(amsgrad).betas(betas).eps(eps);
        };
        check_equal_steps("Adam " + what, adam(set(torch::optim::AdamOptions(0.003))));
        check_equal_steps("AdamW " + what, adamw(set(torch::optim::AdamWOptions(0.003))));
      }
    }
  }
}

TEST_CASE("Adagrad: 200 steps with every option equal the stock optimizer's") {
  for (const double lr_decay : {0.0, 0.01}) {
    for (const double weight_decay : {0.0, 0.05}) {
      for (const double accumulated : {0.0, 0.1}) {
        for (const double eps : {1e-10, 1e-3}) {
          check_equal_steps(
              fmt::format("lr decay {} decay {} accumulated {} eps {}", lr_decay, weight_decay, accumulated, eps),
              adagrad_in_groups(torch::optim::AdagradOptions(0.01)
                                    .lr_decay(lr_decay)
                                    .weight_decay(weight_decay)
                                    .initial_accumulator_value(accumulated)
                                    .eps(eps)));
        }
      }
    }
  }
}

TEST_CASE("RMSprop: 200 steps with every option equal the stock optimizer's") {
  for (const double momentum : {0.0, 0.9}) {
    for (const double weight_decay : {0.0, 0.05}) {
      for (const bool centered : {false, true}) {
        for (const double alpha : {0.99, 0.9, 0.99999}) {
          check_equal_steps(
              fmt::format("momentum {} decay {} centered {} alpha {}", momentum, weight_decay, centered, alpha),
              rmsprop(torch::optim::RMSpropOptions(alpha > 0.999 ? 0.000005 : 0.0005)
                          .momentum(momentum)
                          .weight_decay(weight_decay)
                          .centered(centered)
                          .alpha(alpha)
                          .eps(1e-4)));
        }
      }
    }
  }
}
