// SPDX-License-Identifier: Apache-2.0
// Checkpoints of Hugging Face Accelerate's FSDP: invalid ones, and groups in another order. fsdp.py loads Python's own.
#include "tests/testing.hpp"
//
#include <fmt/ranges.h>

#include <fstream>
#include <set>

#include "accelerate/accelerate.hpp"
#include "accelerate/checkpoint/dcp_tensors.hpp"
#include "accelerate/checkpoint/fsdp_files.hpp"
#include "accelerate/checkpoint/weights.hpp"
#include "tests/archive/dcp_files.hpp"
#include "tests/checkpoint/folder.hpp"
#include "tests/refusal.hpp"

// Named, because other files that are compiled together have functions of the same names.
namespace fsdp_files_testing {

namespace checkpoint = accelerate::checkpoint;
namespace fs = std::filesystem;
using dcp_files::Builder;
using testing::refusal;
using testing::SharedFolder;

namespace {

using dcp_files::list;
using dcp_files::text;

const std::vector<std::string> names_of_linear{"bias", "weight"};  // FSDP's order may differ from the module's

// A Linear(2, 1) with the weights [1, 2], and the bias 3.
Builder weights(const std::string& prefix) {
  Builder builder;
  builder.add(prefix + "weight", dcp_files::tensor({1, 2}, {dcp_files::chunk({0, 0}, {1, 2})}));
  builder.add_item(prefix + "weight", {0, 0}, {1, 2}, {1, 2});
  builder.add(prefix + "bias", dcp_files::tensor({1}, {dcp_files::chunk({0}, {1})}));
  builder.add_item(prefix + "bias", {0}, {1}, {3});
  return builder;
}

Builder wrapped_weights() {
  Builder builder = weights("model.");
  for (const auto& name : names_of_linear) builder.add_path("model." + name, {"model", name});
  return builder;
}

void add_tensor(Builder& builder, const std::vector<std::string>& path, const dcp_files::Sizes& sizes,
                const std::vector<float>& values) {
  const auto name = fmt::format("{}", fmt::join(path, "."));
  builder.add(name, dcp_files::tensor(sizes, {dcp_files::chunk(dcp_files::Sizes(sizes.size(), 0), sizes)}));
  builder.add_item(name, dcp_files::Sizes(sizes.size(), 0), sizes, values);
  builder.add_path(name, path);
}
void add_option(Builder& builder, const std::string& group, const std::string& name, const auto& value) {
  const std::string whole = "optimizer.param_groups." + group + "." + name;
  builder.add_value(whole, value);
  builder.add_path(whole, {"optimizer", "param_groups", group, name});
}
void add_group(Builder& builder, const std::string& group, const std::vector<std::string>& names) {
  accelerate::archive::PickleItems parameters;
  for (const auto& name : names) parameters.push_back(text(name));
  add_option(builder, group, "params", list(parameters));
  add_option(builder, group, "lr", 0.25);
  add_option(builder, group, "betas", dcp_files::tuple({0.5, 0.75}));
  add_option(builder, group, "eps", 0.125);
  add_option(builder, group, "weight_decay", 0.0);
  add_option(builder, group, "amsgrad", false);
}
void add_state(Builder& builder, const std::string& name, const dcp_files::Sizes& sizes,
               const std::vector<float>& values) {
  add_tensor(builder, {"optimizer", "state", name, "step"}, {}, {4});
  add_tensor(builder, {"optimizer", "state", name, "exp_avg"}, sizes, values);
  add_tensor(builder, {"optimizer", "state", name, "exp_avg_sq"}, sizes, values);
}
Builder adam_states() {
  Builder builder;
  add_group(builder, "0", names_of_linear);
  add_state(builder, "weight", {1, 2}, {5, 6});
  add_state(builder, "bias", {1}, {7});
  return builder;
}

std::string optimizer_refusal(const std::function<void(Builder&)>& fill) {
  const SharedFolder folder;
  Builder builder;
  fill(builder);
  builder.write(folder.path / "optimizer_0");
  checkpoint::DcpTensors dcp;
  const std::string what =
      refusal([&] { static_cast<void>(checkpoint::read_fsdp_optimizer(folder.path, 0, "load_state", dcp)); });
  const std::string prefix = "load_state: " + (folder.path / "optimizer_0" / ".metadata").string() + ": ";
  return what.starts_with(prefix) ? what.substr(prefix.size()) : what;
}

void write_text(const fs::path& path, const std::string& content) { std::ofstream(path) << content; }

// load_state() of this optimizer's state into a Linear(2, 1), with AdamW on the given groups.
std::string load_refusal(
    const Builder& saved,
    const std::function<std::vector<std::vector<torch::Tensor>>(const torch::nn::Linear&)>& groups_of) {
  const SharedFolder folder;
  wrapped_weights().write(folder.path / "pytorch_model_fsdp_0");
  saved.write(folder.path / "optimizer_0");
  accelerate::Accelerator accelerator({.cpu = true});
  torch::nn::Linear net(2, 1);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const auto& group : groups_of(net)) groups.emplace_back(group);
  torch::optim::AdamW adamw(groups);
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  return refusal([&] { accelerator.load_state(folder.path); });
}

}  // namespace

TEST_CASE("weights of torch.distributed.checkpoint are read with and without Accelerate's dict named model") {
  const SharedFolder folder;
  wrapped_weights().write(folder.path / "wrapped");
  weights("model.").write(folder.path / "own_names");
  const auto names = [&](const char* name) {
    std::set<std::string> found;
    for (const auto& [key, tensor] : checkpoint::read_weights(folder.path / name, "load_model")) found.insert(key);
    return found;
  };
  CHECK(names("wrapped") == std::set<std::string>{"weight", "bias"});
  CHECK(names("own_names") == std::set<std::string>{"model.weight", "model.bias"});
  for (const auto& [name, tensor] : checkpoint::read_weights(folder.path / "wrapped", "load_model")) {
    CHECK(tensor.equal(name == "bias" ? torch::full({1}, 3.0F) : torch::tensor({{1.0F, 2.0F}})));
  }
}

TEST_CASE("optimizer states are assigned to parameters by name") {
  const SharedFolder folder;
  wrapped_weights().write(folder.path / "pytorch_model_fsdp_0");
  adam_states().write(folder.path / "optimizer_0");
  accelerate::Accelerator accelerator({.cpu = true});
  torch::nn::Linear net(2, 1);
  torch::optim::AdamW adamw(net->parameters());
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  const auto loaded = accelerator.load_state(folder.path);
  CHECK(loaded.step == 4);
  const auto average = [&](const torch::Tensor& parameter) {
    return static_cast<torch::optim::AdamWParamState&>(*adamw.state().at(parameter.unsafeGetTensorImpl())).exp_avg();
  };
  CHECK(average(net->weight).equal(torch::tensor({{5.0F, 6.0F}})));
  CHECK(average(net->bias).equal(torch::full({1}, 7.0F)));
  CHECK(static_cast<torch::optim::AdamWOptions&>(adamw.param_groups()[0].options()).lr() == 0.25);
  CHECK(net->weight.equal(torch::tensor({{1.0F, 2.0F}})));
}

TEST_CASE("a learning rate may be a tensor") {
  const SharedFolder folder;
  Builder builder;
  add_option(builder, "0", "params", list({text("weight")}));
  add_tensor(builder, {"optimizer", "param_groups", "0", "lr"}, {}, {0.125});
  builder.write(folder.path / "optimizer_0");
  checkpoint::DcpTensors dcp;
  const auto state = checkpoint::read_fsdp_optimizer(folder.path, 0, "load_state", dcp);
  REQUIRE(state.groups.size() == 1);
  REQUIRE(state.groups[0].options.size() == 1);
  CHECK(std::get<double>(state.groups[0].options[0].second) == 0.125);
  CHECK(state.parameter_names == std::vector<std::string>{"weight"});
}

TEST_CASE("invalid optimizer states are refused by name") {
  CHECK(optimizer_refusal([](Builder& builder) { builder.add_value("optimizer.other", 1.0); }) ==
        "'optimizer.other' is neither a state of a parameter nor an option of a group");
  for (const std::string group : {"x", "-1", "100000", "1x"}) {
    CHECK(optimizer_refusal([&](Builder& builder) { add_option(builder, group, "lr", 1.0); }) ==
          "'optimizer.param_groups." + group + ".lr' is neither a state of a parameter nor an option of a group");
  }
  CHECK(optimizer_refusal([](Builder& builder) {
          add_tensor(builder, {"optimizer", "x"}, {}, {1});
        }) == "'optimizer.x' is neither a state of a parameter nor an option of a group");
  CHECK(optimizer_refusal([](Builder& builder) {
          add_tensor(builder, {"optimizer", "param_groups", "0", "lr"}, {2}, {1, 2});
        }) == "'optimizer.param_groups.0.lr' has 2 elements, expected one number");
  CHECK(optimizer_refusal([](Builder& builder) { add_group(builder, "1", {"a"}); }) == "there is no parameter group 0");
  CHECK(optimizer_refusal([](Builder& builder) { add_option(builder, "0", "params", text("a")); }) ==
        "the parameters of group 0 are a text, expected a list");
  CHECK(optimizer_refusal([](Builder& builder) { add_option(builder, "0", "lr", 1.0); }) ==
        "parameter group 0 lists no parameters");
  CHECK(optimizer_refusal([](Builder& builder) { add_option(builder, "0", "params", list({0.5})); }) ==
        "a parameter group lists a float, expected integers, or names as FSDP writes them");
  CHECK(optimizer_refusal([](Builder& builder) {
          add_option(builder, "0", "params", list({text("a"), int64_t{1}}));
        }) == "a parameter group lists an integer, expected integers, or names as FSDP writes them");
  CHECK(optimizer_refusal([](Builder& builder) {
          add_group(builder, "0", {"a", "a"});
        }) == "parameter 'a' is in the groups twice");
  CHECK(optimizer_refusal([](Builder& builder) {
          add_group(builder, "0", {"a"});
          add_state(builder, "b", {1}, {1});
        }) == "there is a state of parameter 'b', which no group lists");
}

TEST_CASE("names that differ after 60 bytes are different parameters") {
  const std::string stem(70, 'x');
  CHECK(optimizer_refusal([&](Builder& builder) { add_group(builder, "0", {stem + "1", stem + "2"}); }).empty());
}

TEST_CASE("an optimizer with other parameters or groups is refused by name") {
  using Groups = std::vector<std::vector<torch::Tensor>>;
  CHECK(load_refusal(adam_states(), [](const auto& net) { return Groups{{net->weight, net->bias}}; }).empty());
  CHECK(load_refusal(adam_states(), [](const auto& net) { return Groups{{net->weight}}; })
            .ends_with("load_state: the checkpoint has an optimizer state of parameter 'bias', on which optimizer does "
                       "not step"));
  CHECK(load_refusal(adam_states(), [](const auto& net) {
          return Groups{{net->weight}, {net->bias}};
        }).ends_with("load_state: parameter 'bias' is in group 0 of the saved optimizer, and in group 1 of optimizer"));
}

TEST_CASE("one optimizer of two models with the same names is refused") {
  const SharedFolder folder;
  for (const auto* model : {"pytorch_model_fsdp_0", "pytorch_model_fsdp_1"})
    wrapped_weights().write(folder.path / model);
  adam_states().write(folder.path / "optimizer_0");
  accelerate::Accelerator accelerator({.cpu = true});
  torch::nn::Linear first(2, 1), second(2, 1);
  torch::optim::AdamW adamw({first->weight, first->bias, second->weight, second->bias});
  auto prepared = accelerator.prepare(first, second, adamw);
  CHECK(refusal([&] { accelerator.load_state(folder.path); }).find("steps on two that are named") != std::string::npos);
}

TEST_CASE("one file per rank, a missing .metadata and unknown dtypes are refused") {
  const SharedFolder folder;
  checkpoint::DcpTensors dcp;
  const auto read = [&] {
    return refusal([&] { static_cast<void>(checkpoint::read_fsdp_model(folder.path, 0, "load_state", dcp)); });
  };
  CHECK_FALSE(checkpoint::has_fsdp_model(folder.path, 0));
  CHECK_FALSE(checkpoint::has_fsdp_optimizer(folder.path, 0));
  CHECK(read() == "load_state: " + folder.path.string() + " has no weights of model 0 that FSDP wrote");
  const std::string per_rank =
      ": each rank's part is in its own file, which is not read; in Python, load the checkpoint and save it with "
      "SHARDED_STATE_DICT (with DCP) or FULL_STATE_DICT";
  for (const std::string name : {"pytorch_model_fsdp_rank0.bin", "pytorch_model_fsdp_0_rank0.bin"}) {
    write_text(folder.path / name, "");
    CHECK(checkpoint::has_fsdp_model(folder.path, 0));
    CHECK_FALSE(checkpoint::has_fsdp_model(folder.path, 1));
    CHECK(read() == "load_state: " + (folder.path / name).string() + per_rank);
  }
  write_text(folder.path / "optimizer_0_rank0.bin", "");
  CHECK(checkpoint::has_fsdp_optimizer(folder.path, 0));
  CHECK(refusal([&] { static_cast<void>(checkpoint::read_fsdp_optimizer(folder.path, 0, "load_state", dcp)); }) ==
        "load_state: " + (folder.path / "optimizer_0_rank0.bin").string() + per_rank);
  const fs::path model = folder.path / "pytorch_model_fsdp_0";
  wrapped_weights().write(model);
  fs::remove(model / ".metadata");
  CHECK(read() == "load_state: " + (model / ".metadata").string() + " cannot be opened: No such file or directory");
  Builder builder;
  builder.add("a", dcp_files::tensor({0}, {}, accelerate::archive::PickleGlobal{"torch", "float8_e8m0fnu"}));
  builder.write(model);
  CHECK(read() ==
        "load_state: " + (model / ".metadata").string() + ": the tensor 'a' is of dtype F8_E8M0, which LibTorch lacks");
}

}  // namespace fsdp_files_testing
