// SPDX-License-Identifier: Apache-2.0
// Programs in which the stages of prepared pipelines differ: several optimizers, layers that only some stages have, and
// what must be equal on all stages.
#include "tests/testing.hpp"
//
#include <chrono>
#include <string>
#include <vector>

#include "tests/checkpoint/folder.hpp"
#include "tests/pipeline/prepared_training.hpp"
#include "tests/refusal.hpp"

namespace pipeline_testing {
namespace {

using accelerate::comm::run_threads;

void on_two_stages(const std::function<void(const Group&)>& check) { run_threads(2, check, std::chrono::seconds(20)); }

Sequential two_linears(at::ScalarType dtype = at::kDouble) {
  auto layers = filled(Sequential(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4)));
  layers->to(dtype);
  return layers;
}

AcceleratorOptions fp16() {
  AcceleratorOptions options;
  options.mixed_precision = accelerate::Precision::fp16;
  options.grad_scaler = {.init_scale = 256.0, .growth_interval = 2};
  return options;
}

struct StateOfBytes {
  std::string text{};
  [[nodiscard]] std::string state() const { return text; }
  void load_state(const std::string& saved) { text = saved; }
};

}  // namespace

TEST_CASE("with fp16 the scale grows equally on all stages, if an optimizer has parameters on some of them only") {
  for (const int64_t stages : {1, 2}) {
    std::vector<double> scales(2);
    on_two_stages([&](const Group& world) {
      Accelerator accelerator = on_mesh(world, {.dp_replicate_size = 2 / stages, .pp_size = stages}, fp16());
      const auto net = std::make_shared<Pipeline>(accelerator.pipeline_parallel_group(), two_linears(at::kFloat),
                                                  PipelineOptions{.micro_batches = 2});
      std::vector<torch::Tensor> most, last_bias;
      for (const auto& item : net->named_parameters()) {
        (item.key() == "1.bias" ? last_bias : most).push_back(item.value());
      }
      torch::optim::SGD first(most, 0.01), second(last_bias, 0.01);
      const auto [model, of_most, of_last] = accelerator.prepare(net, first, second);
      const auto input = waves({4, 4}, 1).to(at::kFloat), target = waves({4, 4}, 2).to(at::kFloat);
      for (int64_t step = 0; step < 8; ++step) {
        of_most.zero_grad();
        of_last.zero_grad();
        model->train_step(input, target, squared_error);
        of_most.step();
        of_last.step();
      }
      scales[static_cast<size_t>(world.rank())] = accelerator.loss_scale();
      of_most.zero_grad();
      of_last.zero_grad();
      for (int64_t i = 0; i < 3; ++i) of_most.step();  // without gradients
      CHECK(accelerator.loss_scale() == scales[static_cast<size_t>(world.rank())]);
    });
    CHECK(scales == std::vector<double>(2, 256.0 * 16));
  }
}

TEST_CASE("a checkpoint refuses optimizers that differ between stages, and one in another order than the model") {
  on_two_stages([](const Group& world) {
    const testing::SharedFolder folder(world);
    const auto save_with = [&](const MakeOptimizer& make) {
      Accelerator accelerator = on_mesh(world, {.pp_size = 2});
      PipelineTraining training(accelerator, {.make_optimizer = make});
      return testing::refusal_of_any_rank([&] { accelerator.save_state(folder.path / "c"); });
    };
    const auto rates = save_with([&](const std::vector<torch::Tensor>& parameters) {
      return std::make_unique<torch::optim::SGD>(parameters, world.rank() == 0 ? 0.1 : 0.2);
    });
    CHECK_MESSAGE(
        rates.starts_with("save_state: the optimizers of the stages of a pipeline differ, and a checkpoint has "
                          "one of each: on stage 0 [optimizer torch::optim::SGD, group of lr=0.1 "),
        rates);
    CHECK_MESSAGE(rates.ends_with("]; prepare and register the same on all stages"), rates);
    const auto groups = save_with([&](const std::vector<torch::Tensor>& parameters) -> Optimizer {
      auto optimizer = sgd({parameters.front()});
      if (world.rank() == 1) optimizer->add_param_group(torch::optim::OptimizerParamGroup({parameters[1]}));
      return optimizer;
    });
    CHECK(groups.starts_with("save_state: the optimizers of the stages of a pipeline differ"));
    const auto reversed = save_with([](const std::vector<torch::Tensor>& parameters) {
      return sgd({parameters.rbegin(), parameters.rend()});
    });
    CHECK_MESSAGE(
        reversed.ends_with("which is another order than that of the model, from which the numbers of parameters "
                           "in a checkpoint follow; list parameters in the order of parameters() of the "
                           "Pipeline"),
        reversed);
    CHECK(save_with([](const std::vector<torch::Tensor>& parameters) {
            auto optimizer = sgd(parameters);
            optimizer->add_param_group(torch::optim::OptimizerParamGroup(std::vector<torch::Tensor>{}));
            return optimizer;
          }).empty());
    Accelerator accelerator = on_mesh(world, {.pp_size = 2});
    PipelineTraining training(accelerator, {});
    torch::optim::SGD more(training.pipeline->parameters(), 0.1);
    accelerate::PreparedOptimizer<torch::optim::SGD> prepared;
    if (world.rank() == 1) prepared = accelerator.prepare(more);
    CHECK(testing::refusal_of_any_rank([&] {
            accelerator.save_state(folder.path / "c");
          }).find("the optimizers of the stages") != std::string::npos);
  });
}

TEST_CASE("registered objects that differ between stages are refused, unless their tensors are those of the layers") {
  on_two_stages([](const Group& world) {
    const testing::SharedFolder folder(world);
    for (const bool is_equal : {true, false}) {
      Accelerator accelerator = on_mesh(world, {.pp_size = 2});
      PipelineTraining training(accelerator, {});
      StateOfBytes bytes{is_equal ? "same" : "stage " + std::to_string(world.rank())};
      accelerator.register_for_checkpointing(bytes);
      const auto text = testing::refusal_of_any_rank([&] { accelerator.save_state(folder.path / "c"); });
      CHECK(text.empty() == is_equal);
      if (!is_equal) {
        CHECK_MESSAGE(text.starts_with("save_state: the registered objects of the stages of a pipeline differ, and a "
                                       "checkpoint has one of each: on stage 0 [7 bytes with checksum "),
                      text);
      }
    }
  });
}

TEST_CASE("a tied weight has equal bits on all stages, and is averaged alone") {
  run_threads(6, [](const Group& world) {
    Accelerator accelerator = on_mesh(world, {.dp_replicate_size = 3, .pp_size = 2});
    auto layers = tied_transformer();
    layers->to(at::kFloat);
    const auto net = std::make_shared<Pipeline>(accelerator.pipeline_parallel_group(), layers);
    const auto optimizer = sgd(parameters_of(*net));
    const auto model = accelerator.prepare(net);
    const auto prepared = accelerator.prepare(*optimizer);
    for (int64_t step = 0; step < 5; ++step) {
      const auto ids = torch::arange(4 * 5).add(step + world.rank()).mul(7).remainder(10).reshape({4, 5});
      prepared.zero_grad();
      model->train_step(ids, waves({4, 5, 10}, 0.4).to(at::kFloat), squared_error);
      prepared.step();
    }
    const auto weight = net->named_parameters()[accelerator.pipeline_parallel_rank() == 0 ? "0.weight" : "3.weight"];
    const auto all = accelerator.group().all_gather_list(weight.detach());
    for (const auto& copy : all) CHECK(copy.equal(all.front()));
  });
}

TEST_CASE("a Pipeline follows autocast that changes between steps of equal sizes") {
  on_two_stages([](const Group& world) {
    AcceleratorOptions options;
    options.mixed_precision = accelerate::Precision::bf16;
    Accelerator accelerator = on_mesh(world, {.pp_size = 2}, options);
    const auto net = std::make_shared<Pipeline>(accelerator.pipeline_parallel_group(), two_linears(at::kFloat),
                                                PipelineOptions{.micro_batches = 2});
    const auto model = accelerator.prepare(net);
    const auto input = waves({4, 4}, 1).to(at::kFloat);
    std::ignore = model(input);
    const auto output = model->forward(input);
    if (output.defined()) CHECK((output.scalar_type() == at::kFloat));
    model->train_step(input, input, squared_error);
    accelerator.free_memory();
    net->train_step(input, input, squared_error);
  });
}

TEST_CASE("a norm over a Pipeline and another model is refused, and a non-finite gradient is named by its stage") {
  on_two_stages([](const Group& world) {
    Accelerator accelerator = on_mesh(world, {.pp_size = 2});
    const auto net = std::make_shared<Pipeline>(accelerator.pipeline_parallel_group(), two_linears());
    torch::nn::Linear other(2, 3);
    const auto [model, plain] = accelerator.prepare(net, other);
    model->train_step(waves({4, 4}, 1), waves({4, 4}, 2), squared_error);
    plain(torch::ones({1, 2})).sum().backward();
    auto both = model.parameters();
    both.push_back(other->weight);
    CHECK(
        testing::refusal_of_any_rank([&] { accelerator.clip_grad_norm_(both, 1.0); }) ==
        "clip_grad_norm_: some of the parameters belong to stages of a Pipeline, and one of shape [3, 2] does not, so "
        "that their common norm would count it 2 times; clip them in separate calls");
    if (world.rank() == 1) net->parameters()[0].mutable_grad().fill_(std::numeric_limits<double>::infinity());
    const auto text = testing::refusal_of_any_rank([&] { accelerator.clip_grad_norm_(model, 1.0, 2.0, true); });
    CHECK_MESSAGE(
        (world.rank() == 1 ? text.find("the first that of 1.weight") != std::string::npos
                           : text.starts_with("clip_grad_norm_: the norm of the gradients of all ranks is inf, "
                                              "and each of the 2 here is finite; the error of another rank "
                                              "names the gradient; ")),
        text);
  });
}

TEST_CASE("check_synchronized_every finds a stage that differs between data parallel ranks") {
  on_two_stages([](const Group& world) {
    Accelerator accelerator = on_mesh(world, {.dp_replicate_size = 2}, {.check_synchronized_every = 1});
    PipelineTraining training(accelerator, {});
    auto& [model, optimizer, loader] = training.objects;
    if (world.rank() == 1) training.pipeline->parameters()[0].detach().add_(1);
    model->train_step(waves({4, 7}, 1), waves({4, 3}, 2), squared_error);
    CHECK(!testing::refusal_of_any_rank([&] { optimizer.step(); }).empty());
  });
}

TEST_CASE("without a broadcast of the loss, a NaN stops all stages") {
  on_two_stages([](const Group& world) {
    Accelerator accelerator = on_mesh(world, {.pp_size = 2}, {.stop_at_nan_loss = true});
    const auto net = std::make_shared<Pipeline>(accelerator.pipeline_parallel_group(), two_linears(),
                                                PipelineOptions{.broadcast_loss = false});
    const auto model = accelerator.prepare(net);
    const auto input = torch::full({4, 4}, std::numeric_limits<double>::quiet_NaN(), at::kDouble);
    CHECK(testing::refusal_of_any_rank([&] {
            model->train_step(input, waves({4, 4}, 2), squared_error);
          }).starts_with("backward: the loss of step 1 (call 1 of backward()) is nan"));
  });
}

TEST_CASE("gradients of one rank are not stepped on after another optimizer's gradients were zeroed") {
  on_two_stages([](const Group& world) {
    Accelerator accelerator = on_mesh(world, {.dp_replicate_size = 2});
    const auto net = std::make_shared<Pipeline>(accelerator.pipeline_parallel_group(), two_linears());
    const auto parameters = net->parameters();
    torch::optim::SGD first({parameters[0], parameters[1]}, 0.1), second({parameters[2], parameters[3]}, 0.1);
    const auto [model, of_first, of_second] = accelerator.prepare(net, first, second);
    {
      const auto off = accelerator.no_sync(model);
      model->train_step(waves({4, 4}, static_cast<double>(world.rank())), waves({4, 4}, 2), squared_error);
    }
    of_first.zero_grad();
    CHECK(testing::refusal_of_any_rank([&] { of_second.step(); }).find("no_sync() was open") != std::string::npos);
    of_second.zero_grad();
    model->train_step(waves({4, 4}, static_cast<double>(world.rank())), waves({4, 4}, 2), squared_error);
    of_first.step();
    of_second.step();
    accelerator.check_synchronized(model);
  });
}

TEST_CASE("a second Accelerator, and a module around a Pipeline, are refused by prepare()") {
  Accelerator first = alone(), second = alone();
  const auto net = std::make_shared<Pipeline>(Group(), two_linears());
  const auto model = first.prepare(net);
  CHECK(testing::refusal_of_any_rank([&] { std::ignore = second.prepare(net); }) ==
        "prepare: the Pipeline is prepared by another Accelerator, which averages its gradients; call free_memory() of "
        "that one first");
  first.free_memory();
  std::ignore = second.prepare(net);
  const auto around = std::make_shared<Sequential::ContainedType>();
  around->register_module("inner", std::make_shared<Pipeline>(Group(), two_linears()));
  CHECK(
      testing::refusal_of_any_rank([&] { std::ignore = second.prepare(Sequential(around)); }) ==
      "prepare: inner is a Pipeline inside another module, where its steps would not follow the Accelerator; give the "
      "Pipeline itself to prepare()");
}

TEST_CASE("the optimizer of another module is an error with stages, too") {
  on_two_stages([](const Group& world) {
    Accelerator accelerator = on_mesh(world, {.pp_size = 2});
    const auto net = std::make_shared<Pipeline>(accelerator.pipeline_parallel_group(), two_linears());
    torch::nn::Linear copy(2, 2);
    torch::optim::SGD of_copy(copy->parameters(), 0.1);
    const auto [model, optimizer] = accelerator.prepare(net, of_copy);
    model->train_step(waves({4, 4}, 1), waves({4, 4}, 2), squared_error);
    CHECK(testing::refusal_of_any_rank([&] { optimizer.step(); }).find("it was made from another module") !=
          std::string::npos);
  });
}

}  // namespace pipeline_testing
