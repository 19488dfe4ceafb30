// SPDX-License-Identifier: Apache-2.0
// Reads loads as JSON, one a line, and writes the tensors and the output of each, which python_loads.py compares.
#include <torch/torch.h>

#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "accelerate/accelerate.hpp"
#include "accelerate/checkpoint/weights.hpp"

using nlohmann::json;

namespace {

struct NetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return head(torch::tanh(norm(first(x)))); }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(8, 16));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(16));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(16, 3));
};
TORCH_MODULE(Net);

c10::ScalarType dtype_of(const json& name) {
  static const std::map<std::string, c10::ScalarType> dtypes{{"float16", torch::kHalf},
                                                             {"bfloat16", torch::kBFloat16},
                                                             {"float32", torch::kFloat},
                                                             {"float64", torch::kDouble}};
  return dtypes.at(name.get<std::string>());
}

void run(const json& task) {
  const torch::NoGradGuard no_grad;
  Net net = accelerate::init_empty_weights([&] {
    Net built;
    for (const auto& list : {built->parameters(), built->buffers()}) {  // Module::to() converts integers, too
      for (const at::Tensor& tensor : list) {
        if (tensor.is_floating_point()) tensor.set_data(tensor.to(dtype_of(task.at("built"))));
      }
    }
    return built;
  });
  net->eval();
  accelerate::LoadDispatchOptions options;
  if (!task.at("dtype").is_null()) options.dtype = dtype_of(task.at("dtype"));
  options.dispatch.offload_buffers = task.at("offload_buffers").get<bool>();
  options.dispatch.offload_dir = task.at("offload_dir").get<std::string>();
  accelerate::load_checkpoint_and_dispatch(*net, task.at("checkpoint").get<std::string>(),
                                           task.at("map").get<accelerate::DeviceMap>(), options);
  const auto x = torch::linspace(-1, 1, 16).view({2, 8}).to(net->first->weight.scalar_type());
  accelerate::checkpoint::NamedTensors tensors{{"output", net(x)}};
  for (const auto& list : {net->named_parameters(), net->named_buffers()}) {
    for (const auto& tensor : list) tensors.emplace_back(tensor.key(), tensor.value().clone());
  }
  accelerate::checkpoint::save_file(task.at("output").get<std::string>(), tensors, "load_probe");
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) run(json::parse(line));
}
