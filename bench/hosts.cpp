// SPDX-License-Identifier: Apache-2.0
// A training step of an MLP with 25 MB of gradients, for hosts on a slow cable; bench/hosts starts it.
#include <accelerate/accelerate.hpp>

#include "bench/harness.hpp"
#include "bench/nets.hpp"

namespace {

constexpr int64_t kClasses = 250;
constexpr std::array<int64_t, 2> kBatches{32,
                                          512};  // the cable takes longer than the computing, and the other way round

/// How gradients are reduced: "32-4MB", "32-fp16".
struct Variant {
  std::string name;
  int64_t bucket_megabytes = 25;
  accelerate::gradient::CommHook hook{};
};

void add_cases(std::vector<bench::Case>& cases, const accelerate::comm::Group& group, const Variant& way) {
  auto accelerator = std::make_shared<accelerate::Accelerator>(
      group, accelerate::AcceleratorOptions{
                 .cpu = true, .buckets = {.cap_bytes = way.bucket_megabytes << 20}, .comm_hook = way.hook});
  accelerator->set_seed(1);
  const bench::Mlp net(std::vector<int64_t>{1024, 1024, 1024, 1024, 1024, 1024, 1024, kClasses});
  auto [model, optimizer] = accelerator->prepare(net, std::make_shared<torch::optim::AdamW>(net->parameters(), 1e-3));
  for (const int64_t batch : kBatches) {
    const auto x = torch::randn({batch, 1024});
    const auto y = torch::randint(kClasses, {batch});
    const auto step = [=, model = model, optimizer = optimizer]() mutable {
      optimizer.zero_grad();
      accelerator->backward(torch::cross_entropy_loss(model(x), y));
      optimizer.step();
    };
    cases.push_back(bench::timed(fmt::format("{}-{}", batch, way.name), step, {}));
  }
}

}  // namespace

int main() {
  const accelerate::Accelerator accelerator({.cpu = true});
  const auto& all = accelerator.group();
  std::vector<bench::Case> cases;
  add_cases(cases, all.split(all.rank()), {"compute"});  // a group of this rank alone: without communication
  add_cases(cases, all, {"25MB"});
  add_cases(cases, all, {"4MB", 4});
  add_cases(cases, all, {"fp16", 25, accelerate::gradient::fp16_compress_hook()});
  add_cases(cases, all,
            {"powersgd", 25, accelerate::gradient::power_sgd_hook({.matrix_approximation_rank = 4, .start_step = 2})});
  return bench::serve(accelerator.process_index(), bench::about(accelerator), cases);
}
