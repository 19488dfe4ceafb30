// SPDX-License-Identifier: Apache-2.0
// Compares GradientReducer with c10d::Reducer of LibTorch on the same group.
#include "support.hpp"
//
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

using namespace gradient_testing;
using accelerate::comm::run_threads;

namespace {

class Oracle {
 public:
  Oracle(const Group& group, std::vector<at::Tensor> parameters, bool find_unused) : find_unused_(find_unused) {
    const std::vector<bool> sparse(parameters.size());
    auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(parameters, {50, 200}, sparse);
    std::reverse(buckets.begin(), buckets.end());
    reducer_ = std::make_shared<c10d::Reducer>(parameters, buckets, group.process_group(), sparse, 200, find_unused,
                                               true, std::unordered_map<size_t, std::string>{}, 50, false, false,
                                               std::vector<int64_t>{});
    logger_ = std::make_shared<c10d::Logger>(reducer_);
    reducer_->set_logger(logger_);
  }
  void backward(const at::Tensor& loss) {
    reducer_->prepare_for_forward();
    reducer_->rebuild_buckets();
    reducer_->prepare_for_backward(find_unused_ ? std::vector<at::Tensor>{loss} : std::vector<at::Tensor>{});
    loss.backward();
    reducer_->check_finalized();
  }

 private:
  bool find_unused_;
  std::shared_ptr<c10d::Reducer> reducer_;
  std::shared_ptr<c10d::Logger> logger_;
};

// Loss of (net, rank, round).
using LossOf = std::function<at::Tensor(const NetPtr&, int64_t, int64_t)>;

// Trains two copies with SGD, one with each reducer; losses and gradients must be bit-equal in every round.
void compare(int64_t ranks, const LossOf& loss_of, int64_t accumulate = 1, bool find_unused = false) {
  run_threads(ranks, [&](const Group& group) {
    auto ours = built(make_net);
    auto theirs = built(make_net);
    torch::optim::SGD our_sgd(ours->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01));
    torch::optim::SGD their_sgd(theirs->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01));
    GradientReducer gradient_reducer(group, named(ours), small_buckets());
    Oracle oracle(group.duplicate(), theirs->parameters(), find_unused);
    for (int64_t step = 0; step < 8; ++step) {
      CAPTURE(step);
      gradient_reducer.zero_all();
      // The Reducer's views make zero_grad() throw; those of this library do not (gradient_reducer_misuse_test).
      for (const auto& parameter : theirs->parameters()) parameter.mutable_grad().reset();
      for (int64_t micro = 0; micro < accumulate; ++micro) {
        const bool last = micro + 1 == accumulate;
        const int64_t round = step * accumulate + micro;
        gradient_reducer.set_sync(last);
        loss_of(ours, group.rank(), round).backward();
        const at::Tensor loss = loss_of(theirs, group.rank(), round);
        last ? oracle.backward(loss) : loss.backward();
      }
      gradient_reducer.before_step();
      CHECK(same(gradients_of(ours->parameters()), gradients_of(theirs->parameters()), 0));
      our_sgd.step();
      their_sgd.step();
    }
    CHECK(same(ours->parameters(), theirs->parameters(), 0));
    CHECK(bit_equal(group, ours->parameters()));
  });
}

}  // namespace

TEST_CASE("eight steps have the same bits as c10d::Reducer, on two and four ranks") {
  for (const int64_t ranks : {2, 4}) {
    compare(ranks, [](const NetPtr& net, int64_t rank, int64_t round) {
      return net->with_extra(batch(rank, round)).pow(2).mean();
    });
  }
}

TEST_CASE("no_sync windows have the same bits as c10d::Reducer") {
  compare(
      2,
      [](const NetPtr& net, int64_t rank, int64_t round) { return net->with_extra(batch(rank, round)).pow(2).mean(); },
      3);
}

TEST_CASE("unused parameters have the same bits as c10d::Reducer with find_unused_parameters") {
  compare(
      2,
      [](const NetPtr& net, int64_t rank, int64_t round) {
        const bool extra = (round % 4) == 1 || ((round % 4) == 2 && rank == 1);
        return (extra ? net->with_extra(batch(rank, round)) : net->forward(batch(rank, round))).pow(2).mean();
      },
      1, true);
}

TEST_CASE("several forwards and one backward have the same bits as c10d::Reducer") {
  compare(2, [](const NetPtr& net, int64_t rank, int64_t round) {
    return net->with_extra(batch(rank, round)).pow(2).mean() + net->forward(batch(rank, round + 100)).pow(2).mean();
  });
}
