// SPDX-License-Identifier: Apache-2.0
// Errors of prepare() and of later calls for pipelines.
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
using testing::refusal;

struct DataRanks {
  explicit DataRanks(const Group& world) : accelerator(on_mesh(world, {.dp_replicate_size = world.size()})) {}
  Accelerator accelerator;
  PipelineTraining training{accelerator, {}};
  decltype(training.objects)& objects = training.objects;
};

}  // namespace

TEST_CASE("prepare() refuses a Pipeline with stages on other ranks than those of the mesh") {
  run_threads(2, [](const Group& world) {
    Accelerator accelerator = on_mesh(world, {.dp_replicate_size = 2});
    const auto pipeline = std::make_shared<Pipeline>(world, mlp());
    CHECK(
        testing::refusal_of_any_rank([&] { std::ignore = accelerator.prepare(pipeline); }) ==
        "prepare: this rank is rank " + std::to_string(world.rank()) +
            " of 2 in the Pipeline, but rank 0 of 1 in its pipeline group; set AcceleratorOptions::parallelism_config "
            "with pp_size 2, and construct the Pipeline with accelerator.pipeline_parallel_group()");
  });
}

TEST_CASE("prepare() refuses a communication hook, and a parameter that another model has") {
  run_threads(2, [](const Group& world) {
    AcceleratorOptions options;
    options.comm_hook = accelerate::gradient::bf16_compress_hook();
    Accelerator accelerator = on_mesh(world, {.dp_replicate_size = 2}, options);
    const auto pipeline = std::make_shared<Pipeline>(accelerator.pipeline_parallel_group(), mlp());
    CHECK(
        testing::refusal_of_any_rank([&] { std::ignore = accelerator.prepare(pipeline); }) ==
        "prepare: communication hooks are not supported for a Pipeline, because its gradients are averaged at the end "
        "of its step; remove the hook");
    Accelerator other = on_mesh(world, {.dp_replicate_size = 2});
    auto layers = mlp();
    const auto last = (*layers)[8];
    const auto linear = std::dynamic_pointer_cast<torch::nn::LinearImpl>(last);
    const auto model = other.prepare(std::make_shared<Pipeline>(other.pipeline_parallel_group(), layers));
    CHECK(testing::refusal_of_any_rank([&] { std::ignore = other.prepare(linear); }) ==
          "prepare: parameter weight belongs to a Pipeline and to another prepared model; give it to one of them");
  });
}

TEST_CASE("local_sgd, join_uneven_inputs and LBFGS are refused for a Pipeline") {
  run_threads(2, [](const Group& world) {
    DataRanks ranks(world);
    auto& [model, optimizer, loader] = ranks.objects;
    const std::string reason = " is not supported for a Pipeline, because ";
    CHECK(testing::refusal_of_any_rank([&] { std::ignore = ranks.accelerator.local_sgd(model, 2); }) ==
          "local_sgd:" + reason + "train_step() averages the gradients in every step");
    CHECK(testing::refusal_of_any_rank([&] { std::ignore = ranks.accelerator.join_uneven_inputs(model); }) ==
          "join_uneven_inputs:" + reason + "a rank without batches does not join the other ranks' steps");
    torch::optim::LBFGS lbfgs(model.parameters());
    const auto prepared = ranks.accelerator.prepare(lbfgs);
    model->train_step(waves({4, 7}, 1), waves({4, 3}, 2), squared_error);
    CHECK(testing::refusal_of_any_rank([&] { prepared.step([] { return torch::zeros({}); }); }) ==
          "optimizer.step: torch::optim::LBFGS combines all elements of the parameters, and this rank has only the "
          "parameters of its own Pipeline stages; use an optimizer that steps on each element");
  });
}

TEST_CASE("backward() of a loss that train_step() returned is refused") {
  Accelerator accelerator = alone();
  PipelineTraining training(accelerator, {});
  const auto& model = std::get<0>(training.objects);
  const auto loss = model->train_step(waves({4, 7}, 1), waves({4, 3}, 2), squared_error);
  CHECK(testing::refusal_of_any_rank([&] { accelerator.backward(loss); }) ==
        "backward: the loss has no autograd graph, because train_step() of a Pipeline has already run the backward; "
        "remove this call of backward()");
}

TEST_CASE("a NaN loss is refused with stop_at_nan_loss") {
  run_threads(2, [](const Group& world) {
    Accelerator other = on_mesh(world, {.dp_replicate_size = 2}, {.stop_at_nan_loss = true});
    const auto dense = other.prepare(std::make_shared<Pipeline>(other.pipeline_parallel_group(), mlp()));
    const auto nan = torch::full({4, 7}, std::numeric_limits<double>::quiet_NaN(), torch::kDouble);
    CHECK(testing::refusal_of_any_rank([&] {
            dense->train_step(nan, waves({4, 3}, 2), squared_error);
          }) ==
          "backward: the loss of step 1 (call 1 of backward()) is nan, must be a number; look at this batch and at the "
          "learning rate");
  });
}

TEST_CASE("checkpoints of stages refuse save_on_each_node, and parameters outside of a Pipeline") {
  run_threads(2, [](const Group& world) {
    AcceleratorOptions options;
    options.project.save_on_each_node = true;
    Accelerator accelerator = on_mesh(world, {.pp_size = 2}, options);
    PipelineTraining training(accelerator, {});
    CHECK(testing::refusal_of_any_rank([&] { accelerator.save_state("c"); }) ==
          "save_state: with pp_size 2 project.save_on_each_node is not supported, because no machine would have all "
          "stages; set it to false");
    Accelerator other = on_mesh(world, {.pp_size = 2});
    PipelineTraining of_other(other, {});
    torch::nn::Linear free(2, 3);
    torch::optim::SGD sgd_of_free(free->parameters(), 0.1);
    const auto prepared = other.prepare(sgd_of_free);
    CHECK(testing::refusal_of_any_rank([&] { other.save_state("c"); }) ==
          "save_state: with pp_size 2 a parameter of shape [3, 2] of optimizer_1 belongs to no prepared Pipeline; "
          "prepare its Pipeline, or give it to an optimizer that is not prepared");
  });
}

TEST_CASE("loading a checkpoint of another model names the difference on all stages") {
  run_threads(2, [](const Group& world) {
    const testing::SharedFolder folder(world);
    Accelerator accelerator = on_mesh(world, {.pp_size = 2});
    PipelineTraining training(accelerator, {});
    training.epochs(1);
    accelerator.save_state(folder.path / "c");
    Accelerator other = on_mesh(world, {.pp_size = 2});
    const auto wider = [] {
      using namespace torch::nn;
      using torch::nn::Linear;
      return filled(Sequential(Linear(7, 9), Tanh(), Linear(9, 4), Linear(4, 3)));
    };
    PipelineTraining of_other(other, {.make = wider});
    const auto text = refusal([&] { other.load_state(folder.path / "c"); });
    CHECK_MESSAGE(text.find("model is not the one that was saved") != std::string::npos, text);
    const auto first = std::get<0>(of_other.objects).parameters().front().detach().clone();
    const auto twice = [](const std::vector<torch::Tensor>& parameters) {
      auto optimizer = adamw({parameters.front()});
      return optimizer;
    };
    Accelerator third = on_mesh(world, {.pp_size = 2});
    PipelineTraining fewer(third, {.make_optimizer = twice});
    CHECK(testing::refusal_of_any_rank([&] { third.load_state(folder.path / "c"); }) ==
          "load_state: the saved optimizer has 12 parameters in group 0, but the stages together have 2");
  });
}

TEST_CASE("a Pipeline with given devices does not move to another device") {
  Pipeline placed({torch::kCPU, torch::kCPU}, mlp());
  placed.to(torch::kCPU);
  CHECK(
      testing::refusal_of_any_rank([&] { placed.to(at::Device(at::kMeta)); }) ==
      "Pipeline.to: the layers of this rank are on cpu and cannot move to meta; construct the Pipeline with layers, a "
      "group or devices for meta");
}

struct Counters {
  torch::OrderedDict<std::string, torch::Tensor> state_dict() { return tensors; }
  void load_state_dict(const torch::OrderedDict<std::string, torch::Tensor>& saved) { tensors = saved; }
  torch::OrderedDict<std::string, torch::Tensor> tensors;
};

TEST_CASE("a registered object with an undefined tensor on one stage is refused on all ranks") {
  for (const int64_t broken : {0, 1}) {
    for (const char* name : {"count", "0.weight"}) {
      CAPTURE(name);
      run_threads(
          2,
          [&](const Group& world) {
            Accelerator accelerator = on_mesh(world, {.pp_size = 2});
            PipelineTraining training(accelerator, {});
            Counters counters;
            counters.tensors.insert(name, world.rank() == broken ? torch::Tensor() : torch::ones(2));
            accelerator.register_for_checkpointing(counters);
            CHECK(
                testing::refusal_of_any_rank([&] {
                  accelerator.save_state("never_written");
                }).find(fmt::format("save_state: {} is an undefined tensor, only dense tensors can be saved", name)) !=
                std::string::npos);
          },
          std::chrono::seconds(20));
    }
  }
}

struct Teacher {
  torch::OrderedDict<std::string, torch::Tensor> state_dict() { return net->named_parameters(); }
  void load_state_dict(const torch::OrderedDict<std::string, torch::Tensor>& saved) {
    const torch::NoGradGuard no_grad;
    for (auto& item : net->named_parameters()) item.value().copy_(saved[item.key()]);
  }
  torch::nn::Linear net{3, 3};
};

TEST_CASE("a checkpoint of stages refuses a second model that is no Pipeline, and accepts it as a registered object") {
  run_threads(2, [](const Group& world) {
    const testing::SharedFolder folder(world);
    Teacher teacher;
    sharding_testing::fill(*teacher.net);
    const auto expected = teacher.net->weight.detach().clone();
    Accelerator accelerator = on_mesh(world, {.pp_size = 2});
    PipelineTraining training(accelerator, {});
    accelerator.register_for_checkpointing(teacher);
    accelerator.save_state(folder.path / "c");
    const auto model = accelerator.prepare(teacher.net);
    const std::string reason =
        ": with pp_size 2 model is an nn::Pipeline and model_1 is not, and prepare() does not keep models equal on "
        "all stages; make model_1 a layer of the Pipeline, or leave it out of prepare() and register an object with "
        "its "
        "state_dict() by register_for_checkpointing(), which compares it on all stages";
    CHECK(testing::refusal_of_any_rank([&] { accelerator.save_state(folder.path / "d"); }) == "save_state" + reason);
    CHECK(testing::refusal_of_any_rank([&] { accelerator.save_model(model, folder.path / "d"); }) ==
          "save_model" + reason);
    Accelerator one = alone();
    WholeTraining whole(one, {});
    Teacher loaded;
    one.register_for_checkpointing(loaded);
    one.load_state(folder.path / "c");
    CHECK(loaded.net->weight.equal(expected));
    world.barrier();
  });
}

TEST_CASE("clip_grad_norm_() refuses a Pipeline after free_memory(), because the norm would lack other stages") {
  run_threads(2, [](const Group& world) {
    Accelerator accelerator = on_mesh(world, {.pp_size = 2});
    PipelineTraining training(accelerator, {});
    const auto model = std::get<0>(training.objects);
    model->train_step(waves({4, 7}, 1), waves({4, 3}, 2), squared_error);
    const double before = accelerator.clip_grad_norm_(model, 1e9).item<double>();
    accelerator.free_memory();
    CHECK(
        testing::refusal_of_any_rank([&] { accelerator.clip_grad_norm_(model, 1.0); }) ==
        "clip_grad_norm_: the Pipeline was released by free_memory(), and the norm would lack 1 other stages; give it "
        "to prepare() again, or call its own clip_grad_norm_()");
    CHECK(training.pipeline->clip_grad_norm_(1e9).item<double>() == doctest::Approx(before));
    std::ignore = accelerator.prepare(training.pipeline);
    CHECK(accelerator.clip_grad_norm_(model, 1e9).item<double>() == doctest::Approx(before));
  });
}

TEST_CASE("after free_memory() a Pipeline steps as if it were not prepared") {
  run_threads(2, [](const Group& world) {
    DataRanks ranks(world);
    const auto pipeline = ranks.training.pipeline;
    ranks.accelerator.free_memory();
    const auto input = waves({4, 7}, static_cast<double>(world.rank()));
    auto whole = mlp();
    squared_error(whole->forward(input), waves({4, 3}, 2)).backward();
    pipeline->zero_grad();
    pipeline->train_step(input, waves({4, 3}, 2), squared_error);
    const auto expected = whole->named_parameters();
    for (const auto& item : pipeline->named_parameters()) {
      CHECK(largest_difference({item.value().grad()}, {expected[item.key()].grad()}) < 1e-12);
    }
  });
}

}  // namespace pipeline_testing
