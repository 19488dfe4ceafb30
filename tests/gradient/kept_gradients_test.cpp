// SPDX-License-Identifier: Apache-2.0
// User code keeps gradients as handles, as aliases or in a graph during training. On several ranks they must behave as
// in plain LibTorch, and the reducer must reuse their memory only if no other code holds it.
#include <array>

#include "accelerate/gradient/clip.hpp"
#include "accelerate/gradient/hooks/power_sgd.hpp"
#include "support.hpp"

using namespace gradient_testing;
using accelerate::comm::run_threads;

namespace {

void accumulate_batch(const NetPtr& net, int64_t rank, int64_t round = 0) {
  net->with_extra(batch(rank, round)).pow(2).sum().backward();
}

enum class DroppedBy { gradient_reducer, stock, by_hand };

void zero_by(GradientReducer& gradient_reducer, const NetPtr& net, DroppedBy zeroing) {
  if (zeroing == DroppedBy::gradient_reducer) return gradient_reducer.zero_all();
  if (zeroing == DroppedBy::stock) return torch::optim::SGD(net->parameters(), 0.1).zero_grad();
  for (const at::Tensor& parameter : net->parameters()) parameter.mutable_grad().reset();
}

// Identities of the gradient tensors: a gradient in new memory is another tensor.
std::vector<const void*> gradient_identities(const NetPtr& net) {
  std::vector<const void*> all;
  for (const at::Tensor& parameter : net->parameters()) all.push_back(parameter.grad().unsafeGetTensorImpl());
  return all;
}

}  // namespace

TEST_CASE("a gradient kept across zeroing keeps its value: 2 stays 2 if the next gradient is 5") {
  for (const DroppedBy zeroing : {DroppedBy::gradient_reducer, DroppedBy::stock, DroppedBy::by_hand}) {
    run_threads(2, [&](const Group& group) {
      const at::Tensor w = torch::ones({1}, torch::dtype(at::kDouble).requires_grad(true));
      GradientReducer gradient_reducer(group, {{"w", w}});
      const auto drop = [&] {
        if (zeroing == DroppedBy::gradient_reducer) return gradient_reducer.zero_all();
        if (zeroing == DroppedBy::stock) return torch::optim::SGD(std::vector<at::Tensor>{w}, 0.1).zero_grad();
        w.mutable_grad().reset();
      };
      (w * 2).sum().backward();
      const at::Tensor first = w.grad();
      drop();
      (w * 5).sum().backward();
      const at::Tensor second = w.grad();
      drop();
      (w * 9).sum().backward();
      CHECK(first.item<double>() == 2);
      CHECK(second.item<double>() == 5);
      CHECK(w.grad().item<double>() == 9);
    });
  }
}

TEST_CASE("a kept alias of a gradient (detached, a slice, a transposed view) keeps its values") {
  using Alias = at::Tensor (*)(const at::Tensor&);
  const std::array<Alias, 4> aliases{
      [](const at::Tensor& grad) { return grad.detach(); }, [](const at::Tensor& grad) { return grad[1]; },
      [](const at::Tensor& grad) { return grad.t(); }, [](const at::Tensor& grad) { return grad.view({-1}).detach(); }};
  for (const GradientReducerOptions& options : {GradientReducerOptions{}, small_buckets()}) {
    for (const Alias alias : aliases) {
      run_threads(3, [&](const Group& group) {
        auto net = built(make_net);
        GradientReducer gradient_reducer(group, named(net), options);
        std::vector<at::Tensor> kept, copies;
        for (int64_t round = 0; round < 4; ++round) {
          zero_by(gradient_reducer, net, round % 2 == 0 ? DroppedBy::gradient_reducer : DroppedBy::stock);
          accumulate_batch(net, group.rank(), round);
          CHECK(same(gradients_of(net->parameters()),
                     truth(3, make_net, [&](const NetPtr& one, int64_t rank) { accumulate_batch(one, rank, round); }),
                     1e-12));
          kept.push_back(alias(net->second->weight.grad()));
          copies.push_back(kept.back().clone());
        }
        for (size_t i = 0; i < kept.size(); ++i) CHECK(torch::equal(kept[i], copies[i]));
      });
    }
  }
}

TEST_CASE("a graph that saved a gradient computes with the saved values after later backwards") {
  run_threads(2, [](const Group& group) {
    auto net = built(make_net);
    GradientReducer gradient_reducer(group, named(net), small_buckets());
    const at::Tensor factor = torch::full({}, 3.0, torch::dtype(at::kDouble).requires_grad(true));
    accumulate_batch(net, group.rank());
    const double sum = net->first->weight.grad().sum().item<double>();
    const at::Tensor scaled = (net->first->weight.grad() * factor).sum();
    gradient_reducer.zero_all();
    accumulate_batch(net, group.rank(), 1);
    scaled.backward();
    CHECK(factor.grad().item<double>() == doctest::Approx(sum).epsilon(1e-13));
  });
}

TEST_CASE("zero_grad(false) zeroes a kept gradient in place, and later backwards accumulate into it, as in LibTorch") {
  for (const bool stock : {false, true}) {
    run_threads(2, [&](const Group& group) {
      auto net = built(make_net);
      GradientReducer gradient_reducer(group, named(net), small_buckets());
      accumulate_batch(net, group.rank());
      const at::Tensor kept = net->first->weight.grad();
      const at::Tensor alias = kept[0];
      stock ? torch::optim::SGD(net->parameters(), 0.1).zero_grad(false)
            : gradient_reducer.zero(net->parameters(), false);
      CHECK(kept.abs().max().item<double>() == 0);
      CHECK(alias.abs().max().item<double>() == 0);
      accumulate_batch(net, group.rank(), 1);
      CHECK(kept.is_same(net->first->weight.grad()));
      CHECK(torch::equal(alias, net->first->weight.grad()[0]));
      accumulate_batch(net, group.rank(), 2);
      CHECK(kept.is_same(net->first->weight.grad()));
      CHECK(same({kept},
                 {truth(2, make_net,
                        [](const NetPtr& one, int64_t rank) {
                          accumulate_batch(one, rank, 1);
                          accumulate_batch(one, rank, 2);
                        })[0]},
                 1e-12));
    });
  }
}

TEST_CASE("in one bucket a dropped gradient keeps its values while another one accumulates in place") {
  run_threads(2, [](const Group& group) {
    auto net = built(make_net);
    GradientReducer gradient_reducer(group, named(net));  // one bucket
    accumulate_batch(net, group.rank());
    const at::Tensor dropped = net->first->weight.grad();
    const at::Tensor accumulating = net->second->weight.grad()[0];
    const at::Tensor copy = dropped.clone();
    for (int64_t round = 1; round < 3; ++round) {
      net->first->weight.mutable_grad().reset();
      accumulate_batch(net, group.rank(), round);
      CHECK(torch::equal(dropped, copy));
      CHECK(torch::equal(accumulating, net->second->weight.grad()[0]));
    }
    gradient_reducer.zero({net->second->weight}, false);
    CHECK(accumulating.abs().max().item<double>() == 0);
    CHECK(torch::equal(dropped, copy));
  });
}

TEST_CASE("a gradient kept without synchronisation keeps this rank's own values") {
  run_threads(2, [](const Group& group) {
    auto net = built(make_net);
    GradientReducer gradient_reducer(group, named(net), small_buckets());
    accumulate_batch(net, group.rank());  // creates the layout of the buckets
    gradient_reducer.zero_all();
    gradient_reducer.set_sync(false);
    accumulate_batch(net, group.rank(), 1);
    const at::Tensor kept = net->first->weight.grad();
    const at::Tensor copy = kept.clone();
    gradient_reducer.zero_all();
    accumulate_batch(net, group.rank(), 2);
    gradient_reducer.set_sync(true);
    accumulate_batch(net, group.rank(), 3);
    CHECK(torch::equal(kept, copy));
  });
}

TEST_CASE("zeroing a whole bucket in place leaves kept gradients that were dropped before") {
  run_threads(2, [](const Group& group) {
    auto net = built(make_net);
    GradientReducer gradient_reducer(group, named(net));
    accumulate_batch(net, group.rank());
    const at::Tensor kept = net->first->bias.grad();
    const at::Tensor copy = kept.clone();
    net->first->bias.mutable_grad().reset();
    gradient_reducer.zero(net->parameters(), false);
    CHECK(torch::equal(kept, copy));
    CHECK_FALSE(net->first->bias.grad().defined());
    (void)gradient_reducer.gradients();
    CHECK(torch::equal(kept, copy));
  });
}

TEST_CASE("a sparse gradient is zeroed in place, and a dropped one keeps its values") {
  run_threads(2, [](const Group& group) {
    auto net = built([] {
      auto table = torch::nn::Embedding(torch::nn::EmbeddingOptions(6, 3).sparse(true));
      table->weight.mutable_grad().reset();
      return table;
    });
    GradientReducer gradient_reducer(group, named(net), small_buckets());
    const auto backward = [&](int64_t row) { net(torch::tensor({row + group.rank()})).sum().backward(); };
    backward(1);
    const at::Tensor first = net->weight.grad();
    gradient_reducer.zero_all();
    backward(3);
    CHECK(first.to_dense().sum(1).nonzero().flatten().equal(torch::tensor({1, 2})));
    const at::Tensor second = net->weight.grad();
    gradient_reducer.zero(net->parameters(), false);
    CHECK(second.to_dense().abs().max().item<double>() == 0);
  });
}

TEST_CASE("PowerSGD reduces the same numbers whether or not gradients are kept") {
  const auto train = [](const Group& group, bool keeps) {
    auto net = built(make_net);
    GradientReducerOptions options;
    options.hook = accelerate::gradient::power_sgd_hook(
        {.matrix_approximation_rank = 1, .start_step = 1, .min_compression_rate = 0.5});
    GradientReducer gradient_reducer(group, named(net), options);
    std::vector<at::Tensor> kept;
    Grads last;
    for (int64_t round = 0; round < 5; ++round) {
      gradient_reducer.zero_all();
      accumulate_batch(net, group.rank(), round);
      last = gradients_of(net->parameters());
      for (const at::Tensor& parameter : net->parameters()) {
        if (keeps) kept.push_back(parameter.grad());
      }
    }
    return last;
  };
  run_threads(2, [&](const Group& group) { CHECK(same(train(group, true), train(group, false), 0)); });
}

TEST_CASE("gradient memory is reused if no other tensor refers to it, and the buckets never move") {
  run_threads(2, [](const Group& group) {
    auto net = built(make_net);
    GradientReducer gradient_reducer(group, named(net), small_buckets());
    accumulate_batch(net, group.rank());
    const auto before = gradient_identities(net);
    const auto flat = gradient_reducer.gradients();
    for (int64_t round = 1; round < 4; ++round) {
      gradient_reducer.zero_all();
      accumulate_batch(net, group.rank(), round);
      CHECK(gradient_identities(net) == before);
    }
    const at::Tensor kept = net->first->weight.grad();
    gradient_reducer.zero_all();
    accumulate_batch(net, group.rank());
    auto after = gradient_identities(net);
    CHECK(after[0] != before[0]);
    after[0] = before[0];
    CHECK(after == before);  // gradients that no other code holds stay in place
    CHECK(gradient_reducer.gradients()[0].is_same(flat[0]));
    CHECK(kept.storage().nbytes() == kept.nbytes());  // a kept gradient does not keep its bucket alive
  });
}

TEST_CASE("a graph that saved a gradient throws in backward after the gradient was clipped or reduced in place") {
  for (const bool clips : {true, false}) {
    run_threads(2, [&](const Group& group) {
      auto net = built(make_net);
      GradientReducer gradient_reducer(group, named(net));
      accumulate_batch(net, group.rank());
      const at::Tensor factor = torch::ones({}, torch::dtype(at::kDouble).requires_grad(true));
      const at::Tensor scaled = (net->extra->weight.grad() * factor).sum();
      if (clips) {
        (void)accelerate::gradient::clip_norm_of(gradient_reducer.gradients(), 1e-3);
      } else {
        net->forward(batch(group.rank())).sum().backward();  // does not use extra
      }
      CHECK_THROWS_WITH(scaled.backward(), doctest::Contains("modified by an inplace operation"));
    });
  }
}
