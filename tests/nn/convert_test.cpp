// SPDX-License-Identifier: Apache-2.0
#include "tests/nn/support.hpp"

using namespace nn_testing;
using accelerate::nn::connect_sync_batchnorm;
using accelerate::nn::convert_sync_batchnorm;
using torch::nn::BatchNorm1d;
using torch::nn::BatchNorm2d;
using torch::nn::Linear;
using torch::nn::Sequential;

namespace {

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    layers = register_module("layers", Sequential(Linear(3, 3), BatchNorm1d(3), torch::nn::ReLU()));
    ours = register_module("ours", SyncBatchNorm(3));
  }
  at::Tensor forward(const at::Tensor& x) { return ours(layers->forward(x)); }
  Sequential layers{nullptr};
  SyncBatchNorm ours{nullptr};
};
TORCH_MODULE(Block);

struct HoldsMembersImpl : torch::nn::Module {
  HoldsMembersImpl() {
    first = register_module("first", BatchNorm1d(3));
    block = register_module("block", Block());
    deep = register_module("deep", Sequential(Linear(3, 3), BatchNorm2d(3)));
    last = register_module("last", BatchNorm2d(3));
  }
  BatchNorm1d first{nullptr};
  Block block{nullptr};
  Sequential deep{nullptr};
  BatchNorm2d last{nullptr};
};
TORCH_MODULE(HoldsMembers);

struct OwnNormImpl : torch::nn::BatchNorm1dImpl {
  using torch::nn::BatchNorm1dImpl::BatchNorm1dImpl;
  at::Tensor forward(const at::Tensor& x) { return x; }
};
TORCH_MODULE(OwnNorm);

std::vector<std::string> names(const torch::nn::Module& module) {
  auto list = module.named_parameters().keys();
  const auto buffers = module.named_buffers().keys();
  list.insert(list.end(), buffers.begin(), buffers.end());
  return list;
}

}  // namespace

TEST_CASE("layers in Sequential, ModuleList and ModuleDict are replaced; names, order and tensors stay") {
  run_threads(
      2,
      [](const Group& group) {
        torch::nn::ModuleList items(Linear(2, 2), BatchNorm1d(2));
        using Entries = std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>>;
        torch::nn::ModuleDict named(
            Entries{{"a", BatchNorm2d(torch::nn::BatchNorm2dOptions(2).eps(0.5)).ptr()}, {"b", Linear(2, 2).ptr()}});
        Sequential net(Linear(3, 3), BatchNorm1d(3), Block());
        torch::nn::ModuleList model(net, items, named);
        const auto before = names(*model);
        const auto tensors = model->parameters();
        const auto buffers = model->buffers();
        named["a"]->eval();
        CHECK(convert_sync_batchnorm(*model, group) == 5);
        CHECK(names(*model) == before);
        for (size_t i = 0; i < tensors.size(); ++i) CHECK(model->parameters()[i].is_same(tensors[i]));
        for (size_t i = 0; i < buffers.size(); ++i) CHECK(model->buffers()[i].is_same(buffers[i]));
        CHECK(items[1]->as<SyncBatchNorm>()->is_training());
        CHECK_FALSE(named["a"]->as<SyncBatchNorm>()->is_training());
        CHECK(named["a"]->as<SyncBatchNorm>()->options.eps() == 0.5);
        CHECK(net->ptr(1)->as<SyncBatchNorm>()->connected());
        CHECK(net->named_children()["1"] == net->ptr(1));
        CHECK(net->at<BlockImpl>(2).ours->connected());
        CHECK(convert_sync_batchnorm(*model, group) == 5);  // a second call converts nothing new
      },
      kTimeout);
}

TEST_CASE("a converted Sequential computes on the batches of all ranks") {
  run_threads(
      2,
      [](const Group& group) {
        Sequential net((BatchNorm1d(3)));
        net->to(at::kDouble);
        convert_sync_batchnorm(*net, group);
        const at::Tensor whole = numbers({6, 3}, 1);
        const at::Tensor expected = torch::batch_norm(whole, {}, {}, {}, {}, true, 0, 1e-5, false);
        CHECK(close(net->forward(whole.chunk(2)[group.rank()]), expected.chunk(2)[group.rank()]));
      },
      kTimeout);
}

TEST_CASE("a layer in two places stays one layer; frozen parameters stay frozen") {
  run_threads(
      2,
      [](const Group& group) {
        BatchNorm1d shared(3);
        shared->weight.set_requires_grad(false);
        Sequential net(shared, Linear(3, 3), shared);
        CHECK(convert_sync_batchnorm(*net, group) == 1);
        CHECK(net->ptr(0) == net->ptr(2));
        CHECK_FALSE(net->ptr(0)->as<SyncBatchNorm>()->weight.requires_grad());
        CHECK(net->ptr(0)->as<SyncBatchNorm>()->bias.requires_grad());
      },
      kTimeout);
}

TEST_CASE("all layers that only their class can replace are named, and nothing changes") {
  run_threads(
      2,
      [](const Group& group) {
        const std::string place = accelerate::base::prefix(group.place());
        const std::string rest =
            "; declare them as accelerate::nn::SyncBatchNorm, or put them in a Sequential; nothing was converted";
        const std::string what = " of the batch normalisations are held where only their own class can exchange them: ";
        HoldsMembers net;
        CHECK_THROWS_WITH_AS(convert_sync_batchnorm(*net, group),
                             (place + "convert_sync_batchnorm: 2" + what + "first, last" + rest).c_str(),
                             accelerate::Error);
        CHECK(net->deep->ptr(1)->as<BatchNorm2d>() != nullptr);
        CHECK_FALSE(net->block->ours->connected());
        BatchNorm1d alone(3);
        CHECK_THROWS_WITH_AS(convert_sync_batchnorm(*alone, group),
                             (place + "convert_sync_batchnorm: 1" + what + "the module itself" + rest).c_str(),
                             accelerate::Error);
        Sequential own((OwnNorm(3)));  // has another forward()
        CHECK_THROWS_WITH_AS(convert_sync_batchnorm(*own, group),
                             (place + "convert_sync_batchnorm: 1" + what + "0" + rest).c_str(), accelerate::Error);
      },
      kTimeout);
}

TEST_CASE("connecting keeps stock layers and existing groups, and costs nothing without layers") {
  run_threads(
      2,
      [](const Group& group) {
        HoldsMembers net;
        CHECK(connect_sync_batchnorm(*net, group) == 1);
        CHECK(net->block->layers->ptr(1)->as<BatchNorm1d>() != nullptr);
        const auto kept = net->block->ours->group().process_group();
        CHECK(operations_in(group, [&] { CHECK(connect_sync_batchnorm(*net, group) == 0); }) == 0);
        CHECK(net->block->ours->group().process_group() == kept);
        Linear plain(2, 2);
        CHECK(operations_in(group, [&] { CHECK(convert_sync_batchnorm(*plain, group) == 0); }) == 0);
      },
      kTimeout);
  Sequential net((BatchNorm1d(3)));
  CHECK(convert_sync_batchnorm(*net, Group()) == 1);
  CHECK(net->forward(torch::ones({2, 3})).sizes() == at::IntArrayRef({2, 3}));
}
