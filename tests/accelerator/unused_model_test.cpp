// SPDX-License-Identifier: Apache-2.0
// A rank that does not call a model in a micro-batch: windows and no_sync determine the other ranks' operations, so
// this rank can join them.
#include "tests/testing.hpp"
//
#include "tests/accelerator/ranks.hpp"

using accelerate::Accelerator;

namespace {

double mine(Accelerator& accelerator) { return static_cast<double>(accelerator.process_index()) + 1.0; }
// Bits of left_out: the micro-batches in which a rank omits the head.
bool without_head(int left_out, int64_t rank, int micro) { return ((left_out >> (2 * rank + micro)) & 1) != 0; }
// The head's gradient, summed over ranks and micro-batches.
double sum_of_head(int left_out) {
  double sum = 0;
  for (const int rank : {0, 1}) {
    for (const int micro : {0, 1}) sum += without_head(left_out, rank, micro) ? 0 : rank + 1;
  }
  return sum;
}
double grad_of(const torch::Tensor& parameter) {
  return parameter.grad().defined() ? parameter.grad().item<double>() : 0.0;
}

// out = h * w * x
struct HeadOfImpl : torch::nn::Module {
  explicit HeadOfImpl(OneWeight the_encoder) : encoder(register_module("encoder", std::move(the_encoder))) {
    h = register_parameter("h", full(1.0));
  }
  torch::Tensor forward(const torch::Tensor& x) { return h * encoder(x); }
  OneWeight encoder;
  torch::Tensor h;
};
TORCH_MODULE(HeadOf);

}  // namespace

TEST_CASE("one rank or all ranks may omit a model in any micro-batch of a window") {
  for (int left_out = 0; left_out < 16; ++left_out) {
    CAPTURE(left_out);
    on_ranks(2,
             [&](Accelerator& accelerator) {
               OneWeight body_net(1.0), head_net(1.0);
               auto [body, head, optimizer] =
                   accelerator.prepare(body_net, head_net, torch::optim::SGD({body_net->w, head_net->w}, 0.0));
               for (int step = 0; step < 3; ++step) {
                 for (int micro = 0; micro < 2; ++micro) {
                   auto window = accelerator.accumulate(body, head);
                   const auto hidden = body(full(mine(accelerator)));
                   const bool without = without_head(left_out, accelerator.process_index(), micro);
                   accelerator.backward((without ? hidden : head(hidden)).sum());
                   optimizer.step();
                   if (micro == 1) {
                     CHECK(grad_of(body_net->w) == doctest::Approx(1.5));
                     CHECK(grad_of(head_net->w) == doctest::Approx(sum_of_head(left_out) / 4));
                   }
                   optimizer.zero_grad();
                 }
               }
             },
             {.gradient_accumulation_steps = 2});
  }
}

TEST_CASE("a rank may omit a model with no_sync() as well") {
  for (int left_out = 0; left_out < 16; ++left_out) {
    CAPTURE(left_out);
    on_ranks(2, [&](Accelerator& accelerator) {
      OneWeight body_net(1.0), head_net(1.0);
      auto [body, head, optimizer] =
          accelerator.prepare(body_net, head_net, torch::optim::SGD({body_net->w, head_net->w}, 0.0));
      const auto backward = [&](int micro) {
        const auto hidden = body(full(mine(accelerator)));
        const bool without = without_head(left_out, accelerator.process_index(), micro);
        accelerator.backward((without ? hidden : head(hidden)).sum());
      };
      for (int step = 0; step < 3; ++step) {
        {
          auto local = accelerator.no_sync(body, head);
          backward(0);
        }
        backward(1);
        CHECK(grad_of(body_net->w) == doctest::Approx(3.0));
        CHECK(grad_of(head_net->w) == doctest::Approx(sum_of_head(left_out) / 2));
        optimizer.step();
        optimizer.zero_grad();
      }
    });
  }
}

TEST_CASE("a rank may omit the model that reduces a shared layer, in windows of both models or of one") {
  for (const bool window_of_both : {true, false}) {
    CAPTURE(window_of_both);
    on_ranks(2,
             [&](Accelerator& accelerator) {
               OneWeight encoder(1.0);
               HeadOf first(encoder), second(encoder);
               auto [one, two, optimizer] =
                   accelerator.prepare(first, second, torch::optim::SGD({encoder->w, first->h, second->h}, 0.0));
               for (int step = 0; step < 3; ++step) {
                 for (int micro = 0; micro < 2; ++micro) {
                   auto window = window_of_both ? accelerator.accumulate(one, two) : accelerator.accumulate(one);
                   const auto x = full(mine(accelerator));
                   const auto loss = accelerator.is_main_process() ? one(x).sum() : two(x).sum();
                   accelerator.backward(loss);
                   optimizer.step();
                   if (micro == 1) {
                     CHECK(grad_of(encoder->w) == doctest::Approx(1.5));
                     CHECK(grad_of(first->h) == doctest::Approx(0.5));
                     CHECK(grad_of(second->h) == doctest::Approx(1.0));
                   }
                   optimizer.zero_grad();
                 }
               }
             },
             {.gradient_accumulation_steps = 2});
  }
}

TEST_CASE("a backward follows its own forward: A is reduced, B under no_sync() is local") {
  // PyTorch 2.11's DistributedDataParallel: 1.5 on both ranks, then 11.5 and 21.5.
  on_ranks(2, [](Accelerator& accelerator) {
    OneWeight net(1.0);
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.0));
    const auto a = model(full(mine(accelerator))).sum();
    torch::Tensor b;
    {
      auto local = accelerator.no_sync(model);
      b = model(full(10.0 * mine(accelerator))).sum();
    }
    accelerator.backward(a);
    CHECK(grad_of(net->w) == 1.5);
    optimizer.step();
    accelerator.backward(b);
    CHECK(grad_of(net->w) == 1.5 + 10.0 * mine(accelerator));
    CHECK_THROWS_WITH(optimizer.step(), doctest::Contains("run one synchronised backward before the step"));
  });
}
