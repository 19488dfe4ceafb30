// SPDX-License-Identifier: Apache-2.0
// Training with pipelines, for any kind of ranks. The including file defines with_pipeline_ranks().
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "tests/pipeline/models.hpp"

namespace pipeline_testing {

struct ScheduleCase {
  PipelineSchedule schedule;
  int64_t stages_per_rank;
};

inline std::vector<ScheduleCase> schedule_cases() {
  return {{PipelineSchedule::gpipe, 1},
          {PipelineSchedule::one_forward_one_backward, 1},
          {PipelineSchedule::interleaved, 1},
          {PipelineSchedule::interleaved, 2}};
}

/// One step of one process with the whole batch.
inline double whole_step(Sequential& net, torch::optim::Optimizer& optimizer, const torch::Tensor& input,
                         const torch::Tensor& target) {
  optimizer.zero_grad();
  const auto loss = squared_error(net->forward(input), target);
  loss.backward();
  optimizer.step();
  return loss.item<double>();
}

TEST_CASE("20 AdamW steps are those of one process, for every schedule and number of micro-batches") {
  with_pipeline_ranks([](const Group& group) {
    for (const auto& [schedule, stages] : schedule_cases()) {
      for (int64_t micro_batches = 1; micro_batches <= 8; ++micro_batches) {
        CAPTURE(schedule_name(schedule));
        CAPTURE(stages);
        CAPTURE(micro_batches);
        auto reference = mlp();
        Pipeline pipeline(group, mlp(),
                          {.schedule = schedule, .micro_batches = micro_batches, .stages_per_rank = stages});
        torch::optim::AdamW stock(reference->parameters(), 1e-2), own(pipeline.parameters(), 1e-2);
        double most = 0;
        for (int64_t step = 0; step < 20; ++step) {
          const int64_t rows = step == 10 ? 3 : 10;  // the last batch of an epoch
          const auto input = waves({rows, 7}, 0.1 * static_cast<double>(step)), target = waves({rows, 3}, 0.5);
          own.zero_grad();
          const auto loss = pipeline.train_step(pipeline.has_first_stage() ? input : torch::Tensor(),
                                                pipeline.has_last_stage() ? target : torch::Tensor(), squared_error);
          own.step();
          most = std::max(most, std::abs(loss.item<double>() - whole_step(reference, stock, input, target)));
        }
        CHECK(most < 1e-12);
        CHECK(difference(pipeline, reference) < 1e-12);
        const auto input = waves({5, 7}, 3);
        const auto output = pipeline.forward(input);
        CHECK(output.defined() == pipeline.has_last_stage());
        if (output.defined()) CHECK(largest_difference({output}, {reference->forward(input)}) < 1e-12);
      }
    }
  });
}

TEST_CASE("a convolutional net and SGD, accumulated over two steps and clipped over all stages") {
  with_pipeline_ranks([](const Group& group) {
    auto reference = conv_net();
    Pipeline pipeline(group, conv_net(), {.micro_batches = 3});
    const auto sgd = torch::optim::SGDOptions(0.1).momentum(0.9);
    torch::optim::SGD stock(reference->parameters(), sgd), own(pipeline.parameters(), sgd);
    for (int64_t step = 0; step < 10; ++step) {
      own.zero_grad();
      stock.zero_grad();
      for (int64_t half = 0; half < 2; ++half) {
        const auto input = waves({5, 2, 6, 6}, static_cast<double>(2 * step + half)), target = waves({5, 3}, 0.2);
        pipeline.train_step(input, target, squared_error);
        squared_error(reference->forward(input), target).backward();
      }
      const double norm_type = step % 3 == 0 ? std::numeric_limits<double>::infinity() : step % 3 == 1 ? 2 : 1;
      const auto norm = pipeline.clip_grad_norm_(0.05, norm_type);
      const double expected = torch::nn::utils::clip_grad_norm_(reference->parameters(), 0.05, norm_type);
      CHECK(norm.item<double>() == doctest::Approx(expected).epsilon(1e-12));
      own.step();
      stock.step();
    }
    CHECK(difference(pipeline, reference) < 1e-12);
  });
}

TEST_CASE("a weight of the first and the last stage has the sum of both gradients and counts once in norms") {
  with_pipeline_ranks([](const Group& group) {
    for (const auto& [schedule, stages] : schedule_cases()) {
      if (stages * group.size() > 4) continue;
      CAPTURE(schedule_name(schedule));
      CAPTURE(stages);
      auto reference = tied_transformer(), net = tied_transformer();
      if (group.rank() > 0) {  // the first rank's value is used
        const torch::NoGradGuard no_grad;
        net->parameters()[0].zero_();
      }
      Pipeline pipeline(group, std::move(net), {.schedule = schedule, .micro_batches = 3, .stages_per_rank = stages});
      torch::optim::AdamW stock(parameters_of(*reference), 1e-2), own(parameters_of(pipeline), 1e-2);
      for (int64_t step = 0; step < 10; ++step) {
        own.zero_grad();
        stock.zero_grad();
        for (int64_t half = 0; half < 2; ++half) {
          const auto ids = torch::arange(7 * 5).add(step + half).mul(7).remainder(10).reshape({7, 5});
          const auto target = waves({7, 5, 10}, 0.4);
          pipeline.train_step(ids, target, squared_error);
          squared_error(reference->forward(ids), target).backward();
        }
        const auto norm = pipeline.clip_grad_norm_(0.1);
        const double expected = torch::nn::utils::clip_grad_norm_(parameters_of(*reference), 0.1);
        CHECK(norm.item<double>() == doctest::Approx(expected).epsilon(1e-12));
        own.step();
        stock.step();
      }
      CHECK(difference(pipeline, reference) < 1e-12);
    }
  });
}

TEST_CASE("BatchNorm normalises each micro-batch and updates its statistics once per micro-batch") {
  with_pipeline_ranks([](const Group& group) {
    using namespace torch::nn;
    using torch::nn::Linear;  // not accelerate::nn::Linear, which other tests use
    const auto make = [] { return filled(Sequential(Linear(7, 9), BatchNorm1d(9), Linear(9, 4), Linear(4, 3))); };
    auto reference = make();
    Pipeline pipeline(group, make(), {.micro_batches = 3});
    torch::optim::SGD stock(reference->parameters(), 0.1), own(pipeline.parameters(), 0.1);
    for (int64_t step = 0; step < 5; ++step) {
      const auto input = waves({8, 7}, static_cast<double>(step)), target = waves({8, 3}, 0.5);
      own.zero_grad();
      stock.zero_grad();
      pipeline.train_step(input, target, squared_error);
      int64_t first = 0;
      for (const int64_t rows : {3, 3, 2}) {
        const auto output = reference->forward(input.narrow(0, first, rows));
        (squared_error(output, target.narrow(0, first, rows)) * (static_cast<double>(rows) / 8)).backward();
        first += rows;
      }
      own.step();
      stock.step();
    }
    CHECK(difference(pipeline, reference) < 1e-12);
    pipeline.eval();
    reference->eval();
    const auto output = pipeline.forward(waves({4, 7}, 1));
    if (output.defined()) CHECK(largest_difference({output}, {reference->forward(waves({4, 7}, 1))}) < 1e-12);
    CHECK(difference(pipeline, reference) < 1e-12);  // an evaluation changes nothing
  });
}

TEST_CASE("frozen stages get no gradient, and layers without a gradient need none") {
  with_pipeline_ranks([](const Group& group) {
    for (const auto& [schedule, stages] : schedule_cases()) {
      for (const size_t trainable : {0, 4, 8}) {  // the only layer that learns
        CAPTURE(schedule_name(schedule));
        CAPTURE(stages);
        CAPTURE(trainable);
        const auto make = [&] {
          auto net = mlp();
          for (size_t i = 0; i < net->size(); ++i) {
            for (auto& parameter : (*net)[i]->parameters()) parameter.requires_grad_(i == trainable);
          }
          return net;
        };
        auto reference = make();
        Pipeline pipeline(group, make(), {.schedule = schedule, .micro_batches = 3, .stages_per_rank = stages});
        const auto input = waves({5, 7}, 1), target = waves({5, 3}, 2);
        for (int64_t step = 0; step < 2; ++step) {
          pipeline.train_step(input, target, squared_error);
          squared_error(reference->forward(input), target).backward();
        }
        const auto expected = reference->named_parameters();
        for (const auto& item : pipeline.named_parameters()) {
          const auto& gradient = expected[item.key()].grad();
          CHECK(item.value().grad().defined() == gradient.defined());
          if (gradient.defined()) CHECK(largest_difference({item.value().grad()}, {gradient}) < 1e-12);
        }
        // Layers that learn later.
        for (auto& parameter : pipeline.parameters()) parameter.requires_grad_(true);
        for (auto& parameter : reference->parameters()) parameter.requires_grad_(true);
        pipeline.zero_grad();
        reference->zero_grad();
        pipeline.train_step(input, target, squared_error);
        squared_error(reference->forward(input), target).backward();
        for (const auto& item : pipeline.named_parameters()) {
          CHECK(largest_difference({item.value().grad()}, {expected[item.key()].grad()}) < 1e-12);
        }
      }
    }
  });
}

TEST_CASE("a rank keeps as many micro-batches as the plan states") {
  with_pipeline_ranks([](const Group& group) {
    for (const auto& [schedule, stages] : schedule_cases()) {
      for (const int64_t micro_batches : {1, 3, 8}) {
        CAPTURE(schedule_name(schedule));
        CAPTURE(stages);
        CAPTURE(micro_batches);
        const auto live = std::make_shared<std::pair<int64_t, int64_t>>(0, 0);  // now and at most
        Sequential layers;
        for (int64_t stage = 0; stage < stages * group.size(); ++stage) {
          layers->push_back(Call([live](const torch::Tensor& x) {
            live->second = std::max(live->second, ++live->first);
            auto y = x * 2;
            y.register_hook([live](const torch::Tensor&) { --live->first; });
            return y;
          }));
          layers->push_back(torch::nn::Linear(3, 3));
        }
        layers->to(torch::kDouble);
        Pipeline pipeline(group, std::move(layers),
                          {.schedule = schedule,
                           .micro_batches = micro_batches,
                           .stages_per_rank = stages,
                           .layers_per_stage = std::vector<int64_t>(static_cast<size_t>(stages * group.size()), 2)});
        pipeline.train_step(waves({8, 3}, 0).requires_grad_(), waves({8, 3}, 1), squared_error);
        CHECK(live->first == 0);
        CHECK(live->second == peak_live_activations(pipeline.plan(), group.rank()));
      }
    }
  });
}

TEST_CASE("layers of other ranks are released") {
  with_pipeline_ranks([](const Group& group) {
    auto layers = mlp();
    std::vector<std::weak_ptr<torch::nn::Module>> modules;
    for (const auto& module : *layers) modules.push_back(module.ptr());
    Pipeline pipeline(group, std::move(layers));
    int64_t layer = 0;
    for (int64_t rank = 0; rank < group.size(); ++rank) {
      for (int64_t i = 0; i < pipeline.layers_per_stage()[static_cast<size_t>(rank)]; ++i, ++layer) {
        CHECK(modules[static_cast<size_t>(layer)].expired() == (rank != group.rank()));
      }
    }
    CHECK(layer == 9);
  });
}

TEST_CASE("bf16 autocast gives the gradients of one process with the same micro-batches") {
  with_pipeline_ranks([](const Group& group) {
    const accelerate::precision::AutocastRegion region{};
    const auto make = [] {
      auto net = mlp();
      net->to(torch::kFloat);
      return net;
    };
    auto reference = make();
    Pipeline pipeline(group, make(), {.micro_batches = 3, .autocast = region});
    const auto input = waves({8, 7}, 1).to(torch::kFloat), target = waves({8, 3}, 2).to(torch::kFloat);
    std::vector<torch::ScalarType> dtypes;
    pipeline.train_step(input, target, [&](const torch::Tensor& output, const torch::Tensor& mine) {
      dtypes.push_back(output.scalar_type());
      return squared_error(output.to(torch::kFloat), mine);
    });
    int64_t first = 0;
    for (const int64_t rows : {3, 3, 2}) {
      torch::Tensor loss;
      {
        const accelerate::precision::Autocast autocast(region);
        loss = squared_error(reference->forward(input.narrow(0, first, rows)).to(torch::kFloat),
                             target.narrow(0, first, rows));
      }
      (loss * (static_cast<double>(rows) / 8)).backward();
      first += rows;
    }
    CHECK(dtypes == std::vector<torch::ScalarType>(pipeline.has_last_stage() ? 3 : 0, torch::kBFloat16));
    const auto expected = reference->named_parameters();
    for (const auto& item : pipeline.named_parameters()) {
      CHECK(largest_difference({item.value().grad()}, {expected[item.key()].grad()}) < 1e-6);
    }
  });
}

TEST_CASE("the loss stays on the last rank if it is not broadcast, and evaluations and steps may alternate") {
  with_pipeline_ranks([](const Group& group) {
    auto reference = mlp();
    Pipeline pipeline(group, mlp(), {.micro_batches = 4, .broadcast_loss = false});
    for (int64_t rows = 1; rows <= 9; ++rows) {
      const auto input = waves({rows, 7}, 1), target = waves({rows, 3}, 2);
      const auto expected = reference->forward(input);
      const auto loss = pipeline.train_step(input, target, squared_error);
      const auto output = pipeline.forward(input);
      CHECK(loss.defined() == pipeline.has_last_stage());
      CHECK(output.defined() == pipeline.has_last_stage());
      if (!output.defined()) continue;
      CHECK(std::abs(loss.item<double>() - squared_error(expected, target).item<double>()) < 1e-12);
      CHECK(largest_difference({output}, {expected}) < 1e-12);
    }
  });
}

}  // namespace pipeline_testing
