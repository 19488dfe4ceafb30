// SPDX-License-Identifier: Apache-2.0
// Must not compile. tests/setup/refused.cmake expects exactly the errors of refused.txt: one sentence per mistake,
// without further errors.
#include <accelerate/accelerate.hpp>

struct Net : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) { return x; }
};

struct Counter {
  std::string state() const;
  void load_state(const std::string& state);
};

struct Ids : torch::data::Dataset<Ids> {
  torch::data::Example<> get(size_t) override { return {torch::ones({1}), torch::ones({1})}; }
  std::optional<size_t> size() const override { return 32; }
};

void mistakes(accelerate::Accelerator& accelerator, Net& net, torch::optim::SGD& sgd) {
  auto number = accelerator.prepare(3);
  std::vector<int> numbers;
  auto [prepared_numbers, model] = accelerator.prepare(numbers, net);
  for (auto& batch : prepared_numbers) (void)batch;
  const std::vector<torch::Tensor> batches;
  for (const auto& batch : accelerator.prepare(batches)) model(batch);
  auto [optimizer, schedule] = accelerator.prepare(sgd, [](int64_t step) { return 1.0 / static_cast<double>(step); });
  auto pointer = accelerator.prepare(&net);
  std::vector<torch::Tensor> foreign;
  accelerator.prepare(foreign).load_state({});
  auto window = accelerator.accumulate(net);
  torch::save(model, "net.pt");
  torch::load(optimizer, "sgd.pt");
  Counter counter;
  accelerator.register_for_checkpointing(counter, numbers);
  auto shared = torch::data::make_data_loader(Ids().map(torch::data::transforms::Stack<>()),
                                              torch::data::samplers::DistributedRandomSampler(32, 2, 0), 4);
  for (auto& batch : accelerator.prepare(shared)) model(batch.data);
}
