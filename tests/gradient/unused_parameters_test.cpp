// SPDX-License-Identifier: Apache-2.0
// Parameters that a backward does not reach: on every rank, on some ranks, temporarily, or permanently.
#include "support.hpp"

using namespace gradient_testing;
using accelerate::comm::run_threads;
using accelerate::gradient::run_backward;

namespace {

struct WordsImpl : torch::nn::Module {
  WordsImpl() {
    words = register_module("words", torch::nn::Embedding(torch::nn::EmbeddingOptions(7, 4).sparse(true)));
    out = register_module("out", torch::nn::Linear(4, 2));
    to(torch::kDouble);
  }
  at::Tensor forward(const at::Tensor& indices) { return out(words(indices)); }
  torch::nn::Embedding words{nullptr};
  torch::nn::Linear out{nullptr};
};
using WordsPtr = std::shared_ptr<WordsImpl>;
WordsPtr make_words() { return std::make_shared<WordsImpl>(); }

at::Tensor sentence(int64_t rank) { return torch::tensor({rank, int64_t{3}, int64_t{3}, rank + 2}); }

}  // namespace

TEST_CASE("a parameter that no rank used has an undefined gradient") {
  check_means(2, make_net, [](const NetPtr& net, int64_t rank) { net->forward(batch(rank)).pow(2).sum().backward(); });
}

TEST_CASE("a parameter that one rank used has the mean on every rank, with zeros of the others") {
  check_means(3, make_net, [](const NetPtr& net, int64_t rank) {
    const auto out = rank == 1 ? net->with_extra(batch(rank)) : net->forward(batch(rank));
    out.pow(2).sum().backward();
  });
}

TEST_CASE("a head that runs in forward but is not part of the loss counts as unused") {
  check_means(2, make_net, [](const NetPtr& net, int64_t rank) {
    const auto hidden = torch::tanh(net->first(batch(rank)));
    const auto head = net->extra(hidden);
    (void)head;
    net->second(hidden).pow(2).sum().backward();
  });
}

TEST_CASE("the used parameters may change from step to step, on each rank separately") {
  // Bit r of a step: rank r uses extra.
  const std::vector<int> steps{0b00, 0b11, 0b01, 0b00, 0b10, 0b11, 0b00};
  const auto backward = [](const NetPtr& net, int64_t rank, int uses) {
    const bool extra = ((uses >> rank) & 1) != 0;
    (extra ? net->with_extra(batch(rank)) : net->forward(batch(rank))).pow(2).sum().backward();
  };
  enum class Zeroing { gradient_reducer, drop };
  for (const Zeroing zeroing : {Zeroing::gradient_reducer, Zeroing::drop}) {
    run_threads(2, [&](const Group& group) {
      auto net = built(make_net);
      torch::optim::SGD stock(net->parameters(), 0.1);
      GradientReducer gradient_reducer(group, named(net), small_buckets());
      for (const int uses : steps) {
        CAPTURE(uses);
        zeroing == Zeroing::gradient_reducer ? gradient_reducer.zero_all() : stock.zero_grad();
        backward(net, group.rank(), uses);
        const Grads expected = truth(2, make_net, [&](const NetPtr& n, int64_t r) { backward(n, r, uses); });
        CHECK(same(gradients_of(net->parameters()), expected));
        CHECK(bit_equal(group, gradients_of(net->parameters())));
      }
    });
  }
}

TEST_CASE("a parameter used in an earlier micro-batch of the window counts as used") {
  const auto window = [](const NetPtr& net, int64_t rank) {
    (rank == 0 ? net->with_extra(batch(rank)) : net->forward(batch(rank))).pow(2).sum().backward();
    net->forward(batch(rank, 1)).pow(2).sum().backward();
  };
  const Grads expected = truth(2, make_net, window);
  run_threads(2, [&](const Group& group) {
    auto net = built(make_net);
    GradientReducer gradient_reducer(group, named(net), small_buckets());
    for (int repeat = 0; repeat < 3; ++repeat) {
      gradient_reducer.zero_all();
      gradient_reducer.set_sync(false);
      (group.rank() == 0 ? net->with_extra(batch(0)) : net->forward(batch(group.rank()))).pow(2).sum().backward();
      gradient_reducer.set_sync(true);
      net->forward(batch(group.rank(), 1)).pow(2).sum().backward();
      CHECK(same(gradients_of(net->parameters()), expected));
    }
  });
}

TEST_CASE("a parameter that is frozen before construction is not reduced") {
  check_means(
      2,
      [] {
        auto net = make_net();
        net->first->weight.requires_grad_(false);
        return net;
      },
      [](const NetPtr& net, int64_t rank) { net->with_extra(batch(rank)).pow(2).sum().backward(); });
}

TEST_CASE("a parameter that is frozen later has no gradient and no weight decay") {
  run_threads(2, [](const Group& group) {
    auto net = built(make_net);
    torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.1).weight_decay(0.5));
    GradientReducer gradient_reducer(group, named(net), small_buckets());
    at::Tensor before;
    for (int step = 0; step < 5; ++step) {
      if (step == 2) {
        net->extra->weight.requires_grad_(false);
        before = net->extra->weight.clone();
      }
      gradient_reducer.zero_all();
      net->with_extra(batch(group.rank())).pow(2).sum().backward();
      gradient_reducer.before_step();
      CHECK(net->extra->weight.grad().defined() == (step < 2));
      adamw.step();
    }
    CHECK(torch::equal(net->extra->weight, before));
  });
}

TEST_CASE("a step right after zeroing has no gradients, so no weight decay applies") {
  run_threads(2, [](const Group& group) {
    auto net = built(make_net);
    torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.1).weight_decay(0.5));
    GradientReducer gradient_reducer(group, named(net));
    net->with_extra(batch(group.rank())).sum().backward();
    gradient_reducer.zero_all();
    const at::Tensor before = net->first->weight.clone();
    gradient_reducer.before_step();
    adamw.step();
    CHECK(torch::equal(net->first->weight, before));
    CHECK_FALSE(net->first->weight.grad().defined());
  });
}

TEST_CASE("zeroing some parameters keeps the other gradients") {
  run_threads(2, [](const Group& group) {
    auto net = built(make_net);
    GradientReducer gradient_reducer(group, named(net), small_buckets());
    net->with_extra(batch(group.rank())).pow(2).sum().backward();
    const at::Tensor dropped = net->first->weight.grad().clone();
    const at::Tensor kept = net->second->weight.grad().clone();
    gradient_reducer.zero(net->first->parameters());
    CHECK_FALSE(net->first->weight.grad().defined());
    CHECK(torch::equal(net->second->weight.grad(), kept));
    net->with_extra(batch(group.rank())).pow(2).sum().backward();
    CHECK(same({net->first->weight.grad(), net->second->weight.grad()}, {dropped, kept + kept}));
    gradient_reducer.zero(net->first->parameters());
    net->second(numbers({5, 6}, group.rank())).sum().backward();
    CHECK_FALSE(net->first->weight.grad().defined());
    CHECK_FALSE(torch::equal(net->second->weight.grad(), kept));
    CHECK(bit_equal(group, {net->second->weight.grad()}));
  });
}

TEST_CASE("a rank without the model in its graph joins the others' reduction") {
  const auto backward = [](const NetPtr& net, int64_t rank) {
    if (rank != 1) net->with_extra(batch(rank)).pow(2).sum().backward();
  };
  const Grads expected = truth(3, make_net, backward);
  for (const bool by_hand : {true, false}) {
    run_threads(3, [&](const Group& group) {
      auto net = built(make_net);
      GradientReducer gradient_reducer(group, named(net), small_buckets());
      const std::vector<GradientReducer*> gradient_reducers{&gradient_reducer};
      for (int round = 0; round < 3; ++round) {
        gradient_reducer.zero_all();
        if (by_hand) {
          backward(net, group.rank());
          if (group.rank() == 1) gradient_reducer.join_backward();
        } else {
          run_backward(gradient_reducers, group, [&] { backward(net, group.rank()); });
        }
        CHECK(same(gradients_of(net->parameters()), expected));
        CHECK(bit_equal(group, gradients_of(net->parameters())));
      }
    });
  }
}

TEST_CASE("ranks may omit different models, and a model that all omit is not reduced") {
  // Round 0: rank 0 uses a and b, rank 1 only b. Round 1: rank 0 only a, rank 1 only b. Round 2: no rank uses b.
  const auto reaches_a = [](int round, int64_t rank) { return rank == 0 || round == 2; };
  const auto reaches_b = [](int round, int64_t rank) { return round == 0 || (round == 1 && rank == 1); };
  run_threads(2, [&](const Group& group) {
    auto a = built(make_net);
    auto b = built(make_net);
    GradientReducer of_a(group.duplicate(), named(a), small_buckets());
    GradientReducer of_b(group.duplicate(), named(b), small_buckets());
    const std::vector<GradientReducer*> gradient_reducers{&of_a, &of_b};
    for (int repeat = 0; repeat < 2; ++repeat) {
      for (int round = 0; round < 3; ++round) {
        CAPTURE(round);
        of_a.zero_all();
        of_b.zero_all();
        const auto loss = [&](const NetPtr& net, int64_t rank) { return net->forward(batch(rank)).pow(2).sum(); };
        run_backward(gradient_reducers, group, [&] {
          // b first: the order in which hooks fire is not the order of the reducers.
          at::Tensor total = torch::zeros({}, torch::dtype(at::kDouble).requires_grad(true));
          if (reaches_b(round, group.rank())) total = total + loss(b, group.rank());
          if (reaches_a(round, group.rank())) total = total + loss(a, group.rank());
          total.backward();
        });
        const auto expected = [&](const auto& reaches) {
          return truth(2, make_net, [&](const NetPtr& net, int64_t rank) {
            if (reaches(round, rank)) loss(net, rank).backward();
          });
        };
        CHECK(same(gradients_of(a->parameters()), expected(reaches_a)));
        if (round < 2) CHECK(same(gradients_of(b->parameters()), expected(reaches_b)));
        if (round == 2) {
          of_b.before_step();
          CHECK_FALSE(b->first->weight.grad().defined());
        }
      }
    }
  });
}

TEST_CASE("a rank that accumulated locally and then omits the model contributes its gradients") {
  const auto window = [](const NetPtr& net, int64_t rank) {
    net->forward(batch(rank, 0)).pow(2).sum().backward();
    if (rank == 0) net->forward(batch(rank, 1)).pow(2).sum().backward();
  };
  const Grads expected = truth(2, make_net, window);
  run_threads(2, [&](const Group& group) {
    auto net = built(make_net);
    GradientReducer gradient_reducer(group, named(net), small_buckets());
    const std::vector<GradientReducer*> gradient_reducers{&gradient_reducer};
    for (int repeat = 0; repeat < 3; ++repeat) {
      gradient_reducer.zero_all();
      gradient_reducer.set_sync(false);
      run_backward(gradient_reducers, group, [&] { net->forward(batch(group.rank(), 0)).pow(2).sum().backward(); });
      gradient_reducer.set_sync(true);
      run_backward(gradient_reducers, group, [&] {
        if (group.rank() == 0) net->forward(batch(0, 1)).pow(2).sum().backward();
      });
      CHECK(same(gradients_of(net->parameters()), expected));
    }
  });
}

TEST_CASE("a sparse embedding's gradient stays sparse and is the mean") {
  const auto backward = [](const WordsPtr& net, int64_t rank) { net->forward(sentence(rank)).pow(2).sum().backward(); };
  check_means(2, make_words, backward);
  check_means(3, make_words, backward);
  run_threads(2, [&](const Group& group) {
    auto net = built(make_words);
    GradientReducer gradient_reducer(group, named(net));
    for (int round = 0; round < 3; ++round) {
      gradient_reducer.zero_all();
      CHECK_FALSE(net->words->weight.grad().defined());
      backward(net, group.rank());
      REQUIRE(net->words->weight.grad().is_sparse());
      CHECK(net->words->weight.grad()._nnz() == 4);  // rows 0 to 3 of seven
      CHECK(gradient_reducer.gradients().size() == 2);
    }
  });
}

TEST_CASE("a sparse embedding that one rank or none used, and a model with nothing else") {
  check_means(2, make_words, [](const WordsPtr& net, int64_t rank) {
    const auto in = rank == 0 ? net->words(sentence(0)) : numbers({4, 4}, 5);
    net->out(in).pow(2).sum().backward();
  });
  check_means(2, make_words, [](const WordsPtr& net, int64_t) { net->out(numbers({4, 4}, 5)).sum().backward(); });
  const auto only = [] {
    return std::make_shared<torch::nn::EmbeddingImpl>(torch::nn::EmbeddingOptions(7, 4).sparse(true));
  };
  check_means(
      2, only,
      [](const std::shared_ptr<torch::nn::EmbeddingImpl>& words, int64_t rank) {
        words->forward(sentence(rank)).sum().backward();
      },
      {}, 1e-6);
  // Used by both ranks, then by rank 1 alone, then by neither, then by both. If no rank uses it at first, no rank knows
  // that it is sparse, and its gradients become dense.
  for (const std::vector<int>& steps : {std::vector<int>{0b11, 0b10, 0b00, 0b11}, {0b00, 0b10, 0b01, 0b11}}) {
    run_threads(2, [&](const Group& group) {
      auto net = built(make_words);
      GradientReducer gradient_reducer(group, named(net));
      for (const int uses : steps) {
        const auto backward = [&](const WordsPtr& n, int64_t r) {
          const auto in = ((uses >> r) & 1) != 0 ? n->words(sentence(r)) : numbers({4, 4}, 5);
          n->out(in).pow(2).sum().backward();
        };
        gradient_reducer.zero_all();
        backward(net, group.rank());
        CHECK(same(gradients_of(net->parameters()), truth(2, make_words, backward)));
        if (uses != 0) CHECK(net->words->weight.grad().is_sparse() == (steps[0] != 0));
      }
    });
  }
}

TEST_CASE("sparse gradients accumulate without synchronisation, and over two reductions") {
  const auto backward = [](const WordsPtr& net, int64_t rank, int64_t round) {
    net->forward(sentence(rank) + round).pow(2).sum().backward();
  };
  const auto window = [&](const WordsPtr& net, int64_t rank) {
    for (int64_t round = 0; round < 3; ++round) backward(net, rank, round);
  };
  const Grads expected = truth(2, make_words, window);
  run_threads(2, [&](const Group& group) {
    auto net = built(make_words);
    GradientReducer gradient_reducer(group, named(net));
    for (int repeat = 0; repeat < 3; ++repeat) {
      gradient_reducer.zero_all();
      for (int64_t round = 0; round < 3; ++round) {
        gradient_reducer.set_sync(round > 0);
        backward(net, group.rank(), round);
      }
      CHECK(same(gradients_of(net->parameters()), expected));
      CHECK(net->words->weight.grad().is_sparse());
    }
  });
}

TEST_CASE("an embedding that is dense on one rank and sparse on another becomes dense") {
  const auto backward = [](const WordsPtr& net, int64_t rank) {
    auto loss = net->forward(sentence(rank)).pow(2).sum();
    if (rank == 0) loss = loss + net->words->weight.pow(2).sum();
    loss.backward();
  };
  check_means(2, make_words, backward);
}

TEST_CASE("static_graph keeps unused parameters unused without counting") {
  GradientReducerOptions options = small_buckets();
  options.static_graph = true;
  check_means(
      2, make_net, [](const NetPtr& net, int64_t rank) { net->forward(batch(rank)).pow(2).sum().backward(); }, options);
  check_means(
      2, make_words, [](const WordsPtr& net, int64_t rank) { net->forward(sentence(rank)).sum().backward(); }, options);
}
